"""Middleware of the gateway: ids, metrics, callers and body lengths of requests, and the uniform error body.

FastAPI reads a body before it authenticates the caller; ``BodyLimitMiddleware`` authenticates first.
"""

import functools
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

import orjson
from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import Counter, Histogram
from pydantic import BaseModel, JsonValue
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rdukit.errors import (
    Conflict,
    DiskFull,
    InvalidArgument,
    NotFound,
    Overloaded,
    RdukitError,
    RequestTooLarge,
    Unauthenticated,
    Unavailable,
    find_system_error,
)
from rdukit.settings import resolve
from rdukit.strict_json import as_words
from rdukit.telemetry.logs import log_ids
from rdukit.telemetry.model import SpanKind
from rdukit.telemetry.spans import TRACEPARENT, begin_span, end_span, find_traceparent, within
from rdukit_platform.api.audit_requests import address_of, note_refusal
from rdukit_platform.api.bodies import BodyRoom, MalformedBody
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import TENANT_HEADER, authenticate_token, token_of
from rdukit_platform.api.load_ledger import CallerLoad
from rdukit_platform.api.rates import RETRY_AFTER
from rdukit_platform.api.turns import RequestTurn
from rdukit_platform.audit.service import hide_tokens
from rdukit_platform.console.page import explain
from rdukit_platform.db.engine import AWAY
from rdukit_platform.gateway.body_limits import STRANGERS_BYTES, bound_of
from rdukit_platform.gateway.malformed import Schema, find_malformed, refusal_of
from rdukit_platform.settings import MAX_BODY_BYTES, MAX_UPLOAD_BYTES
from rdukit_platform.tenants.service import Caller

logger = logging.getLogger(__name__)

#: Status, as in proxies' logs, of a request whose caller disconnected before it was complete.
CALLER_GONE: Final = 499
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
REQUESTS: Final = Counter("rdukit_gateway_requests", "Requests answered.", ["method", "route", "status"])
SECONDS: Final = Histogram("rdukit_gateway_request_seconds", "Seconds until the answer's end.", ["method", "route"])


class ErrorDetail(BaseModel):
    """Error of a request; ``detail`` is for machines."""

    code: str
    message: str
    detail: dict[str, JsonValue]
    request_id: str | None


class ErrorResponse(BaseModel):
    """The one error body."""

    error: ErrorDetail


#: Errors that any route may return, for OpenAPI.
ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": ErrorResponse, "description": "The request is not valid."},
    503: {"model": ErrorResponse, "description": "A service of the platform does not answer; try again."},
}


class RequestContextMiddleware:
    """Gives each request an id (its own ``X-Request-Id`` if legal), answers with it, and counts.

    A request is a span in the trace of its ``traceparent``, or the root of a new one.
    """

    def __init__(self, app: ASGIApp, platform: Platform) -> None:
        self._app, self._platform = app, platform

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        size_in = size_out = 0
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else "req-" + secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        sent = next((value for name, value in scope["headers"] if name == TRACEPARENT.encode()), b"")
        request_span = begin_span(
            scope["method"], kind=SpanKind.SERVER, parent=find_traceparent(sent.decode("latin-1"))
        )
        began, begun, status = time.perf_counter(), 0.0, 500

        async def counted() -> Message:
            nonlocal size_in
            message = await receive()
            size_in += len(message.get("body") or b"")
            return message

        async def answer(message: Message) -> None:
            nonlocal status, begun, size_out
            size_out += len(message.get("body") or b"")
            if message["type"] == "http.response.start":
                status, begun = message["status"], time.perf_counter() - began
                _end_turn(scope)
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            with within(request_span.context), log_ids(request_id=request_id):
                await self._app(scope, counted, answer)
        finally:
            _end_turn(scope)
            route, seconds = getattr(scope.get("route"), "path", "none"), time.perf_counter() - began
            caller = scope["state"].get("caller")
            self._platform.load.note(caller, CallerLoad(1, size_in, size_out, begun), self._platform.clock.now())
            REQUESTS.labels(scope["method"], route, str(status)).inc()
            SECONDS.labels(scope["method"], route).observe(seconds)
            request_span.name = f"{scope['method']} {route}"
            request_span.set(
                {"http.request.method": scope["method"], "http.route": route, "http.response.status_code": status}
            )
            request_span.set({"rdukit.request_id": request_id})
            request_span.error = str(status) if status >= 500 else ""
            end_span(request_span)


