"""Quota of artifacts in bytes. Each artifact counts in full, even if two share content."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rdukit.errors import QuotaExceeded
from rdukit.settings import resolve
from rdukit.units import format_bytes
from rdukit_platform.artifacts.needs import read_needs
from rdukit_platform.db.models import ArtifactRow, TenantRow
from rdukit_platform.settings import ARTIFACT_TENANT_BYTES

#: Largest number of artifacts that a refusal proposes for deletion.
MAX_PROPOSED = 3


@dataclass(frozen=True, slots=True)
class ArtifactUse:
    """A tenant's artifacts: their number, their bytes, and the limit of bytes; 0: no limit."""

    artifacts: int
    bytes: int
    limit_bytes: int


def read_use(session: Session, tenant_id: str) -> ArtifactUse:
    """Return a tenant's use and limit of artifacts."""
    count, total = session.execute(
        select(func.count(), func.coalesce(func.sum(ArtifactRow.bytes), 0)).where(
            ArtifactRow.tenant_id == tenant_id, ArtifactRow.deleted_at.is_(None)
        )
    ).one()
    own = session.scalars(select(TenantRow.artifact_bytes).where(TenantRow.id == tenant_id)).one()
    return ArtifactUse(count, int(total), limit_of(own))


def limit_of(own: int | None) -> int:
    """Return a tenant's limit in bytes: its own, or the setting's if it has none; 0: no limit."""
    return resolve(ARTIFACT_TENANT_BYTES) if own is None else own


def check_quota(session: Session, tenant_id: str, more: int, *, is_kept: bool = False) -> None:
    """Refuse ``more`` bytes of artifacts if they exceed the tenant's limit.

    Args:
        is_kept: lock the tenant until this transaction ends, so that others cannot add artifacts.
    Raises:
        QuotaExceeded: the message has the excess, and artifacts that could be deleted.
    """
    tenant = select(TenantRow).where(TenantRow.id == tenant_id)
    row = session.scalars(tenant).one()
    if not limit_of(row.artifact_bytes):
        return
    if is_kept:
        session.execute(tenant.with_for_update(key_share=True))
    use = read_use(session, tenant_id)
    if use.bytes + more <= use.limit_bytes:
        return
    excess = use.bytes + more - use.limit_bytes
    advice = _propose(session, tenant_id, more, use.limit_bytes)
    raise QuotaExceeded(
        f"tenant {row.name!r} may keep {format_bytes(use.limit_bytes)} of artifacts and has "
        f"{format_bytes(use.bytes)}; {format_bytes(more)} more exceed that by {format_bytes(excess)}; {advice}",
        limit_bytes=use.limit_bytes, bytes=use.bytes, more_bytes=more, excess_bytes=excess,
    )  # fmt: skip


def _propose(session: Session, tenant_id: str, more: int, limit: int) -> str:
    needs = read_needs(session, tenant_id)
    largest = session.scalars(
        select(ArtifactRow)
        .where(
            ArtifactRow.tenant_id == tenant_id,
            ArtifactRow.deleted_at.is_(None),
            ArtifactRow.pinned_at.is_(None),
            ArtifactRow.bytes > 0,
        )
        .order_by(ArtifactRow.bytes.desc(), ArtifactRow.id)
    )
    free = [row for row in largest if row.id not in needs][:MAX_PROPOSED]
    if not free and more > limit:
        return "that alone exceeds its limit; ask an administrator for more"
    if not free:
        return "nothing can be deleted now, because every artifact is pinned or needed; ask an administrator for more"
    named = ", ".join(f"{row.id} ({row.kind}, {format_bytes(row.bytes)})" for row in free)
    return f"delete artifacts that you do not need, such as {named}, with: rdukit artifact delete ID"
