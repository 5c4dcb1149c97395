"""Changing a job's row: one versioned update and its event row, in the caller's transaction."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sqlalchemy import JSON, CursorResult, Update, bindparam, insert, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from rdukit.errors import Conflict, NotFound
from rdukit_platform.db.base import table_of
from rdukit_platform.db.models import AttemptRow, JobEventRow, JobRow, PipelineRow
from rdukit_platform.jobs.states import FINAL, JobEvent, JobReason, JobState, next_state
from rdukit_platform.webhooks.outbox import Message, tell
from rdukit_platform.webhooks.states import TOLD_STATES

# These statements belong to every job; they are built once, because building costs as much as running them.
_JOBS: Final = table_of(JobRow)
_THROUGH_JSON: Final = {name for name, column in _JOBS.columns.items() if isinstance(column.type, JSON)}
_PLAIN: Final = set(_JOBS.columns.keys()) - _THROUGH_JSON
_TIMES: Final = ("queued_at", "started_at", "ended_at")
_CHANGE_JOB: Final = update(_JOBS).where(
    _JOBS.c.id == bindparam("read_id"), _JOBS.c.version == bindparam("read_version")
)
_ADD_EVENT: Final = insert(table_of(JobEventRow))
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
    """Apply ``event`` to ``job``, which this transaction has read, and set ``columns`` too. Returns the new state.

    ``data`` goes into the event row. ``job`` then shows the changed row.

    Raises:
        InvalidTransition: the event cannot happen in the job's state.
        Conflict: the job was changed after it was read.
    """
    (after,) = apply_to_all(session, [JobMove(job, event, reason, data, columns)], now)
    return after


@dataclass(frozen=True, slots=True)
class JobMove:
    """Change of a job that this transaction has read: the event, the data of its event row, and further columns."""

    job: JobRow
    event: JobEvent
    reason: JobReason | None = None
    data: Mapping[str, object] | None = None
    columns: Mapping[str, object] = field(default_factory=dict)


def apply_to_all(session: Session, moves: Sequence[JobMove], now: float) -> list[JobState]:
    """Apply events to jobs, all or none, as ``apply_event`` does. Returns the new states; all moves set the same
    columns.

    Raises:
        InvalidTransition: an event cannot happen in its job's state.
        Conflict: a job was changed after it was read.
    """
    if not moves:
        return []
    session.flush()
    written, events, told = list[dict[str, object]](), list[dict[str, object]](), defaultdict[str, list[Message]](list)
    for move in moves:
        job, before = move.job, JobState(move.job.state)
        after = next_state(job.id, before, move.event, move.reason)
        reason = None if move.reason is None else str(move.reason)
        values: dict[str, object] = {
            "read_id": job.id,
            "read_version": job.version,
            "version": job.version + 1,
            "waits_for": None,
            "wait_code": None,
            "estimated_start": None,
            **{name: getattr(job, name) for name in _TIMES},
            "state": str(after),
            "reason": reason,
            **_times(job, after, now),
            **move.columns,
        }
        data = {"from": str(before), "to": str(after), "event": str(move.event), **(move.data or {})}
        if reason is not None:
            data["reason"] = reason
        attempt = values.get("attempt", job.attempt)
        events.append({"job_id": job.id, "attempt": attempt, "kind": "state", "at": now, "data": data})
        if after in TOLD_STATES:
            told[job.tenant_id].append((f"job.{after}", partial(told_of, job, values)))
        written.append(values)
    connection = session.connection()
    if connection.execute(_CHANGE_JOB, written if len(written) > 1 else written[0]).rowcount != len(written):
        names = ", ".join(move.job.id for move in moves[:5])
        raise Conflict(f"job {names} was changed by somebody else; read it again")
    connection.execute(_ADD_EVENT, events if len(events) > 1 else events[0])
    for tenant_id, messages in told.items():
        tell(session, tenant_id, messages, now)
    for move, values in zip(moves, written, strict=True):
        _show_changed(session, move.job, values)
    return [JobState(str(values["state"])) for values in written]


def _times(job: JobRow, after: JobState, now: float) -> dict[str, object]:
    if after is JobState.QUEUED:
        return {"queued_at": now}
    if after is JobState.RUNNING and job.started_at is None:
        return {"started_at": now}
    return {"ended_at": now} if after in FINAL else {}


def _show_changed(session: Session, job: object, values: Mapping[str, object]) -> None:
    """Show the written values in ``job``; JSON columns expire and are read again on access."""
    for name in values.keys() & _PLAIN:
        if vars(job).get(name) != values[name]:
            set_committed_value(job, name, values[name])
    if through_json := values.keys() & _THROUGH_JSON:
        session.expire(job, through_json)


#: Columns of a job that webhooks send. Receivers fetch parameters and progress if they need them.
TOLD: Final = (
    "id", "name", "box", "verb", "state", "reason", "error", "labels", "outputs", "result", "attempt", "step",
    "created_at", "started_at", "ended_at",
)  # fmt: skip


def told_of(job: JobRow, values: Mapping[str, object]) -> dict[str, object]:
    """Return the job's data for webhooks after a change to ``values`` (pure)."""
    told = {name: values[name] if name in values else getattr(job, name) for name in TOLD}
    return {**told, "pipeline": job.pipeline_id}


def count_changed(session: Session, statement: Update) -> int:
    """Run an update without touching the session's objects. Returns the number of rows; 0 means another writer won."""
    result = session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return result.rowcount


def add_event(session: Session, job_id: str, attempt: int, kind: str, now: float, data: Mapping[str, object]) -> None:
    """Append to a job's events. ``kind`` is ``state``, ``progress`` or ``log``."""
    row = {"job_id": job_id, "attempt": attempt, "kind": kind, "at": now, "data": dict(data)}
    session.connection().execute(_ADD_EVENT, row)


def add_events(session: Session, jobs: Sequence[JobRow], now: float, data: Mapping[str, object]) -> None:
    """Append the same event to jobs that have no attempt yet."""
    rows = [{"job_id": job.id, "attempt": 0, "kind": "state", "at": now, "data": dict(data)} for job in jobs]
    session.connection().execute(_ADD_EVENT, rows if len(rows) > 1 else rows[0])


def lock_jobs(session: Session, job_ids: Collection[str]) -> dict[str, JobRow]:
    """Return the rows of the jobs that exist, by id, locked as ``lock_job`` does."""
    if session.get_bind().dialect.name != "sqlite":
        pipelines = select(JobRow.pipeline_id).where(JobRow.id.in_(job_ids), JobRow.pipeline_id.is_not(None))
        session.execute(
            select(PipelineRow.id).where(PipelineRow.id.in_(pipelines)).order_by(PipelineRow.id).with_for_update()
        )
    query = select(JobRow).where(JobRow.id.in_(job_ids)).order_by(JobRow.id).with_for_update()
    return {job.id: job for job in session.scalars(query.execution_options(populate_existing=True))}


def lock_job(session: Session, job_id: str) -> JobRow:
    """Return the job's row, locked until the transaction ends. Its pipeline, if any, is locked first.

    Raises:
        NotFound: there is no such job.
    """
    if session.get_bind().dialect.name != "sqlite":  # SQLite has one writer at a time
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
