"""Operations' children forked from a process that has imported torch and the verbs, instead of started anew.

A box that was itself forked has such a server beside it; see ``rdukit_modelbox.cli.fork_server``. A child of it forks
the other members of its training.
"""

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
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
    """Run one operation in a fork: its request is on stdin, variables of its own are in the fork's request."""
    from rdukit_modelbox.operations.child import main

    os.environ.update(request.body.get("environment", {}))
    sys.stdin = os.fdopen(0, closefd=False)  # the one before may have read ahead
    return main(["--events-fd", str(request.descriptors[0]), "--parent", str(request.server)])


@contextmanager
def member_forks() -> Iterator[ForkServer | None]:
    """Yield a server that forks members of a training from this process; None: each must be started anew.

    A process with several threads cannot be forked safely, and one without torch saves nothing by it.
    """
    if "torch" not in sys.modules or len(list(Path("/proc/self/task").iterdir())) > 1:
        yield None
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what is buffered would be written by each fork
    with ForkServer.by_fork(run_operation, "rdukit-members", are_many=False) as server:
        yield server


def fork_member(
    server: ForkServer, request: bytes, events: int, rank: int, environment: Mapping[str, str]
) -> ForkedProcess:  # fmt: skip
    """Fork the member ``rank`` with variables of its own; arguments and errors are as of ``start_forked``."""
    stdin = os.memfd_create("member", os.MFD_CLOEXEC)
    try:
        os.write(stdin, request)
        os.lseek(stdin, 0, os.SEEK_SET)
        body = {"name": f"rdukit-rank-{rank}", "environment": dict(environment)}
        return server.fork(body, sys.stdout.fileno(), stdin, (events,))
    finally:
        os.close(stdin)


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
