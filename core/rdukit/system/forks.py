"""Fork server: a process that has imported the modules of programs, and forks for each request within milliseconds.

The server has one thread and its own environment. Data of a request only reaches its fork, so the server's state never
changes. This module has both ends. A request is a datagram with descriptors: a memfd with the request as JSON, a pipe
for the fork's process id and later its status, stdin, one descriptor for stdout and stderr, and any others.

The server ends with its client in any case, which the forks notice as the end of their parent.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from rdukit.errors import Unavailable
from rdukit.fence.kernel import set_process_name
from rdukit.interfaces import Closable
from rdukit.system.process import is_readable, stop_child

#: Number of the fixed descriptors, in this order: request, status, stdin, output.
_FIXED: Final = 4
_MAX_DESCRIPTORS: Final = 64
_READY: Final = b"ready"
#: Wire form of a process id or a status.
_NUMBER_BYTES: Final = 8
HUGE_BYTES: Final = 2 << 20
#: Source: madvise(2), include/uapi/asm-generic/mman-common.h.
_MADV_COLLAPSE: Final = 25


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Request for a fork, and the received descriptors."""

    body: Mapping[str, Any]
    descriptors: Sequence[int]
    #: Process id of the server.
    server: int
    #: Descriptors that were open before the first request; libraries may need them.
    inherited: frozenset[int]

    def close_others(self, kept: Sequence[int] = ()) -> None:
        """Close every descriptor but the standard ones, those of the libraries, and ``kept``."""
        for number in _open_descriptors():
            if number > 2 and number not in self.inherited and number not in kept:
                os.close(number)


def import_for_forks(names: Iterable[str]) -> None:
    """Import the modules that a server's forks share.

    Garbage collection is off meanwhile: it would free hardly anything, and take a tenth of the time.
    """
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        gc.enable()


def serve_forks(descriptor: int, run: Callable[[ForkRequest], int], are_many: bool = True) -> None:
    """Serve until the client's end is closed. Call it after the imports, in a process with one thread.

    Each fork leads its own session, has its standard descriptors in place, and exits with the result of ``run``.

    Args:
        are_many: whether there will be enough forks to justify a second of preparation of shared memory.
    """
    channel = socket.socket(fileno=descriptor)
    channel.setblocking(False)
    inherited = frozenset(_open_descriptors()) - {descriptor}
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    # A garbage collection would write to pages, which forks then could not share.
    if are_many:
        gc.collect()
    gc.freeze()
    if are_many:  # a fork copies each page's entry; with huge pages there are 512 times fewer
        collapse_memory()
    with contextlib.suppress(BrokenPipeError):
        channel.send(_READY)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = {number for number, _ in poll.poll()}
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _tell_ends(statuses)
        if descriptor not in ready:
            continue
        try:
            received = _receive(channel)
        except (BlockingIOError, InterruptedError):
            continue
        if received is None:
            return
        process = os.fork()
        if process == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run_to_end(partial(_become, received, run, inherited, os.getppid()))
        statuses[process] = received[1]
        _tell(received[1], process)
        for number in (received[0], *received[2:]):
            os.close(number)


def run_to_end(run: Callable[[], int]) -> NoReturn:
    """Call ``run`` and end this process with its status.

    Buffers are flushed and atexit functions run. Python's own shutdown is skipped: it would spend a second on tearing
    down torch's modules.
    """
    status = 1
    try:
        status = run()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        logging.getLogger(__name__).exception("fork broke")
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
        with contextlib.suppress(Exception):
            logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


