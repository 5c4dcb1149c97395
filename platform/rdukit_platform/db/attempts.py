"""The tables of attempts at jobs, and of their parts on further nodes. Times are seconds since the epoch, UTC."""

from sqlalchemy import JSON, ColumnElement, Double, ForeignKey, String, UniqueConstraint, select
from sqlalchemy.orm import Mapped, mapped_column, relationship

from rdukit_platform.db.base import Base


class AttemptRow(Base):
    """Attempt at a job. Its token fences: without it nothing is changed."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("job_id", "number"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    number: Mapped[int]
    token: Mapped[str] = mapped_column(String(64))
    published_at: Mapped[float]
    #: The node that it was placed on, whose workers may claim it; none: of a version with one node.
    node: Mapped[str | None] = mapped_column(String(64))
    worker: Mapped[str | None] = mapped_column(String(128))
    claimed_at: Mapped[float | None]
    lease_expires_at: Mapped[float | None]
    #: When a user asked for a pause: the worker is to end it.
    pause_asked_at: Mapped[float | None]
    #: When the scheduler asked for its tiles: the same.
    preempt_asked_at: Mapped[float | None]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None] = mapped_column(Double, index=True)
    outcome: Mapped[str | None] = mapped_column(String(32))
    #: Why it did not succeed; of an open one, whom it makes room for.
    error: Mapped[dict[str, object] | None]
    tiles: Mapped[list[str] | None]
    #: Where there are further parts: as theirs.
    address: Mapped[str | None] = mapped_column(String(255))
    #: Digest of what it had made when it ended, for an attempt on another node.
    kept: Mapped[str | None] = mapped_column(String(64))
    #: No longer written: the process id of a box.
    box_pid: Mapped[int | None]
    #: ``{"backend", "id", "limits"}`` of the box that took the verb.
    box: Mapped[dict[str, object] | None]
    #: Spans of its worker and box, as ``jobs.trace`` shows them; written when it ends, read for a trace only.
    spans: Mapped[list[object] | None] = mapped_column(JSON, deferred=True)
    #: On further nodes; read by whoever asks for them at once.
    parts: Mapped[list["AttemptPartRow"]] = relationship(order_by="AttemptPartRow.number", lazy="raise", viewonly=True)


class AttemptPartRow(Base):
    """Members of an attempt on a further node, beside those of its own row. It is open while the attempt is.

    Its token fences as the attempt's does, for what its worker may do.
    """

    __tablename__ = "attempt_parts"
    __table_args__ = (UniqueConstraint("attempt_id", "number"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"), index=True)
    #: From 1 on; members count on from those of the attempt's row, which is number 0.
    number: Mapped[int]
    members: Mapped[int]
    token: Mapped[str] = mapped_column(String(64))
    published_at: Mapped[float]
    node: Mapped[str] = mapped_column(String(64))
    worker: Mapped[str | None] = mapped_column(String(128))
    claimed_at: Mapped[float | None]
    lease_expires_at: Mapped[float | None]
    tiles: Mapped[list[str] | None]
    #: Where its worker's bridge answers those of the other parts: ``host:port``.
    address: Mapped[str | None] = mapped_column(String(255))

    @classmethod
    def is_open(cls) -> ColumnElement[bool]:
        """Return the condition that its attempt has not ended."""
        return select(AttemptRow.id).where(AttemptRow.id == cls.attempt_id, AttemptRow.ended_at.is_(None)).exists()
