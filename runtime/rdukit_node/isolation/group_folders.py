"""Making, locking and removing the folders that are control groups."""

import errno
import fcntl
import logging
import os
import time
from pathlib import Path
from typing import Final

from rdukit_node.isolation.groups import Hierarchy

logger = logging.getLogger(__name__)

#: How long a group whose processes were killed may take to become empty.
_EMPTY_WITHIN_S: Final = 2.0


def make_group(hierarchy: Hierarchy, folder: Path, controller: str) -> None:
    """Have a group with a controller; v2 hands a controller down from folder to folder."""
    if hierarchy.version == 2:
        write_number(folder.parent / "cgroup.subtree_control", f"+{controller}")
    folder.mkdir(exist_ok=True)


def try_lock(folder: Path) -> int | None:
    """A descriptor that holds the lock of a folder until it is closed; ``None`` if somebody else has the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def write_number(path: Path, value: object) -> None:
    """Write to a file of a group.

    Raises:
        OSError: the kernel refuses.
    """
    with path.open("w") as stream:  # one write, as the kernel wants it
        stream.write(str(value))


def remove_group(folder: Path, home: Path) -> None:
    """Remove a group; processes that are still in it go to ``home``.

    A killed process takes a moment to leave, so it tries again for a while; then it leaves the group, and says so.
    """
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        try:
            for pid in (folder / "cgroup.procs").read_text().split():
                _move_back(pid, home)
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                logger.warning("event=cgroup-left folder=%s error=%s", folder, error)
                return
        time.sleep(0.01)


def _move_back(pid: str, home: Path) -> None:
    try:
        write_number(home / "cgroup.procs", pid)
    except ProcessLookupError:
        return  # it ended meanwhile
