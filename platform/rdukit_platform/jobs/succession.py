"""The next job of the only line goes straight to the worker whose job has just ended, in the transaction that ends it.

A slot that a job leaves would be empty until the scheduler has looked, and then sent a message. Where all that waits is
one line, of one tenant and one priority, it is known who is next: the first one. So nobody loses anything by it: once
somebody else waits, and for whatever a decision would have to weigh (tiles, members, labels, limits, pauses), the slot
is left to the scheduler. Whichever of the two takes a job, the other finds that it is not queued any more.
"""

import secrets

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from rdukit.settings import resolve
from rdukit_platform.db.models import AttemptRow, JobRow, NodeRow, TenantRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.jobs.changes import JobChange, apply_to_all
from rdukit_platform.jobs.fencing import FencingToken
from rdukit_platform.jobs.states import JobEvent, JobState
from rdukit_platform.nodes.registry import NodeLife
from rdukit_platform.settings import SCHEDULER_TENANT_JOBS

_QUEUED = JobRow.state == str(JobState.QUEUED)
#: The first job of the first line, if there is one line, and the last line of all; both follow an index.
_FRONT = select(JobRow).where(_QUEUED).order_by(JobRow.tenant_id, JobRow.priority, JobRow.queued_at, JobRow.id).limit(1)
_LAST = (
    select(JobRow.tenant_id, JobRow.priority)
    .where(_QUEUED)
    .order_by(JobRow.tenant_id.desc(), JobRow.priority.desc())
    .limit(1)
)
_LIMITS = select(
    TenantRow.max_jobs, select(NodeRow.state).where(NodeRow.name == bindparam("node")).scalar_subquery().label("state")
).where(TenantRow.id == bindparam("tenant"))


def needs_no_decision(job: JobRow) -> bool:
    """Return whether a job takes any slot, and nothing else (pure)."""
    is_alone = job.pipeline_id is None and job.members == 1 and not job.constraint
    return is_alone and job.tiles == 0 and job.not_before is None


def take_next(
    session: Session, ended: JobRow, worker: str, node: str, lease_s: float, now: float
) -> tuple[FencingToken, JobRow] | None:  # fmt: skip
    """Admit the job that comes next and make its attempt the worker's whose job, ``ended``, leaves a slot.

    ``None``: nobody waits, or the scheduler has to decide. The caller runs it after the commit, as if it was claimed.
    """
    if not needs_no_decision(ended) or resolve(SCHEDULER_TENANT_JOBS):
        return None
    last = session.execute(_LAST).one_or_none()
    if last is None or tuple(last) != (ended.tenant_id, ended.priority):
        return None
    job = session.scalars(_FRONT.with_for_update(skip_locked=True)).one_or_none()
    if job is None or (job.tenant_id, job.priority) != (ended.tenant_id, ended.priority) or not needs_no_decision(job):
        return None
    limits = session.execute(_LIMITS, {"tenant": job.tenant_id, "node": node}).one_or_none()
    if limits is None or limits.max_jobs is not None or limits.state != NodeLife.UP:
        return None
    attempt = AttemptRow(
        id=new_id("try"), job_id=job.id, number=job.attempt + 1, token=secrets.token_hex(16), published_at=now,
        node=node, worker=worker, claimed_at=now, lease_expires_at=now + lease_s,
    )  # fmt: skip
    session.add(attempt)
    apply_to_all(session, [JobChange(job, {"attempt": attempt.number})], JobEvent.ADMIT, now)
    return FencingToken(job.id, attempt.id, attempt.token, node), job
