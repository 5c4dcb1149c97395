"""Bodies of requests: memory for them is bounded per tenant, and a thread parses large ones.

The event loop serves all callers, so it does no work that grows with one caller's input.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from anyio import to_thread
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from rdukit.errors import Overloaded
from rdukit.settings import resolve
from rdukit.strict_json import read_json
from rdukit_platform.settings import MAX_BODY_BYTES

#: Longest body in bytes that the event loop parses itself.
SHORT_BYTES: Final = 4 << 10
#: Largest number of values in a body: parsing them holds the GIL for a tenth of a second.
MAX_VALUES: Final = 100_000
#: Number of longest bodies of one tenant, or of one stranger's address, in memory at once.
BODIES_AT_ONCE: Final = 4
#: Seconds that a request waits for room for its body.
WAIT_S: Final = 30.0
#: Beyond this number of errors only some are formatted, because formatting takes ten times as long as finding.
MANY_ERRORS: Final = 1000
#: Number of entries per object and list that are searched for errors in such a body.
KEPT: Final = 40


class MalformedBody(RequestValidationError):
    """A body that its schema refuses. ``total``: number of all errors; ``errors`` has the first ones."""

    def __init__(self, errors: Sequence[Any], total: int, body: object) -> None:
        super().__init__(errors, body=body)
        self.total: Final = total


class Bodies:
    """Bodies in the memory of one process, and the thread that parses them. Belongs to an event loop."""

    def __init__(self) -> None:
        #: Only one thread parses bodies at a time: several would block the event loop by the GIL.
        self.readers: Final = anyio.CapacityLimiter(1)
        #: Bytes of each owner's bodies that are in memory or reserved; never 0.
        self._held: dict[str, int] = {}
        #: Waiting requests of each owner with their bytes, first come, first served.
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def room_for(self, owner: str, size: int) -> AsyncIterator["BodyRoom"]:
        """Yield room for a body of up to ``size`` bytes, once the owner's other bodies leave enough.

        Raises:
            Overloaded: no memory becomes free in time.
        """
        if owner in self._waiting or not self._fits(owner, size):
            await self._wait(owner, size)
        else:
            self._held[owner] = self._held.get(owner, 0) + size
        room = BodyRoom(self, owner, size)
        try:
            yield room
        finally:
            room.shrink(0)

    async def _wait(self, owner: str, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(owner, deque())
        queue.append((size, turn))
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except BaseException as cause:
            if turn.done() and not turn.cancelled():  # its turn came at the same time
                self.release(owner, size)
            else:
                queue.remove((size, turn))
                self._admit(owner)
            if not isinstance(cause, TimeoutError):
                raise
            said = f"your other requests are still sending bodies; this one waited {WAIT_S:g} s"
            raise Overloaded(f"{said}; send fewer at once", retry_after_s=1) from cause

    def release(self, owner: str, size: int) -> None:
        """Release ``size`` bytes of the owner, and admit waiting requests."""
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]
        self._admit(owner)

    def _admit(self, owner: str) -> None:
        queue = self._waiting.get(owner)
        while queue and self._fits(owner, queue[0][0]):
            size, turn = queue.popleft()
            if not turn.done():
                self._held[owner] = self._held.get(owner, 0) + size
                turn.set_result(None)
        if queue is not None and not queue:
            del self._waiting[owner]

    def _fits(self, owner: str, size: int) -> bool:
        held = self._held.get(owner, 0)
        return not held or held + size <= BODIES_AT_ONCE * resolve(MAX_BODY_BYTES)


class BodyRoom:
    """Room for one body."""

    def __init__(self, bodies: Bodies, owner: str, size: int) -> None:
        self._bodies, self._owner, self._size = bodies, owner, size

    def shrink(self, size: int) -> None:
        """Reduce the room to ``size`` bytes, the received body's length."""
        if size < self._size:
            freed, self._size = self._size - size, size
            self._bodies.release(self._owner, freed)


async def read_body(bodies: Bodies, body: bytes, adapter: TypeAdapter[Any] | None, max_values: int = MAX_VALUES) -> Any:
    """Parse a JSON body into the route's type; without ``adapter`` into plain JSON values.

    Raises:
        InvalidArgument, JSONDecodeError: as ``read_json``. MalformedBody: the route's schema refuses it.
    """
    if len(body) <= SHORT_BYTES:
        return parse_body(body, adapter, max_values)
    return await to_thread.run_sync(parse_body, body, adapter, max_values, limiter=bodies.readers)


def parse_body(body: bytes, adapter: TypeAdapter[Any] | None, max_values: int = MAX_VALUES) -> Any:
    """Parse a body like ``read_body``, in the calling thread."""
    value = read_json(body, max_values)
    if adapter is None:
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as refused:
        total = refused.error_count()
        errors = refused.errors(include_url=False) if total <= MANY_ERRORS else first_errors(adapter, value)
        raise MalformedBody([{**each, "loc": ("body", *each["loc"])} for each in errors], total, value) from refused


def first_errors(adapter: TypeAdapter[Any], value: object) -> list[Any]:
    """Return errors of a value with very many: those in the first entries of its objects and lists."""
    try:
        adapter.validate_python(_first_entries(value))
    except ValidationError as refused:
        # Missing keys may have been cut off here.
        found = [each for each in refused.errors(include_url=False) if each["type"] != "missing"]
        if found:
            return found
    return [{"type": "value_error", "loc": (), "msg": "its entries are not valid", "input": None}]


def _first_entries(value: object) -> object:
    if isinstance(value, dict):
        return {key: _first_entries(value[key]) for key in list(value)[:KEPT]}
    return [_first_entries(each) for each in value[:KEPT]] if isinstance(value, list) else value
