"""Waiting for what no job is at fault for: a bucket that does not answer, a disk without room.

An attempt that needs either waits, and then ends as if it had not been, so that its job is queued again and another
node may have what this one lacks. What a box has made is not made again for that: it waits until it can be kept.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy.exc import DBAPIError

from rdukit.doctor.host import FULL_BYTES
from rdukit.errors import DiskFull, RdukitError, StoreUnavailable, find_system_error
from rdukit.units import format_bytes

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that an attempt waits which has nothing yet that would be lost.
PATIENCE_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 10.0
#: What a job waits for, as its tenant may know it.
NO_ROOM: Final = "the disk of its node is full; it begins when an operator has made room"
NO_STORE: Final = "the store of artifacts does not answer; it begins when it does"
#: Free bytes of the disk of jobs' folders below which none begins, and below which what a box could not write is not
#: its fault.
MIN_FREE_BYTES: Final = FULL_BYTES
LOW_BYTES: Final = 1 << 30


def check_free(folder: Path) -> None:
    """Refuse to begin what needs room on a disk that has none.

    Raises:
        DiskFull: the message says how much there is.
    """
    if not has_room(folder):
        _, free = _bytes_of(folder)
        raise DiskFull(
            f"the disk of {folder} has {format_bytes(free)} free; make room: below {format_bytes(MIN_FREE_BYTES)} its "
            "jobs wait"
        )


def has_room(folder: Path) -> bool:
    """Return whether a job may begin on the disk of a folder."""
    _, free = _bytes_of(folder)
    return free >= MIN_FREE_BYTES


def is_low(folder: Path) -> bool:
    """Return whether the disk of a folder has so little room that whoever could not write there is not at fault."""
    total, free = _bytes_of(folder)
    return free < max(LOW_BYTES, total // 20)


def _bytes_of(folder: Path) -> tuple[int, int]:
    """Return the size and the free bytes of the disk that a folder is on, or will be.

    A job's folder may not be made yet, or be removed meanwhile.
    """
    try:
        usage = shutil.disk_usage(folder)
    except FileNotFoundError:
        return _bytes_of(folder.parent)
    return usage.total, usage.free


def find_lack(error: Exception) -> RdukitError | None:
    """Return what an error says is lacking here, and comes back: disk or bucket; ``None``: it is something else."""
    if isinstance(error, StoreUnavailable):
        return error
    cause = error.orig if isinstance(error, DBAPIError) and isinstance(error.orig, Exception) else error
    found = cause if isinstance(cause, RdukitError) else find_system_error(cause)
    return found if isinstance(found, DiskFull) else None


def patiently(
    action: Callable[[], T], stop: threading.Event, patience_s: float = PATIENCE_S,
    tell: Callable[[str], None] = lambda why: None,
) -> T:  # fmt: skip
    """Do something; as long as disk or bucket are lacking for it, do it again after a while.

    Args:
        action: what can be begun anew.
        stop: ends the waiting.
        tell: is called with what is lacking when the waiting begins, and with ``""`` when it is over.
    Raises:
        StoreUnavailable, DiskFull: it is lacking for as long, or nobody wants to wait any more.
    """
    deadline, pause = time.monotonic() + patience_s, FIRST_PAUSE_S
    told = False
    while True:
        try:
            done = action()
        except (RdukitError, OSError, DBAPIError) as error:
            lack = find_lack(error)
            if lack is None:
                raise
            if time.monotonic() + pause > deadline or stop.is_set():
                raise lack from error
            logger.warning("waiting, and then again in_s=%.1f error=%s", pause, lack.message)
            if not told:
                tell(NO_ROOM if isinstance(lack, DiskFull) else NO_STORE)
            told = True
        else:
            if told:
                tell("")
            return done
        stop.wait(pause)
        pause = min(2 * pause, MAX_PAUSE_S)
