"""Tables of what belongs to an attempt on further nodes."""

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import Base


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
