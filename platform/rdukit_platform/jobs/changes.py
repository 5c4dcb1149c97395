"""Changing a job's row: one versioned update and its event row, in the caller's transaction."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqlalchemy import JSON, CursorResult, Update, bindparam, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from rdukit.errors import Conflict, NotFound
from rdukit_platform.db.models import AttemptRow, JobEventRow, JobRow, PipelineRow
from rdukit_platform.jobs.states import FINAL, JobEvent, JobReason, JobState, next_state
from rdukit_platform.webhooks.outbox import tell
from rdukit_platform.webhooks.states import TOLD_STATES

# Statements of every step of every job are made once: that costs as much as running them.
_JOBS: Final = JobRow.metadata.tables[JobRow.__tablename__]
_CHANGE_JOB: Final = update(_JOBS).where(
    _JOBS.c.id == bindparam("read_id"), _JOBS.c.version == bindparam("read_version")
)
_ADD_EVENT: Final = insert(JobRow.metadata.tables[JobEventRow.__tablename__])
_PIPELINE_OF: Final = select(JobRow.pipeline_id).where(JobRow.id == bindparam("id"))
_LOCKED_JOB: Final = (
    select(JobRow).where(JobRow.id == bindparam("id")).with_for_update().execution_options(populate_existing=True)
)


def apply_event(
    session: Session,
    job: JobRow,
    event: JobEvent,
    now: float,
    reason: JobReason | None = None,
    data: Mapping[str, object] | None = None,
    **columns: object,
) -> JobState:
    """Move ``job``, as it was read in this transaction, by ``event`` and set ``columns`` besides.

    ``data`` goes into the event row. ``job`` has what its row has then.

    Raises:
        InvalidTransition: the event cannot happen in the job's state.
        Conflict: somebody else changed the job since it was read.
    """
    (after,) = apply_to_all(session, [JobChange(job, columns, data)], event, now, reason)
    return after


@dataclass(frozen=True, slots=True)
class JobChange:
    """Job that is moved, as it was read in this transaction, columns that are set besides, data of its event row."""

    job: JobRow
    columns: Mapping[str, object] = field(default_factory=dict)
    data: Mapping[str, object] | None = None
    #: When it happened, if that was before it is written.
    at: float | None = None


def apply_to_all(
    session: Session, changes: Sequence[JobChange], event: JobEvent, now: float, reason: JobReason | None = None
) -> list[JobState]:
    """Move jobs by one event, all or none, as ``apply_event`` does one; all set the same columns.

    Raises:
        InvalidTransition: the event cannot happen in the state of one.
        Conflict: somebody else changed one since it was read.
    """
    if any(session.is_modified(change.job) for change in changes):
        session.flush()
    states, written, events = list[JobState](), list[dict[str, object]](), list[dict[str, object]]()
    for change in changes:
        job, before, at = change.job, JobState(change.job.state), now if change.at is None else change.at
        after = next_state(job.id, before, event, reason)
        values: dict[str, object] = {
            "state": str(after),
            "reason": None if reason is None else str(reason),
            "version": job.version + 1,
            "waits_for": None,
            "wait_code": None,
            "estimated_start": None,
            **_times(job, after, at),
            **change.columns,
        }
        details = {"from": str(before), "to": str(after), "event": str(event), **(change.data or {})}
        if reason is not None:
            details["reason"] = str(reason)
        states.append(after)
        written.append(values)
        events.append({"job_id": job.id, "kind": "state", "at": at, "data": details})
    if not changes:
        return states
    as_read = [{"read_id": each.job.id, "read_version": each.job.version} for each in changes]
    rows = [{**values, **read} for values, read in zip(written, as_read, strict=True)]
    connection = session.connection()
    if connection.execute(_CHANGE_JOB, rows if len(rows) > 1 else rows[0]).rowcount != len(rows):
        names = ", ".join(each.job.id for each in changes[:5])
        raise Conflict(f"job {names} was changed by somebody else; read it again")
    for change, values, row in zip(changes, written, events, strict=True):
        _show_changed(session, change.job, values)
        row["attempt"] = change.job.attempt
    connection.execute(_ADD_EVENT, events if len(events) > 1 else events[0])
    for (tenant_id, after), told in _by_hearer(changes, states).items():
        tell(session, tenant_id, f"job.{after}", told, now)
    return states


def _by_hearer(
    changes: Sequence[JobChange], states: Sequence[JobState]
) -> Mapping[tuple[str, JobState], list[Callable[[], Mapping[str, object]]]]:
    """Return what webhooks are told of changes, by whose they are and the state that they wait for."""
    found = defaultdict[tuple[str, JobState], list[Callable[[], Mapping[str, object]]]](list)
    for change, after in zip(changes, states, strict=True):
        if after in TOLD_STATES:
            found[change.job.tenant_id, after].append(partial(told_of, change.job))
    return found


def _times(job: JobRow, after: JobState, now: float) -> dict[str, object]:
    if after is JobState.QUEUED:
        return {"queued_at": now}
    if after is JobState.RUNNING and job.started_at is None:
        return {"started_at": now}
    return {"ended_at": now} if after in FINAL else {}


def _show_changed(session: Session, job: JobRow, values: Mapping[str, object]) -> None:
    """Let ``job`` have what its row has now; what goes through JSON is read again, if somebody asks."""
    through_json = [name for name in values if isinstance(_JOBS.columns[name].type, JSON)]
    for name in values.keys() - through_json:
        set_committed_value(job, name, values[name])
    if through_json:
        session.expire(job, through_json)


#: Columns of a job that webhooks are told; its parameters and progress are asked for by those who need them.
TOLD: Final = (
    "id", "name", "box", "verb", "state", "reason", "error", "labels", "outputs", "result", "attempt", "step",
    "created_at", "started_at", "ended_at",
)  # fmt: skip


def told_of(job: JobRow) -> dict[str, object]:
    """Return what webhooks are told of a job (pure)."""
    return {**{name: getattr(job, name) for name in TOLD}, "pipeline": job.pipeline_id}


def count_changed(session: Session, statement: Update) -> int:
    """Run an update past the session's own objects. Returns how many rows it changed; who changes none has lost."""
    result = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return result.rowcount


