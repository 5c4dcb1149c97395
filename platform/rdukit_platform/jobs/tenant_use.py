"""Current use by tenants: tiles, jobs and bytes of artifacts, for many tenants in a few queries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rdukit.settings import resolve
from rdukit_platform.db.models import (
    ArtifactRow,
    AttemptRow,
    EndpointReplicaRow,
    EndpointRevisionRow,
    EndpointRow,
    JobRow,
    TenantRow,
)
from rdukit_platform.jobs.states import JobState
from rdukit_platform.settings import ARTIFACT_TENANT_BYTES, SCHEDULER_TENANT_JOBS


@dataclass(frozen=True, slots=True)
class TenantUse:
    """Tiles, jobs and bytes that a tenant uses now, and its limits, with defaults for missing ones.

    ``tiles`` counts active jobs and endpoints' replicas, also those about to start. A limit of 0 means unlimited.
    """

    tiles: int = 0
    active_jobs: int = 0
    queued_jobs: int = 0
    artifacts: int = 0
    artifact_bytes: int = 0
    limit_bytes: int = 0
    limit_jobs: int = 0


def read_tenant_uses(session: Session, tenants: Sequence[TenantRow]) -> dict[str, TenantUse]:
    """Return the use of each tenant, by id."""
    ids = [tenant.id for tenant in tenants]
    bytes_by_default, jobs_by_default = resolve(ARTIFACT_TENANT_BYTES), resolve(SCHEDULER_TENANT_JOBS)
    found = {
        tenant.id: TenantUse(
            limit_bytes=bytes_by_default if tenant.artifact_bytes is None else tenant.artifact_bytes,
            limit_jobs=jobs_by_default if tenant.max_jobs is None else tenant.max_jobs,
        )
        for tenant in tenants
    }
    active = (
        select(JobRow.tenant_id, func.count(), func.coalesce(func.sum(JobRow.tiles * JobRow.members), 0))
        .join(AttemptRow, AttemptRow.job_id == JobRow.id)
        .where(AttemptRow.ended_at.is_(None), JobRow.tenant_id.in_(ids))
        .group_by(JobRow.tenant_id)
    )
    for tenant_id, jobs, tiles in session.execute(active):
        found[tenant_id] = replace(found[tenant_id], active_jobs=jobs, tiles=int(tiles))
    for tenant_id, tiles in read_served_tiles(session).items():
        if tenant_id in found:
            found[tenant_id] = replace(found[tenant_id], tiles=found[tenant_id].tiles + tiles)
    queued = (
        select(JobRow.tenant_id, func.count())
        .where(JobRow.state == str(JobState.QUEUED), JobRow.tenant_id.in_(ids))
        .group_by(JobRow.tenant_id)
    )
    for tenant_id, jobs in session.execute(queued):
        found[tenant_id] = replace(found[tenant_id], queued_jobs=jobs)
    kept = (
        select(ArtifactRow.tenant_id, func.count(), func.coalesce(func.sum(ArtifactRow.bytes), 0))
        .where(ArtifactRow.tenant_id.in_(ids), ArtifactRow.deleted_at.is_(None))
        .group_by(ArtifactRow.tenant_id)
    )
    for tenant_id, count, total in session.execute(kept):
        found[tenant_id] = replace(found[tenant_id], artifacts=count, artifact_bytes=int(total))
    return found


def read_served_tiles(session: Session) -> dict[str, int]:
    """Return the tiles that each tenant's replicas have or are about to get; tenants without any are left out."""
    query = (
        select(EndpointRow.tenant_id, func.sum(EndpointRevisionRow.tiles))
        .join(EndpointReplicaRow, EndpointReplicaRow.endpoint_id == EndpointRow.id)
        .join(
            EndpointRevisionRow,
            (EndpointRevisionRow.endpoint_id == EndpointRow.id)
            & (EndpointRevisionRow.number == EndpointReplicaRow.revision),
        )
        .where(EndpointReplicaRow.ended_at.is_(None))
        .group_by(EndpointRow.tenant_id)
    )
    return {str(tenant_id): int(tiles) for tenant_id, tiles in session.execute(query)}
