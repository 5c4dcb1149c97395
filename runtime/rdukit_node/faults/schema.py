"""The fault database's file: the schema of each version, migrations, and validation of a file.

A file may come from anywhere, so none of its code is run. Its tables must be exactly those of the migrations, so all
views, triggers, indexes and defaults are ours; sizes and time are limited.

Source: runtime reference 2, 4.2, 4.4 (migration at the start and four versioned logs are the vendor's); the layout is
ours.
"""

import os
import sqlite3
import stat
import time
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, Unavailable

#: Marks the file as ours in its header: "rduF".
APPLICATION_ID: Final = 0x72647546
VERSION: Final = 5
#: Names in the version record; they change together.
LOGS: Final = ("error", "fault", "inventory", "policy")

_MAX_BYTES: Final = 8 * 1024**3
_MAX_VALUE_BYTES: Final = 1_000_000
_HEADER: Final = b"SQLite format 3\0"
#: Seconds that checking a file may take.
CHECK_SECONDS: Final = 20.0


def connect(path: Path, mode: str, *, immutable: bool = False) -> sqlite3.Connection:
    """Return a connection that does not trust the file. ``mode``: ``ro``, ``rw`` or ``rwc``.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    name = path.as_uri().replace("?", "%3f")
    uri = f"{name}?mode={mode}" + ("&immutable=1" if immutable else "")
    connection = sqlite3.connect(uri, uri=True, timeout=2.0, isolation_level=None, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 64)
    connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 100)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
    for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0", "busy_timeout = 2000"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def check_file(path: Path) -> bool:
    """Return whether there is a file at ``path`` with something in it.

    Raises:
        InvalidArgument: the file is not a database, and must not be changed.
        Unavailable: the file cannot be read.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidArgument(f"{path} is not a regular file; expected the fault database, or no file")
        if status.st_size == 0:
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            head = stream.read(len(_HEADER))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as cause:
        raise Unavailable(f"the fault database {path} cannot be read: {cause.strerror}") from cause
    if head != _HEADER:
        raise not_ours(path, "it is not an SQLite database")
    if status.st_size > _MAX_BYTES:
        raise not_ours(path, f"it has {status.st_size} bytes, more than {_MAX_BYTES}", is_damaged=False)
    return True


def check_database(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of an open file that has tables.

    Raises:
        InvalidArgument: the database is not ours, damaged, or newer than this program; the message says which.
    """
    deadline = time.monotonic() + CHECK_SECONDS
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 50_000)
    try:
        return _check_database(connection, path)
    except (sqlite3.DatabaseError, sqlite3.DataError, UnicodeDecodeError, OverflowError) as cause:
        if is_environment(cause):
            raise
        late = time.monotonic() > deadline
        reason = f"checking it took longer than {CHECK_SECONDS:.0f} s" if late else f"it is damaged: {cause}"
        raise not_ours(path, reason, is_damaged=not late) from cause
    finally:
        connection.set_progress_handler(None, 0)


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring a file of ``version`` (0: empty) to ``VERSION``, in the transaction that is open."""
    for number in range(version + 1, VERSION + 1):
        for statement in _statements(number):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    values = {"schema_version": VERSION} | {f"{log}_version": VERSION for log in LOGS}
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        [(key, str(value)) for key, value in values.items()],
    )


def not_ours(path: Path, reason: str, is_damaged: bool = True) -> InvalidArgument:
    """Return the refusal of a file. ``is_damaged``: it may have been ours."""
    step = "start the node, which moves the file aside and keeps readable rows" if is_damaged else (
        "move it away; the node then creates a new one"
    )  # fmt: skip
    return InvalidArgument(
        f"{path} cannot be used as the fault database: {reason}. Next: {step}",
        path=str(path), reason=reason, is_damaged=is_damaged,
    )  # fmt: skip


def is_environment(error: BaseException) -> bool:
    """Return whether the disk or permissions are the reason, so that trying again later may help."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, OSError)
    return code & 0xFF in {
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM,
    }  # fmt: skip


def _check_database(connection: sqlite3.Connection, path: Path) -> int:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    found = _shape(connection)
    if not found and application_id == 0:
        return 0
    version = next((number for number in range(1, VERSION + 1) if _expected(number) == found), None)
    recorded = (
        _recorded_version(connection) if ("table", "meta") in found and application_id == APPLICATION_ID else None
    )
    if recorded is not None and recorded > VERSION:
        raise not_ours(
            path,
            f"it has version {recorded}, but this program supports only up to {VERSION}; update rdukit",
            is_damaged=False,
        )
    if application_id != APPLICATION_ID or version is None:
        is_ours = application_id == APPLICATION_ID
        raise not_ours(path, "its tables are not those of a fault database", is_damaged=is_ours)
    if recorded != version:
        raise not_ours(path, f"its tables have version {version}, but its record states {recorded}")
    # Not the quick check: an index that does not match its table hides rows.
    problems = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise not_ours(path, f"it is damaged: {str(problems[0])[:200]}")
    return version


def _recorded_version(connection: sqlite3.Connection) -> int | None:
    row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    return int(row[0]) if row is not None and str(row[0]).isdecimal() and len(str(row[0])) < 9 else None


def _shape(connection: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Return the normalized text of the schema's objects, by type and name."""
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema LIMIT 100")
    return {(str(kind), str(name)): " ".join(str(sql).split()) for kind, name, sql in rows}


@cache
def _expected(version: int) -> dict[tuple[str, str], str]:
    connection = sqlite3.connect(":memory:")
    try:
        for number in range(1, version + 1):
            for statement in _statements(number):
                connection.execute(statement)
        return _shape(connection)
    finally:
        connection.close()


@cache
def _statements(number: int) -> tuple[str, ...]:
    text = files("rdukit_node.faults").joinpath(f"migrations/{number:04}.sql").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return tuple(part.strip() for part in "\n".join(lines).split(";") if part.strip())
