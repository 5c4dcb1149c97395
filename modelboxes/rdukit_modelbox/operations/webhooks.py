"""What is announced to a webhook, how it is signed, and when it is tried again. Pure.

Source: the Standard Webhooks specification, https://github.com/standard-webhooks/standard-webhooks: three headers, and
``v1,`` with the base64 of HMAC-SHA256 over ``id.timestamp.body``.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from rdukit.errors import InvalidArgument
from rdukit.strict_json import json_text
from rdukit_modelbox.operations.values import DEFAULT_WEBHOOK_EVENTS, Delivery, Operation, Webhook
from rdukit_modelbox.states import OperationState

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
    """What is posted: the event's name, the box, and the operation without its deliveries."""
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
    """Whether an HTTP status (0: no answer) is worth another try."""
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
