"""Threads of a box let each other finish while it serves several callers over gRPC.

gRPC reads sockets in a thread of its own and wakes the event loop's for every request. On a shared core Linux lets the
woken thread interrupt the one that woke it: four switches a request, and a rhythm that stumbles. Under ``SCHED_BATCH``
(sched(7)) it waits until the other has nothing left to do, and then finds many requests instead of one. A lone caller
would gain nothing and wait behind other programs of a busy machine, so it is for several only.
"""

import contextlib
import os
from collections.abc import Callable
from types import TracebackType
from typing import Final

#: Callers from which on threads take turns.
SEVERAL: Final = 4
#: Requests one after another that came while fewer than that were under way, after which they no longer do.
CALM: Final = 16


class Turns:
    """Entered by each request for as long as it is under way. One event loop; all threads of its process."""

    def __init__(self, take_turns: Callable[[bool], None] | None = None) -> None:
        self._take_turns = take_turns or take_turns_in_this_process
        self._under_way = 0
        self._calm = 0
        self._is_on = False

    def __enter__(self) -> None:
        self._under_way += 1
        self._calm = 0 if self._under_way >= SEVERAL else self._calm + 1
        if not self._calm and not self._is_on:
            self._is_on = True
            self._take_turns(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._under_way -= 1
        if self._is_on and self._calm > CALM:
            self._is_on = False
            self._take_turns(False)


def take_turns_in_this_process(is_on: bool) -> None:
    """Set the policy of all threads that have the usual one, or set it back.

    What is started meanwhile inherits it: as well for verbs, which only compute; device processes set it back.
    """
    usual, wanted = (os.SCHED_OTHER, os.SCHED_BATCH) if is_on else (os.SCHED_BATCH, os.SCHED_OTHER)
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended, or a sandbox forbids it
            if os.sched_getscheduler(int(name)) == usual:
                os.sched_setscheduler(int(name), wanted, os.sched_param(0))
