"""Bodies of requests: what a process keeps of them at once is bounded by tenant, and a large one is read by a thread.

The event loop serves everybody: it does no work that grows with what one caller sends.
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

#: Longest body that the event loop reads itself.
SHORT_BYTES: Final = 4 << 10
#: Values of a body: reading them keeps Python from other threads for a tenth of a second.
MAX_VALUES: Final = 100_000
#: Longest bodies of one tenant, or of one stranger's address, that are in memory at once.
BODIES_AT_ONCE: Final = 4
#: Seconds that a request waits until its body may come.
WAIT_S: Final = 30.0
#: Errors beyond which pydantic's are not all written out: that takes ten times as long as to find them.
MANY_ERRORS: Final = 1000
#: Of a body with so many: entries of each object and list that the described errors are looked for in.
KEPT: Final = 40


class MalformedBody(RequestValidationError):
    """A body that its schema refuses. ``total``: the number of all errors, of which it has the first ones."""

    def __init__(self, errors: Sequence[Any], total: int, body: object) -> None:
        super().__init__(errors, body=body)
        self.total: Final = total


class Bodies:
    """Bodies that one process keeps, and the thread that reads them. Belongs to an event loop."""

    def __init__(self) -> None:
        #: One thread at a time reads bodies: several would keep Python from the event loop.
        self.readers: Final = anyio.CapacityLimiter(1)
        #: Bytes of the bodies of each owner that are in memory or may come; none is zero.
        self._held: dict[str, int] = {}
        #: Requests of an owner whose bodies have to wait, with their bytes, first come first served.
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def room_for(self, owner: str, size: int) -> AsyncIterator["BodyRoom"]:
        """Yield room for a body of up to ``size`` bytes, as soon as the owner's others leave it.

        Raises:
            Overloaded: they do not in time.
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
            said = f"other requests of yours have bodies under way; this one waited {WAIT_S:g} s for its own"
            raise Overloaded(f"{said}; send fewer at once", retry_after_s=1) from cause

    def release(self, owner: str, size: int) -> None:
        """Give ``size`` bytes of the owner back, and let those come that wait for them."""
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
        """Keep only ``size`` bytes: the body has come, and is that short."""
        if size < self._size:
            freed, self._size = self._size - size, size
            self._bodies.release(self._owner, freed)


async def read_body(bodies: Bodies, body: bytes, adapter: TypeAdapter[Any] | None, max_values: int = MAX_VALUES) -> Any:
    """Return the value of a JSON body as its route takes it; without ``adapter`` as JSON has it.

    Raises:
        InvalidArgument, JSONDecodeError: as ``read_json``. MalformedBody: the route does not take it.
    """
    if len(body) <= SHORT_BYTES:
        return parse_body(body, adapter, max_values)
    return await to_thread.run_sync(parse_body, body, adapter, max_values, limiter=bodies.readers)


def parse_body(body: bytes, adapter: TypeAdapter[Any] | None, max_values: int = MAX_VALUES) -> Any:
    """Do ``read_body`` here and now."""
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
    """Return errors of a value that has very many: those within the first entries of its objects and lists."""
    try:
        adapter.validate_python(_first_entries(value))
    except ValidationError as refused:
        # What is missing may have been left out here.
        found = [each for each in refused.errors(include_url=False) if each["type"] != "missing"]
        if found:
            return found
    return [{"type": "value_error", "loc": (), "msg": "its entries are not legal", "input": None}]


def _first_entries(value: object) -> object:
    if isinstance(value, dict):
        return {key: _first_entries(value[key]) for key in list(value)[:KEPT]}
    return [_first_entries(each) for each in value[:KEPT]] if isinstance(value, list) else value
