"""Delivery of webhooks in the background: no operation waits for one or fails with it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.http.webhooks import check_url, headers_of, is_transient, post_webhook
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit.strict_json import json_text
from rdukit_modelbox.operations.table import OperationTable
from rdukit_modelbox.operations.values import DEFAULT_WEBHOOK_EVENTS, Delivery, Operation, OperationState, Webhook
from rdukit_modelbox.settings import (
    WEBHOOK_ATTEMPTS,
    WEBHOOK_BACKOFF_S,
    WEBHOOK_PRIVATE,
    WEBHOOK_SECRET,
    WEBHOOK_TIMEOUT_S,
)

logger = logging.getLogger(__name__)

#: Largest number of concurrent posts.
_AT_ONCE: Final = 8
#: Seconds that posts have when the box stops; unfinished ones are sent after its next start.
_CLOSING_S: Final = 1.0


class WebhookDispatcher:
    """Sender of announcements: a task for each operation that has some, so that they stay in order."""

    def __init__(self, table: Callable[[], OperationTable], box: str, clock: Clock) -> None:
        self._table = table
        self._box = box
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Body of each announced state, by delivery.
        self._bodies: dict[str, bytes] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def look(self, operation: Operation) -> None:
        """Start sending if ``operation`` has due deliveries."""
        pending = [d for d in operation.deliveries if d.state == "pending"]
        for delivery in pending:
            self._bodies.setdefault(delivery.id, body_of(delivery, operation, self._box))
        if pending and operation.id not in self._tasks:
            self._tasks[operation.id] = asyncio.create_task(self._tell(operation.id))

    async def close(self) -> None:
        """Stop; posts under way have a short time to end."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks.values()), timeout=_CLOSING_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _tell(self, operation_id: str) -> None:
        try:
            while (delivery := self._find_pending(operation_id)) is not None:
                await self._deliver(operation_id, delivery)
        except Exception:
            logger.exception("webhook broke operation=%s", operation_id)
        finally:
            # In one step with the last look: an announcement that comes later finds no task and starts one.
            del self._tasks[operation_id]

    def _find_pending(self, operation_id: str) -> Delivery | None:
        operation = self._table().find(operation_id)
        return next((d for d in operation.deliveries if d.state == "pending"), None) if operation else None

    async def _deliver(self, operation_id: str, delivery: Delivery) -> None:
        """Send until it is delivered or given up."""
        webhook = self._table().call_of(operation_id).webhook
        assert webhook is not None
        body = self._bodies[delivery.id]
        while delivery.state == "pending":
            async with self._slots:
                status, error = await self._post(webhook.url, delivery.id, body)
            attempts = delivery.attempts + 1
            is_told = 200 <= status < 300
            is_over = is_told or not is_transient(status) or attempts >= resolve(WEBHOOK_ATTEMPTS)
            delivery = replace(
                delivery, state=("delivered" if is_told else "failed") if is_over else "pending", attempts=attempts,
                status=max(status, 0), error=error, at=self._clock.now(),
            )  # fmt: skip
            self._table().set_delivery(operation_id, delivery)
            logger.info(
                "webhook tried operation=%s delivery=%s attempts=%d status=%d state=%s",
                operation_id, delivery.id, attempts, status, delivery.state,
            )  # fmt: skip
            if not is_over:
                await asyncio.sleep(backoff_s(attempts, resolve(WEBHOOK_BACKOFF_S)))
        self._bodies.pop(delivery.id, None)

    async def _post(self, url: str, delivery_id: str, body: bytes) -> tuple[int, str]:
        """Return the status, and the reason of a failure; 0: no answer, -1: the address is refused."""
        secret = resolve(WEBHOOK_SECRET)
        try:
            headers = headers_of(delivery_id, int(self._clock.now()), body, [secret] if secret else [])
        except InvalidArgument as refused:
            return -1, f"{WEBHOOK_SECRET.name}: {refused}"
        status, error = await post_webhook(
            url, headers, body, resolve(WEBHOOK_TIMEOUT_S), is_private_allowed=resolve(WEBHOOK_PRIVATE)
        )
        return status, f"{error} ({WEBHOOK_PRIVATE.name} allows it)" if status == -1 else error


LEGAL_EVENTS: Final = tuple(str(state) for state in OperationState)
LONGEST_BACKOFF_S: Final = 300.0


def check_webhook(url: str, events: Sequence[str]) -> Webhook:
    """Return a webhook as a caller wrote it; no ``events``: the final states. Looks up no name.

    Raises:
        InvalidArgument: the URL is not http or https with a host, or an event is not a state; the detail has ``field``.
    """
    check_url(url, "webhook.url")
    for event in events:
        if event not in LEGAL_EVENTS:
            message = f"webhook.events: {event[:80]!r} is not legal; legal: {', '.join(LEGAL_EVENTS)}"
            raise InvalidArgument(message, field="webhook.events", legal=list(LEGAL_EVENTS))
    return Webhook(url, tuple(dict.fromkeys(events)) or DEFAULT_WEBHOOK_EVENTS)


def body_of(delivery: Delivery, operation: Operation, box: str) -> bytes:
    """Return the body to post: the event's name, the box, and the operation without its deliveries."""
    value = operation.to_json()
    value.pop("deliveries", None)
    payload = {"type": delivery.event, "id": delivery.id, "box": box, "operation": value}
    return json_text(payload).encode()


def backoff_s(attempts: int, first_s: float) -> float:
    """Return the seconds to wait after a number of failed attempts."""
    return min(LONGEST_BACKOFF_S, first_s * 2.0 ** min(attempts - 1, 32))
