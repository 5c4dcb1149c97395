"""Blocking code run in a coroutine: what it waits for is awaited, and everything else is the same code.

``run`` calls a function in a greenlet. Where it would wait, for an answer or for a while, ``await_here`` hands an
awaitable to the coroutine that ``run`` is, and goes on with what came of it. No thread waits, and a coroutine that is
cancelled ends the function there, by ``CancelledError``.
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
    """A greenlet whose parent awaits what it hands over."""


async def run(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a blocking function returns; its waits are awaited. Raises what it raises."""
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
    """Return what an awaitable gives, from blocking code that ``run`` called. Raises what it raises.

    Raises:
        RuntimeError: nothing awaits here: the code was not called by ``run``.
    """
    current = getcurrent()
    if not isinstance(current, _Bridged) or current.parent is None:
        if asyncio.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError("this client is asynchronous: await its methods")
    value: R = current.parent.switch(awaitable)
    return value


def sleep(seconds: float) -> None:
    """Pause as ``time.sleep`` does, in code that ``run`` called."""
    await_here(asyncio.sleep(seconds))


async def iterate(begin: Callable[P, Iterator[R]], *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[R]:
    """Yield what a blocking iterator yields; who stops early ends it."""
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
    """A transport for ``httpx.Client`` in code that ``run`` called, over one that is asynchronous."""

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
    """A thing of the asynchronous client, over one of the other."""

    @property
    def sync(self) -> S_co: ...


def lift(
    method: Callable[Concatenate[S, P], R], wrap: Callable[[R], A]
) -> Callable[Concatenate[Wraps[S], P], Coroutine[Any, Any, A]]:
    """Return a blocking method as an asynchronous one of what wraps its object; ``wrap`` its result."""

    @wraps(method)
    async def call(self: Wraps[S], /, *args: P.args, **kwargs: P.kwargs) -> A:
        return wrap(await run(method, self.sync, *args, **kwargs))

    return call


def lift_iterator(
    method: Callable[Concatenate[S, P], Iterator[R]], wrap: Callable[[R], A]
) -> Callable[Concatenate[Wraps[S], P], AsyncIterator[A]]:
    """Return a blocking iterator as an asynchronous one of what wraps its object; ``wrap`` each of its values."""

    @wraps(method)
    async def call(self: Wraps[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[A]:
        async for value in iterate(method, self.sync, *args, **kwargs):
            yield wrap(value)

    return call


def as_is(value: R) -> R:
    """Return a value, of which there is no asynchronous kind."""
    return value
