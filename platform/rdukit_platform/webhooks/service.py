"""Operations of a tenant on its webhooks. Every function runs in the caller's transaction."""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, NotFound, suggest
from rdukit.http.webhooks import check_url, new_secret
from rdukit.settings import resolve
from rdukit_platform.db.models import DeliveryRow, WebhookRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.webhooks.outbox import disable, enable, new_delivery
from rdukit_platform.webhooks.settings import WEBHOOK_RETRY_S
from rdukit_platform.webhooks.states import EVENTS, TEST_EVENT, USUAL_EVENTS, DeliveryState

#: Largest number of webhooks per tenant.
MAX_WEBHOOKS: Final = 20
#: Default seconds for which the old secret stays valid after a rotation.
ROTATION_S: Final = 86400.0

Grace = Annotated[float, Field(ge=0, le=30 * 86400, allow_inf_nan=False)]


class WebhookView(BaseModel):
    """A webhook, without its secret."""

    id: str
    url: str
    events: list[str]
    created_at: float
    #: Time until which the previous secret signs messages, too.
    old_until: float | None
    #: Time and reason of its disabling; null: it is enabled.
    disabled_at: float | None
    disabled_reason: str | None
    #: Number of successive failed attempts, and time of the first.
    failures: int
    failing_since: float | None


class NewWebhook(WebhookView):
    """A webhook with its secret, which is shown only once."""

    secret: str


class WebhookPage(BaseModel):
    """Webhooks, newest first."""

    webhooks: list[WebhookView]
    next_cursor: str | None


class DeliveryView(BaseModel):
    """A message to a webhook and its last attempt; ``status`` 0: no answer."""

    id: str
    event: str
    state: str
    attempts: int
    status: int | None
    error: str | None
    #: Time of the next attempt; meaningless for an ended message.
    due_at: float
    created_at: float
    ended_at: float | None
    body: dict[str, object]


class DeliveryPage(BaseModel):
    """Messages, newest first."""

    deliveries: list[DeliveryView]
    next_cursor: str | None


