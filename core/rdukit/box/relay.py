"""Relay in a box of a job on several nodes: forwards connections to other parts to the worker, and theirs to this part.

It runs in a separate thread while a ``relaying`` block lasts; see ``rdukit.box.links``.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from rdukit.box.links import (
    CONNECT,
    WAIT,
    WAITING,
    LinkedPart,
    Stream,
    close,
    in_thread,
    is_port_of,
    join,
    pack_target,
    part_address,
    ports_of,
    read_port,
)

logger = logging.getLogger(__name__)

#: Seconds of retries while a port has no listener yet: one member starts before the others.
PATIENCE_S: Final = 60.0
RETRY_S: Final = 0.1
START_S: Final = 30.0


class Relay:
    """Relay of the box of one part."""

    def __init__(self, place: LinkedPart) -> None:
        self._socket, self._part, self._parts = place.socket, place.part, place.parts
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        """Listen at the addresses of the other parts, and wait for their streams.

        Raises:
            OSError: an address is taken, or the worker's socket is missing.
        """
        for part in range(self._parts):
            for port in ports_of(part) if part != self._part else ():
                self._servers.append(
                    await asyncio.start_server(
                        lambda reader, writer, part=part, port=port: self._connect((reader, writer), part, port),  # type: ignore[misc]
                        part_address(part), port,
                    )
                )  # fmt: skip
        for _ in range(WAITING):
            self._begin_waiting(await asyncio.open_unix_connection(str(self._socket)))

    async def close(self) -> None:
        """End all streams."""
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, stream: Stream, part: int, port: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        try:
            worker = await asyncio.open_unix_connection(str(self._socket))
            worker[1].write(CONNECT + pack_target(part, port))
            await join(stream, worker)
        except OSError as error:
            logger.warning("event=no-link part=%d port=%d error=%s", part, port, error)
        finally:
            stream[1].close()

    def _begin_waiting(self, worker: Stream) -> None:
        self._keep(asyncio.get_running_loop().create_task(self._wait(worker)))

    async def _wait(self, worker: Stream) -> None:
        worker[1].write(WAIT)
        try:
            port = await read_port(worker[0])
        except (EOFError, OSError):  # the worker or the attempt has ended
            await close(worker[1])
            return
        with suppress(OSError):
            self._begin_waiting(await asyncio.open_unix_connection(str(self._socket)))
        try:
            own = await self._reach(port)
        except OSError as error:
            logger.warning("event=no-link port=%d error=%s", port, error)
            await close(worker[1])
            return
        await join(worker, own)

    async def _reach(self, port: int) -> Stream:
        if not is_port_of(self._part, port):
            raise ConnectionRefusedError(f"port {port} does not belong to part {self._part}")
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while True:
            try:
                return await asyncio.open_connection(part_address(self._part), port)
            except ConnectionRefusedError:
                if loop.time() > end:
                    raise
            await asyncio.sleep(RETRY_S)

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@contextmanager
def relaying(place: LinkedPart) -> Iterator[None]:
    """Relay for the box of a part while the block lasts.

    Raises:
        Unavailable: the relay did not start.
    """
    relay, failure = Relay(place), "the box's relay to the other nodes' members did not start"
    with in_thread("relay", relay.start, relay.close, START_S, failure):
        yield
