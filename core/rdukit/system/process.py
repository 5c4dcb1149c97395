"""End when the parent process ends, however it does. Linux."""

import contextlib
import ctypes
import gc
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rdukit.files.home import make_folder
from rdukit.settings import LOG_LEVEL, resolve

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


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """While it lasts nothing is collected, by any thread; afterwards it is as before. Also a decorator."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load_library(library: bytes, name: str) -> ctypes.CDLL:
    """The library, loaded from memory; ``name`` is what the process's maps call it.

    Folders for temporary files are often mounted ``noexec``, in containers above all, and nothing there can be loaded.

    Raises:
        OSError: it is no library, or one that this process cannot load.
    """
    # The descriptor stays open: the system's loader takes a path that it has seen for the library it knows.
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(library)
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


def configure_logging(level: str | None = None, file: Path | None = None) -> None:
    """Send rdukit's log to stderr, and to ``file`` as well if given. Calling again replaces the former set-up."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if getattr(h, "_rdukit", False)]:
        root.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        make_folder(file.parent)
        handlers.append(logging.FileHandler(file))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        handler._rdukit = True  # type: ignore[attr-defined]
        root.addHandler(handler)
    root.setLevel(resolve(LOG_LEVEL, level).upper())
    # It has a line for each request: four a second while a worker waits for a pod.
    logging.getLogger("httpx").setLevel(logging.NOTSET if root.level <= logging.DEBUG else logging.WARNING)