def _end_turn(scope: Scope) -> None:
    turn: RequestTurn | None = scope["state"].get("turn")
    if turn is not None:
        turn.end()


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error with ``{"error": {code, message, detail, request_id}}``."""
    for kind, answer in _answers().items():
        app.add_exception_handler(kind, answer)


def _answers() -> dict[type[Exception], Callable[[Request, Exception], Response]]:
    """Return the handlers of error classes and their subclasses. They run in threads, because messages take time."""
    return {
        RdukitError: _known, RequestValidationError: _malformed, HTTPException: _routing, DataError: _unstorable,
        IntegrityError: _raced, **dict.fromkeys(AWAY, _away), OSError: _full_or_unknown,
        ClientDisconnect: _gone, Exception: _unknown,
    }  # fmt: skip


async def _answer(request: Request, error: Exception) -> Response:
    """Answer an error of a middleware, which the framework would treat as unknown."""
    answers = _answers()
    answer = next(answers[kind] for kind in type(error).__mro__ if kind in answers)
    return await to_thread.run_sync(answer, request, error)


def error_response(request: Request, error: RdukitError) -> Response:
    """Return the answer for an error; a refusal goes into the audit log."""
    note_refusal(request, error)
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthenticated) else {}
    if RETRY_AFTER in error.detail:
        headers["Retry-After"] = str(error.detail[RETRY_AFTER])
    body = orjson.dumps(as_words(error.body(getattr(request.state, "request_id", None))), default=str)
    return Response(body, error.http_status, headers, media_type="application/json")


def _away(request: Request, error: Exception) -> Response:
    if (full := _find_full(error)) is not None:
        return error_response(request, full)
    logger.warning("database does not answer path=%s error=%s", hide_tokens(request.url.path), error)
    return error_response(request, Unavailable("the database does not answer; try again"))


def _gone(request: Request, error: Exception) -> Response:
    logger.info("caller went away within its request path=%s", hide_tokens(request.url.path))
    return Response(status_code=CALLER_GONE)


def _full_or_unknown(request: Request, error: Exception) -> Response:
    full = _find_full(error)
    return _unknown(request, error) if full is None else error_response(request, full)


def _find_full(error: Exception) -> DiskFull | None:
    """Return the error of a full disk for callers, without the file's path."""
    cause = error.orig if isinstance(error, DBAPIError) and isinstance(error.orig, Exception) else error
    if not isinstance(find_system_error(cause), DiskFull):
        return None
    logger.error("no space is left on the disk error=%s", cause)
    said = "nothing was stored; send it again when the operator has freed space"
    return DiskFull(f"the platform's disk has no room; {said}")


def _unstorable(request: Request, error: Exception) -> Response:
    logger.info("value refused by the database path=%s error=%s", hide_tokens(request.url.path), error)
    said = "a text has the character NUL, or a number is too large, for the database; leave it out"
    return error_response(request, InvalidArgument(f"the request is not valid: {said}"))


def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, RdukitError)
    if error.http_status >= 500:
        logger.warning("request failed code=%s message=%s", error.code, error.message)
    return error_response(request, error)


def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    places, definitions = _schemas_of(request)
    total = error.total if isinstance(error, MalformedBody) else 0
    found = find_malformed(error.errors(), error.body, places, definitions, total)
    return error_response(request, refusal_of(found, problems=found.said, others=found.others))


def _schemas_of(request: Request) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """Return the schemas of the route's parameters and body, and those that they refer to; empty for hidden routes."""
    document = request.app.openapi()
    operations = document["paths"].get(getattr(request.scope.get("route"), "path", ""), {})
    route = operations.get(request.method.lower(), {})
    places: dict[str, Schema] = {}
    for one in route.get("parameters", ()):
        there = places.setdefault(one["in"], {"properties": {}})
        there["properties"][one["name"]] = one["schema"]
    for one in route.get("requestBody", {}).get("content", {}).values():
        places["body"] = one.get("schema", {})
    return places, document.get("components", {}).get("schemas", {})


class MethodNotAllowed(InvalidArgument):
    """The route exists, but not for this HTTP method."""

    code, http_status = "method-not-allowed", 405


def _routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, RdukitError):
        return error_response(request, error.__cause__)
    if isinstance(error.__cause__, MalformedBody):
        return _malformed(request, error.__cause__)
    if isinstance(error.__cause__, OSError) and (full := _find_full(error.__cause__)) is not None:
        return error_response(request, full)
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404 and request.url.path.startswith("/console/"):
        return explain(request, NotFound(f"the console has no page {request.url.path}"))
    if error.status_code == 404:
        return error_response(request, NotFound(f"there is no route {where}; see /docs"))
    if error.status_code == 405:
        answer = error_response(request, MethodNotAllowed(f"{where} is not served; see /docs"))
        answer.headers["Allow"] = ", ".join(_methods_at(request))
        return answer
    found = InvalidArgument(f"{where}: {error.detail}")
    return error_response(request, found)


