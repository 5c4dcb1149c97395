"""Comparison of runs: parameters, metrics, results, artifacts and times side by side.

``read_runs`` reads the jobs; ``compare_runs`` compares them (pure).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, JsonValue
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument
from rdukit.units import elapsed_s
from rdukit_platform.catalog.figures import figures_of
from rdukit_platform.catalog.model import BoxDescription, Boxes
from rdukit_platform.catalog.own import box_of, find_version
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs.metrics import Summary, iterate_progress_events, summarize
from rdukit_platform.jobs.schemas import Job, show_job
from rdukit_platform.jobs.service import get_job

#: Largest number of runs in one comparison.
MOST: Final = 8


@dataclass(frozen=True, slots=True)
class Run:
    """A job with the data that a comparison needs."""

    job: Job
    #: Default parameters of the box, if it is known; the job's own override them.
    defaults: Mapping[str, object]
    metrics: Mapping[str, Summary]
    #: Artifact id to the digest of its content.
    digests: Mapping[str, str]


class Line(BaseModel):
    """A property with one value per run, in the runs' order; null: the run lacks it."""

    name: str
    values: list[JsonValue]
    differs: bool


class MetricLine(BaseModel):
    """A metric of the progress events: for each run its last, lowest and highest value."""

    name: str
    last: list[JsonValue]
    lowest: list[float | None]
    highest: list[float | None]


class Comparison(BaseModel):
    """Runs side by side. Artifacts are shown by id and compared by content; times are in seconds."""

    jobs: list[str]
    about: list[Line]
    parameters: list[Line]
    metrics: list[MetricLine]
    results: list[Line]
    artifacts: list[Line]
    durations: list[Line]


def read_ids(texts: Sequence[str]) -> list[str]:
    """Split texts into distinct ids of runs, in their order; a text holds one id, or several with commas.

    Raises:
        InvalidArgument: there are fewer than two ids, or more than ``MOST``.
    """
    ids = list(dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip()))
    if not 2 <= len(ids) <= MOST:
        raise InvalidArgument(f"{len(ids)} different runs to compare; expected 2 to {MOST}")
    return ids


def read_runs(session: Session, boxes: Boxes, tenant_id: str, ids: Sequence[str]) -> list[Run]:
    """Read the tenant's jobs with these ids, in the order of ``ids``.

    Raises:
        NotFound: the tenant has no such job.
    """
    rows = [get_job(session, tenant_id, job_id) for job_id in ids]
    return [_read_run(session, boxes, row) for row in rows]


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Put runs side by side (pure)."""
    metrics = list(dict.fromkeys(name for run in runs for name in run.metrics))
    return Comparison(
        jobs=[run.job.id for run in runs],
        about=_lines(runs, lambda run: {name: getattr(run.job, name) for name in _ABOUT}),
        parameters=_lines(runs, lambda run: {**run.defaults, **run.job.parameters}),
        metrics=[_metric_line(name, [run.metrics.get(name) for run in runs]) for name in metrics],
        results=_lines(runs, lambda run: figures_of(run.job.result)),
        artifacts=_artifact_lines(runs),
        durations=_lines(runs, lambda run: durations_of(run.job)),
    )


def durations_of(job: Job) -> dict[str, float | None]:
    """Return a job's seconds of waiting, of running since its first start, and in total; ``None``: open (pure)."""

    def between(begin: float | None, end: float | None) -> float | None:
        return None if begin is None or end is None else round(elapsed_s(begin, end), 3)

    return {
        "waited_s": between(job.created_at, job.started_at),
        "ran_s": between(job.started_at, job.ended_at),
        "took_s": between(job.created_at, job.ended_at),
    }


_ABOUT: Final = ("name", "box", "verb", "state", "reason", "tiles", "attempt")


def _read_run(session: Session, boxes: Boxes, row: JobRow) -> Run:
    box = _find_box(session, boxes, row)
    verb = None if box is None else next((verb for verb in box.verbs if verb.name == row.verb), None)
    artifacts = [session.get(ArtifactRow, value) for value in (*row.inputs.values(), *row.outputs.values())]
    return Run(
        job=show_job(row),
        defaults={} if verb is None else {p.name: p.default for p in verb.parameters if p.default is not None},
        metrics=summarize(event.values for event in iterate_progress_events(session, row.id)),
        digests={one.id: one.digest for one in artifacts if one is not None and one.tenant_id == row.tenant_id},
    )


def _find_box(session: Session, boxes: Boxes, row: JobRow) -> BoxDescription | None:
    if row.box_version is None:
        return boxes.boxes.get(row.box)
    own = find_version(session, row.tenant_id, row.box, row.box_version)
    return None if own is None else box_of(own)


def _lines(runs: Sequence[Run], table_of: Callable[[Run], Mapping[str, object]]) -> list[Line]:
    tables = [table_of(run) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    lines = [(name, [table.get(name) for table in tables]) for name in names]
    return [
        Line.model_validate({"name": name, "values": values, "differs": any(v != values[0] for v in values)})
        for name, values in lines
    ]


def _metric_line(name: str, found: Sequence[Summary | None]) -> MetricLine:
    return MetricLine(
        name=name,
        last=[None if one is None else one.last for one in found],
        lowest=[None if one is None else one.lowest for one in found],
        highest=[None if one is None else one.highest for one in found],
    )


def _artifact_lines(runs: Sequence[Run]) -> list[Line]:
    lines = [
        *((f"input {line.name}", line.values) for line in _lines(runs, lambda run: run.job.inputs)),
        *((f"output {line.name}", line.values) for line in _lines(runs, lambda run: run.job.outputs)),
    ]
    found = []
    for name, values in lines:
        contents = [run.digests.get(str(value), value) for run, value in zip(runs, values, strict=True)]
        found.append(Line(name=name, values=values, differs=any(content != contents[0] for content in contents)))
    return found
