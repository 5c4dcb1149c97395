"""The next jobs of the only line go to the worker whose jobs have just ended, in the transaction that ends them.

A slot that a job leaves would be empty until the scheduler has looked, and then sent a message. Where all that waits is
one line, of one tenant and one priority, it is known who is next: the first one. So nobody loses anything by it: once
somebody else waits, and for whatever a decision would have to weigh (tiles, members, labels, limits, pauses), the slot
is left to the scheduler. Whichever of the two takes a job, the other finds that it is not queued any more.
"""

import secrets
from collections.abc import Iterable
from typing import Final

from sqlalchemy import bindparam, insert, select
from sqlalchemy.orm import Session

from rdukit.settings import resolve
from rdukit_platform.db.models import AttemptRow, JobRow, NodeRow, TenantRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.jobs.changes import JobChange, apply_to_all
from rdukit_platform.jobs.fencing import FencingToken
from rdukit_platform.jobs.states import JobEvent, JobState
from rdukit_platform.nodes.registry import NodeLife
from rdukit_platform.settings import SCHEDULER_TENANT_JOBS

#: Tenant and priority of those that wait in it.
Line = tuple[str, int]
#: An attempt that is a worker's, and its job.
Taken = tuple[FencingToken, JobRow]

_ADD_ATTEMPTS: Final = insert(AttemptRow.metadata.tables[AttemptRow.__tablename__])
_QUEUED = JobRow.state == str(JobState.QUEUED)
#: The first jobs of the first line, if there is one line, and the last line of all; both follow an index.
_FRONT = (
    select(JobRow)
    .where(_QUEUED)
    .order_by(JobRow.tenant_id, JobRow.priority, JobRow.queued_at, JobRow.id)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_LAST = (
    select(JobRow.tenant_id, JobRow.priority)
    .where(_QUEUED)
    .order_by(JobRow.tenant_id.desc(), JobRow.priority.desc())
    .limit(1)
)
_LIMITS = select(
    TenantRow.max_jobs, select(NodeRow.state).where(NodeRow.name == bindparam("node")).scalar_subquery().label("state")
).where(TenantRow.id == bindparam("tenant"))


def line_of(job: JobRow) -> Line:
    """Return the line that a job waits in (pure)."""
    return job.tenant_id, job.priority


def needs_no_decision(job: JobRow) -> bool:
    """Return whether a job takes any slot, and nothing else (pure)."""
    is_alone = job.pipeline_id is None and job.members == 1 and not job.constraint
    return is_alone and job.tiles == 0 and job.not_before is None


def choose_next(front: Iterable[JobRow], line: Line) -> list[JobRow]:
    """Return the jobs that follow, of the first ones of all (pure): the line's, up to one that needs a decision.

    One that was tried before comes by itself: if it takes its worker along, it shall take no others along.
    """
    chosen = list[JobRow]()
    for job in front:
        if line_of(job) != line or not needs_no_decision(job) or (chosen and job.attempt):
            break
        chosen.append(job)
        if job.attempt:
            break
    return chosen


def take_next(
    session: Session, ended: Iterable[JobRow], most: int, worker: str, node: str, lease_s: float, now: float
) -> list[Taken]:  # fmt: skip
    """Admit the jobs that come next and make their attempts the worker's whose jobs, ``ended``, leave their slots.

    None: nobody waits, or the scheduler has to decide. The caller runs them after the commit, as if they were claimed.
    """
    lines = {line_of(job) for job in ended if needs_no_decision(job)}
    if not lines or most < 1 or resolve(SCHEDULER_TENANT_JOBS):
        return []
    last = session.execute(_LAST).one_or_none()
    if last is None or tuple(last) not in lines:
        return []
    chosen = choose_next(session.scalars(_FRONT, {"most": most}), (last.tenant_id, last.priority))
    if not chosen:
        return []
    limits = session.execute(_LIMITS, {"tenant": last.tenant_id, "node": node}).one_or_none()
    if limits is None or limits.max_jobs is not None or limits.state != NodeLife.UP:
        return []
    attempts = [
        {
            "id": new_id("try"),
            "job_id": job.id,
            "number": job.attempt + 1,
            "token": secrets.token_hex(16),
            "published_at": now,
            "node": node,
            "worker": worker,
            "claimed_at": now,
            "lease_expires_at": now + lease_s,
        }
        for job in chosen
    ]
    session.connection().execute(_ADD_ATTEMPTS, attempts)
    changes = [JobChange(job, {"attempt": made["number"]}) for job, made in zip(chosen, attempts, strict=True)]
    apply_to_all(session, changes, JobEvent.ADMIT, now)
    tokens = (FencingToken(str(made["job_id"]), str(made["id"]), str(made["token"]), node) for made in attempts)
    return list(zip(tokens, chosen, strict=True))
