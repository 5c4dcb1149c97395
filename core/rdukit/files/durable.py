"""Waiting for the disk once for many files.

``fsync`` is a wait for the journal and for the disk's cache, and what the system does for it costs more than a small
file: 64 files one after the other are some 350 ms on an ordinary virtual disk, and 12 ms when their file system is
synced as a whole. That also writes what is not ours. So it is done only while there is little of that, and where the
system tells of it all that went wrong; everywhere else each file is synced by itself.
"""

import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

#: Types of file systems whose ``syncfs`` waits until the disk has all: ext4, XFS, Btrfs.
_LOCAL: Final = frozenset({0xEF53, 0x58465342, 0x9123683E})
#: The first Linux whose ``syncfs`` tells each error of writing: of data since 5.8, of the journal since 5.17.
_TELLING: Final = (5, 17)
#: Bytes that wait to be written on this machine, above which they are left alone.
LITTLE_BYTES: Final = 32 << 20
#: Files that wait at once where each waits by itself: a journal takes them along with each other.
AT_ONCE: Final = 4
#: Bytes of a ``struct statfs`` at most, which begins with the type.
_STATFS_BYTES: Final = 512
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def sync_files(descriptors: Sequence[int]) -> list[OSError | None]:
    """Wait until the disk has what was written to files.

    An error that has been told is not told again: what it was told of is not to be relied on, now or later.

    Args:
        descriptors: of one file system; the one that was opened first comes first, as each tells what went wrong since
            it was opened.
    Returns:
        For each what went wrong; ``None``: the disk has it.
    """
    if len(descriptors) > 1 and _sync_whole(descriptors[0]):
        return [None] * len(descriptors)
    # Where the whole went wrong, each tells for itself whether that was its.
    return _sync_each(descriptors)


def sync_folders(folders: Iterable[str]) -> None:
    """Wait until the disk has the names in folders, all of one file system.

    Raises:
        OSError: it is not known of one.
    """
    found = sorted(folders)
    with _opened(found[:1]) as first:
        if len(found) > 1 and _sync_whole(first[0]):
            return
    with _opened(found) as descriptors:
        for error in _sync_each(descriptors):
            if error is not None:
                raise error


def takes_whole(kind: int | None, release: str, waiting_bytes: int | None) -> bool:
    """Return whether a file system is synced as a whole (pure).

    Args:
        kind: its type; ``None``: unknown.
        release: of the system, such as ``6.1.0-13-amd64``.
        waiting_bytes: that anybody has written and the disk has not; ``None``: unknown.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    is_telling = found is not None and (int(found[1]), int(found[2])) >= _TELLING
    return kind in _LOCAL and is_telling and waiting_bytes is not None and waiting_bytes <= LITTLE_BYTES


def _sync_whole(descriptor: int) -> bool:
    """Sync the file system of a file. Returns false where that is not done, or something went wrong."""
    if not takes_whole(_type_of(descriptor), os.uname().release, _waiting_bytes()):
        return False
    return int(_LIBC.syncfs(descriptor)) == 0


@contextmanager
def _opened(folders: Sequence[str]) -> Iterator[list[int]]:
    with ExitStack() as opened:
        descriptors = list[int]()
        for folder in folders:
            descriptors.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            opened.callback(os.close, descriptors[-1])
        yield descriptors


def _sync_each(descriptors: Sequence[int]) -> list[OSError | None]:
    if len(descriptors) < 2:
        return [_find_error(descriptor) for descriptor in descriptors]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(_find_error, descriptors))


def _find_error(descriptor: int) -> OSError | None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error
    return None


def _type_of(descriptor: int) -> int | None:
    """Return the type of a file's file system; ``None``: the system does not say."""
    if not (hasattr(_LIBC, "syncfs") and hasattr(_LIBC, "fstatfs")):
        return None
    told = ctypes.create_string_buffer(_STATFS_BYTES)
    if _LIBC.fstatfs(descriptor, told):
        return None
    return ctypes.c_ulong.from_buffer(told).value


def _waiting_bytes() -> int | None:
    """Return how much of what was written no disk of this machine has yet; ``None``: the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.findall(r"^(?:Dirty|Writeback): +(\d+) kB$", text, re.MULTILINE)
    return sum(map(int, found)) << 10 if found else None