class ForkedProcess:
    """A fork, with an interface like ``subprocess.Popen``. Thread-safe."""

    def __init__(self, pid: int, status: int) -> None:
        """``status``: the pipe's read end, which this object then owns."""
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, status)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the fork has ended."""
        return self._status

    def poll(self) -> int | None:
        """Return its exit status, or minus the number of the signal that killed it; None while it runs."""
        with self._lock:
            if self.returncode is None and is_readable(self._status):
                self.returncode = _read_number(self._status)
                if self.returncode is None:  # the server was killed, and the fork ends with it
                    self.returncode = -signal.SIGKILL
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._status, select.POLLIN)
            poll.poll(None if timeout is None else max(timeout, 0) * 1000)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal; it has no effect if the fork has ended."""
        # The server reaps the fork before it reports that: for some microseconds, its id is unused.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer(Closable):
    """The client's end of a server. Thread-safe."""

    def __init__(self, channel: socket.socket, process: "subprocess.Popen[bytes] | None" = None, pid: int = 0) -> None:
        """Take over the client's end of a server that is about to serve."""
        channel.setblocking(False)
        self._channel, self._process = channel, process
        self.pid = process.pid if process is not None else pid
        self._is_ready = False
        self._lock = threading.Lock()

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], output: int | None = None) -> "ForkServer":
        """Start ``command DESCRIPTOR`` as a server, and return at once: it imports meanwhile.

        Raises:
            OSError: the command cannot be started.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                process = subprocess.Popen(
                    [*command, str(theirs.fileno())], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env=dict(environment), start_new_session=True, pass_fds=(theirs.fileno(),),
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        return cls(ours, process)

    @classmethod
    def by_fork(cls, run: Callable[[ForkRequest], int], name: str, output: int | None = None) -> "ForkServer":
        """Fork this process, which must have one thread, into a server that inherits its imports.

        Args:
            output: stdout and stderr of the server; None: those of this process.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            if output is not None:
                os.dup2(output, 1)
                os.dup2(output, 2)
            set_process_name(name)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                serve_forks(theirs.detach(), run)
            finally:
                os._exit(0)
        theirs.close()
        return cls(ours, pid=pid)

    def is_ready(self) -> bool:
        """Return whether a request would be served at once: False while the server imports, and after its end."""
        with self._lock:
            try:
                self._is_ready = self._channel.recv(len(_READY)) == _READY
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._is_ready = False
            return self._is_ready and not self.has_ended()

    def has_ended(self) -> bool:
        """Return whether the server has ended."""
        if self._process is not None:
            return self._process.poll() is not None
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:  # an earlier call has found its end
            return True

    def fork(
        self, body: Mapping[str, object], output: int, stdin: int | None = None, others: Sequence[int] = ()
    ) -> ForkedProcess:
        """Fork a process that executes the request ``body``.

        Args:
            body: JSON values; ``name`` is shown by ``ps -o comm``; the kernel keeps 15 letters.
            output: its stdout and stderr.
            stdin: None: the null device.
            others: further descriptors to pass; the program finds their numbers in ``ForkRequest``.

        Raises:
            Unavailable: the server has ended.
        """
        with contextlib.ExitStack() as stack:
            text = os.memfd_create("request", os.MFD_CLOEXEC)
            stack.callback(os.close, text)
            with os.fdopen(os.dup(text), "wb") as stream:
                stream.write(json.dumps(body).encode())
            reader, writer = os.pipe2(os.O_CLOEXEC)
            stack.callback(os.close, writer)
            if stdin is None:
                stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, stdin)
            descriptors = array.array("i", [text, writer, stdin, output, *others])
            try:
                with self._lock:
                    self._channel.sendmsg([b"fork"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            except OSError as cause:
                os.close(reader)
                raise Unavailable(f"the fork server rejected the request: {cause}") from cause
        pid = _read_number(reader)
        if pid is None:
            os.close(reader)
            raise Unavailable("the fork server ended before it forked")
        return ForkedProcess(pid, reader)

    def close(self, at_once: bool = False) -> None:
        """End the server; its forks see the end of their parent.

        Args:
            at_once: end it even while it still imports.
        """
        self._channel.close()
        if self._process is not None:
            stop_child(self._process, 5.0, ask=at_once)


def _open_descriptors() -> list[int]:
    found = []
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        with contextlib.suppress(OSError):  # closed already: the descriptor that listed the folder
            os.fstat(number)
            found.append(number)
    return found


def _receive(channel: socket.socket) -> list[int] | None:
    """Receive a request's descriptors; None: the client has gone."""
    room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
    text, ancillary, _, _ = channel.recvmsg(16, room, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found) if text and len(found) >= _FIXED else None


def _become(received: Sequence[int], run: Callable[[ForkRequest], int], inherited: frozenset[int], server: int) -> int:
    os.setsid()
    text, _, stdin, output, *others = received
    for source, target in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    with os.fdopen(text, "rb") as stream:
        stream.seek(0)
        body = json.load(stream)
    request = ForkRequest(body, others, server, inherited)
    request.close_others(others)
    set_process_name(str(body["name"]))
    return run(request)


def _tell_ends(statuses: dict[int, int]) -> None:
    while statuses:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        if process in statuses:
            _tell(number := statuses.pop(process), os.waitstatus_to_exitcode(status))
            os.close(number)


def _tell(descriptor: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, number.to_bytes(_NUMBER_BYTES, "little", signed=True))


def _read_number(descriptor: int) -> int | None:
    data = os.read(descriptor, _NUMBER_BYTES)
    return int.from_bytes(data, "little", signed=True) if len(data) == _NUMBER_BYTES else None


def collapse_memory(maps: Path = Path("/proc/self/maps")) -> int:
    """Move this process's written private memory into huge pages; return their bytes.

    Memory stays unchanged if the kernel does not support this. Partly used pages are padded with zeros, so a process
    grows by a few percent.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = [page for begin, end in find_private_memory(maps.read_text()) for page in huge_pages_in(begin, end)]
    return HUGE_BYTES * sum(int(advise(page, HUGE_BYTES, _MADV_COLLAPSE)) == 0 for page in pages)


def find_private_memory(maps: str) -> list[tuple[int, int]]:
    """Find the private, writable ranges without a file in the text of ``/proc/PID/maps`` (pure).

    Source: proc_pid_maps(5).
    """
    found = []
    for line in maps.splitlines():
        span, access, _, _, inode = line.split()[:5]
        if access[1] == "w" and access[3] == "p" and inode == "0":
            begin, _, end = span.partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def huge_pages_in(begin: int, end: int) -> range:
    """Return the addresses of the complete huge pages in a range (pure)."""
    return range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES, HUGE_BYTES)
