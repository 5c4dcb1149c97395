"""Connections of the gateway to one replica, with probes of its box while calls wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import httpx

from rdukit.http.answers import PLAIN
from rdukit.http.unix_sockets import parse_rest_address
from rdukit_platform.backends.fenced import FencedWires
from rdukit_platform.endpoints.routing import ReadyReplica

CONNECT_S: Final = 5.0
#: Seconds that a call waits before its replica is probed, and between probes.
LOOK_S: Final = 1.0
#: Seconds for an answer to a probe (any answer suffices), and number of successive failures that mean a hang.
ANSWER_S: Final = 2.0
MAX_MISSES: Final = 3
#: Longest time after which calls know that their replica hangs.
HANG_S: Final = MAX_MISSES * (LOOK_S + ANSWER_S)
#: Route that a box's server answers even if its device hangs.
LIVE: Final = "/health/live"


class ReplicaConnection:
    """Connections to one replica. Belongs to an event loop."""

    def __init__(self, replica: ReadyReplica, answer_s: float) -> None:
        """Prepare connections. Raises Unavailable if the box has no socket at its announced path."""
        address = parse_rest_address(replica.address)
        self._wires: FencedWires | None = None
        path = None
        if address.path is not None:
            # A box may replace its socket: connections use the socket that was checked.
            self._wires = FencedWires(address.path.parent, replica.uid)
            path = str(Path(str(parse_rest_address(self._wires.addresses["rest"]).path)))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=2.0)
        self.http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=path, limits=limits), base_url=address.base_url,
            timeout=httpx.Timeout(answer_s, connect=CONNECT_S, pool=CONNECT_S), trust_env=False, headers=PLAIN,
        )  # fmt: skip
        #: Whether the last probes failed. It is probed until it answers, and gets no calls meanwhile.
        self.is_hung = False
        #: Calls that wait for their first byte, oldest first: the timeout that ends the wait, and the start.
        self._waiting: dict[asyncio.Timeout, float] = {}
        self._watch = asyncio.create_task(self._look())

    @asynccontextmanager
    async def expecting(self) -> AsyncIterator[None]:
        """Wrap a wait for the box's answer. Raises TimeoutError if the box hangs or its replica has ended."""
        async with asyncio.timeout(None) as limit:
            self._waiting[limit] = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                del self._waiting[limit]

    def end_waits(self) -> None:
        """End all waits in ``expecting``, because no answer will come."""
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    async def answers(self) -> bool:
        """Probe the box. Returns whether it answers within ``ANSWER_S``."""
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(ANSWER_S), self.http.stream("GET", LIVE):
                return True
        return False

    async def close(self) -> None:
        """Close them."""
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        await self.http.aclose()
        if self._wires is not None:
            self._wires.close()

    async def _look(self) -> None:
        """Probe the box while a call waits for it, or it hangs."""
        misses, clock = 0, asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_S)
            oldest = next(iter(self._waiting.values()), None)
            if not self.is_hung and (oldest is None or clock() - oldest < LOOK_S):
                misses = 0
                continue
            misses = 0 if await self.answers() else misses + 1
            self.is_hung = misses >= MAX_MISSES
            if self.is_hung:
                self.end_waits()
