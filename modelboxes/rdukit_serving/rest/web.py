"""REST routes of the web framework: JSON, the one error body, body limits, and work that ends with its client."""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from rdukit.errors import HeadersTooLarge, MalformedRequest, RdukitError, RequestTooLarge
from rdukit.settings import resolve
from rdukit.strict_json import json_text
from rdukit_serving.settings import MAX_BODY_BYTES, MAX_HEADER_BYTES

logger = logging.getLogger(__name__)

_CODES: Final = {404: "not-found", 405: "method-not-allowed"}


class JsonAnswer(Response):
    """JSON of any value: NaN and infinities become words, and invalid Unicode is escaped."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Encode the value."""
        return json_text(content).encode()


def error_answer(request: Request, error: RdukitError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response with the error's status and body."""
    return JsonAnswer(error.body(request_id_of(request)), error.http_status, headers=dict(headers or {}))


def plain_error(
    request: Request, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response for an error that the framework found."""
    value = {"error": {"code": code, "message": message, "detail": {}, "request_id": request_id_of(request)}}
    return JsonAnswer(value, status, headers=dict(headers or {}))


def request_id_of(request: Request) -> str:
    """Return the caller's request id, or a new one."""
    return request.headers.get("x-request-id", "")[:128] or f"req-{secrets.token_hex(8)}"


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class BodyLimits:
    """ASGI middleware that refuses long bodies and headers."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
    """Return the refusal."""
    limit = resolve(MAX_BODY_BYTES)
    return RequestTooLarge(f"the body has more than {limit} bytes (box.max_body_bytes)", field="body", limit=limit)


def headers_too_large() -> HeadersTooLarge:
    """Return the refusal."""
    limit = resolve(MAX_HEADER_BYTES)
    message = f"the request line and headers have more than {limit} bytes (box.max_header_bytes)"
    return HeadersTooLarge(message, field="headers", limit=limit)


def _guarded(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Wrap both to end the request with 413 when its body gets too long on the way."""
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


Answer = TypeVar("Answer")


class ClientGone(Exception):
    """Client that no longer waits; the work was cancelled."""


async def while_connected(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of ``work``, cancelled when the client goes away; the body must have been read.

    Raises:
        ClientGone: it went.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


#: Errors that FastAPI found in a request, and its content type → the error for the caller.
DescribeMalformed = Callable[[Sequence[Any], str], RdukitError]


def add_error_handlers(app: FastAPI, describe_malformed: DescribeMalformed) -> None:
    """Answer every error of ``app`` with the one error body."""

    @app.exception_handler(RdukitError)
    async def refused(request: Request, error: RdukitError) -> Response:
        return error_answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return error_answer(request, describe_malformed(error.errors(), request.headers.get("content-type", "")))

    @app.exception_handler(HTTPException)
    async def refused_by_framework(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, RdukitError):
            return error_answer(request, error.__cause__)
        if error.status_code == 400:
            # Its parser failed: bytes that are not UTF-8, or nested too deeply.
            return error_answer(request, MalformedRequest(f"the body is not JSON: {error.detail}", field="body"))
        code = _CODES.get(error.status_code, "invalid-request")
        message = f"{request.method} {request.url.path[:200]}: {error.detail}; the routes are listed at /openapi.json"
        return plain_error(request, error.status_code, code, message, error.headers)

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # the caller has left

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        logger.error("request broke path=%s", request.url.path, exc_info=error)
        return plain_error(request, 500, "internal", "the server failed; its log has more under this request id")
