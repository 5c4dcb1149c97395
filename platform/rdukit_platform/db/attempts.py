"""The tables of attempts at jobs, and of their parts on further nodes. Times are seconds since the epoch, UTC."""

from sqlalchemy import JSON, ColumnElement, Double, ForeignKey, String, UniqueConstraint, select
from sqlalchemy.orm import Mapped, mapped_column, relationship

from rdukit_platform.db.base import Base


class AttemptRow(Base):
    """Attempt at a job. Its token is a fencing token: changes need it."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("job_id", "number"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    number: Mapped[int]
    token: Mapped[str] = mapped_column(String(64))
    published_at: Mapped[float]
    #: Node whose workers may claim it; null: written by a version with a single node.
    node: Mapped[str | None] = mapped_column(String(64))
    worker: Mapped[str | None] = mapped_column(String(128))
    claimed_at: Mapped[float | None]
    lease_expires_at: Mapped[float | None]
    #: Time at which a user asked for a pause; the worker must end the attempt.
    pause_asked_at: Mapped[float | None]
    #: Time at which the scheduler asked for its tiles; the worker must end the attempt.
    preempt_asked_at: Mapped[float | None]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None] = mapped_column(Double, index=True)
    outcome: Mapped[str | None] = mapped_column(String(32))
    #: Reason of its failure; for an open attempt, the job that preempts it.
    error: Mapped[dict[str, object] | None]
    tiles: Mapped[list[str] | None]
    #: Address of its bridge if there are further parts, as in ``AttemptPartRow``.
    address: Mapped[str | None] = mapped_column(String(255))
    #: Digest of its partial outputs, for an attempt on another node.
    kept: Mapped[str | None] = mapped_column(String(64))
    #: No longer written: the process id of a box.
    box_pid: Mapped[int | None]
    #: ``{"backend", "id", "limits"}`` of the box that took the verb.
    box: Mapped[dict[str, object] | None]
    #: Spans of its worker and box, as ``jobs.trace`` shows them; written when it ends, read for a trace only.
    spans: Mapped[list[object] | None] = mapped_column(JSON, deferred=True)
    #: Parts on further nodes; loaded only on request.
    parts: Mapped[list["AttemptPartRow"]] = relationship(order_by="AttemptPartRow.number", lazy="raise", viewonly=True)


class AttemptPartRow(Base):
    """Members of an attempt on a further node, in addition to those of its own row. A part is open while its attempt
    is.

    Its token is the fencing token for its worker's changes.
    """

    __tablename__ = "attempt_parts"
    __table_args__ = (UniqueConstraint("attempt_id", "number"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.id"), index=True)
    #: Number from 1; the attempt's row is number 0 and has the first members.
    number: Mapped[int]
    members: Mapped[int]
    token: Mapped[str] = mapped_column(String(64))
    published_at: Mapped[float]
    node: Mapped[str] = mapped_column(String(64))
    worker: Mapped[str | None] = mapped_column(String(128))
    claimed_at: Mapped[float | None]
    lease_expires_at: Mapped[float | None]
    tiles: Mapped[list[str] | None]
    #: Address of its worker's bridge for the other parts: ``host:port``.
    address: Mapped[str | None] = mapped_column(String(255))

    @classmethod
    def is_open(cls) -> ColumnElement[bool]:
        """Return the condition that its attempt has not ended."""
        return select(AttemptRow.id).where(AttemptRow.id == cls.attempt_id, AttemptRow.ended_at.is_(None)).exists()
