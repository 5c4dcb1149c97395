"""Metrics of served models, read from their statistics when asked: counting costs the hot path nothing more.

Source: Triton's names, which dashboards for it read; ours begin with ``rdukit_``.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from rdukit_serving.models.served import ServedModels
from rdukit_serving.models.statistics import BUCKETS_US
from rdukit_serving.models.version import ModelVersion, VersionState

_HELP: Final = {
    "request_success": "Inference requests that succeeded.",
    "request_failure": "Inference requests that were refused or failed.",
    "count": "Inferences: rows answered.",
    "exec_count": "Batches run on the device.",
    "request_duration_us": "Total time of requests in the box.",
    "queue_duration_us": "Total waiting time of requests.",
    "compute_input_duration_us": "Total time of copying requests' inputs to the device.",
    "compute_infer_duration_us": "Total computing time of requests.",
    "compute_output_duration_us": "Total time of copying requests' outputs back.",
}


class ServingCollector(Collector):
    """Metrics of all versions of the models of a server, with the labels ``model`` and ``version``."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yield one family after another."""
        versions = [
            (repository.name, number, version)
            for repository in self._models.repositories
            for number, version in sorted(repository.versions.items())
        ]
        for name, words in _HELP.items():
            # Triton's counters have no suffix, which the exposition of a counter would add.
            family = UnknownMetricFamily(f"nv_inference_{name}", words, labels=["model", "version"])
            for model, number, version in versions:
                family.add_metric([model, number], version.statistics.triton_metrics()[name])
            yield family
        pending = GaugeMetricFamily(
            "nv_inference_pending_request_count", "Requests that wait or run.", labels=["model", "version"]
        )
        ready = GaugeMetricFamily("rdukit_box_model_ready", "1: the version answers.", labels=["model", "version"])
        restarts = CounterMetricFamily(
            "rdukit_box_model_restarts", "Restarts of inference processes.", labels=["model", "version"]
        )
        load = GaugeMetricFamily(
            "rdukit_box_model_load_seconds", "Time to load a model, on this host.", labels=["model", "version"]
        )
        tokens = CounterMetricFamily(
            "rdukit_box_text_tokens",
            "Tokens by kind: prompt, cached prompt, completion, drafted, and accepted drafts.",
            labels=["model", "version", "kind"],
        )  # fmt: skip
        for model, number, version in versions:
            labels = [model, number]
            if version.text is not None:
                tokens.add_metric([*labels, "prompt"], version.texts.prompt_tokens)
                tokens.add_metric([*labels, "cached"], version.texts.cached_tokens)
                tokens.add_metric([*labels, "completion"], version.texts.completion_tokens)
                tokens.add_metric([*labels, "guessed"], version.texts.guessed_tokens)
                tokens.add_metric([*labels, "accepted"], version.texts.accepted_tokens)
            pending.add_metric(labels, version.pending)
            ready.add_metric(labels, float(version.state is VersionState.READY and version.pid is not None))
            restarts.add_metric(labels, version.restarts)
            load.add_metric(labels, version.load_seconds)
        yield from (pending, ready, restarts, load, tokens, self._histogram(versions))

    def _histogram(self, versions: list[tuple[str, str, ModelVersion]]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(
            "rdukit_box_inference_seconds", "One request from arrival to answer, on this host.",
            labels=["model", "version"],
        )  # fmt: skip
        for model, number, version in versions:
            statistics, total = version.statistics, 0
            buckets = []
            for bound, count in zip([*BUCKETS_US, None], statistics.histogram, strict=True):
                total += count
                buckets.append(("+Inf" if bound is None else repr(bound / 1e6), total))
            family.add_metric([model, number], buckets, statistics.request_us / 1e6)
        return family
