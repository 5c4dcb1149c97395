"""gRPC's threads let the event loop finish.

gRPC reads sockets in a thread of its own and wakes the event loop's for every event; on a shared core Linux lets that
thread interrupt the loop six times a request, each time that the loop asks gRPC for something. Under ``SCHED_BATCH``
(sched(7)) it waits until the loop has nothing left to do, and then finds much instead of one thing.

It then waits for other programs of that core, too. That harms only a lone caller, whose request it keeps for some
milliseconds: so it is looked at how long gRPC's threads wait, and where that is long they have the usual policy for
some time. With several callers there is always something to find.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

#: Callers from which on turns are taken, whoever else runs.
SEVERAL: Final = 2
#: Mean seconds that a thread waits for the processor, above which a lone caller has a busy neighbour. Without one it
#: waits for the event loop: a tenth of that.
LONG_S: Final = 0.0008
#: Seconds between two looks at that, and for which a lone caller is left alone after a bad one.
LOOK_S: Final = 0.1
PAUSE_S: Final = 10.0


class Waits(NamedTuple):
    """What threads have waited for a processor since they began: how often they ran, and seconds."""

    runs: int
    seconds: float


class SchedBatchPolicy:
    """Entered by each request for as long as it is under way. One event loop, in the process's main thread."""

    def __init__(
        self,
        set_policy: Callable[[bool], None] | None = None,
        waits: Callable[[], Waits | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._set_policy = set_policy or set_batch_policy
        self._waits = waits or read_thread_waits
        self._clock = clock
        self._under_way = 0
        self._is_on = False
        #: Since the last look.
        self._had_several = False
        self._seen: Waits | None = None
        self._look_at = 0.0

    def __enter__(self) -> None:
        self._under_way += 1
        if self._under_way >= SEVERAL:
            self._had_several = True
            if not self._is_on:
                self._switch(True)
                self._look_at = self._clock() + LOOK_S
        elif self._clock() >= self._look_at:
            self._look()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._under_way -= 1

    def _look(self) -> None:
        """A lone caller's request begins, some time after the last look."""
        before, self._seen = self._seen, self._waits()
        had_several, self._had_several = self._had_several, False
        if not had_several:  # else nothing is known of a lone one
            is_long = self._is_on and before is not None and has_waited_long(before, self._seen)
            self._switch(self._seen is not None and not is_long)
        self._look_at = self._clock() + (LOOK_S if self._is_on else PAUSE_S)

    def _switch(self, is_on: bool) -> None:
        if is_on != self._is_on:
            self._is_on = is_on
            self._set_policy(is_on)


def has_waited_long(before: Waits, after: Waits | None) -> bool:
    """Whether threads waited for more than the event loop between the two; not where some have ended. Pure."""
    if after is None:
        return False
    runs = after.runs - before.runs
    return runs > 0 and after.seconds - before.seconds > LONG_S * runs


def set_batch_policy(is_on: bool) -> None:
    """Set the policy of all threads but the main one that have the usual one, or set it back.

    What the main one starts has the usual policy.
    """
    usual, wanted = (os.SCHED_OTHER, os.SCHED_BATCH) if is_on else (os.SCHED_BATCH, os.SCHED_OTHER)
    for thread in _other_threads():
        with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids it
            if os.sched_getscheduler(thread) == usual:
                os.sched_setscheduler(thread, wanted, os.sched_param(0))


def read_thread_waits() -> Waits | None:
    """Of all threads but the main one; None where the kernel does not count."""
    runs, nanoseconds = 0, 0
    for thread in _other_threads():
        with contextlib.suppress(OSError, ValueError):  # it has ended, or nothing is counted
            _, waited, ran = map(int, Path(f"/proc/self/task/{thread}/schedstat").read_text().split())
            runs, nanoseconds = runs + ran, nanoseconds + waited
    return Waits(runs, nanoseconds / 1e9) if runs else None


def _other_threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
