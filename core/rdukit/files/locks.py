"""File locks between processes, which the system releases when their holder ends, even by ``kill -9``."""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rdukit.files.home import make_folder

logger = logging.getLogger(__name__)

#: Seconds between two checks of a lock that another process holds.
_LOOK_EVERY_S: Final = 0.05


@contextmanager
def sole_lock(path: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Hold ``path`` alone while the block runs; yield False if another still holds it after ``wait_s`` seconds.

    The file is created for the lock and removed with it. A killed holder leaves a file that the next holder takes over.
    On a file system without locks every caller is a holder, so a lock may save work, but correctness must not depend on
    it.

    Raises:
        OSError: the file cannot be created.
    """
    make_folder(path.parent)
    end = time.monotonic() + wait_s
    while (descriptor := _find_sole(path)) is None:
        if time.monotonic() >= end:
            yield False
            return
        time.sleep(_LOOK_EVERY_S)
    try:
        yield True
    finally:
        try:
            path.unlink(missing_ok=True)  # before the release: waiters notice it
        finally:
            os.close(descriptor)


@contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Hold ``path`` together with others, excluding holders of ``claim_lock``; wait for one of these.

    Yields:
        The descriptor. A process that inherits it also holds the lock, until it ends.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def claim_lock(path: Path) -> Iterator[bool]:
    """Try to hold ``path`` alone, without waiting; yield whether it succeeded. The file stays."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def _find_sole(path: Path) -> int | None:
    """Return a descriptor that holds ``path`` alone; None if another process does."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                os.close(descriptor)
                return None
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed the file while we opened it


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as cause:
        if cause.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
            raise
        logger.debug("the file system has no locks: reason=%s", cause)
    return True
