"""Children of operations, forked from a process that has imported torch and the verbs.

A forked box has such a server; see ``rdukit_modelbox.cli.fork_server``. An operation forks
the other members of its training itself. Both run ``main`` of ``rdukit_modelbox.operations.child``, which callers pass.
"""

import asyncio
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from rdukit.fence.kernel import set_process_name
from rdukit.system.forks import ForkedProcess, ForkRequest, ForkServer, run_to_end

#: Name of the process of an operation.
NAME: Final = "rdukit-verb"
_SERVERS: list[ForkServer] = []

#: Program of a child: takes its arguments, returns its exit status.
ChildMain = Callable[[list[str]], int]


def keep_fork_server(main: ChildMain) -> None:
    """Fork this process into the server of its operations. Call it with a single thread, after the imports."""
    _SERVERS[:] = [ForkServer.by_fork(partial(_run_operation, main), "rdukit-verbs")]


def find_fork_server() -> ForkServer | None:
    """Return the live server of this process's operations; ``None``: there is none."""
    return next((server for server in _SERVERS if server.is_ready()), None)


def _run_operation(main: ChildMain, request: ForkRequest) -> int:
    """Run one operation in a fork: its request is on stdin."""
    return main(["--events-fd", str(request.descriptors[0]), "--parent", str(request.server)])


def can_fork_members() -> bool:
    """Return whether this process may fork members: it has imported torch and has a single thread."""
    return "torch" in sys.modules and len(list(Path("/proc/self/task").iterdir())) == 1


def fork_member(
    main: ChildMain, request: bytes, events: int, rank: int, environment: Mapping[str, str]
) -> "ForkedMember":  # fmt: skip
    """Fork this process into the member ``rank`` of its training, with variables of its own.

    Args:
        request, events: as for ``start_forked``.
    """
    stdin = os.memfd_create("member", os.MFD_CLOEXEC)
    try:
        os.write(stdin, request)
        os.lseek(stdin, 0, os.SEEK_SET)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # the fork would write it again
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            run_to_end(partial(_become_member, main, stdin, events, rank, environment, parent))
        return ForkedMember(pid)
    finally:
        os.close(stdin)


class ForkedMember:
    """Fork of this process with the interface of ``subprocess.Popen``. Thread-safe."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._descriptor)
        self._status: int | None = None
        self._lock = threading.Lock()

    def wait(self) -> int:
        """Return its exit status (negative: a signal) once it has ended."""
        with self._lock:
            if self._status is None:
                self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._status

    def kill(self) -> None:
        """Send SIGKILL; does nothing if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


def _become_member(
    main: ChildMain, stdin: int, events: int, rank: int, environment: Mapping[str, str], parent: int
) -> int:  # fmt: skip
    set_process_name(f"rdukit-rank-{rank}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    os.dup2(stdin, 0)
    sys.stdin = os.fdopen(0, closefd=False)  # the previous reader may have read ahead
    return main(["--events-fd", str(events), "--parent", str(parent)])


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
    """A fork with the interface of asyncio's processes."""

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
        """Send SIGTERM."""
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
