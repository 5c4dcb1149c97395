"""Waiting for causes outside of a job: an unreachable bucket, a full disk.

An attempt that lacks either waits for a while, and then ends uncounted. Its job is queued again, perhaps for a better
node. Finished outputs are not lost: the attempt waits until they can be stored.
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

#: Seconds that an attempt waits if it has no results to lose.
PATIENCE_S: Final = 60.0
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 10.0
#: Wait reasons, in the tenant's terms.
NO_ROOM: Final = "the disk of its node is full; it starts once an operator has freed space"
NO_STORE: Final = "the store of artifacts does not answer; the job starts once the store does"
#: Free bytes of the jobs' disk below which no job begins, and free bytes below which a failed write is not the box's
#: fault.
MIN_FREE_BYTES: Final = FULL_BYTES
LOW_BYTES: Final = 1 << 30


def check_free(folder: Path) -> None:
    """Refuse to begin a job if the disk is full.

    Raises:
        DiskFull: the message has the free bytes.
    """
    if not has_room(folder):
        _, free = _bytes_of(folder)
        raise DiskFull(
            f"the disk of {folder} has {format_bytes(free)} free; free more space: below "
            f"{format_bytes(MIN_FREE_BYTES)} its jobs wait"
        )


def has_room(folder: Path) -> bool:
    """Return whether a job may begin on the disk of a folder."""
    _, free = _bytes_of(folder)
    return free >= MIN_FREE_BYTES


def is_low(folder: Path) -> bool:
    """Return whether the disk of a folder is so full that a failed write is not the writer's fault."""
    total, free = _bytes_of(folder)
    return free < max(LOW_BYTES, total // 20)


def _bytes_of(folder: Path) -> tuple[int, int]:
    """Return the size and the free bytes of the disk that a folder is on, or will be.

    A job's folder may not exist yet, or may have been removed.
    """
    try:
        usage = shutil.disk_usage(folder)
    except FileNotFoundError:
        return _bytes_of(folder.parent)
    return usage.total, usage.free


def find_lack(error: Exception) -> RdukitError | None:
    """Return the error for a full disk or an unreachable bucket; ``None``: the cause is another."""
    if isinstance(error, StoreUnavailable):
        return error
    cause = error.orig if isinstance(error, DBAPIError) and isinstance(error.orig, Exception) else error
    found = cause if isinstance(cause, RdukitError) else find_system_error(cause)
    return found if isinstance(found, DiskFull) else None


def patiently(
    action: Callable[[], T], stop: threading.Event, patience_s: float = PATIENCE_S,
    tell: Callable[[str], None] = lambda why: None,
) -> T:  # fmt: skip
    """Do an action; while disk or bucket are lacking, repeat it with back-off.

    Args:
        action: a repeatable action.
        stop: ends the waiting.
        tell: called with the wait reason when the wait begins, and with ``""`` when it ends.
    Raises:
        StoreUnavailable, DiskFull: it was lacking for ``patience_s``, or ``stop`` was set.
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
            logger.warning("retrying in_s=%.1f error=%s", pause, lack.message)
            if not told:
                tell(NO_ROOM if isinstance(lack, DiskFull) else NO_STORE)
            told = True
        else:
            if told:
                tell("")
            return done
        stop.wait(pause)
        pause = min(2 * pause, MAX_PAUSE_S)
