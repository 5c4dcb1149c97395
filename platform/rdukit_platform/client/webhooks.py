"""Webhooks of a platform, for programs: add them, test them, list their messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.values import HasId, read_value


@dataclass(frozen=True, slots=True)
class WebhookInfo:
    """A webhook as last read. ``secret`` is present only in the answers of ``add`` and ``rotate``."""

    id: str
    url: str
    events: list[str] = field(default_factory=list)
    created_at: float = 0.0
    old_until: float | None = None
    disabled_at: float | None = None
    disabled_reason: str | None = None
    failures: int = 0
    failing_since: float | None = None
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """A message to a webhook, and how its last try ended; ``status`` 0: no answer."""

    id: str
    event: str
    state: str
    attempts: int = 0
    status: int | None = None
    error: str | None = None
    due_at: float = 0.0
    created_at: float = 0.0
    ended_at: float | None = None
    body: dict[str, Any] = field(default_factory=dict)


class Webhooks:
    """The tenant's webhooks: ``platform.webhooks``. Methods take a webhook's id or its ``WebhookInfo``."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def add(self, url: str, events: Sequence[str] = ()) -> WebhookInfo:
        """Add a webhook; by default it is notified about ends of jobs. Only this answer has its secret.

        Raises:
            InvalidArgument: messages to this URL are not allowed.
            IllegalValue: there is no such event.
        """
        return read_value(WebhookInfo, self._api.post("/v1/webhooks", {"url": url, "events": list(events)}))

    def get(self, webhook: HasId | str) -> WebhookInfo:
        """Return one of the tenant's webhooks.

        Raises:
            NotFound: there is no webhook of this id.
        """
        return read_value(WebhookInfo, self._api.get(_route(webhook)))

    def list(self) -> Iterator[WebhookInfo]:
        """Yield webhooks, newest first."""
        for each in self._api.pages("/v1/webhooks", "webhooks", limit=50):
            yield read_value(WebhookInfo, each)

    def test(self, webhook: HasId | str) -> DeliveryInfo:
        """Send a test message to the webhook; ``deliveries`` shows its outcome."""
        return read_value(DeliveryInfo, self._api.post(f"{_route(webhook)}/test"))

    def rotate(self, webhook: HasId | str, grace_s: float = 86400.0) -> WebhookInfo:
        """Give a webhook a new secret, which only this answer has; for ``grace_s`` messages are signed with both."""
        return read_value(WebhookInfo, self._api.post(f"{_route(webhook)}/rotate", {"grace_s": grace_s}))

    def disable(self, webhook: HasId | str, reason: str = "") -> WebhookInfo:
        """Disable a webhook until it is enabled again; its pending messages are dropped."""
        return read_value(WebhookInfo, self._api.post(f"{_route(webhook)}/disable", {"reason": reason}))

    def enable(self, webhook: HasId | str) -> WebhookInfo:
        """Enable a disabled webhook for events from now on."""
        return read_value(WebhookInfo, self._api.post(f"{_route(webhook)}/enable"))

    def remove(self, webhook: HasId | str) -> None:
        """Delete a webhook and its undelivered messages."""
        self._api.delete(_route(webhook))

    def deliveries(self, webhook: HasId | str, *, state: str | None = None) -> Iterator[DeliveryInfo]:
        """Yield messages to a webhook, newest first; of one ``state``: pending, delivered or dead."""
        for each in self._api.pages(f"{_route(webhook)}/deliveries", "deliveries", state=state, limit=50):
            yield read_value(DeliveryInfo, each)

    def redeliver(self, webhook: HasId | str, delivery: HasId | str) -> DeliveryInfo:
        """Send a message again now, even if it was delivered or dropped."""
        one = delivery if isinstance(delivery, str) else delivery.id
        return read_value(DeliveryInfo, self._api.post(f"{_route(webhook)}/deliveries/{one}/redeliver"))


def _route(webhook: HasId | str) -> str:
    return f"/v1/webhooks/{webhook if isinstance(webhook, str) else webhook.id}"
