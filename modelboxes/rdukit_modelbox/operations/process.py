"""The child process of an operation, and the memory use of it and its descendants (``/proc``, Linux)."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from rdukit.errors import Unavailable
from rdukit_modelbox.operations.forks import find_fork_server, start_forked

#: Longest line in both directions; a reply with thousands of rows is one line.
_MAX_LINE: Final = 64 << 20


class RunningProcess(Protocol):
    """Interface of asyncio's processes."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status; negative: the signal that killed it; None while it runs."""
        ...

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """Return the reader of its output."""
        ...

    async def wait(self) -> int:
        """Return its exit status once it has ended."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...


class ChildProcess:
    """A running ``rdukit_modelbox.operations.child``: its output goes to a log file, and by lines to a listener."""

    def __init__(
        self,
        process: RunningProcess,
        reader: asyncio.StreamReader,
        log_file: Path,
        on_line: Callable[[str], object] | None,
    ) -> None:
        self._process = process
        self._reader = reader
        self.log_file = log_file
        self._copying = asyncio.create_task(self._copy_output(on_line))
        self._reaping = asyncio.create_task(self._reap())

    @classmethod
    async def start(
        cls, request: Mapping[str, object], log_file: Path, on_line: Callable[[str], object] | None = None
    ) -> "ChildProcess":
        """Start a child with ``request``. Call it from the main thread: the child dies with the thread."""
        log_file.parent.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        try:
            process = await _start(json.dumps(request).encode() + b"\n", write_end)
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        reader = asyncio.StreamReader(limit=_MAX_LINE)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb")
        )
        return cls(process, reader, log_file, on_line)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether the child is not known to have ended."""
        return self._process.returncode is None

    async def receive(self) -> dict[str, Any] | None:
        """Return the child's next message; ``None``: it has closed its end."""
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield all the child's messages till it closes its end."""
        while (message := await self.receive()) is not None:
            yield message

    async def wait(self) -> int:
        """Wait for the child's end and its output. Returns the exit status.

        Negative: the signal that killed it.
        """
        status = await self._process.wait()
        # Its descendants may keep the pipe open longer.
        await asyncio.wait({self._copying}, timeout=1.0)
        return status

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and after ``grace_s`` seconds SIGKILL to it and its descendants."""
        if self.is_running:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), grace_s)
            except TimeoutError:
                self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL to it and its descendants."""
        if self.is_running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _reap(self) -> None:
        """Kill its descendants once it has ended; they would keep the pipes open."""
        await self._process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _copy_output(self, on_line: Callable[[str], object] | None) -> None:
        assert self._process.stdout is not None
        with self.log_file.open("ab") as log:
            while block := await _read_line(self._process.stdout):
                log.write(block)
                log.flush()
                text = block.decode(errors="replace").strip()
                if on_line is not None and text:
                    on_line(text)

    def last_words(self, lines: int = 3) -> str:
        """Return the last lines of its log, for a message."""
        try:
            text = self.log_file.read_bytes()[-4096:].decode(errors="replace")
        except OSError:
            return ""
        return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip())


async def _start(request: bytes, events: int) -> RunningProcess:
    server = find_fork_server()
    if server is not None:
        with suppress(Unavailable):
            return await start_forked(server, request, events)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-m", "rdukit_modelbox.operations.child",
        "--events-fd", str(events), "--parent", str(os.getpid()),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        pass_fds=(events,), start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    with suppress(ConnectionError, RuntimeError):  # ``receive`` detects a dead child
        process.stdin.write(request)
        await process.stdin.drain()
    return process


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line, or a piece of one that is too long; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError:
        return await stream.read(1 << 16)


_PROC: Final = Path("/proc")


def resident_bytes(pid: int, proc: Path = _PROC) -> int:
    """Return the resident bytes of process ``pid`` and its descendants; 0 if it has ended."""
    total, pending = 0, [pid]
    while pending:
        one = pending.pop()
        total += _figure(proc / str(one) / "status", "VmRSS:") * 1024
        pending += _children_of(proc / str(one))
    return total


def peak_bytes(pid: int, proc: Path = _PROC) -> int:
    """Return the peak resident bytes of process ``pid`` alone; 0 if it has ended."""
    return _figure(proc / str(pid) / "status", "VmHWM:") * 1024


def kills_for_memory(proc: Path = _PROC) -> int:
    """Count the processes that this machine's kernel has killed for lack of memory since it started."""
    return _figure(proc / "vmstat", "oom_kill")


def _children_of(folder: Path) -> list[int]:
    try:
        return [int(word) for word in (folder / "task" / folder.name / "children").read_text().split()]
    except OSError:
        return []


def _figure(file: Path, name: str) -> int:
    try:
        for line in file.read_text().splitlines():
            word, _, rest = line.partition(" ") if not name.endswith(":") else line.partition("\t")
            if word == name:
                return int(rest.split()[0])
    except OSError:
        pass
    return 0
