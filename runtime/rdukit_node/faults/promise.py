"""Expected number of writes, stored next to the fault database, to detect writes lost in a damaged log.

SQLite ends the recovery of a write-ahead log at the first frame whose checksum is wrong, without reporting the later
writes. Each write is therefore counted in the database, and then in the lock file next to it, which is stored
separately. A database with fewer writes than promised has lost some: to damage, to a power cut, or to an older copy.

Source: ours.
"""

import contextlib
import os
import sqlite3
import zlib
from pathlib import Path
from typing import Final

from rdukit_node.faults.schema import not_ours

_KEY: Final = "writes"
_MAX_BYTES: Final = 64


def lock_path(path: Path) -> Path:
    """Return the lock file of the database at ``path``."""
    return path.with_name(path.name + ".lock")


def promised_writes(path: Path) -> int:
    """Return the least number of writes of the database at ``path``; 0 if unknown or unreadable."""
    try:
        with lock_path(path).open("rb") as file:
            return _number(file.read(_MAX_BYTES))
    except OSError:
        return 0


def promise(lock: int, writes: int) -> None:
    """Record the database's number of writes in the open lock file.

    Raises:
        OSError: the disk refuses the write.
    """
    text = f"{_KEY} {writes}"
    os.pwrite(lock, f"{text} {zlib.crc32(text.encode())}\n".ljust(_MAX_BYTES - 1).encode() + b"\n", 0)


def forget(path: Path) -> None:
    """Reset the promise for the database at ``path``, which is set aside."""
    with contextlib.suppress(OSError):
        os.truncate(lock_path(path), 0)


def counted_writes(connection: sqlite3.Connection) -> int:
    """Return the number of writes that a database has; 0 for a new one, or one of an earlier version."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'meta'").fetchone() is None:
        return 0
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    return int(row[0]) if row is not None and str(row[0]).isdecimal() and len(str(row[0])) < 20 else 0


def check_writes(connection: sqlite3.Connection, path: Path, promised: int) -> int:
    """Return the number of writes that an open database has.

    Raises:
        InvalidArgument: the database has fewer writes than ``promised``.
    """
    found = counted_writes(connection)
    if found < promised:
        lost = promised - found
        raise not_ours(
            path,
            f"its last {'write is' if lost == 1 else f'{lost} writes are'} missing: the write-ahead log is damaged, or "
            "the file is an older copy",
        )
    return found


def _number(data: bytes) -> int:
    words = data.decode(errors="replace").split()
    if len(words) != 3 or words[0] != _KEY or not words[1].isdecimal():
        return 0
    return int(words[1]) if words[2] == str(zlib.crc32(f"{_KEY} {words[1]}".encode())) else 0
