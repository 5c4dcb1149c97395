"""Delivery of webhooks in the background: no operation waits for one or fails with it.

Source: the Standard Webhooks specification, https://github.com/standard-webhooks/standard-webhooks: three headers, and
``v1,`` with the base64 of HMAC-SHA256 over ``id.timestamp.body``.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit.strict_json import json_text
from rdukit_modelbox.artifacts.addresses import is_public
from rdukit_modelbox.operations.table import OperationTable
from rdukit_modelbox.operations.values import DEFAULT_WEBHOOK_EVENTS, Delivery, Operation, OperationState, Webhook
from rdukit_modelbox.settings import (
    WEBHOOK_ATTEMPTS,
    WEBHOOK_BACKOFF_S,
    WEBHOOK_PRIVATE,
    WEBHOOK_SECRET,
    WEBHOOK_TIMEOUT_S,
)

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

#: Posts at one time.
_AT_ONCE: Final = 8
#: Seconds that posts have when the box stops; what is not told by then is told after its next start.
_CLOSING_S: Final = 1.0


class AddressRefused(Exception):
    """The address must not be reached."""


class WebhookDispatcher:
    """One task for each operation that has something to tell, so that its announcements stay in order."""

    def __init__(self, table: Callable[[], OperationTable], box: str, clock: Clock) -> None:
        self._table = table
        self._box = box
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: What each operation looked like in each state that is to be told.
        self._bodies: dict[str, bytes] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._http: httpx.AsyncClient | None = None

    def look(self, operation: Operation) -> None:
        """See whether ``operation`` has something to tell, and begin."""
        pending = [d for d in operation.deliveries if d.state == "pending"]
        for delivery in pending:
            self._bodies.setdefault(delivery.id, body_of(delivery, operation, self._box))
        if pending and operation.id not in self._tasks:
            self._tasks[operation.id] = asyncio.create_task(self._tell(operation.id))

    async def close(self) -> None:
        """Let posts that are under way end, for a moment."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks.values()), timeout=_CLOSING_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

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
        """Try until it is told or given up."""
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
        """Status and, if it was not told, why; status 0 when there was no answer, -1 when the address is refused."""
        import httpx  # not before a webhook is posted: it is 12 MB

        timeout_s = resolve(WEBHOOK_TIMEOUT_S)
        try:
            async with asyncio.timeout(timeout_s):
                headers = headers_of(delivery_id, int(self._clock.now()), body, resolve(WEBHOOK_SECRET))
                return await self._send(url, headers, body)
        except TimeoutError:
            return 0, f"no answer within {timeout_s:g} s"
        except (AddressRefused, RdukitError) as refused:
            return -1, str(refused)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            return 0, f"{type(error).__name__}: {error}"

    async def _send(self, url: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        if self._http is None:
            import httpx

            self._http = httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=None)
        parts = urlsplit(url)
        host = parts.hostname or ""
        address = await _find_address(host, parts.port or (443 if parts.scheme == "https" else 80))
        # The name was looked up and judged once: connecting to the name would look it up again.
        place = f"[{address}]" if ":" in address else address
        port = f":{parts.port}" if parts.port else ""
        target = urlunsplit((parts.scheme, f"{place}{port}", parts.path or "/", parts.query, ""))
        named = f"[{host}]" if ":" in host else host
        async with self._http.stream(
            "POST", target, content=body, headers={**headers, "host": f"{named}{port}"},
            extensions={"sni_hostname": host},
        ) as answer:  # fmt: skip
            status = answer.status_code
        if 200 <= status < 300:
            return status, ""
        words = ", which would redirect; webhooks follow none" if 300 <= status < 400 else ""
        return status, f"the receiver answered {status}{words}"


async def _find_address(host: str, port: int) -> str:
    """An address of ``host`` that may be reached.

    Raises:
        Refused: one of its addresses is not public, and the setting does not allow that.
        OSError: it has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(place[0]) for *_, place in found]
    if not resolve(WEBHOOK_PRIVATE):
        for address in addresses:
            if not is_public(address):
                raise AddressRefused(f"{host} is {address}, not a public address; box.webhook_private allows it")
    return addresses[0]


LEGAL_EVENTS: Final = tuple(str(state) for state in OperationState)
LONGEST_BACKOFF_S: Final = 300.0
_MAX_URL: Final = 2048
#: Answers after which another try may help: too early, too many, and the server's own faults.
_TRANSIENT: Final = frozenset({408, 425, 429})


def check_webhook(url: str, events: Sequence[str]) -> Webhook:
    """A webhook as a caller wrote it; no ``events``: the final states. Looks up no name.

    Raises:
        InvalidArgument: the URL is not http or https with a host, or an event is not a state; the detail has ``field``.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as cause:
        raise InvalidArgument(f"webhook.url: {url[:200]!r} is not a URL: {cause}", field="webhook.url") from cause
    if parts.scheme not in {"http", "https"} or not host or len(url) > _MAX_URL or not url.isprintable() or " " in url:
        message = (
            f"webhook.url: {url[:200]!r} is not legal; legal: http://HOST… or https://HOST…, {_MAX_URL} characters"
        )
        raise InvalidArgument(message, field="webhook.url")
    for event in events:
        if event not in LEGAL_EVENTS:
            message = f"webhook.events: {event[:80]!r} is not legal; legal: {', '.join(LEGAL_EVENTS)}"
            raise InvalidArgument(message, field="webhook.events", legal=list(LEGAL_EVENTS))
    return Webhook(url, tuple(dict.fromkeys(events)) or DEFAULT_WEBHOOK_EVENTS)


def body_of(delivery: Delivery, operation: Operation, box: str) -> bytes:
    """Return the body to post: the event's name, the box, and the operation without its deliveries."""
    value = operation.to_json()
    value.pop("deliveries", None)
    told = {"type": delivery.event, "id": delivery.id, "box": box, "operation": value}
    return json_text(told).encode()


def headers_of(delivery_id: str, timestamp: int, body: bytes, secret: str) -> dict[str, str]:
    """The headers of one try; signed if there is a secret."""
    headers = {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(timestamp),
    }
    if secret:
        signed = f"{delivery_id}.{timestamp}.".encode() + body
        digest = hmac.new(_key_of(secret), signed, hashlib.sha256).digest()
        headers["webhook-signature"] = "v1," + base64.b64encode(digest).decode()
    return headers


def is_transient(status: int) -> bool:
    """Return whether an HTTP status (0: no answer) is worth another try."""
    return status == 0 or status in _TRANSIENT or status >= 500


def backoff_s(attempts: int, first_s: float) -> float:
    """Seconds to wait after so many failed tries."""
    return min(LONGEST_BACKOFF_S, first_s * 2.0 ** min(attempts - 1, 32))


def _key_of(secret: str) -> bytes:
    """``whsec_`` and base64, or any text."""
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except binascii.Error as cause:
            message = "box.webhook_secret begins with whsec_ but is not base64 after it"
            raise InvalidArgument(message, field="box.webhook_secret") from cause
    return secret.encode()
