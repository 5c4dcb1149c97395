"""Overdue jobs: expired leases, run limits and deadlines, retries that are due, and lost messages.

The scheduler checks them in each pass and writes the ends; the workers notice by their next heartbeat.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from rdukit.errors import DeadlineExceeded
from rdukit_platform.db.models import AttemptPartRow, AttemptRow, JobRow
from rdukit_platform.jobs.attempts import MAX_BACKOFF_S, AttemptOutcome, is_due
from rdukit_platform.jobs.changes import apply_event, find_open_attempt, lock_job
from rdukit_platform.jobs.execution import end_attempt
from rdukit_platform.jobs.fencing import FencingToken, attempt_of, lease_of, read_parts, take_unclaimed_parts
from rdukit_platform.jobs.promotion import end_job
from rdukit_platform.jobs.states import ACTIVE, FINAL, WAITING, JobEvent, JobReason, JobState

#: Jobs that one pass may end for their deadlines; the next pass ends more.
MAX_LATE: Final = 500


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """Attempt that has not ended: its run limit, and the end of its lease, which each heartbeat extends."""

    lease: float | None
    claimed_at: float | None
    run_limit_s: float | None


def read_open_attempts(session: Session) -> dict[str, OpenAttempt]:
    """Return the open attempts by id; ``read_part_leases`` returns their further parts."""
    columns = (AttemptRow.id, AttemptRow.lease_expires_at, AttemptRow.claimed_at, JobRow.run_limit_s)
    query = select(*columns).join(JobRow, JobRow.id == AttemptRow.job_id).where(AttemptRow.ended_at.is_(None))
    return {id: OpenAttempt(lease, claimed_at, limit) for id, lease, claimed_at, limit in session.execute(query)}


def read_part_leases(session: Session) -> dict[str, float]:
    """Return when the leases of claimed further parts of open attempts end, by the leases' names."""
    rows = (row for of_attempt in read_parts(session).values() for row in of_attempt)
    return {lease_of(row): row.lease_expires_at for row in rows if row.lease_expires_at is not None}


def expire_attempts(session: Session, silent: Mapping[str, float], backoff_s: float, now: float) -> int:
    """End attempts without heartbeats: the worker or its node is unreachable. Returns how many.

    An attempt that had not begun is not counted. An attempt of several parts ends as soon as one of them is lost.

    Args:
        silent: the last known lease of each attempt or part; those extended since then are left alone.
    """
    count = 0
    for attempt in _lock_attempts(session, {attempt_of(lease) for lease in silent}):
        lost = _find_lost(session, attempt, silent)
        if lost is None:
            continue  # its worker has extended it since
        job = session.get_one(JobRow, attempt.job_id)
        who = f"node {lost.node}" if lost.worker is None else f"worker {lost.worker}"
        error: dict[str, object] = {
            "code": "unavailable",
            "message": f"{who} has sent no heartbeat since its lease ended; it was lost",
        }
        outcome = AttemptOutcome.INTERRUPTED if lost.claimed_at is None else AttemptOutcome.EXPIRED
        end_attempt(session, job, attempt, outcome, error, backoff_s, now)
        count += 1
    return count


def _find_lost(
    session: Session, attempt: AttemptRow, silent: Mapping[str, float]
) -> AttemptRow | AttemptPartRow | None:  # fmt: skip
    rows: list[AttemptRow | AttemptPartRow] = [attempt]
    if any(attempt_of(lease) == attempt.id != lease for lease in silent):
        rows += read_parts(session, [attempt.id], is_fresh=True).get(attempt.id, [])
    for row in rows:
        lease = lease_of(row)
        if lease in silent and row.lease_expires_at == silent[lease]:
            return row
    return None


def end_overruns(session: Session, overrunning: Collection[str], now: float) -> int:
    """Fail the jobs of these attempts, which exceed their run limits. Returns how many.

    Their workers notice.
    """
    count = 0
    for attempt in _lock_attempts(session, overrunning):
        job = session.get_one(JobRow, attempt.job_id)
        if job.run_limit_s is None:
            continue
        error: dict[str, object] = {
            "code": DeadlineExceeded.code,
            "message": f"it took longer than its run limit of {job.run_limit_s:g} s",
        }
        end_attempt(session, job, attempt, AttemptOutcome.RUN_LIMIT_EXCEEDED, error, 0.0, now)
        count += 1
    return count


