"""Outbox: messages to webhooks are written with the change they report, then taken and sent."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import CursorResult, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from rdukit.settings import resolve
from rdukit_platform.audit.service import SCHEDULER, Act, AuditRecord, record
from rdukit_platform.db.base import table_of
from rdukit_platform.db.models import DeliveryRow, WebhookRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.webhooks.settings import WEBHOOK_FAILING_HOURS, WEBHOOK_MAX_FAILURES, WEBHOOK_RETRY_S
from rdukit_platform.webhooks.states import DeliveryState, FailureLimit, pause_s, why_disabled

#: Name of an event, and a function for its data, called only if a webhook wants the event.
Message = tuple[str, Callable[[], Mapping[str, object]]]

_WEBHOOKS: Final = table_of(WebhookRow).c
_TOLD: Final = select(_WEBHOOKS.id, _WEBHOOKS.events).where(
    _WEBHOOKS.tenant_id == bindparam("tenant_id"), _WEBHOOKS.deleted_at.is_(None), _WEBHOOKS.disabled_at.is_(None)
)
#: Ended deliveries that one transaction deletes.
PRUNED_AT_ONCE: Final = 1000
#: Error of a message that a disabled webhook did not get.
NOT_TOLD: Final = "the webhook is disabled"


@dataclass(frozen=True, slots=True)
class Taken:
    """A message to send now, with its secrets."""

    id: str
    tenant_id: str
    webhook_id: str
    url: str
    secrets: tuple[str, ...]
    body: Mapping[str, object]


def tell(session: Session, tenant_id: str, messages: Iterable[Message], now: float) -> None:
    """Write messages to the tenant's webhooks that want these events."""
    webhooks = session.connection().execute(_TOLD, {"tenant_id": tenant_id}).all()
    if not webhooks:
        return
    for event, tell_data in messages:
        wanted = [row.id for row in webhooks if event in row.events]
        data = tell_data() if wanted else {}
        session.add_all(new_delivery(webhook_id, tenant_id, event, data, now) for webhook_id in wanted)
    session.flush()


def new_delivery(webhook_id: str, tenant_id: str, event: str, data: Mapping[str, object], now: float) -> DeliveryRow:
    """Return a new message that is due now."""
    body = {"type": event, "timestamp": datetime.fromtimestamp(now, UTC).isoformat(), "data": dict(data)}
    return DeliveryRow(
        id=new_id("msg"), webhook_id=webhook_id, tenant_id=tenant_id, event=event, body=body,
        state=str(DeliveryState.PENDING), due_at=now, give_up_at=now + resolve(WEBHOOK_RETRY_S), attempts=0,
        created_at=now,
    )  # fmt: skip


def find_due_tenants(session: Session, now: float) -> Sequence[str]:
    """Return the tenants with due messages."""
    query = select(DeliveryRow.tenant_id).distinct()
    return session.scalars(
        query.where(DeliveryRow.state == str(DeliveryState.PENDING), DeliveryRow.due_at <= now)
    ).all()


def take_due(session: Session, tenant_id: str, most: int, now: float, hold_s: float) -> list[Taken]:
    """Take up to ``most`` of the tenant's due messages, the longest due first.

    Taken messages are due again after ``hold_s``, in case their taker dies before it records the outcome.
    """
    query = select(DeliveryRow).where(
        DeliveryRow.state == str(DeliveryState.PENDING), DeliveryRow.tenant_id == tenant_id, DeliveryRow.due_at <= now
    )
    found = []
    for row in session.scalars(query.order_by(DeliveryRow.due_at).limit(most)).all():
        if not _change(session, row, due_at=now + hold_s):
            continue  # another dispatcher's
        webhook = session.get(WebhookRow, row.webhook_id)
        if webhook is None or webhook.deleted_at is not None:
            session.execute(delete(DeliveryRow).where(DeliveryRow.id == row.id))
            continue
        if webhook.disabled_at is not None:  # written by a change that had not seen the disabling yet
            row.state, row.ended_at, row.error = str(DeliveryState.DEAD), now, NOT_TOLD
            continue
        found.append(Taken(row.id, tenant_id, webhook.id, webhook.url, valid_secrets(webhook, now), row.body))
    return found


