"""The tables of the audit log. Times are seconds since the epoch, UTC."""

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import Base


class AuditRow(Base):
    """Entry of the audit log. Rows are added and, when old, deleted; none is changed.

    It has no foreign keys: an entry outlives its subject.
    """

    __tablename__ = "audit"
    __table_args__ = (
        Index(None, "created_at", "id"),
        Index(None, "tenant_id", "outcome", "created_at"),
        Index("ix_audit_chain", "chain", "number", unique=True),
    )
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    created_at: Mapped[float]
    #: Tenant that may see it; null: administrators only.
    tenant_id: Mapped[str | None] = mapped_column(String(32))
    #: A token's id, or ``nobody``, ``worker``, ``scheduler``, ``system``.
    actor: Mapped[str] = mapped_column(String(160))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(256))
    #: done or refused
    outcome: Mapped[str] = mapped_column(String(16))
    #: For a refusal: the error's code.
    reason: Mapped[str] = mapped_column(String(64))
    detail: Mapped[str] = mapped_column(Text)
    address: Mapped[str] = mapped_column(String(64))
    #: Number of events that it represents.
    count: Mapped[int]
    #: Its chain, its number there, and the SHA-256 of it and its predecessor; see ``audit.chain``.
    chain: Mapped[str | None] = mapped_column(String(64))
    number: Mapped[int | None]
    digest: Mapped[str | None] = mapped_column(String(64))


class AuditChainRow(Base):
    """Chain of the audit log: its last entry, and its last pruned one."""

    __tablename__ = "audit_chains"
    chain: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int]
    digest: Mapped[str] = mapped_column(String(64))
    anchor_number: Mapped[int]
    anchor_digest: Mapped[str] = mapped_column(String(64))
