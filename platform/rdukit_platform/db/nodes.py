"""The tables of nodes and of orders to them. Times are seconds since the epoch, UTC."""

from sqlalchemy import JSON, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import BYTES, Base


class NodeRow(Base):
    """Node of the platform: a machine with a node daemon and workers, which send its heartbeats."""

    __tablename__ = "nodes"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    #: Id of its home folder, to detect another machine of the same name.
    home_id: Mapped[str] = mapped_column(String(64))
    host: Mapped[str] = mapped_column(String(255))
    #: As ``NodeLife``.
    state: Mapped[str] = mapped_column(String(16))
    #: Labels from its own settings, and from administrators, which override them.
    labels: Mapped[dict[str, str]]
    given_labels: Mapped[dict[str, str]] = mapped_column(JSON, default=dict, server_default="{}")
    #: As ``NodeCapacity``; null: its daemon does not answer.
    capacity: Mapped[dict[str, object] | None] = mapped_column(JSON(none_as_null=True))
    #: The jobs and replicas that held tiles when it reported its capacity.
    leased: Mapped[list[str]]
    #: Report of ``look_at_node``, after ``date_start``.
    report: Mapped[dict[str, object]] = mapped_column("told", JSON, deferred=True)
    #: Increased with each heartbeat; the scheduler measures silence by its own clock.
    beats: Mapped[int] = mapped_column(BYTES)
    #: Host name or address of its workers for other nodes; null: it takes no part in jobs on several nodes.
    link_host: Mapped[str | None] = mapped_column(String(255))
    #: Time of the last heartbeat, by the node's clock.
    beat_at: Mapped[float]
    joined_at: Mapped[float]
    #: Time of the last change of state.
    changed_at: Mapped[float]

    @property
    def all_labels(self) -> dict[str, str]:
        """Return the labels that jobs find it by."""
        return {**self.labels, **self.given_labels}


class NodeOrderRow(Base):
    """Order to a node's worker to change its daemon; it exists until the caller has the answer."""

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
