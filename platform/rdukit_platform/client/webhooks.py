"""Webhooks of a platform, for programs: add one, try it, see what it was told."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.values import HasId, read_value


@dataclass(frozen=True, slots=True)
class WebhookInfo:
    """A webhook as it was when it was read. ``secret`` is there once, when it was added or rotated."""

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
    """A message to a webhook, and how its last try ended; ``status`` 0: without an answer."""

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
    """The tenant's webhooks: ``platform.webhooks``. One is named by its id, or by what the platform said of it."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def add(self, url: str, events: Sequence[str] = ()) -> WebhookInfo:
        """Add a webhook; without ``events`` it is told of jobs' ends. Only this answer has its secret.

        Raises:
            InvalidArgument: messages may not go there.
            IllegalValue: there is no such event.
        """
        return read_value(WebhookInfo, self._api.post("/v1/webhooks", {"url": url, "events": list(events)}))

    def get(self, webhook: HasId | str) -> WebhookInfo:
        """Return one of the tenant's webhooks.

        Raises:
            NotFound: there is none of this id.
        """
        return read_value(WebhookInfo, self._api.get(_route(webhook)))

    def list(self) -> Iterator[WebhookInfo]:
        """Yield webhooks, newest first."""
        for each in self._api.pages("/v1/webhooks", "webhooks", limit=50):
            yield read_value(WebhookInfo, each)

    def test(self, webhook: HasId | str) -> DeliveryInfo:
        """Send a message that only tries the webhook; ``deliveries`` tell how it went."""
        return read_value(DeliveryInfo, self._api.post(f"{_route(webhook)}/test"))

    def rotate(self, webhook: HasId | str, grace_s: float = 86400.0) -> WebhookInfo:
        """Give a webhook a new secret, which only this answer has; for ``grace_s`` messages are signed with both."""
        return read_value(WebhookInfo, self._api.post(f"{_route(webhook)}/rotate", {"grace_s": grace_s}))

    def disable(self, webhook: HasId | str, reason: str = "") -> WebhookInfo:
        """Tell a webhook nothing more until it is enabled; what it was to be told is given up."""
        return read_value(WebhookInfo, self._api.post(f"{_route(webhook)}/disable", {"reason": reason}))

    def enable(self, webhook: HasId | str) -> WebhookInfo:
        """Tell a disabled webhook of jobs again, from now on."""
        return read_value(WebhookInfo, self._api.post(f"{_route(webhook)}/enable"))

    def remove(self, webhook: HasId | str) -> None:
        """Remove a webhook, with what it has not been told yet."""
        self._api.delete(_route(webhook))

    def deliveries(self, webhook: HasId | str, *, state: str | None = None) -> Iterator[DeliveryInfo]:
        """Yield messages to a webhook, newest first; of one ``state``: pending, delivered or dead."""
        for each in self._api.pages(f"{_route(webhook)}/deliveries", "deliveries", state=state, limit=50):
            yield read_value(DeliveryInfo, each)

    def redeliver(self, webhook: HasId | str, delivery: HasId | str) -> DeliveryInfo:
        """Try a message again now, also one that was delivered or given up."""
        one = delivery if isinstance(delivery, str) else delivery.id
        return read_value(DeliveryInfo, self._api.post(f"{_route(webhook)}/deliveries/{one}/redeliver"))


def _route(webhook: HasId | str) -> str:
    return f"/v1/webhooks/{webhook if isinstance(webhook, str) else webhook.id}"