def create_webhook(session: Session, tenant_id: str, url: str, events: Sequence[str], now: float) -> WebhookRow:
    """Add a webhook; by default it is notified about ends of jobs.

    Raises:
        InvalidArgument: the URL or an event is not valid.
        Conflict: the tenant has reached its limit of webhooks.
    """
    check_url(url, "url")
    for event in events:
        if event not in EVENTS:
            raise IllegalValue(
                f"there is no event {event[:64]!r}.{suggest(event[:64], EVENTS)} Legal: {', '.join(EVENTS)}",
                legal=list(EVENTS),
            )
    own = select(func.count()).where(WebhookRow.tenant_id == tenant_id, WebhookRow.deleted_at.is_(None))
    if (session.scalar(own) or 0) >= MAX_WEBHOOKS:
        raise Conflict(f"the tenant has {MAX_WEBHOOKS} webhooks, which is the limit; remove one")
    row = WebhookRow(
        id=new_id("hook"), tenant_id=tenant_id, url=url, events=list(dict.fromkeys(events)) or list(USUAL_EVENTS),
        secret=new_secret(), created_at=now, failures=0,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


def get_webhook(session: Session, tenant_id: str, webhook_id: str) -> WebhookRow:
    """Return one of the tenant's webhooks.

    Raises:
        NotFound: the tenant has no such webhook.
    """
    row = session.get(WebhookRow, webhook_id)
    if row is None or row.tenant_id != tenant_id or row.deleted_at is not None:
        raise NotFound(f"there is no webhook {webhook_id!r}; list yours with: rdukit webhook list")
    return row


def list_webhooks(
    session: Session, tenant_id: str, limit: int, cursor: str | None
) -> tuple[list[WebhookRow], str | None]:
    """Return the tenant's webhooks, newest first, and the cursor of the next page."""
    query = select(WebhookRow).where(WebhookRow.tenant_id == tenant_id, WebhookRow.deleted_at.is_(None))
    return read_page(session, query, WebhookRow.created_at, WebhookRow.id, limit, cursor)


def rotate_secret(session: Session, webhook: WebhookRow, grace_s: float, now: float) -> WebhookRow:
    """Give a webhook a new secret; messages are signed with the old one too, for ``grace_s``."""
    webhook.old_secret, webhook.old_until = (webhook.secret, now + grace_s) if grace_s else (None, None)
    webhook.secret = new_secret()
    session.flush()
    return webhook


def disable_webhook(session: Session, webhook: WebhookRow, reason: str, now: float) -> WebhookRow:
    """Disable a webhook; one that is already disabled keeps its reason."""
    if webhook.disabled_at is None:
        disable(session, webhook, reason or "somebody disabled it", now)
    return webhook


def enable_webhook(session: Session, webhook: WebhookRow) -> WebhookRow:
    """Enable a webhook for events from now on; dead messages need ``redeliver``."""
    if webhook.disabled_at is not None:
        enable(session, webhook)
    return webhook


def check_enabled(webhook: WebhookRow) -> WebhookRow:
    """Return the webhook if it is enabled.

    Raises:
        Conflict: the webhook is disabled.
    """
    if webhook.disabled_at is not None:
        raise Conflict(
            f"webhook {webhook.id} is disabled: {webhook.disabled_reason}; first enable it: "
            f"rdukit webhook enable {webhook.id}"
        )
    return webhook


def remove_webhook(session: Session, webhook: WebhookRow, now: float) -> None:
    """Delete a webhook; its pending messages are not sent."""
    webhook.deleted_at, webhook.secret, webhook.old_secret, webhook.old_until = now, "", None, None
    session.flush()


def add_test(session: Session, webhook: WebhookRow, now: float) -> DeliveryRow:
    """Write a test message to a webhook, regardless of its events.

    Raises:
        Conflict: the webhook is disabled.
    """
    check_enabled(webhook)
    row = new_delivery(webhook.id, webhook.tenant_id, TEST_EVENT, {"webhook": webhook.id}, now)
    session.add(row)
    session.flush()
    return row


def list_deliveries(
    session: Session, webhook: WebhookRow, state: str | None, limit: int, cursor: str | None
) -> tuple[list[DeliveryRow], str | None]:
    """Return a webhook's messages, newest first, and the cursor of the next page.

    Raises:
        InvalidArgument: unknown state, limit or cursor.
    """
    query = select(DeliveryRow).where(DeliveryRow.webhook_id == webhook.id)
    if state is not None:
        if state not in set(DeliveryState):
            raise InvalidArgument(f"unknown delivery state {state[:64]!r}; expected {', '.join(DeliveryState)}")
        query = query.where(DeliveryRow.state == state)
    return read_page(session, query, DeliveryRow.created_at, DeliveryRow.id, limit, cursor)


def get_delivery(session: Session, webhook: WebhookRow, delivery_id: str) -> DeliveryRow:
    """Return one of a webhook's messages.

    Raises:
        NotFound: the webhook has no such message.
    """
    row = session.get(DeliveryRow, delivery_id)
    if row is None or row.webhook_id != webhook.id:
        raise NotFound(
            f"webhook {webhook.id} has no delivery {delivery_id!r}; deliveries are kept for webhook.keep_days"
        )
    return row


def redeliver(session: Session, webhook: WebhookRow, delivery: DeliveryRow, now: float) -> DeliveryRow:
    """Send a delivered or dead message again, with the attempts of a new one.

    Raises:
        Conflict: its webhook is disabled.
    """
    check_enabled(webhook)
    delivery.state, delivery.due_at, delivery.ended_at = str(DeliveryState.PENDING), now, None
    delivery.give_up_at = now + resolve(WEBHOOK_RETRY_S)
    session.flush()
    return delivery


def show_webhook(row: WebhookRow) -> WebhookView:
    """Return a webhook as the API shows it."""
    return WebhookView(**{name: getattr(row, name) for name in WebhookView.model_fields})


def show_new(row: WebhookRow) -> NewWebhook:
    """Return a webhook with its secret, for the one answer that has it."""
    return NewWebhook(**{name: getattr(row, name) for name in NewWebhook.model_fields})


def show_delivery(row: DeliveryRow) -> DeliveryView:
    """Return a message as the API shows it."""
    return DeliveryView(**{name: getattr(row, name) for name in DeliveryView.model_fields})
