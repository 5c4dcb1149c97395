"""Metrics of a run: the values of its progress events, and their last, lowest and highest."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import BaseModel, JsonValue
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.strict_json import find_number
from rdukit_platform.db.models import JobEventRow

#: Numbers of a progress event that are its position, not metrics.
PLACES: Final = frozenset({"step", "total"})
#: Number of events that one query reads.
BATCH: Final = 5000


class ProgressEvent(NamedTuple):
    """A progress event: its sequence number, time, attempt and data."""

    sequence: int
    at: float
    attempt: int
    values: Mapping[str, object]


class MetricPoint(BaseModel):
    """Figures of a progress event. ``sequence`` grows; a retry may repeat steps, with a later ``attempt``."""

    sequence: int
    at: float
    attempt: int
    values: dict[str, JsonValue]


class MetricPage(BaseModel):
    """Points, oldest first; ``next_after`` asks for the rest."""

    points: list[MetricPoint]
    next_after: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A metric of one run. ``last`` may be a text such as NaN; ``lowest`` and ``highest`` are finite or None."""

    last: float | str
    lowest: float | None
    highest: float | None


def read_progress_events(session: Session, job_id: str, after: int = 0, limit: int = BATCH) -> list[ProgressEvent]:
    """Read a job's progress events after a sequence number, oldest first."""
    columns = (JobEventRow.id, JobEventRow.at, JobEventRow.attempt, JobEventRow.data)
    query = select(*columns).where(JobEventRow.job_id == job_id, JobEventRow.kind == "progress", JobEventRow.id > after)
    return [ProgressEvent(*row) for row in session.execute(query.order_by(JobEventRow.id).limit(limit))]


def iterate_progress_events(session: Session, job_id: str) -> Iterator[ProgressEvent]:
    """Yield all progress events of a job, oldest first, a batch at a time."""
    after = 0
    while batch := read_progress_events(session, job_id, after):
        yield from batch
        after = batch[-1].sequence


def show_page(events: Sequence[ProgressEvent], limit: int) -> MetricPage:
    """Return a page from up to ``limit + 1`` events (pure)."""
    points = [MetricPoint.model_validate(one._asdict()) for one in events[:limit]]
    return MetricPage(points=points, next_after=points[-1].sequence if len(events) > limit else None)


def summarize(events: Iterable[Mapping[str, object]]) -> dict[str, Summary]:
    """Summarize the metrics of progress events, which are given oldest first (pure)."""
    found: dict[str, Summary] = {}
    for values in events:
        for name, value in values.items():
            number = None if name in PLACES else find_number(value)
            if number is None:
                continue
            before = found.get(name) or Summary(number, None, None)
            seen = [n for n in (before.lowest, before.highest, number) if n is not None and math.isfinite(n)]
            last = number if math.isfinite(number) else str(value)
            found[name] = Summary(last, min(seen, default=None), max(seen, default=None))
    return found


def series_of(events: Iterable[Mapping[str, object]], metric: str = "") -> dict[str, list[tuple[float, float]]]:
    """Return the points (step, value) of each metric whose step and value are finite (pure).

    Each stage, such as an evaluation within a training, counts its own steps. A metric's points come from the stage
    that reported it most often. An event without a stage belongs to the stage before it.

    Args:
        metric: only this one; empty: all.
    """
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    stage = ""
    for values in events:
        step, stage = find_number(values.get("step")), str(values.get("stage") or stage)
        if step is None or not math.isfinite(step):
            continue
        for name in (metric,) if metric else values:
            value = None if name in PLACES else find_number(values.get(name))
            if value is not None and math.isfinite(value):
                found.setdefault((name, stage), []).append((step, value))
    series: dict[str, list[tuple[float, float]]] = {}
    for (name, _), points in found.items():
        if len(points) > len(series.get(name, ())):
            series[name] = points
    return series


def points_of(events: Iterable[Mapping[str, object]], metric: str) -> list[tuple[float, float]]:
    """Return (step, value) of one metric, as by ``series_of`` (pure)."""
    return series_of(events, metric).get(metric, [])
