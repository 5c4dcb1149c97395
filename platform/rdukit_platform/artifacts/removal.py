"""Removal of artifacts: their tenant deletes them, or they expire; pins prevent both.

The row stays, marked, so that lineage stays true. The next sweep removes the content, unless another row refers to it.
Every function but ``expire_artifacts`` runs in the caller's transaction.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict
from rdukit.settings import resolve
from rdukit_platform.artifacts.needs import MAX_NAMED, Need, describe_needs, read_needs
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.audit.service import SCHEDULER, Act, AuditRecord, record
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, TenantRow
from rdukit_platform.setting_texts import read_keep_days
from rdukit_platform.settings import ARTIFACT_KEEP_DAYS

logger = logging.getLogger(__name__)

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Removed:
    """An artifact that was deleted. ``same_content``: the tenant's other artifacts with the same content, which
    therefore stays.
    """

    row: ArtifactRow
    same_content: Sequence[str]


def delete_artifact(session: Session, tenant_id: str, artifact_id: str, now: float) -> Removed:
    """Mark one of the tenant's artifacts as deleted.

    Raises:
        NotFound: there is no such artifact.
        Conflict: the artifact is pinned or needed; the message has the reason.
    """
    row = get_artifact(session, tenant_id, artifact_id, is_locked=True)
    if row.pinned_at is not None:
        raise Conflict(f"artifact {row.id} is pinned; unpin it first: rdukit artifact unpin {row.id}")
    needs = read_needs(session, tenant_id).get(row.id, [])
    if needs:
        named = [{"kind": need.kind, "name": need.name} for need in needs[:MAX_NAMED]]
        raise Conflict(f"artifact {row.id} is needed by {describe_needs(needs)}", needs=named)
    row.deleted_at = now
    same = select(ArtifactRow.id).where(
        ArtifactRow.tenant_id == tenant_id, ArtifactRow.digest == row.digest, ArtifactRow.id != row.id,
        ArtifactRow.deleted_at.is_(None),
    )  # fmt: skip
    return Removed(row, session.scalars(same.order_by(ArtifactRow.created_at, ArtifactRow.id).limit(MAX_NAMED)).all())


def pin_artifact(session: Session, tenant_id: str, artifact_id: str, now: float) -> ArtifactRow:
    """Pin an artifact so that it never expires; pinning twice is not an error. Raises as ``get_artifact``."""
    row = get_artifact(session, tenant_id, artifact_id, is_locked=True)
    row.pinned_at = row.pinned_at if row.pinned_at is not None else now
    return row


def unpin_artifact(session: Session, tenant_id: str, artifact_id: str) -> ArtifactRow:
    """Remove an artifact's pin, if it has one. Raises as ``get_artifact``."""
    row = get_artifact(session, tenant_id, artifact_id, is_locked=True)
    row.pinned_at = None
    return row


def has_expired(row: ArtifactRow, keep_days: Mapping[str, float], needs: Sequence[Need], now: float) -> bool:
    """Return whether an artifact has expired (pure). ``keep_days``: days by kind; ``*``: other kinds; 0: for ever."""
    days = keep_days.get(row.kind, keep_days.get("*", 0.0))
    is_old = days > 0 and row.created_at < now - days * DAY_S
    return is_old and row.pinned_at is None and row.deleted_at is None and not needs


def expire_artifacts(database: Database, now: float) -> int:
    """Mark the artifacts as deleted that are older than ``artifacts.keep_days`` says. Returns how many."""
    keep_days = read_keep_days(resolve(ARTIFACT_KEEP_DAYS))
    shortest = min((days for days in keep_days.values() if days > 0), default=None)
    if shortest is None:
        return 0
    count = 0
    with database.read() as session:
        tenants = session.scalars(select(TenantRow.id).order_by(TenantRow.id)).all()
    for tenant_id in tenants:
        with database.write() as session:
            old = select(ArtifactRow).where(
                ArtifactRow.tenant_id == tenant_id, ArtifactRow.created_at < now - shortest * DAY_S,
                ArtifactRow.deleted_at.is_(None), ArtifactRow.pinned_at.is_(None),
            )  # fmt: skip
            rows = session.scalars(old.with_for_update()).all()
            needs = read_needs(session, tenant_id) if rows else {}
            gone = [row for row in rows if has_expired(row, keep_days, needs.get(row.id, ()), now)]
            for row in gone:
                row.deleted_at = now
            if gone:
                detail = f"{len(gone)} older than {ARTIFACT_KEEP_DAYS.name} says: {' '.join(row.id for row in gone)}"
                entry = AuditRecord(now, Act.EXPIRE_ARTIFACTS, actor=SCHEDULER, tenant_id=tenant_id, detail=detail)
                record(session, entry)
        count += len(gone)
    if count:
        logger.info("artifacts expired count=%d", count)
    return count
