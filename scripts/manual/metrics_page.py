"""Reference of the metrics for Prometheus, from the registries of gateway, node exporter and ModelBoxes."""

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from rdukit_modelbox.server.service import Metrics as BoxMetrics
from rdukit_node.telemetry.exporter import METRICS as NODE_METRICS
from rdukit_platform.artifacts.stores import bucket
from rdukit_platform.gateway import middleware
from rdukit_platform.gateway.metrics import METRICS as PLATFORM_METRICS
from rdukit_serving.experts.models import ExpertCollector
from rdukit_serving.models.metrics import ServingCollector

#: A metric: name as it is scraped, labels, help text.
Row = tuple[str, tuple[str, ...], str]
INTRODUCTION: Final = """Everything that Prometheus can scrape. [observability.md](observability.md#metrics) says
how, and [alerts.md](alerts.md) has alerts and dashboards that use these metrics. A histogram `NAME` has the series
`NAME_bucket`, `NAME_sum` and `NAME_count`.
"""
GATEWAY: Final = """`GET /metrics` of the gateway needs a token. The scope `metrics` shows this whole table. A
tenant's token with `jobs:read` gets the tenant's own `rdukit_jobs`, one with `endpoints:read` its own
`rdukit_endpoint_…`.

- `rdukit_part_up`: the parts are `gateway`, `database`, `broker`, `node`, `scheduler` and `worker`; with a bucket of S3
  also `artifacts`.
- `rdukit_endpoints_unserved` leaves out endpoints that sleep by `idle`.
- `rdukit_endpoint_…_total`: `model` is the expert or adapter of a bundle, and empty for other endpoints.
- `rdukit_gateway_tenant_…`: since this gateway started. 200 tenants are counted by name; all others, and callers
  without a token, are counted together. `seconds` counts until the answer begins.
- `rdukit_store_…` exists where artifacts are in a bucket. The status 0 means that the bucket did not answer.
"""
NODE: Final = """`sambanova_exporter` ([tools.md](tools.md#sambanova_exporter-figures-for-prometheus)) serves these
at port 9101. Names that begin with `sambanova_` are the vendor's, `rdukit_` is ours. A name with `emulated` is a
figure of the cost model. Each component has a series for each type of error that it can have, from the first scrape
on. Percentages cover the time since the previous scrape, if that was 1 s to 5 min ago; otherwise about a quarter of a
second.
"""
BOX: Final = """Each ModelBox that serves has `/metrics` on its REST port. Names that begin with `nv_` are Triton's.
A text or an embedding counts as one inference. For a [bundle](bundles.md) the label `model` is the expert.
"""


def metrics_page(head: str) -> str:
    """Return the page ``metrics.md``; ``head`` is the comment that says that the page is generated."""
    blocks = ["# Metrics", head, INTRODUCTION]
    blocks += ["## Gateway", GATEWAY, _table(gateway_rows())]
    node = [(metric.name, metric.labels, metric.help) for metric in NODE_METRICS.values()]
    blocks += ["## Node", NODE, _table(node)]
    blocks += ["## ModelBox", BOX, _table(box_rows())]
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def gateway_rows() -> Iterator[Row]:
    """Yield the gateway's metrics: requests, the platform's, and those of a bucket."""
    for collector in (middleware.REQUESTS, middleware.SECONDS, bucket.REQUESTS, bucket.BYTES):
        yield from _collector_rows(collector)
    yield from ((metric.name, metric.labels, metric.help) for metric in PLATFORM_METRICS)


def box_rows() -> Iterator[Row]:
    """Yield a box's metrics: operations, served models, experts. Nothing is served meanwhile."""
    metrics = BoxMetrics("box")
    for collector in _collectors(metrics.registry):
        yield from _collector_rows(collector)
    models: Any = SimpleNamespace(repositories=())
    yield from _family_rows(ServingCollector(models))
    fit, table = SimpleNamespace(experts=()), SimpleNamespace(held_bytes=0)
    pool: Any = SimpleNamespace(bundle=SimpleNamespace(fit=fit), table=table)
    yield from _family_rows(ExpertCollector(pool))


def _collectors(registry: CollectorRegistry) -> list[Collector]:
    """Return what a registry collects from, in the order of registration; the library has no public list."""
    return list(registry._collector_to_names)


def _collector_rows(collector: Any) -> Iterator[Row]:
    """Yield the row of a metric object of the library, which knows its labels before it has values."""
    for family in collector.describe():
        yield _scraped_name(family), tuple(collector._labelnames), family.documentation


def _family_rows(collector: Collector) -> Iterator[Row]:
    """Yield the rows of a collector that makes families at each scrape."""
    for family in collector.collect():
        labels: tuple[str, ...] = tuple(getattr(family, "_labelnames", ()))
        yield _scraped_name(family), labels, family.documentation


def _scraped_name(family: Any) -> str:
    """Return a family's name as the exposition has it: counters end in ``_total``."""
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def _table(rows: Iterable[Row]) -> str:
    lines = ["| metric | labels | what |", "| --- | --- | --- |"]
    for name, labels, text in rows:
        lines.append(f"| `{name}` | {', '.join(f'`{label}`' for label in labels) or '–'} | {text} |")
    return "\n".join(lines)
