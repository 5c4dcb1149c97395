"""Tables of webhooks and of the messages to them."""

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import Base


class WebhookRow(Base):
    """URL that a tenant wants notified about its jobs."""

    __tablename__ = "webhooks"
    __table_args__ = (Index(None, "tenant_id", "created_at"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[str]]
    #: Secrets that sign messages: the newest, and until ``old_until`` the previous one.
    secret: Mapped[str] = mapped_column(String(128))
    old_secret: Mapped[str | None] = mapped_column(String(128))
    old_until: Mapped[float | None]
    created_at: Mapped[float]
    #: Time of its disabling, and the reason: a user's, or its failures.
    disabled_at: Mapped[float | None]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    #: Number of successive failed attempts, and time of the first.
    failures: Mapped[int] = mapped_column(default=0, server_default="0")
    failing_since: Mapped[float | None]
    #: The row stays for a while, because a concurrent change of a job may still refer to it.
    deleted_at: Mapped[float | None]


class DeliveryRow(Base):
    """Message to a webhook, written in the transaction that it reports: the outbox.

    It has no foreign keys, so changes of jobs never wait for a webhook's row, or fail with it.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        #: Due messages, by tenant.
        Index(None, "state", "tenant_id", "due_at"),
        Index(None, "webhook_id", "created_at"),
    )
    #: The same for each attempt.
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(String(32))
    tenant_id: Mapped[str] = mapped_column(String(32))
    event: Mapped[str] = mapped_column(String(32))
    body: Mapped[dict[str, object]]
    state: Mapped[str] = mapped_column(String(16))
    #: Time of the next attempt. A sender postpones it first: if the sender dies, another tries then.
    due_at: Mapped[float]
    give_up_at: Mapped[float]
    attempts: Mapped[int]
    #: HTTP status of the last attempt (0: no answer), and its error.
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[float]
    ended_at: Mapped[float | None]
