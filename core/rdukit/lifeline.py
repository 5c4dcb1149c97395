"""End when the parent process ends, however it does. Linux."""

import ctypes
import os
import select
import signal
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
#: Opened at import: between fork and exec nothing may be.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def signal_on_parent_death(number: signal.Signals) -> None:
    """Ask the kernel for signal ``number`` when the parent is gone.

    The kernel also sends it when only the *thread* of the parent that started this process ends; who must survive that
    compares ``os.getppid()`` in a handler. A parent that was gone before the call sends nothing: compare there too.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Get signal ``number`` when the parent, whose process id is ``parent``, ends; end at once if it already has.

    May be called between fork and exec by a process with one thread.
    """
    signal_on_parent_death(number)
    if os.getppid() != parent:
        os._exit(1)


def end_group_with_parent(parent: int) -> None:
    """Kill this process and its process group, whose leader it is, when the process ``parent`` ends, however it does.

    What this process started ends with it. Unlike ``die_with_parent`` it does not matter which thread of the parent
    started this process; a thread of this one waits.
    """
    assert os.getpgrp() == os.getpid(), "of a group that is somebody else's nothing may be killed"
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)

    def wait() -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
