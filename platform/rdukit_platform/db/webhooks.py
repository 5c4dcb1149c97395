"""Tables of webhooks and of the messages to them."""

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from rdukit_platform.db.base import Base


class WebhookRow(Base):
    """URL that a tenant wants to be told of its jobs."""

    __tablename__ = "webhooks"
    __table_args__ = (Index(None, "tenant_id", "created_at"),)
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[str]]
    #: What messages are signed with; also with the one before it, until ``old_until``.
    secret: Mapped[str] = mapped_column(String(128))
    old_secret: Mapped[str | None] = mapped_column(String(128))
    old_until: Mapped[float | None]
    created_at: Mapped[float]
    #: Since when it is told nothing, and why: somebody's word, or how it failed.
    disabled_at: Mapped[float | None]
    disabled_reason: Mapped[str | None] = mapped_column(Text)
    #: Tries that failed one after another, and when the first of them did.
    failures: Mapped[int] = mapped_column(default=0, server_default="0")
    failing_since: Mapped[float | None]
    #: The row stays for a while: a job's change that saw it may be about to refer to it.
    deleted_at: Mapped[float | None]


class DeliveryRow(Base):
    """Message to a webhook, written in the transaction of what it tells: the outbox.

    Nothing refers to other tables, so that no change of a job waits for a webhook's, or fails with it.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        #: What is due, of one tenant after another.
        Index(None, "state", "tenant_id", "due_at"),
        Index(None, "webhook_id", "created_at"),
    )
    #: The same for each try.
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(String(32))
    tenant_id: Mapped[str] = mapped_column(String(32))
    event: Mapped[str] = mapped_column(String(32))
    body: Mapped[dict[str, object]]
    state: Mapped[str] = mapped_column(String(16))
    #: When it is tried next. Who tries it moves it on first: if that one dies, another tries it then.
    due_at: Mapped[float]
    give_up_at: Mapped[float]
    attempts: Mapped[int]
    #: HTTP status of the last try, 0: there was no answer; and what went wrong.
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[float]
    ended_at: Mapped[float | None]
