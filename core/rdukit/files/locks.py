"""Locks between processes on files, which the system releases when their holder ends, also by ``kill -9``."""

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

#: Seconds between two looks at a lock that another holds.
_LOOK_EVERY_S: Final = 0.05


@contextmanager
def sole_lock(path: Path, wait_s: float = 0.0) -> Iterator[bool]:
    """Be the only holder of ``path`` while the block runs; yields False if another is, after ``wait_s`` seconds still.

    The file is made for the lock and removed with it, so nothing is left but what a killed holder leaves, and that is
    no lock: the next one takes it over. On a file system without locks every caller is a holder, so a lock may save
    work, but must not be what makes it right.

    Raises:
        OSError: the file cannot be made.
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
            path.unlink(missing_ok=True)  # before the release: whoever waits notices that the file is another one
        finally:
            os.close(descriptor)


@contextmanager
def shared_lock(path: Path) -> Iterator[int]:
    """Hold ``path`` with others, keeping sole holders of ``claim_lock`` out; waits for one of them.

    Yields:
        The descriptor. A process that inherits it holds the lock too, until it ends.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, fcntl.LOCK_SH)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def claim_lock(path: Path) -> Iterator[bool]:
    """Hold ``path`` alone if nobody else holds it now; yields whether. The file stays."""
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
