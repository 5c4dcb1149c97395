"""The common part of all methods: authorization, time limits, and errors.

A method that raises ends the call with the error's gRPC status; the error's REST body is in the trailing metadata
``rdukit-error-bin``. ``request_id`` goes back in each reply.
"""

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, NoReturn, Protocol

import grpc

from rdukit.errors import InvalidArgument, RdukitError, Unavailable
from rdukit_node.snml.token import check_authorization

logger = logging.getLogger(__name__)

ERROR_METADATA: Final = "rdukit-error-bin"
#: Longest text of a request, largest number of items in its lists, and longest time of a call.
MAX_TEXT: Final = 256
MAX_ITEMS: Final = 1000
CALL_S: Final = 20.0
#: A stream also waits for its reader.
STREAM_S: Final = 60.0

Context = Any
Request = Any
Reply = Any


class HasToken(Protocol):
    """A servicer: it knows what changes need."""

    @property
    def token(self) -> str: ...


def answers(
    *, is_admin: bool = False
) -> Callable[[Callable[[Any, Request], Awaitable[Reply]]], Callable[[Any, Request, Context], Awaitable[Reply]]]:
    """Return a method with one reply."""

    def wrap(method: Callable[[Any, Request], Awaitable[Reply]]) -> Callable[[Any, Request, Context], Awaitable[Reply]]:
        @functools.wraps(method)
        async def call(self: HasToken, request: Request, context: Context) -> Reply:
            try:
                async with asyncio.timeout(CALL_S):
                    _check(self, request, context, is_admin)
                    reply = await method(self, request)
                    reply.request_id = request.request_id
                    return reply
            except Exception as cause:  # noqa: BLE001 - a request's boundary; _as_error logs what is not ours
                error = _as_error(cause, method.__name__)
            await refuse(context, error)

        return call

    return wrap


def streams(
    *, is_admin: bool = False, limit_s: float | None = STREAM_S
) -> Callable[
    [Callable[[Any, Request], AsyncGenerator[Reply, None]]], Callable[[Any, Request, Context], Awaitable[None]]
]:
    """Return a method with a stream of replies; ``limit_s`` ``None``: no time limit."""

    def wrap(
        method: Callable[[Any, Request], AsyncGenerator[Reply, None]],
    ) -> Callable[[Any, Request, Context], Awaitable[None]]:
        @functools.wraps(method)
        async def call(self: HasToken, request: Request, context: Context) -> None:
            error: RdukitError
            try:
                async with asyncio.timeout(limit_s):
                    _check(self, request, context, is_admin)
                    # Closed here, and not by the garbage collector: a watcher returns its place.
                    async with contextlib.aclosing(method(self, request)) as replies:
                        async for reply in replies:
                            reply.request_id = request.request_id
                            await context.write(reply)
                    return
            except Exception as cause:  # noqa: BLE001 - a request's boundary; _as_error logs what is not ours
                error = _as_error(cause, method.__name__)
            await refuse(context, error)

        return call

    return wrap


async def refuse(context: Context, error: RdukitError) -> NoReturn:
    """End the call with the error."""
    body = json.dumps(error.body(), default=str).encode()
    await context.abort(getattr(grpc.StatusCode, error.grpc_status), error.message, ((ERROR_METADATA, body),))
    raise AssertionError("abort does not return")


def _check(self: HasToken, request: Request, context: Context, is_admin: bool) -> None:
    for field, value in request.ListFields():
        if isinstance(value, str) and field.name != "data" and len(value) > MAX_TEXT:
            raise InvalidArgument(f"{field.name} has {len(value)} characters; expected {MAX_TEXT} at most")
        if field.is_repeated and len(value) > MAX_ITEMS:
            raise InvalidArgument(f"{field.name} has {len(value)} items; expected {MAX_ITEMS} at most")
    if is_admin:
        check_authorization(context.invocation_metadata() or (), self.token)


def _as_error(cause: Exception, method: str) -> RdukitError:
    if isinstance(cause, RdukitError):
        return cause
    if isinstance(cause, TimeoutError):
        return Unavailable(f"{method} took too long; ask for fewer rows, read them faster, or try again later")
    logger.error("event=bug method=%s", method, exc_info=cause)
    return RdukitError(f"{method} failed; the node daemon's log has the reason")
