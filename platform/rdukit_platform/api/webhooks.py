"""Routes of webhooks and their deliveries."""

import asyncio
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query, Request, status
from pydantic import BaseModel, Field

from rdukit.errors import InvalidArgument
from rdukit.http.addresses import parse_networks
from rdukit.http.webhooks import MAX_URL, AddressRefused, check_url, find_address
from rdukit.settings import resolve
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.dependencies import Cursor, JobsReader, Limit, StrictJsonRoute, WebhookKeeper, platform_of
from rdukit_platform.audit.service import Act, record
from rdukit_platform.jobs.schemas import Reason, RequestBody
from rdukit_platform.webhooks import service
from rdukit_platform.webhooks.service import (
    DeliveryPage,
    DeliveryView,
    Grace,
    NewWebhook,
    WebhookPage,
    WebhookView,
    get_delivery,
    get_webhook,
    show_delivery,
    show_new,
    show_webhook,
)
from rdukit_platform.webhooks.settings import WEBHOOK_NETWORKS
from rdukit_platform.webhooks.states import EVENTS, DeliveryState

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictJsonRoute)


#: Seconds that a new webhook's host may take to be found.
LOOK_UP_S: Final = 2.0


class WebhookRequest(RequestBody):
    """Body of ``POST /v1/webhooks``."""

    url: Annotated[str, Field(min_length=1, max_length=MAX_URL)]
    #: Events that it receives; empty: ends of jobs.
    events: Annotated[list[str], Field(max_length=len(EVENTS))] = []


async def reachable(body: WebhookRequest) -> WebhookRequest:
    """Return the request if messages may go to the address of its URL; each delivery checks this again.

    A name that does not resolve yet is accepted; the records of its messages then show the failure.

    Raises:
        InvalidArgument: the text is not a URL, or leads to an address that is neither public nor allowed.
    """
    parts = urlsplit(check_url(body.url, "url"))
    try:
        async with asyncio.timeout(LOOK_UP_S):
            await find_address(
                parts.hostname or "", parts.port or 80, allowed=parse_networks(resolve(WEBHOOK_NETWORKS))
            )
    except AddressRefused as cause:
        raise InvalidArgument(
            f"url: {cause}; expected a public address, or one in a network that an administrator names in the setting "
            f"{WEBHOOK_NETWORKS.name}", field="url",
        ) from cause  # fmt: skip
    except (OSError, UnicodeError, TimeoutError):
        pass
    return body


class SecretRequest(RequestBody):
    """Body of ``POST /v1/webhooks/{id}/rotate``."""

    #: Seconds that messages are signed with the old secret too; without it a day.
    grace_s: Grace = service.ROTATION_S


class DisableRequest(RequestBody):
    """Body of ``POST /v1/webhooks/{id}/disable``."""

    #: Reason, for users who find it disabled.
    reason: Reason = ""


class RemovedWebhook(BaseModel):
    """Id of the removed webhook."""

    id: str


@router.get("")
def list_(request: Request, caller: JobsReader, limit: Limit = 50, cursor: Cursor = None) -> WebhookPage:
    """Return the tenant's webhooks, newest first."""
    with platform_of(request).database.read() as session:
        rows, following = service.list_webhooks(session, caller.tenant_id, limit, cursor)
    return WebhookPage(webhooks=[show_webhook(row) for row in rows], next_cursor=following)


@router.post("", status_code=status.HTTP_201_CREATED)
def create(request: Request, caller: WebhookKeeper, body: Annotated[WebhookRequest, Depends(reachable)]) -> NewWebhook:
    """Add a webhook. Only this answer has the secret that signs its messages."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = service.create_webhook(session, caller.tenant_id, body.url, body.events, platform.clock.now())
        # A URL may hold a password of its receiver's: the log has the events only.
        record(session, entry_of(request, caller, Act.CREATE_WEBHOOK, row.id, detail=" ".join(row.events)))
    return show_new(row)


@router.get("/{webhook_id}")
def show(request: Request, webhook_id: str, caller: JobsReader) -> WebhookView:
    """Show one webhook, without its secret."""
    with platform_of(request).database.read() as session:
        return show_webhook(get_webhook(session, caller.tenant_id, webhook_id))


@router.delete("/{webhook_id}")
def remove(request: Request, webhook_id: str, caller: WebhookKeeper) -> RemovedWebhook:
    """Delete a webhook and its undelivered messages."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = get_webhook(session, caller.tenant_id, webhook_id)
        service.remove_webhook(session, row, platform.clock.now())
        record(session, entry_of(request, caller, Act.REMOVE_WEBHOOK, row.id))
    return RemovedWebhook(id=row.id)