def _lock_attempts(session: Session, ids: Collection[str]) -> Iterator[AttemptRow]:
    """Yield the attempts that are still open, each locked with its job."""
    if not ids:
        return
    is_open = (AttemptRow.id.in_(ids), AttemptRow.ended_at.is_(None))
    for job_id, attempt_id in session.execute(select(AttemptRow.job_id, AttemptRow.id).where(*is_open)).all():
        lock_job(session, job_id)  # the job first, as everywhere, or two transactions could deadlock
        attempt = session.scalars(
            select(AttemptRow)
            .where(AttemptRow.id == attempt_id, AttemptRow.ended_at.is_(None))
            .with_for_update()
            .execution_options(populate_existing=True)
        ).one_or_none()
        if attempt is not None:
            yield attempt


def end_late_jobs(session: Session, now: float) -> int:
    """Fail the jobs that have missed, or can no longer meet, their deadline. Returns how many.

    Source: Slurm's ``sbatch --deadline``, which removes a job that can no longer end in time. Here a job is expected to
        take its run limit.
    """
    waiting = select(JobRow.id).where(JobRow.state.in_([*WAITING, JobState.PAUSED]), JobRow.start_by < now)
    active = select(JobRow.id).where(JobRow.state.in_(ACTIVE), JobRow.deadline_at < now)
    count = 0
    for job_id in session.scalars(waiting.union_all(active).limit(MAX_LATE)).all():
        job = lock_job(session, job_id)
        state, attempt = JobState(job.state), find_open_attempt(session, job)
        by = job.deadline_at if state in ACTIVE else job.start_by
        if state in FINAL or by is None or by >= now or job.deadline_at is None:
            continue
        error: dict[str, object] = {"code": DeadlineExceeded.code, "message": _why_late(job, now)}
        if attempt is not None:
            end_attempt(session, job, attempt, AttemptOutcome.DEADLINE_EXCEEDED, error, 0.0, now)
        else:
            end_job(session, job, JobEvent.EXPIRE, now, JobReason.DEADLINE_EXCEEDED, {"error": error}, error=error)
        count += 1
    return count


def _why_late(job: JobRow, now: float) -> str:
    assert job.deadline_at is not None
    by = datetime.fromtimestamp(job.deadline_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now > job.deadline_at:
        how = "had not started" if job.started_at is None else "was not done"
        return f"it {how} by its deadline, {by}"
    return f"its run limit of {job.run_limit_s:g} s would end after its deadline, {by}"


def queue_due_jobs(session: Session, now: float) -> int:
    """Queue again the retrying jobs whose pause is over. Returns how many."""
    pause_ends = JobRow.not_before
    may_be_due = or_(pause_ends.is_(None), pause_ends <= now, pause_ends > now + MAX_BACKOFF_S)
    found = session.scalars(select(JobRow).where(JobRow.state == str(JobState.RETRYING), may_be_due))
    due = [job for job in found if is_due(job.not_before, job.retry, now)]
    for job in due:
        apply_event(session, job, JobEvent.DUE, now)
    return len(due)


def take_unclaimed(session: Session, older_than_s: float, now: float) -> list[FencingToken]:
    """Return attempts published more than ``older_than_s`` ago and still unclaimed, marked as published now."""
    rows = session.scalars(
        select(AttemptRow)
        .where(
            AttemptRow.ended_at.is_(None),
            AttemptRow.claimed_at.is_(None),
            # A time of publication in the future means that the clock was set back.
            or_(AttemptRow.published_at < now - older_than_s, AttemptRow.published_at > now + older_than_s),
        )
        .with_for_update()
    ).all()
    for row in rows:
        row.published_at = now
    found = [FencingToken(row.job_id, row.id, row.token, row.node) for row in rows]
    return [*found, *take_unclaimed_parts(session, older_than_s, now)]
