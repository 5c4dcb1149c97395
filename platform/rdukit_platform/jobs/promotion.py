"""A pipeline's next steps: queued when their inputs are there, ended when an earlier step gave none.

It happens in the transaction that ends a step, so nobody has to look through all jobs that wait.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs.changes import apply_event
from rdukit_platform.jobs.states import FINAL, JobEvent, JobReason, JobState

REFERENCE: Final = re.compile(r"^@(?P<step>[a-z][a-z0-9_-]*)\.(?P<slot>[A-Za-z0-9_-]+)$")


def read_reference(text: str) -> tuple[str, str] | None:
    """Read step and slot of ``@step.slot``; ``None`` for an artifact id.

    Raises:
        InvalidArgument: it starts with ``@`` but is no reference.
    """
    if not text.startswith("@"):
        return None
    found = REFERENCE.match(text)
    if found is None:
        raise InvalidArgument(f"{text!r} is not a reference; legal: @step.slot, such as @train.checkpoint")
    return found["step"], found["slot"]


def pipeline_jobs(session: Session, pipeline_id: str) -> Sequence[JobRow]:
    """Return a pipeline's jobs in the order of its steps."""
    return session.scalars(
        select(JobRow).where(JobRow.pipeline_id == pipeline_id).order_by(JobRow.created_at, JobRow.id)
    ).all()


def end_job(
    session: Session,
    job: JobRow,
    event: JobEvent,
    now: float,
    reason: JobReason | None,
    data: Mapping[str, object] | None = None,
    **columns: object,
) -> JobState:
    """Apply an event that may end ``job``, which the caller has locked; if it does, its pipeline goes on."""
    after = apply_event(session, job, event, now, reason, data, **columns)
    if after in FINAL and job.pipeline_id is not None:
        promote_steps(session, job.pipeline_id, now)
    return after


def promote_steps(session: Session, pipeline_id: str, now: float) -> int:
    """Queue the submitted steps whose inputs are all there; end those whose earlier step gave none. Returns how many.

    The caller holds the pipeline (``lock_job``): of two steps that end at once the later one sees the other's end.
    """
    steps = {job.step or "": job for job in pipeline_jobs(session, pipeline_id)}
    # An earlier step's end may end a later one, which may end one after it: steps refer to steps before them.
    return sum(_promote(session, job, steps, now) for job in steps.values() if job.state == JobState.SUBMITTED)


def promote_all(session: Session, now: float) -> int:
    """Promote all pipelines' steps, and the lone jobs of versions that left them submitted. Returns how many."""
    rows = session.scalars(select(JobRow).where(JobRow.state == str(JobState.SUBMITTED))).all()
    for job in rows:
        if job.pipeline_id is None:
            apply_event(session, job, JobEvent.READY, now)
    lone = sum(job.pipeline_id is None for job in rows)
    pipelines = sorted({job.pipeline_id for job in rows if job.pipeline_id is not None})
    return lone + sum(promote_steps(session, pipeline, now) for pipeline in pipelines)


def _promote(session: Session, job: JobRow, steps: dict[str, JobRow], now: float) -> bool:
    inputs: dict[str, str] = {}
    for slot, text in job.inputs.items():
        reference = read_reference(text)
        if reference is None:
            inputs[slot] = text
            continue
        source = steps[reference[0]]
        if source.state == JobState.SUCCEEDED and reference[1] in source.outputs:
            inputs[slot] = source.outputs[reference[1]]
        elif JobState(source.state) in FINAL:
            data: dict[str, object] = {"step": reference[0], "job": source.id, "state": source.state}
            apply_event(session, job, JobEvent.STRAND, now, JobReason.UPSTREAM_ENDED, data)
            return True
        else:
            return False
    apply_event(session, job, JobEvent.READY, now, inputs=inputs)
    return True