@router.post("/{webhook_id}/rotate")
def rotate(request: Request, webhook_id: str, caller: WebhookKeeper, body: SecretRequest | None = None) -> NewWebhook:
    """Give a webhook a new secret; for a while messages are signed with both."""
    platform = platform_of(request)
    grace_s = service.ROTATION_S if body is None else body.grace_s
    with platform.database.write() as session:
        row = get_webhook(session, caller.tenant_id, webhook_id)
        service.rotate_secret(session, row, grace_s, platform.clock.now())
        detail = f"the old secret ends after {grace_s:g} s"
        record(session, entry_of(request, caller, Act.ROTATE_WEBHOOK, row.id, detail=detail))
    return show_new(row)


@router.post("/{webhook_id}/disable")
def disable(
    request: Request, webhook_id: str, caller: WebhookKeeper, body: DisableRequest | None = None
) -> WebhookView:
    """Disable a webhook until it is enabled again; its undelivered messages become dead."""
    platform = platform_of(request)
    reason = "" if body is None else body.reason
    with platform.database.write() as session:
        row = get_webhook(session, caller.tenant_id, webhook_id)
        service.disable_webhook(session, row, reason, platform.clock.now())
        record(session, entry_of(request, caller, Act.DISABLE_WEBHOOK, row.id, detail=reason))
    return show_webhook(row)


@router.post("/{webhook_id}/enable")
def enable(request: Request, webhook_id: str, caller: WebhookKeeper) -> WebhookView:
    """Enable a disabled webhook from now on; only ``redeliver`` sends dead messages again."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = service.enable_webhook(session, get_webhook(session, caller.tenant_id, webhook_id))
        record(session, entry_of(request, caller, Act.ENABLE_WEBHOOK, row.id))
    return show_webhook(row)


@router.post("/{webhook_id}/test", status_code=status.HTTP_202_ACCEPTED)
def test(request: Request, webhook_id: str, caller: WebhookKeeper) -> DeliveryView:
    """Send a message that only tests the webhook; the delivery shows the result."""
    platform = platform_of(request)
    with platform.database.write() as session:
        webhook = get_webhook(session, caller.tenant_id, webhook_id)
        row = service.add_test(session, webhook, platform.clock.now())
    return show_delivery(row)


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    request: Request,
    webhook_id: str,
    caller: JobsReader,
    state: Annotated[str | None, Query(description=f"Only messages that are {', '.join(DeliveryState)}.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> DeliveryPage:
    """Return a webhook's messages, newest first: pending, delivered, and dead ones."""
    with platform_of(request).database.read() as session:
        webhook = get_webhook(session, caller.tenant_id, webhook_id)
        rows, following = service.list_deliveries(session, webhook, state, limit, cursor)
    return DeliveryPage(deliveries=[show_delivery(row) for row in rows], next_cursor=following)


@router.get("/{webhook_id}/deliveries/{delivery_id}")
def show_one_delivery(request: Request, webhook_id: str, delivery_id: str, caller: JobsReader) -> DeliveryView:
    """Show one message and how its last try ended."""
    with platform_of(request).database.read() as session:
        webhook = get_webhook(session, caller.tenant_id, webhook_id)
        return show_delivery(get_delivery(session, webhook, delivery_id))


@router.post("/{webhook_id}/deliveries/{delivery_id}/redeliver", status_code=status.HTTP_202_ACCEPTED)
def redeliver(request: Request, webhook_id: str, delivery_id: str, caller: WebhookKeeper) -> DeliveryView:
    """Try a message again now, also one that was delivered or given up."""
    platform = platform_of(request)
    with platform.database.write() as session:
        webhook = get_webhook(session, caller.tenant_id, webhook_id)
        row = service.redeliver(session, webhook, get_delivery(session, webhook, delivery_id), platform.clock.now())
    return show_delivery(row)
