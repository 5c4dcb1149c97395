"""The tables of nodes and of orders to them. Times are seconds since the epoch, UTC."""

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import BYTES, Base


class NodeRow(Base):
    """Node of the platform: a machine with a node daemon and workers, which beat for it."""

    __tablename__ = "nodes"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    #: Of its home folder, so that another machine of the same name is noticed.
    home_id: Mapped[str] = mapped_column(String(64))
    host: Mapped[str] = mapped_column(String(255))
    #: As ``NodeLife``.
    state: Mapped[str] = mapped_column(String(16))
    #: By its own settings, and by administrators, whose word counts more.
    labels: Mapped[dict[str, str]]
    given_labels: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: As ``NodeCapacity``; none: its daemon does not answer.
    capacity: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
    #: The jobs and replicas that held tiles when it reported its capacity.
    leased: Mapped[list[str]]
    #: As ``look_at_node`` tells it, by ``date_start``.
    report: Mapped[dict[str, object]] = mapped_column("told", JSON, deferred=True)
    #: Grows with each beat: the scheduler sees by its own clock how long it has not.
    beats: Mapped[int] = mapped_column(BYTES)
    #: Where its workers answer those of other nodes: a host name or address; none: they join no boxes.
    link_host: Mapped[str | None] = mapped_column(String(255))
    #: Of the last beat, by the node's clock.
    beat_at: Mapped[float]
    joined_at: Mapped[float]
    #: When its state changed last.
    changed_at: Mapped[float]

    @property
    def all_labels(self) -> dict[str, str]:
        """Return the labels that jobs find it by."""
        return {**self.labels, **self.given_labels}


class NodeOrderRow(Base):
    """Change that a node's worker is to ask of the node's daemon, until whoever ordered it has the answer."""

    __tablename__ = "node_orders"
    __table_args__ = (Index(None, "node", "created_at"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    node: Mapped[str] = mapped_column(String(64))
    operation: Mapped[str] = mapped_column(String(32))
    arguments: Mapped[dict[str, object]]
    ordered_by: Mapped[str] = mapped_column(String(160))
    created_at: Mapped[float]
    taken_at: Mapped[float | None]
    #: ``{"ok": …}``, or ``{"error": {"code", "message", "detail"}}``.
    answer: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
