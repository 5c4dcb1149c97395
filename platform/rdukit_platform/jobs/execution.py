"""The workers' side of a job: create, claim, start, extend and end its attempts.

A worker's calls carry the attempt's token. An ended attempt takes no more changes: its worker gets ``LeaseLost`` and
stops. So a job ends once, even if a message is delivered twice.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.orm import Session

from rdukit.errors import InvalidTransition, LeaseLost
from rdukit.settings import resolve
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.jobs.attempts import AttemptOutcome, judge, read_rule
from rdukit_platform.jobs.changes import (
    JobMove,
    add_event,
    apply_event,
    apply_to_all,
    count_changed,
    find_open_attempt,
    lock_job,
    lock_jobs,
)
from rdukit_platform.jobs.fencing import FencingToken as FencingToken
from rdukit_platform.jobs.fencing import beat_part, claim_part, find_part
from rdukit_platform.jobs.promotion import end_job
from rdukit_platform.jobs.states import FINAL, JobEvent, JobReason, JobState, WaitCode, next_state
from rdukit_platform.jobs.success import Output as Output
from rdukit_platform.jobs.success import add_artifacts
from rdukit_platform.settings import JOB_MAX_LOSSES


def admit(session: Session, job_id: str, now: float, node: str | None = None) -> FencingToken:
    """Create a queued job's next attempt, on a node. The caller publishes the token after the commit.

    Raises:
        InvalidTransition: the job is no longer queued; nothing was written.
    """
    job = lock_job(session, job_id)
    next_state(job.id, JobState(job.state), JobEvent.ADMIT)
    return _admit(session, [(job, node)], now)[0]


def admit_all(session: Session, placements: Mapping[str, str | None], now: float) -> list[FencingToken]:
    """Admit the jobs that are still queued, each on its node, as ``admit`` does."""
    found = lock_jobs(session, placements) if placements else {}
    queued = [(found[id], node) for id, node in placements.items() if id in found and _is_queued(found[id])]
    return _admit(session, queued, now)


def _is_queued(job: JobRow) -> bool:
    try:
        next_state(job.id, JobState(job.state), JobEvent.ADMIT)
    except InvalidTransition:
        return False
    return True


def _admit(session: Session, jobs: Sequence[tuple[JobRow, str | None]], now: float) -> list[FencingToken]:
    attempts = [
        AttemptRow(
            id=new_id("try"),
            job_id=job.id,
            number=job.attempt + 1,
            token=secrets.token_hex(16),
            published_at=now,
            node=node,
        )
        for job, node in jobs
    ]
    session.add_all(attempts)
    session.flush()
    admitted = zip(jobs, attempts, strict=True)
    moves = [JobMove(job, JobEvent.ADMIT, columns={"attempt": made.number}) for (job, _), made in admitted]
    apply_to_all(session, moves, now)
    return [FencingToken(made.job_id, made.id, made.token, made.node) for made in attempts]


def claim(
    session: Session, fencing: FencingToken, worker: str, lease_s: float, now: float, node: str | None = None
) -> JobRow | None:
    """Claim an attempt, or a part of one, for a worker of ``node``.

    ``None``: the attempt is already claimed, has ended, or belongs to another node; the caller drops the message.
    """
    if fencing.part:
        is_ours = node is not None and claim_part(session, fencing, worker, lease_s, now, node)
        return lock_job(session, fencing.job_id) if is_ours else None
    changed = count_changed(
        session,
        update(AttemptRow)
        .where(
            AttemptRow.id == fencing.attempt_id,
            AttemptRow.token == fencing.token,
            AttemptRow.claimed_at.is_(None),
            AttemptRow.ended_at.is_(None),
            or_(AttemptRow.node.is_(None), AttemptRow.node == node),
        )
        .values(worker=worker, node=node, claimed_at=now, lease_expires_at=now + lease_s),
    )
    return lock_job(session, fencing.job_id) if changed == 1 else None


def beat(session: Session, fencing_tokens: Iterable[FencingToken], lease_s: float, now: float) -> list[FencingToken]:
    """Extend the leases of attempts. Returns those that the worker must end: lost, paused or preempted ones.

    An attempt that must end keeps its lease until it has ended, so the next one cannot begin while its box writes.
    """
    tokens = list(fencing_tokens)
    whole, held = [each for each in tokens if not each.part], set[str]()
    if whole:
        # Tokens are secrets of one attempt each.
        is_own = (
            AttemptRow.id.in_(each.attempt_id for each in whole),
            AttemptRow.token.in_(each.token for each in whole),
        )
        own = select(AttemptRow.id).where(*is_own, AttemptRow.ended_at.is_(None))
        # Locked in the same order as by ends of jobs, so that deadlocks cannot occur.
        locked = own.order_by(AttemptRow.job_id).with_for_update()
        beaten = update(AttemptRow).where(AttemptRow.id.in_(locked)).values(lease_expires_at=now + lease_s)
        beaten = beaten.execution_options(synchronize_session=False)
        beaten = beaten.returning(AttemptRow.id, AttemptRow.pause_asked_at, AttemptRow.preempt_asked_at)
        held = {each for each, *asked_at in session.execute(beaten) if asked_at == [None, None]}
    return [
        each
        for each in tokens
        if not (beat_part(session, each, lease_s, now) if each.part else each.attempt_id in held)
    ]


def ask_preemption(session: Session, job_id: str, for_job: str, now: float) -> bool:
    """Ask the worker of a job's attempt to end it, so that ``for_job`` gets its tiles. Returns whether it has one."""
    job = lock_job(session, job_id)
    attempt = find_open_attempt(session, job)
    if attempt is None or attempt.claimed_at is None or attempt.preempt_asked_at is not None:
        return False
    winner = session.get(JobRow, for_job)
    is_own = winner is not None and winner.tenant_id == job.tenant_id
    whom = f"job {for_job}" if is_own else "a job of another tenant"
    attempt.preempt_asked_at = now
    attempt.error = {"code": str(AttemptOutcome.PREEMPTED), "message": f"{whom} precedes it and gets its tiles"}
    job.waits_for = f"it is preempted by {whom}, which precedes it, so its attempt ends"
    session.flush()
    return True