def _methods_at(request: Request) -> list[str]:
    """Return the methods served at the request's path by all its routes, of which the framework names only one.

    A path that the schema names belongs to that route, even if it matches another route's template. Otherwise the first
    matching template wins, as in the framework.
    """
    methods, path = ("GET", "POST", "PUT", "PATCH", "DELETE"), request.url.path
    documented = request.app.openapi()["paths"]
    fitting = (template for template in documented if _pattern_of(template).match(path))
    if (found := path if path in documented else next(fitting, None)) is not None:
        return [method for method in methods if method.lower() in documented[found]]
    return [
        method
        for method in methods
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]


@functools.cache
def _pattern_of(template: str) -> re.Pattern[str]:
    return compile_path(template)[0]


def _raced(request: Request, error: Exception) -> Response:
    logger.info("request lost a race path=%s error=%s", hide_tokens(request.url.path), error)
    return error_response(request, Conflict("another request created the same object at the same time; send it again"))


def _unknown(request: Request, error: Exception) -> Response:
    logger.error("request failed path=%s", hide_tokens(request.url.path), exc_info=error)
    return error_response(request, RdukitError("the gateway failed; its log has the cause under this request id"))


_WITHOUT_BODY: Final = ("GET", "HEAD", "OPTIONS")


class BodyLimitMiddleware:
    """Refuses bodies of strangers before reading them, and bodies that are too long while reading at the latest."""

    def __init__(self, app: ASGIApp, platform: Platform) -> None:
        self._app = app
        self._platform = platform
        self._most, self._most_of_files = resolve(MAX_BODY_BYTES), resolve(MAX_UPLOAD_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _WITHOUT_BODY:
            await self._app(scope, receive, send)
            return
        request, headers = Request(scope), Headers(scope=scope)
        bound = bound_of(scope["method"], scope["path"])
        limit = (
            self._most_of_files
            if bound is MAX_UPLOAD_BYTES
            else min(self._most, bound if isinstance(bound, int) else self._most)
        )
        try:
            length = headers.get("content-length", "")
            size = int(length[:20]) if length.isdecimal() else limit
            if size > limit:
                raise _too_large(limit)
            if scope["path"].startswith("/v1/") and bound != STRANGERS_BYTES:
                await to_thread.run_sync(self._admit, scope, headers)
        except Exception as error:  # noqa: BLE001 - the framework would call each of them unknown
            await (await _answer(request, error))(scope, receive, send)
            return
        caller: Caller | None = scope.setdefault("state", {}).get("caller")
        owner = caller.tenant_id if caller else address_of(request)
        try:
            # Files are written to disk while they arrive, so memory holds little of them.
            async with self._platform.bodies.room_for(owner, 0 if bound is MAX_UPLOAD_BYTES else size) as room:
                await self._pass_on(scope, receive, send, limit, room)
        except Overloaded as error:
            await error_response(request, error)(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, limit: int, room: BodyRoom) -> None:
        request, received, is_over = Request(scope), 0, False

        async def bounded() -> Message:
            nonlocal received, is_over
            if is_over:
                return {"type": "http.disconnect"}
            message = await receive()
            received += len(message.get("body") or b"")
            if not message.get("more_body"):
                room.shrink(received)
            if received > limit:
                is_over = True
                await error_response(request, _too_large(limit))(scope, receive, send)
                return {"type": "http.disconnect"}
            return message

        async def unless_over(message: Message) -> None:
            if not is_over:
                await send(message)

        await self._app(scope, bounded, unless_over)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Identify the caller, and count the call. Raises as ``authenticate_token``, or ``Overloaded``."""
        token, tenant = token_of(scope["path"], headers), headers.get(TENANT_HEADER, "")
        caller = scope.setdefault("state", {})["caller"] = authenticate_token(self._platform, token, tenant)
        self._platform.rates.check(caller)


def _too_large(limit: int) -> RequestTooLarge:
    said = "the limit of this route, gateway.max_body_bytes, or gateway.max_upload_bytes for files"
    message = f"the body has more than {limit} bytes ({said}); send less at once"
    return RequestTooLarge(message, field="body", limit=limit)
