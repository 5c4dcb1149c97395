"""The console's pages of webhooks: the tenant's list, and one webhook with its messages and actions."""

from typing import Annotated, Final

from fastapi import APIRouter, Form, Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from rdukit.errors import RdukitError
from rdukit.http.webhooks import MAX_URL
from rdukit.units import format_seconds
from rdukit_platform.api import webhooks as api
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.console.access import Editor, Visitor
from rdukit_platform.console.page import PageRoute, fragment, live, page
from rdukit_platform.tenants.scopes import JOBS_WRITE, allows
from rdukit_platform.tenants.service import Caller
from rdukit_platform.webhooks.service import MAX_WEBHOOKS, DeliveryView, NewWebhook
from rdukit_platform.webhooks.states import EVENTS, TEST_EVENT, USUAL_EVENTS, DeliveryState

router = APIRouter(prefix="/console/webhooks", include_in_schema=False, route_class=PageRoute)

TONES: Final = {DeliveryState.PENDING: "busy", DeliveryState.DELIVERED: "good", DeliveryState.DEAD: "bad"}


@router.get("")
def webhooks(request: Request, caller: Visitor) -> Response:
    """Show the tenant's webhooks."""
    return _list(request, caller)


@router.post("")
def add(
    request: Request,
    caller: Editor,
    url: Annotated[str, Form()] = "",
    event: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Add a webhook; the answer is the one page that shows its secret."""
    try:
        body = api.WebhookRequest(url=url.strip()[:MAX_URL] or "-", events=(event or [])[: len(EVENTS)])
        made = api.create(request, caller, body)
    except RdukitError as error:
        return _list(request, caller, error.message, error.http_status, url[:MAX_URL])
    return _one(request, caller, made.id, made=made)


@router.get("/{webhook_id}")
def webhook(request: Request, webhook_id: str, caller: Visitor, state: str = "", cursor: str | None = None) -> Response:
    """Show one webhook and its messages."""
    return _one(request, caller, webhook_id, state, cursor)


@router.get("/{webhook_id}/part")
def messages(
    request: Request, webhook_id: str, caller: Visitor, state: str = "", cursor: str | None = None
) -> Response:
    """Return a webhook's messages again."""
    return fragment(request, _messages(request, caller, webhook_id, state, cursor))


@router.post("/{webhook_id}/test")
def test(request: Request, webhook_id: str, caller: Editor) -> Response:
    """Send a message that only tries the webhook."""
    api.test(request, webhook_id, caller)
    return RedirectResponse(f"/console/webhooks/{webhook_id}", 303)


@router.post("/{webhook_id}/rotate")
def rotate(request: Request, webhook_id: str, caller: Editor) -> Response:
    """Give a webhook a new secret; only this page shows it."""
    return _one(request, caller, webhook_id, made=api.rotate(request, webhook_id, caller))


@router.post("/{webhook_id}/disable")
def disable(request: Request, webhook_id: str, caller: Editor) -> Response:
    """Disable a webhook until it is enabled again."""
    api.disable(request, webhook_id, caller)
    return RedirectResponse(f"/console/webhooks/{webhook_id}", 303)


@router.post("/{webhook_id}/enable")
def enable(request: Request, webhook_id: str, caller: Editor) -> Response:
    """Enable a disabled webhook."""
    api.enable(request, webhook_id, caller)
    return RedirectResponse(f"/console/webhooks/{webhook_id}", 303)


@router.post("/{webhook_id}/remove")
def remove(request: Request, webhook_id: str, caller: Editor) -> Response:
    """Remove a webhook."""
    api.remove(request, webhook_id, caller)
    return RedirectResponse("/console/webhooks", 303)


@router.post("/{webhook_id}/deliveries/{delivery_id}/redeliver")
def redeliver(request: Request, webhook_id: str, delivery_id: str, caller: Editor) -> Response:
    """Try a message again."""
    api.redeliver(request, webhook_id, delivery_id, caller)
    return RedirectResponse(f"/console/webhooks/{webhook_id}", 303)


def next_try(delivery: DeliveryView, now: float) -> str:
    """Describe when a message is tried next; empty: never (pure)."""
    if delivery.state != DeliveryState.PENDING:
        return ""
    left = delivery.due_at - now
    return "next try now" if left < 1 else f"next try in {format_seconds(round(left))}"


def last_try(delivery: DeliveryView) -> str:
    """Describe the result of a message's last try (pure)."""
    if not delivery.attempts:
        return "not tried yet"
    if delivery.status:
        return f"answered {delivery.status}"
    return delivery.error or "no answer"


def _list(request: Request, caller: Caller, error: str = "", status: int = 200, url: str = "") -> Response:
    found = api.list_(request, caller, limit=MAX_WEBHOOKS)
    return page(
        request, "webhooks.html", status, section="Webhooks", webhooks=found.webhooks, error=error, url=url,
        events=EVENTS, usual=USUAL_EVENTS, can_write=_can_write(caller), is_full=len(found.webhooks) >= MAX_WEBHOOKS,
    )  # fmt: skip


def _one(
    request: Request,
    caller: Caller,
    webhook_id: str,
    state: str = "",
    cursor: str | None = None,
    made: NewWebhook | None = None,
) -> Response:
    shown = api.show(request, webhook_id, caller)
    part = _messages(request, caller, webhook_id, state, cursor)
    return page(
        request, "webhook.html", section="Webhooks", webhook=shown, made=made, live=part, state=state,
        states=[str(each) for each in DeliveryState], can_write=_can_write(caller),
        time=platform_of(request).clock.now(),
    )  # fmt: skip


def _messages(request: Request, caller: Caller, webhook_id: str, state: str, cursor: str | None) -> Markup:
    now = platform_of(request).clock.now()
    found = api.list_deliveries(request, webhook_id, caller, state or None, cursor=cursor)
    lines = [(each, last_try(each), next_try(each, now)) for each in found.deliveries]
    asked = "&".join(f"{name}={value}" for name, value in (("state", state), ("cursor", cursor)) if value)
    return live(
        request, "messages", f"/console/webhooks/{webhook_id}/part{'?' + asked if asked else ''}", "_deliveries.html",
        is_live=any(each.state == DeliveryState.PENDING for each in found.deliveries), lines=lines, tones=TONES,
        webhook_id=webhook_id, next_cursor=found.next_cursor, state=state, can_write=_can_write(caller),
        test_event=TEST_EVENT, is_enabled=api.show(request, webhook_id, caller).disabled_at is None,
    )  # fmt: skip


def _can_write(caller: Caller) -> bool:
    return allows(caller.scopes, JOBS_WRITE)
