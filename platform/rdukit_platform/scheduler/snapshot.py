"""Snapshot of the database for the scheduler: the front of each tenant's queue, the active jobs, the workers.

However many jobs a tenant has queued, a pass looks at its oldest ``WINDOW`` only. The others cannot be next, and cost
nothing.
"""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from rdukit.settings import resolve
from rdukit_platform.db.models import AttemptRow, JobRow, TenantRow
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.nodes import NodeCapacity
from rdukit_platform.scheduler.model import ActiveJob, QueuedJob, QueueSnapshot
from rdukit_platform.services import live_services
from rdukit_platform.settings import SCHEDULER_STARVE_S, SCHEDULER_TENANT_JOBS

#: Jobs of a tenant that one pass looks at: among so many a small one may pass those that do not fit.
WINDOW: Final = 200

_QUEUED: Final = str(JobState.QUEUED)
_OPEN: Final = [str(state) for state in JobState if state not in FINAL]


def needs_pass(session: Session) -> bool:
    """Return whether any job is on its way; without one a pass would only read."""
    return session.scalars(select(JobRow.id).where(JobRow.state.in_(_OPEN)).limit(1)).first() is not None


def read_snapshot(session: Session, node: NodeCapacity | None, now: float) -> QueueSnapshot:
    """Return the front of the queue, the active jobs and the workers, as values."""
    since = func.coalesce(JobRow.queued_at, JobRow.created_at)
    columns = (JobRow.id, JobRow.tenant_id, JobRow.tiles, since, JobRow.not_before, JobRow.waits_for)
    tenants = session.scalars(select(JobRow.tenant_id).where(JobRow.state == _QUEUED).distinct()).all()
    queued = [
        QueuedJob(*row)
        for tenant in tenants
        for row in session.execute(
            select(*columns)
            .where(JobRow.state == _QUEUED, JobRow.tenant_id == tenant)
            .order_by(JobRow.queued_at, JobRow.id)
            .limit(WINDOW)
        )
    ]
    active = session.execute(
        select(JobRow.id, JobRow.tenant_id, JobRow.tiles, AttemptRow.tiles)
        .join(AttemptRow, AttemptRow.job_id == JobRow.id)
        .where(AttemptRow.ended_at.is_(None))
    )
    return QueueSnapshot(
        now=now,
        queued=tuple(queued),
        active=tuple(ActiveJob(job, tenant, tiles, held is not None) for job, tenant, tiles, held in active),
        node=node,
        slots=sum(service.slots for service in live_services(session, now) if service.kind == "worker"),
        tenant_jobs=resolve(SCHEDULER_TENANT_JOBS),
        starve_s=resolve(SCHEDULER_STARVE_S),
        has_other_tenants=len(session.scalars(select(TenantRow.id).limit(2)).all()) > 1,
    )


def record_wait_reasons(session: Session, reasons: Mapping[str, str]) -> None:
    """Write down why jobs wait, where they still do."""
    if reasons:
        statement = (
            update(JobRow)
            .where(JobRow.id == bindparam("job"), JobRow.state == _QUEUED)
            .values(waits_for=bindparam("why"))
        )
        rows = [{"job": job_id, "why": why} for job_id, why in reasons.items()]
        session.connection().execute(statement, rows)
