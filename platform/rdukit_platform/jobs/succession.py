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
from rdukit_platform.db.base import table_of
from rdukit_platform.db.models import AttemptRow, JobRow, NodeRow, TenantRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.jobs.changes import JobChange, JobMove, ReadJob, apply_to_all
from rdukit_platform.jobs.fencing import FencingToken
from rdukit_platform.jobs.states import JobEvent, JobState
from rdukit_platform.nodes.registry import NodeLife
from rdukit_platform.settings import SCHEDULER_TENANT_JOBS

#: Tenant and priority of those that wait in it.
Line = tuple[str, int]
#: An attempt that is a worker's, and its job.
Taken = tuple[FencingToken, JobRow]

_ADD_ATTEMPTS: Final = insert(table_of(AttemptRow))
_QUEUED = JobRow.state == str(JobState.QUEUED)
#: The first jobs of the first line, if there is one line, and the last line of all; both follow an index.
_FRONT = (
    select(JobRow)
    .where(_QUEUED)
    .order_by(JobRow.tenant_id, JobRow.priority, JobRow.queued_at, JobRow.id)
    .limit(bindparam("most"))
    .with_for_update(skip_locked=True)
)
_JOBS, _TENANTS, _NODES = table_of(JobRow), table_of(TenantRow), table_of(NodeRow)
_LAST = (
    select(
        _JOBS.c.tenant_id,
        _JOBS.c.priority,
        _TENANTS.c.max_jobs,
        select(_NODES.c.state).where(_NODES.c.name == bindparam("node")).scalar_subquery().label("node_state"),
    )
    .join(_TENANTS, _TENANTS.c.id == _JOBS.c.tenant_id)
    .where(_JOBS.c.state == str(JobState.QUEUED))
    .order_by(_JOBS.c.tenant_id.desc(), _JOBS.c.priority.desc())
    .limit(1)
)


def line_of(job: ReadJob) -> Line:
    """Return the line that a job waits in (pure)."""
    return job.tenant_id, job.priority


def needs_no_decision(job: ReadJob) -> bool:
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
    session: Session, ended: Iterable[ReadJob], most: int, worker: str, node: str, lease_s: float, now: float
) -> list[Taken]:  # fmt: skip
    """Admit the jobs that come next and make their attempts the worker's whose jobs, ``ended``, leave their slots.

    None: nobody waits, or the scheduler has to decide. The caller runs them after the commit, as if they were claimed.
    """
    lines = {line_of(job) for job in ended if needs_no_decision(job)}
    if not lines or most < 1 or resolve(SCHEDULER_TENANT_JOBS):
        return []
    last = session.connection().execute(_LAST, {"node": node}).one_or_none()
    if last is None or last.max_jobs is not None or last.node_state != NodeLife.UP:
        return []
    line = last.tenant_id, last.priority
    chosen = choose_next(session.scalars(_FRONT, {"most": most}), line) if line in lines else []
    if not chosen:
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
    moves = (JobMove(JobEvent.ADMIT, now, columns={"attempt": made["number"]}) for made in attempts)
    apply_to_all(session, [JobChange(job, [move]) for job, move in zip(chosen, moves, strict=True)], now)
    tokens = (FencingToken(str(made["job_id"]), str(made["id"]), str(made["token"]), node) for made in attempts)
    return list(zip(tokens, chosen, strict=True))
