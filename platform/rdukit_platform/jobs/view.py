"""Rows as what the API shows."""

from collections.abc import Iterable

from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import AttemptRow, JobEventRow, JobRow, PipelineRow
from rdukit_platform.jobs.schemas import Attempt, Event, Job, Pipeline
from rdukit_platform.jobs.states import FINAL, JobState


def show_job(row: JobRow, attempts: Iterable[AttemptRow] | None = None) -> Job:
    """A job, with its attempts if they are given."""
    return Job.model_validate(
        {
            **{name: getattr(row, name) for name in Job.model_fields if hasattr(row, name)},
            "box": str(Selector(row.box, row.box_version)),
            "pipeline": row.pipeline_id,
            "attempts": None if attempts is None else [show_attempt(attempt) for attempt in attempts],
        }
    )


def show_attempt(row: AttemptRow) -> Attempt:
    """An attempt, without its token."""
    return Attempt.model_validate({name: getattr(row, name) for name in Attempt.model_fields})


def show_event(row: JobEventRow) -> Event:
    """An event."""
    return Event.model_validate(
        {"sequence": row.id, "kind": row.kind, "at": row.at, "attempt": row.attempt, "data": row.data}
    )


def show_pipeline(row: PipelineRow, jobs: Iterable[JobRow]) -> Pipeline:
    """A pipeline with its jobs in the order of its steps."""
    shown = [show_job(job) for job in jobs]
    state = pipeline_state([JobState(job.state) for job in shown])
    return Pipeline(id=row.id, name=row.name, state=state, created_at=row.created_at, jobs=shown)


def pipeline_state(states: Iterable[JobState]) -> JobState:
    """The state of jobs together: failed or cancelled as soon as one is and none goes on, else how far the last is."""
    found = list(states)
    if all(state is JobState.SUCCEEDED for state in found):
        return JobState.SUCCEEDED
    if all(state in FINAL for state in found):
        return JobState.FAILED if JobState.FAILED in found else JobState.CANCELLED
    if any(state in {JobState.RUNNING, JobState.STARTING, JobState.RETRYING} for state in found):
        return JobState.RUNNING
    return JobState.QUEUED if JobState.QUEUED in found else JobState.SUBMITTED
