"""A server under test: started, watched and ended with everything that it starts.

All of its processes inherit a mark in their environment, so that they are found wherever they are moved to.
"""

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_MARK = "SERVING_BENCHMARK"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ServerFailed(Exception):
    """A server ended, or did not answer correctly in time; with the last lines of its log."""


class ServerProcess:
    """The processes of one server, from ``start`` to ``stop``."""

    def __init__(self, process: "subprocess.Popen[bytes]", mark: str, log: Path) -> None:
        self.process, self._mark, self.log = process, mark, log
        #: Seconds from its start to the first correct answer.
        self.start_s = 0.0

    @classmethod
    def start(
        cls, command: Sequence[str], environment: Mapping[str, str], folder: Path, core: int | None,
        is_right: Callable[[], bool], timeout_s: float = 90.0,
    ) -> "ServerProcess":  # fmt: skip
        """Start it and wait for the first correct answer; an exception of ``is_right`` means not yet.

        Raises:
            ServerFailed: see there. Nothing of it is left then.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log, mark = folder / "server.log", uuid.uuid4().hex
        began = time.perf_counter()
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*([] if core is None else ["taskset", "-c", str(core)]), *command],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, cwd=folder, start_new_session=True,
                env={**os.environ, **environment, _MARK: mark},
            )  # fmt: skip
        server = cls(process, mark, log)
        try:
            server._wait(is_right, began, timeout_s)
        except BaseException:
            server.stop()
            raise
        return server

    def _wait(self, is_right: Callable[[], bool], began: float, timeout_s: float) -> None:
        last = "no answer"
        while time.perf_counter() - began < timeout_s:
            if self.process.poll() is not None:
                raise ServerFailed(f"ended with status {self.process.returncode}: {self.last_words()}")
            try:
                if is_right():
                    self.start_s = time.perf_counter() - began
                    return
                last = "a wrong answer"
            except Exception as error:  # noqa: BLE001 a server that is not up yet fails in many ways
                last = repr(error)[:200]
            time.sleep(0.02)
        raise ServerFailed(f"{last} in {timeout_s:g} s: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace").strip()[-600:]

    def processes(self) -> list[int]:
        """Process ids with the mark."""
        needle = f"{_MARK}={self._mark}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if needle in Path("/proc", entry, "environ").read_bytes():
                        found.append(int(entry))
        return found

    def cpu_seconds(self) -> float:
        """User and system time of all its processes, and of those that they waited for."""
        return sum(cpu_seconds_of(pid) for pid in self.processes())

    def memory_mb(self) -> tuple[float, float]:
        """Megabytes of 10^6: resident (shared pages in every process that has them), proportional (once)."""
        resident = proportional = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
                resident += values["Rss"]
                proportional += values["Pss"]
        return resident / 1e6, proportional / 1e6

    def stop(self) -> None:
        """SIGTERM to the first process, and after some seconds SIGKILL to all that are left."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 6
        while self.processes() and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.05)
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process, and of those that it waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(fields[index]) for index in range(11, 15)) * _TICK_S
