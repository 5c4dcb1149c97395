"""Before a request's body: who sends it, and how long it may be. FastAPI reads bodies first and asks then."""

from typing import Final

from anyio import to_thread
from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rdukit.errors import RdukitError, RequestTooLarge
from rdukit.settings import resolve
from rdukit_platform.context import Platform
from rdukit_platform.gateway.borders import error_response
from rdukit_platform.gateway.dependencies import authenticate_token
from rdukit_platform.settings import MAX_BODY_BYTES, MAX_UPLOAD_BYTES

#: What takes files, which go to the disk as they come.
UPLOADS: Final = ("/v1/artifacts", "/v1/boxes")
#: Longest body of a request whose caller is known only by it, as of a form that logs in.
STRANGERS_BYTES: Final = 64 << 10
_WITHOUT_BODY: Final = ("GET", "HEAD", "OPTIONS")


class BodyBorder:
    """Refuses bodies of strangers before they are read, and those that are too long at the latest when they are."""

    def __init__(self, app: ASGIApp, platform: Platform) -> None:
        self._app = app
        self._platform = platform
        self._limits = resolve(MAX_BODY_BYTES), resolve(MAX_UPLOAD_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        request, headers = Request(scope), Headers(scope=scope)
        limit = self._limits[scope["path"].rstrip("/") in UPLOADS]
        if not scope["path"].startswith("/v1/"):
            limit = min(limit, STRANGERS_BYTES)
        try:
            length = headers.get("content-length", "")
            if length.isdecimal() and int(length[:20]) > limit:
                raise _too_large(limit)
            if scope["path"].startswith("/v1/"):
                scope.setdefault("state", {})["caller"] = await to_thread.run_sync(self._authenticate, headers)
        except RdukitError as refused:
            await error_response(request, refused)(scope, receive, send)
            return
        received, is_over = 0, False

        async def bounded() -> Message:
            nonlocal received, is_over
            if is_over:
                return {"type": "http.disconnect"}
            message = await receive()
            received += len(message.get("body") or b"")
            if received > limit:
                is_over = True
                await error_response(request, _too_large(limit))(scope, receive, send)
                return {"type": "http.disconnect"}
            return message

        async def unless_over(message: Message) -> None:
            if not is_over:
                await send(message)

        await self._app(scope, bounded, unless_over)

    def _authenticate(self, headers: Headers) -> object:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return authenticate_token(self._platform, token.strip() if kind.lower() == "bearer" else None)


def _too_large(limit: int) -> RequestTooLarge:
    message = f"the body has more than {limit} bytes (gateway.max_body_bytes; gateway.max_upload_bytes for files)"
    return RequestTooLarge(message, field="body", limit=limit)