def hold_tiles(session: Session, fencing: FencingToken, tiles: Sequence[str]) -> None:
    """Record the tiles that the worker has leased for the attempt; the node daemon shows them as taken.

    Raises:
        LeaseLost: the attempt is no longer the caller's.
    """
    _, attempt = _hold(session, fencing)
    row = find_part(session, fencing) if fencing.part else attempt
    assert row is not None
    row.tiles = list(tiles)


def tell_address(session: Session, fencing: FencingToken, address: str) -> None:
    """Record the address at which an attempt's or a part's worker answers the workers of the other parts.

    Raises:
        LeaseLost: the attempt is no longer the caller's.
    """
    _, attempt = _hold(session, fencing)
    row = find_part(session, fencing) if fencing.part else attempt
    assert row is not None
    row.address = address


def wait_for_place(session: Session, fencing: FencingToken, box: Mapping[str, object], why: str, code: str) -> None:
    """Record why an attempt's box still waits for its place, and the box, if known. An empty ``why`` ends the wait.

    Codes outside of ``WaitCode`` are dropped.

    Raises:
        LeaseLost: the attempt is no longer the caller's.
    """
    job, attempt = _hold(session, fencing)
    attempt.box, job.waits_for = dict(box) or attempt.box, why or None
    job.wait_code = code if code in set(WaitCode) else None


def start(session: Session, fencing: FencingToken, box: Mapping[str, object], now: float) -> None:
    """Record once that the box, described by ``box``, has taken the verb.

    Raises:
        LeaseLost: the attempt is no longer the caller's.
    """
    if fencing.part:
        raise LeaseLost(f"part {fencing.part} of attempt {fencing.attempt_id} starts nothing; its first part does")
    job, attempt = _hold(session, fencing)
    if attempt.started_at is not None:
        return
    attempt.started_at, attempt.box = now, dict(box)
    begun_by = {"tiles": attempt.tiles, "worker": attempt.worker, "node": attempt.node}
    apply_event(session, job, JobEvent.START, now, data=begun_by)


def record_progress(session: Session, fencing: FencingToken, progress: Mapping[str, object], now: float) -> None:
    """Store progress in the job's row, and append it to the job's events.

    Raises:
        LeaseLost: the attempt is no longer the caller's.
    """
    job, attempt = _hold(session, fencing)
    job.progress = dict(progress)
    add_event(session, job.id, attempt.number, "progress", now, progress)


def record_logs(session: Session, fencing: FencingToken, lines: Sequence[str], now: float) -> None:
    """Append lines of the box's log, even if the caller has lost the attempt."""
    attempt = session.get(AttemptRow, fencing.attempt_id)
    if attempt is not None and _is_token_of(session, attempt, fencing):
        for line in lines:
            add_event(session, fencing.job_id, attempt.number, "log", now, {"line": line})


def keep_spans(session: Session, fencing: FencingToken, spans: Sequence[Mapping[str, object]]) -> None:
    """Store an attempt's spans, in the transaction that ends it."""
    attempt = session.get(AttemptRow, fencing.attempt_id)
    if attempt is not None and attempt.token == fencing.token:
        attempt.spans = [dict(each) for each in spans]


