"""Health check of a container that terminates a hung part, so that the engine's restart policy restarts it.

``python -m rdukit.system.hang_guard PATIENCE_S CHECK…`` runs the command CHECK and exits like it. A check that does not
end within ``CHECK_S``, or ends with ``STUCK``, means that the part hangs. If it hangs for ``PATIENCE_S`` after it was
healthy once, the children of process 1 are killed. Process 1 is an init, which then ends, and the container with it.
Engines restart containers that have exited, but not unhealthy ones. Parts that are down or not ready are left alone.

On a busy machine a healthy part answers late as well. The patience is therefore multiplied by the check's own
slowdown: the time in which it ran or waited for a processor, divided by the time in which it ran. Linux counts both in
``/proc/PID/schedstat``.

Source: ours.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

#: Seconds that a check may take.
CHECK_S: Final = 4.0
#: Seconds between two looks at a check that runs.
POLL_S: Final = 0.02
#: Exit status of a check that reports a hung part.
STUCK: Final = 3


class CheckOutcome(StrEnum):
    """Results of one check."""

    HEALTHY = "healthy"
    #: The part answers, or has not started yet.
    UNHEALTHY = "unhealthy"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class GuardState:
    """State of a guard between two checks."""

    was_healthy: bool = False
    #: Monotonic time at the start of the first of the latest successive failed checks.
    hung_since: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Nanoseconds in which a process ran, and in which it could have run but waited for a processor."""

    ran: int = 0
    waited: int = 0

    @property
    def slowdown(self) -> float:
        """Factor by which the machine's other processes delayed this one; 1 on an idle machine."""
        return (self.ran + self.waited) / self.ran if self.ran else 1.0


def next_guard_state(
    state: GuardState, outcome: CheckOutcome, began: float, now: float, patience_s: float
) -> tuple[GuardState, bool]:
    """Return the state after a check that ``began`` and has ended ``now``, and whether to kill the part (pure)."""
    if outcome is not CheckOutcome.HUNG:
        return GuardState(state.was_healthy or outcome is CheckOutcome.HEALTHY), False
    since = began if state.hung_since is None else state.hung_since
    return GuardState(state.was_healthy, since), state.was_healthy and now - since >= patience_s


def main(arguments: Sequence[str]) -> int:
    """Run the check; return its exit status."""
    if len(arguments) < 2 or not arguments[0].isdecimal():
        print("usage: python -m rdukit.system.hang_guard PATIENCE_S CHECK…", file=sys.stderr)
        return 2
    began = time.monotonic()
    outcome, status, slowdown = _check(arguments[1:])
    patience_s = float(arguments[0]) * slowdown
    memory = Path(tempfile.gettempdir(), f"rdukit-hang-guard-{os.getuid()}.json")
    state, is_over = next_guard_state(_read(memory), outcome, began, time.monotonic(), patience_s)
    with contextlib.suppress(OSError):
        memory.write_text(json.dumps(asdict(state)))
    if is_over:
        seconds = time.monotonic() - (state.hung_since or began)
        _say(f"hang_guard: the process has not answered for {seconds:.0f} s; it is terminated and restarted")
        for pid in _children_of_init():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    return status


def _check(command: Sequence[str]) -> tuple[CheckOutcome, int, float]:
    """Run ``command``. Returns its outcome, the exit status of this check, and the command's slowdown."""
    child = subprocess.Popen(command)
    deadline = time.monotonic() + CHECK_S
    spent = ProcessorTime()
    while (status := child.poll()) is None and time.monotonic() < deadline:
        spent = read_processor_time(child.pid) or spent
        time.sleep(POLL_S)
    if status is None:
        child.kill()
        child.wait()
        print(f"no answer within {CHECK_S:g} s", file=sys.stderr)
        return CheckOutcome.HUNG, 1, spent.slowdown
    if status == 0:
        return CheckOutcome.HEALTHY, 0, spent.slowdown
    return (CheckOutcome.HUNG if status == STUCK else CheckOutcome.UNHEALTHY), 1, spent.slowdown


def read_processor_time(pid: int) -> ProcessorTime | None:
    """Read the processor time of a process; ``None`` where it has ended or the system does not count it."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return ProcessorTime(int(ran), int(waited))
    except (OSError, ValueError):
        return None


def _read(memory: Path) -> GuardState:
    try:
        return GuardState(**json.loads(memory.read_text()))
    except (OSError, ValueError, TypeError):
        return GuardState()


def _children_of_init() -> list[int]:
    """List the processes that process 1 of this container started; checks, which are started from outside, are not
    among them.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == "1" and int(folder.name) != os.getpid():
                found.append(int(folder.name))
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr)
    with contextlib.suppress(OSError), Path("/proc/1/fd/2").open("w") as log:  # the container's log
        print(text, file=log)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