def record_try(session: Session, delivery_id: str, status: int, error: str, now: float, chance: float) -> DeliveryState:
    """Record the outcome of an attempt: the message is delivered, due again, or dead. Returns its state."""
    row = session.get(DeliveryRow, delivery_id)
    if row is None or row.state != DeliveryState.PENDING:
        return DeliveryState.DEAD if row is None else DeliveryState(row.state)
    row.attempts, row.status, row.error = row.attempts + 1, max(status, 0), error[:500] or None
    if 200 <= status < 300:
        row.state, row.ended_at = str(DeliveryState.DELIVERED), now
        _forget_failures(session, row.webhook_id)
    else:
        due_at = now + pause_s(row.attempts, chance)
        if due_at > row.give_up_at:
            row.state, row.ended_at = str(DeliveryState.DEAD), now
        row.due_at = due_at
        session.flush()
        _count_failure(session, row, now)
    return DeliveryState(row.state)


def disable(session: Session, webhook: WebhookRow, reason: str, now: float) -> None:
    """Disable a webhook until it is enabled again; its pending messages become dead."""
    webhook.disabled_at, webhook.disabled_reason = now, reason
    session.flush()
    pending = update(DeliveryRow).where(
        DeliveryRow.webhook_id == webhook.id, DeliveryRow.state == str(DeliveryState.PENDING)
    )
    session.execute(
        pending.values(state=str(DeliveryState.DEAD), ended_at=now, error=func.coalesce(DeliveryRow.error, NOT_TOLD))
    )


def enable(session: Session, webhook: WebhookRow) -> None:
    """Enable a webhook for events from now on, and reset its count of failures."""
    webhook.disabled_at, webhook.disabled_reason, webhook.failures, webhook.failing_since = None, None, 0, None
    session.flush()


def prune(session: Session, before: float) -> int:
    """Delete some deliveries that ended before a time, and removed webhooks without deliveries."""
    gone = select(WebhookRow.id).where(WebhookRow.deleted_at < before)
    session.execute(delete(DeliveryRow).where(DeliveryRow.webhook_id.in_(gone)))
    session.execute(delete(WebhookRow).where(WebhookRow.deleted_at < before))
    old = select(DeliveryRow.id).where(DeliveryRow.state != str(DeliveryState.PENDING), DeliveryRow.ended_at < before)
    result = session.execute(delete(DeliveryRow).where(DeliveryRow.id.in_(old.limit(PRUNED_AT_ONCE))))
    assert isinstance(result, CursorResult)
    return result.rowcount


def valid_secrets(webhook: WebhookRow, now: float) -> tuple[str, ...]:
    """Return the secrets that sign messages now: the newest, and for a while the previous one."""
    is_old_valid = webhook.old_secret is not None and webhook.old_until is not None and webhook.old_until > now
    return (webhook.secret, webhook.old_secret) if is_old_valid and webhook.old_secret else (webhook.secret,)


def _forget_failures(session: Session, webhook_id: str) -> None:
    failed = update(WebhookRow).where(WebhookRow.id == webhook_id, WebhookRow.failures > 0)
    session.execute(failed.values(failures=0, failing_since=None))


def _count_failure(session: Session, row: DeliveryRow, now: float) -> None:
    """Count a failed attempt; disable its webhook if the limit is reached."""
    one_more = update(WebhookRow).where(WebhookRow.id == row.webhook_id)
    session.execute(  # in the database: several dispatchers may count at once
        one_more.values(
            failures=WebhookRow.failures + 1, failing_since=func.coalesce(WebhookRow.failing_since, now)
        ).execution_options(synchronize_session=False)
    )
    webhook = session.get(WebhookRow, row.webhook_id, populate_existing=True)
    if webhook is None or webhook.disabled_at is not None or webhook.failing_since is None:
        return
    limit = FailureLimit(resolve(WEBHOOK_MAX_FAILURES), resolve(WEBHOOK_FAILING_HOURS) * 3600)
    if limit.is_passed(webhook.failures, webhook.failing_since, now):
        why = why_disabled(webhook.failures, now - webhook.failing_since, row.error or "")
        disable(session, webhook, why, now)
        act = Act.DISABLE_WEBHOOK
        record(session, AuditRecord(now, act, actor=SCHEDULER, tenant_id=row.tenant_id, target=webhook.id, detail=why))


def _change(session: Session, row: DeliveryRow, **columns: Collection[object] | float) -> bool:
    same = update(DeliveryRow).where(DeliveryRow.id == row.id, DeliveryRow.due_at == row.due_at)
    result = session.execute(same.values(columns).execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