def succeed(
    session: Session, fencing: FencingToken, outputs: Sequence[Output], result: Mapping[str, object] | None, now: float,
    spans: Sequence[Mapping[str, object]] | None = None,
) -> dict[str, str]:  # fmt: skip
    """End the job successfully, with its artifacts and their lineage. Returns slot to artifact id.

    Args:
        spans: as of ``keep_spans``.
    Raises:
        LeaseLost: the attempt is no longer the caller's, or the token is a part's; nothing was written.
        QuotaExceeded: the outputs exceed the tenant's quota; nothing was written.
    """
    if fencing.part:
        raise LeaseLost(f"part {fencing.part} of attempt {fencing.attempt_id} makes nothing; its first part does")
    job, attempt = _hold(session, fencing)
    made = add_artifacts(session, job, outputs, now)
    attempt.ended_at, attempt.outcome, attempt.error = now, str(AttemptOutcome.SUCCEEDED), None
    attempt.spans = None if spans is None else [dict(each) for each in spans]
    end_job(
        session, job, JobEvent.SUCCEED, now, JobReason.COMPLETED, {"outcome": attempt.outcome},
        outputs=made, result=dict(result or {}), not_before=None, error=None,
    )  # fmt: skip
    return made


def fail(
    session: Session,
    fencing: FencingToken,
    outcome: AttemptOutcome,
    error: Mapping[str, object],
    backoff_s: float,
    now: float,
    kept: str | None = None,
) -> JobState:
    """End the attempt without success; the job fails, retries or is queued again. Returns its state.

    ``kept``: digest of its partial outputs in the store, for the job's next attempt.

    Raises:
        LeaseLost: the attempt is no longer the caller's.
    """
    job, attempt = _hold(session, fencing)
    state = end_attempt(session, job, attempt, outcome, error, backoff_s, now)
    attempt.kept = None if state in FINAL else kept
    return state


def _is_open(fencing: FencingToken) -> tuple[ColumnElement[bool], ...]:
    return (AttemptRow.id == fencing.attempt_id, AttemptRow.token == fencing.token, AttemptRow.ended_at.is_(None))


def _hold(session: Session, fencing: FencingToken) -> tuple[JobRow, AttemptRow]:
    job = lock_job(session, fencing.job_id)
    attempt = session.get(AttemptRow, fencing.attempt_id)
    if attempt is None or not _is_token_of(session, attempt, fencing) or _has_ended(job, attempt):
        raise LeaseLost(f"attempt {fencing.attempt_id} of job {fencing.job_id} has ended; job is {job.state}")
    return job, attempt


def _has_ended(job: JobRow, attempt: AttemptRow) -> bool:
    return attempt.ended_at is not None or JobState(job.state) in FINAL


def _is_token_of(session: Session, attempt: AttemptRow, fencing: FencingToken) -> bool:
    if fencing.part:
        return find_part(session, fencing) is not None
    return attempt.token == fencing.token


def keep_lost(session: Session, fencing: FencingToken, kept: str | None) -> None:
    """Store the digest of a lost attempt's partial outputs, unless the job has ended or has a newer attempt."""
    attempt = session.get(AttemptRow, fencing.attempt_id)
    if attempt is not None and attempt.token == fencing.token and attempt.ended_at is not None:
        job = lock_job(session, fencing.job_id)
        if job.attempt == attempt.number and JobState(job.state) not in FINAL:
            attempt.kept = attempt.kept or kept


def end_attempt(
    session: Session,
    job: JobRow,
    attempt: AttemptRow,
    outcome: AttemptOutcome,
    error: Mapping[str, object] | None,
    backoff_s: float,
    now: float,
    **columns: object,
) -> JobState:
    verdict = judge(
        outcome,
        None if error is None else str(error.get("code")),
        is_running=job.state == JobState.RUNNING,
        failures=job.failures,
        max_attempts=job.max_attempts,
        losses=job.losses,
        max_losses=resolve(JOB_MAX_LOSSES),
        rule=read_rule(job.retry, backoff_s),
        is_pausing=attempt.pause_asked_at is not None,
        is_preempted=attempt.preempt_asked_at is not None,
    )
    if verdict.event is JobEvent.PAUSE and outcome is AttemptOutcome.INTERRUPTED:
        outcome, error = AttemptOutcome.PAUSED, None
    if verdict.event is JobEvent.PREEMPT:
        outcome, error = AttemptOutcome.PREEMPTED, attempt.error
        columns |= {"preemptions": job.preemptions + 1, "queued_at": job.queued_at}  # its age in the queue is kept
    attempt.ended_at, attempt.outcome = now, str(outcome)
    attempt.error = None if error is None else dict(error)
    data: dict[str, object] = {"outcome": str(outcome)}
    if error is not None:
        data["error"] = dict(error)
    return end_job(
        session,
        job,
        verdict.event,
        now,
        verdict.reason,
        data,
        failures=verdict.failures,
        losses=verdict.losses,
        not_before=now + verdict.pause_s if verdict.pause_s else None,
        error=None if error is None or verdict.reason is None else dict(error),
        **columns,
    )
