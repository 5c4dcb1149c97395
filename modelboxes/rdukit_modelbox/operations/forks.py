"""Operations' children forked from a process that has imported torch and the verbs, instead of started anew.

A box that was itself forked has such a server beside it; see ``rdukit_modelbox.cli.fork_server``.
"""

import asyncio
import os
from typing import Final

from rdukit.system.forks import ForkedProcess, ForkRequest, ForkServer

#: Of the process of an operation.
NAME: Final = "rdukit-verb"
_SERVERS: list[ForkServer] = []


def keep_fork_server() -> None:
    """Fork this process into the server of its operations. Call with one thread, after the imports."""
    _SERVERS[:] = [ForkServer.by_fork(run_operation, "rdukit-verbs")]


def find_fork_server() -> ForkServer | None:
    """Return the server of this process's operations, if it has one that answers."""
    return next((server for server in _SERVERS if server.is_ready()), None)


def run_operation(request: ForkRequest) -> int:
    """Run one operation in a fork: its request is on stdin."""
    from rdukit_modelbox.operations.child import main

    return main(["--events-fd", str(request.descriptors[0]), "--parent", str(request.server)])


async def start_forked(server: ForkServer, request: bytes, events: int) -> "ForkedChild":
    """Fork a child for ``request``, one line of JSON; it writes its events to the descriptor ``events``.

    Raises:
        Unavailable: the server has ended.
    """
    stdin = os.memfd_create("operation", os.MFD_CLOEXEC)
    read_end, write_end = os.pipe()
    try:
        os.write(stdin, request)
        os.lseek(stdin, 0, os.SEEK_SET)
        process = server.fork({"name": NAME}, write_end, stdin, (events,))
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(stdin)
        os.close(write_end)
    stdout = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(read_end, "rb")
    )
    return ForkedChild(process, stdout)


class ForkedChild:
    """A fork as asyncio shows a process of its own."""

    def __init__(self, process: ForkedProcess, stdout: asyncio.StreamReader) -> None:
        self._process = process
        self.pid = process.pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = asyncio.create_task(self._await_end())

    async def wait(self) -> int:
        """Return its exit status once it has ended."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    async def _await_end(self) -> int:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.fileno(), ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.fileno())
        self.returncode = self._process.wait()
        return self.returncode