def add_event(session: Session, job_id: str, attempt: int, kind: str, now: float, data: Mapping[str, object]) -> None:
    """Append to a job's events. ``kind`` is ``state``, ``progress`` or ``log``."""
    row = {"job_id": job_id, "attempt": attempt, "kind": kind, "at": now, "data": dict(data)}
    session.connection().execute(_ADD_EVENT, row)


def add_events(session: Session, jobs: Sequence[JobRow], now: float, data: Mapping[str, object]) -> None:
    """Append the same to the events of jobs that have no attempt yet."""
    rows = [{"job_id": job.id, "attempt": 0, "kind": "state", "at": now, "data": dict(data)} for job in jobs]
    session.connection().execute(_ADD_EVENT, rows if len(rows) > 1 else rows[0])


def lock_jobs(session: Session, job_ids: Collection[str]) -> dict[str, JobRow]:
    """Return the rows of those of the jobs that there are, locked as ``lock_job`` does."""
    if session.get_bind().dialect.name != "sqlite":
        pipelines = select(JobRow.pipeline_id).where(JobRow.id.in_(job_ids), JobRow.pipeline_id.is_not(None))
        session.execute(
            select(PipelineRow.id).where(PipelineRow.id.in_(pipelines)).order_by(PipelineRow.id).with_for_update()
        )
    query = select(JobRow).where(JobRow.id.in_(job_ids)).order_by(JobRow.id).with_for_update()
    return {job.id: job for job in session.scalars(query.execution_options(populate_existing=True))}


def lock_job(session: Session, job_id: str) -> JobRow:
    """Return the job's row, locked until the transaction ends; before it its pipeline, whose steps it moves.

    Raises:
        NotFound: there is none.
    """
    if session.get_bind().dialect.name != "sqlite":  # whose writers are alone
        pipeline = session.scalars(_PIPELINE_OF, {"id": job_id}).one_or_none()
        if pipeline is not None:
            session.execute(select(PipelineRow.id).where(PipelineRow.id == pipeline).with_for_update())
    job = session.scalars(_LOCKED_JOB, {"id": job_id}).one_or_none()
    if job is None:
        raise NotFound(f"there is no job {job_id!r}")
    return job


def find_open_attempt(session: Session, job: JobRow) -> AttemptRow | None:
    """Return the job's attempt that has not ended, if there is one."""
    return session.scalars(
        select(AttemptRow).where(AttemptRow.job_id == job.id, AttemptRow.ended_at.is_(None))
    ).one_or_none()
