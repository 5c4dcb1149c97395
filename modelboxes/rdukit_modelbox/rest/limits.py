"""Refuses bodies and headers that are too long before anything reads them."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rdukit.errors import HeadersTooLarge, RdukitError, RequestTooLarge
from rdukit.settings import resolve
from rdukit_modelbox.settings import MAX_BODY_BYTES, MAX_HEADER_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Limits:
    """An ASGI application around another one."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send, refusal)
            return
        await self._app(scope, *_guarded(receive, send))

    def _refusal(self, scope: Message) -> RdukitError | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"]) + sum(len(n) + len(v) for n, v in headers)
        if size > resolve(MAX_HEADER_BYTES):
            return headers_too_large()
        length = next((value for name, value in headers if name == b"content-length"), b"0")
        if length.isdigit() and int(length[:20]) > resolve(MAX_BODY_BYTES):
            return body_too_large()
        return None


def body_too_large() -> RequestTooLarge:
    """The refusal."""
    limit = resolve(MAX_BODY_BYTES)
    return RequestTooLarge(f"the body has more than {limit} bytes (box.max_body_bytes)", field="body", limit=limit)


def headers_too_large() -> HeadersTooLarge:
    """The refusal."""
    limit = resolve(MAX_HEADER_BYTES)
    message = f"the request line and headers have more than {limit} bytes (box.max_header_bytes)"
    return HeadersTooLarge(message, field="headers", limit=limit)


def _guarded(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Both, ending the request with 413 when its body gets too long on the way (it may be sent without a length)."""
    limit, received, is_over = resolve(MAX_BODY_BYTES), 0, False

    async def guarded_receive() -> Message:
        nonlocal received, is_over
        message = await receive()
        received += len(message.get("body") or b"")
        if received > limit:
            if not is_over:
                is_over = True
                await _answer(send, body_too_large())
            return {"type": "http.disconnect"}
        return message

    async def guarded_send(message: Message) -> None:
        if not is_over:
            await send(message)

    return guarded_receive, guarded_send


async def _answer(send: Send, error: RdukitError) -> None:
    body = json.dumps(error.body()).encode()
    headers = [
        (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), (b"connection", b"close"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
