"""Metrics that a box's verbs report: declared in its ``modelbox.yaml``, and a check for undeclared ones.

Requests that choose by an unknown metric (sweeps, best-of steps) are refused at once.
A verb without declared metrics may report any.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Protocol

from pydantic import Field, StringConstraints

from rdukit.errors import suggest
from rdukit_modelbox.contract.parts import Sentence, Verb
from rdukit_serving.strict_yaml.schema_errors import StrictModel

MetricName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_./-]{0,63}$")]


class Better(StrEnum):
    """Direction in which a metric gets better."""

    HIGHER = "higher"
    LOWER = "lower"


class Reported(StrEnum):
    """Time at which a metric is reported: with the verb's result, in its progress, or both."""

    RESULT = "result"
    PROGRESS = "progress"
    BOTH = "both"


class BoxMetric(StrictModel):
    """A number that verbs report: its name, unit, and the direction in which it gets better."""

    name: MetricName
    verbs: tuple[Verb, ...] = Field(min_length=1, description="Verbs that report the metric.")
    help: Sentence
    unit: str | None = Field(default=None, min_length=1, max_length=40, description="Unit: s, samples/s.")
    better: Better | None = Field(default=None, description="higher or lower; without it neither is better.")
    reported: Reported = Field(
        default=Reported.RESULT, description="Reported in the result, in progress events, or in both."
    )


class WithMetrics(Protocol):
    """The part of a box with its metrics."""

    @property
    def metrics(self) -> Sequence[BoxMetric]: ...


def metrics_of(box: WithMetrics, verb: Verb) -> tuple[BoxMetric, ...]:
    """Return the metrics that a verb declares, in the file's order."""
    return tuple(metric for metric in box.metrics if verb in metric.verbs)


def find_undeclared(box: WithMetrics, verb: Verb, reported: Mapping[str, object]) -> list[str]:
    """Return the names of numbers in a run's result that the box does not declare for the verb (pure)."""
    declared = {metric.name for metric in metrics_of(box, verb) if metric.reported is not Reported.PROGRESS}
    if not declared:
        return []
    return [name for name, value in reported.items() if is_number(value) and name not in declared]


def is_number(value: object) -> bool:
    """Return whether a figure of a result is a metric: a number, not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def words_for_undeclared(box: WithMetrics, verb: Verb, names: Iterable[str]) -> str:
    """Describe undeclared metrics, each with a similar declared one, and the next step (pure)."""
    declared = [metric.name for metric in metrics_of(box, verb)]
    hints = " ".join(f"{name!r}.{suggest(name, declared)}" for name in names)
    return f"{verb} reported metrics that the box does not declare: {hints} Declare them under metrics."


def find_metric_problems(
    metrics: Sequence[BoxMetric], verbs: Collection[Verb] | None
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield contradictions in a list of metrics, with their keys (pure)."""
    seen: set[tuple[Verb, str]] = set()
    for number, metric in enumerate(metrics):
        for place, verb in enumerate(metric.verbs):
            if verbs is not None and verb not in verbs:
                words = f"{verb} is used but not listed under verbs: {', '.join(verbs)}"
                yield ("metrics", number, "verbs", place), words
            if (verb, metric.name) in seen:
                yield ("metrics", number, "name"), f"verb {verb} has more than one metric named {metric.name!r}"
            seen.add((verb, metric.name))


def merge_metrics(
    given: Sequence[Mapping[str, Any]], own: Sequence[Any], verbs: Collection[str]
) -> list[tuple[Mapping[str, Any], int | None]]:
    """Return the task's metrics that the box does not replace, then the box's, each with its place.

    The place is that in the box's list; ``None``: it is the task's (pure).
    """
    mine = {
        (str(verb), str(metric.get("name")))
        for metric in own
        if isinstance(metric, Mapping) and isinstance(metric.get("verbs"), list)
        for verb in metric["verbs"]
    }
    found: list[tuple[Mapping[str, Any], int | None]] = []
    for metric in given:
        left = [verb for verb in metric["verbs"] if verb in verbs and (verb, metric["name"]) not in mine]
        if left:
            found.append(({**metric, "verbs": left}, None))
    return [*found, *((metric, number) for number, metric in enumerate(own))]
