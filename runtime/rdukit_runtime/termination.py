"""SIGTERM ends a program that holds a lease in order: what must be said is said, the lease is released, then it dies.

Source: runtime reference 2.1, 3.2 (jobs are stopped with SIGTERM so that the runtime can end cleanly; a cancelled one
is told from a failed one in sn.log).
"""

import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Final

#: Called at SIGTERM, newest first, while their owners live.
_callbacks: Final[list["weakref.WeakMethod[Callable[[], None]]"]] = []
_is_installed = False


def call_at_termination(callback: Callable[[], None]) -> None:
    """Call the bound method ``callback`` if SIGTERM comes, before the process dies of it.

    Does nothing where the program handles SIGTERM itself, or outside the main thread.
    """
    global _is_installed
    _callbacks[:] = [held for held in _callbacks if held() is not None]
    _callbacks.append(weakref.WeakMethod(callback))
    if _is_installed or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
        _is_installed = True


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one kills at once
    for held in reversed(_callbacks):
        callback = held()
        if callback is not None:
            callback()
    os.kill(os.getpid(), signal.SIGTERM)
