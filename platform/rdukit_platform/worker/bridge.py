"""Bridge of a worker: joins the box of a part of an attempt to the other parts' boxes; see ``rdukit.box.links``.

The box connects to a UNIX socket only; the workers of the other parts connect to a TCP port.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rdukit.box.links import (
    CONNECT,
    HELLO_S,
    WAIT,
    Stream,
    be_greeted,
    close,
    greet,
    in_thread,
    is_port_of,
    join,
    pack_port,
    read_target,
)
from rdukit.errors import PermissionDenied, RdukitError, Unauthenticated

logger = logging.getLogger(__name__)

#: Called for each refused peer with its address (empty for a box) and the reason, in the bridge's thread; must not
#: block.
Refusals = Callable[[str, RdukitError], None]

#: Largest number of streams of one bridge, in both directions together, which limits hostile boxes.
MAX_STREAMS: Final = 1024
#: Largest number of waiting connections of its box.
MAX_WAITING: Final = 64
#: Seconds that a stream waits for a connection of the box to serve it.
BOX_S: Final = 60.0
STOP_S: Final = 10.0


class Bridge:
    """Bridge of one part of an attempt."""

    def __init__(self, key: bytes, part: int, socket: Path, host: str, refused: Refusals) -> None:
        """``socket``: path of the box's socket, which is created; ``host``: address at which other workers reach this
        one.
        """
        self._key, self._part, self._socket, self._host, self._refused = key, part, socket, host, refused
        #: ``host:port`` of the other parts' bridges, set by ``meet``.
        self._peers: dict[int, tuple[str, int]] = {}
        self._are_met = asyncio.Event()
        #: Connections of the box that wait for a stream.
        self._waiting: asyncio.Queue[Stream] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        #: Address of this bridge; empty until it is started.
        self.address = ""

    async def start(self, mode: int) -> None:
        """Listen; ``mode`` is the UNIX socket's. Raises OSError if it cannot."""
        self._servers.append(await asyncio.start_unix_server(self._serve_box, str(self._socket)))
        self._socket.chmod(mode)
        server = await asyncio.start_server(self._serve_worker, self._host, 0)
        self._servers.append(server)
        self.address = f"{self._host}:{server.sockets[0].getsockname()[1]}"

    def meet(self, addresses: Sequence[str]) -> None:
        """Take the addresses of all parts' bridges, in order."""
        for part, address in enumerate(addresses):
            host, _, port = address.rpartition(":")
            self._peers[part] = host, int(port)
        self._are_met.set()

    async def close(self) -> None:
        """End all streams."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._waiting.empty():
            self._waiting.get_nowait()[1].close()

    async def _serve_box(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve((reader, writer), self._from_box)

    async def _serve_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._serve((reader, writer), self._from_worker)

    async def _serve(self, stream: Stream, serve: Callable[[Stream], Awaitable[bool]]) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= MAX_STREAMS:
            logger.warning("stream refused part=%d streams=%d", self._part, len(self._tasks))
            stream[1].close()
            return
        self._tasks.add(task)
        is_kept = False
        try:
            is_kept = await serve(stream)
        except (OSError, EOFError, TimeoutError, RdukitError) as error:
            logger.warning("stream ended part=%d error=%r", self._part, error)
            if isinstance(error, PermissionDenied | Unauthenticated):
                peer = stream[1].get_extra_info("peername")
                self._refused(peer[0] if isinstance(peer, tuple) else "", error)
        finally:
            self._tasks.discard(task)
            if not is_kept:
                stream[1].close()

    async def _from_box(self, stream: Stream) -> bool:
        """Serve a connection of the box. Returns whether the connection is kept open."""
        word = await asyncio.wait_for(stream[0].readexactly(1), HELLO_S)
        if word == WAIT:
            if self._waiting.qsize() >= MAX_WAITING:
                return False
            self._waiting.put_nowait(stream)
            return True
        if word != CONNECT:
            return False
        part, port = await asyncio.wait_for(read_target(stream[0]), HELLO_S)
        await self._are_met.wait()
        if part == self._part or part not in self._peers or not is_port_of(part, port):
            raise PermissionDenied(f"port {port} of part {part} is closed to the box of part {self._part}")
        other = await asyncio.open_connection(*self._peers[part])
        try:
            await asyncio.wait_for(greet(*other, self._key, self._part, part, port), HELLO_S)
            await join(stream, other)
        finally:
            await close(other[1])
        return False

    async def _from_worker(self, stream: Stream) -> bool:
        """Serve a connection of another worker. Returns false: the connection is closed afterwards."""
        _, port = await asyncio.wait_for(be_greeted(*stream, self._key, self._part), HELLO_S)
        box = await asyncio.wait_for(self._waiting.get(), BOX_S)
        box[1].write(pack_port(port))
        await join(stream, box)
        return False


class BridgeThread:
    """Bridge in a thread of its own."""

    def __init__(self, bridge: Bridge, loop: asyncio.AbstractEventLoop) -> None:
        self._bridge, self._loop = bridge, loop
        self.address = bridge.address

    def meet(self, addresses: Sequence[str]) -> None:
        """Take the addresses of all parts' bridges, in order."""
        self._loop.call_soon_threadsafe(self._bridge.meet, list(addresses))


@contextmanager
def bridging(
    key: bytes, part: int, socket: Path, host: str, mode: int = 0o600, refused: Refusals = lambda *_: None
) -> Iterator[BridgeThread]:  # fmt: skip
    """Run a bridge while the block lasts.

    Args:
        refused: called for each peer without the key, or with a request for a closed port.

    Raises:
        Unavailable: the bridge cannot listen.
    """
    bridge = Bridge(key, part, socket, host, refused)
    failure = f"the bridge to the other nodes' members cannot listen on {host}"
    try:
        with in_thread("bridge", lambda: bridge.start(mode), bridge.close, STOP_S, failure) as loop:
            yield BridgeThread(bridge, loop)
    finally:
        socket.unlink(missing_ok=True)
