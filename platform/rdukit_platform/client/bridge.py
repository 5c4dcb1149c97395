"""Run blocking code in a coroutine: its waits are awaited, and everything else stays the same.

``run`` calls a function in a greenlet. At a blocking place, ``await_here`` passes an awaitable to the coroutine
``run``, and continues with its result. No thread is blocked. Cancelling the coroutine raises ``CancelledError`` in the
function at that point.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import httpx
from greenlet import getcurrent, greenlet

P = ParamSpec("P")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
R = TypeVar("R")
A = TypeVar("A")
_END: Final = object()


class _Bridged(greenlet):  # type: ignore[misc]
    """A greenlet whose parent awaits the awaitables that it passes."""


async def run(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return a blocking function's result; its waits are awaited. Raises what it raises."""
    child = _Bridged(lambda: function(*args, **kwargs))
    found: Any = child.switch()
    while not child.dead:
        try:
            value = await found
        except BaseException:  # noqa: BLE001 the function's to deal with, as CancelledError is
            found = child.throw(*sys.exc_info())
        else:
            found = child.switch(value)
    result: R = found
    return result


def await_here(awaitable: Awaitable[R]) -> R:
    """Return the result of an awaitable, inside blocking code that ``run`` called. Raises its errors.

    Raises:
        RuntimeError: nothing awaits here: the code was not called by ``run``.
    """
    current = getcurrent()
    if not isinstance(current, _Bridged) or current.parent is None:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError("this client is asynchronous; await its methods")
    value: R = current.parent.switch(awaitable)
    return value


def sleep(seconds: float) -> None:
    """Sleep like ``time.sleep``, inside code that ``run`` called."""
    await_here(asyncio.sleep(seconds))


async def iterate(begin: Callable[P, Iterator[R]], *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
    """Yield the values of a blocking iterator, which is closed if the caller stops early."""
    found = await run(begin, *args, **kwargs)
    try:
        while True:
            value: Any = await run(next, found, _END)
            if value is _END:
                return
            yield value
    finally:
        close = getattr(found, "close", None)
        if close is not None:
            await run(close)


class BridgedTransport(httpx.BaseTransport):
    """Blocking transport for ``httpx.Client`` inside ``run``, over an asynchronous transport."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        answer = await_here(self._inner.handle_async_request(request))
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        return httpx.Response(
            answer.status_code, headers=answer.headers, stream=_BridgedStream(answer.stream),
            extensions=answer.extensions,
        )  # fmt: skip

    def close(self) -> None:
        """Close the connections."""
        await_here(self._inner.aclose())


class _BridgedStream(httpx.SyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[bytes]:
        blocks = aiter(self._inner)
        while True:
            block: Any = await_here(_next(blocks))
            if block is _END:
                return
            yield block

    def close(self) -> None:
        await_here(self._inner.aclose())


async def _next(blocks: AsyncIterator[bytes]) -> object:
    return await anext(blocks, _END)


class Wraps(Protocol[S_co]):
    """An object of the asynchronous client that wraps one of the blocking client."""

    @property
    def sync(self) -> S_co: ...


def lift(
    method: Callable[Concatenate[S, P], R], wrap: Callable[[R], A]
) -> Callable[Concatenate[Wraps[S], P], Coroutine[Any, Any, A]]:
    """Convert a blocking method into an asynchronous method of the wrapper; ``wrap`` converts its result."""

    @wraps(method)
    async def call(self: Wraps[S], /, *args: P.args, **kwargs: P.kwargs) -> A:
        return wrap(await run(method, self.sync, *args, **kwargs))

    return call


def lift_iterator(
    method: Callable[Concatenate[S, P], Iterator[R]], wrap: Callable[[R], A]
) -> Callable[Concatenate[Wraps[S], P], AsyncIterator[A]]:
    """Convert a blocking iterator into an asynchronous one of the wrapper; ``wrap`` converts each value."""

    @wraps(method)
    async def call(self: Wraps[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[A]:
        async for value in iterate(method, self.sync, *args, **kwargs):
            yield wrap(value)

    return call


def as_is(value: R) -> R:
    """Return a value unchanged; it needs no wrapper."""
    return value
