"""The fault database: one SQLite file that one daemon writes and anybody may read.

A write is one transaction in the write-ahead log, which a killed process cannot lose; ``checkpoint``, called from
another thread, moves it into the file and waits for the disk. If the disk refuses a write (full, read-only, frozen,
locked), rows stay in memory until a write succeeds, in their newest form and within a bound; only the process's end
loses them. ``add`` never waits; ``flush`` may, on a thread of its own. A deleted database is rewritten from the open
file, which has all rows during the process's life.

Source: runtime reference 4.2, 4.4 (a database that survives upgrades is the vendor's, SQLite is ours).
"""

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
from pathlib import Path
from typing import Final

from rdukit.errors import Conflict, RdukitError
from rdukit.files.home import make_folder
from rdukit_node.faults.model import FaultSnapshot
from rdukit_node.faults.pending import NewRows, PendingRows
from rdukit_node.faults.promise import check_writes, lock_path, promise, promised_writes
from rdukit_node.faults.reader import FaultReader
from rdukit_node.faults.schema import (
    VERSION,
    check_database,
    check_file,
    connect,
    is_environment,
    migrate,
    not_ours,
)
from rdukit_node.faults.tables import (
    inventory_statements,
    read_applications,
    read_snapshot,
    row_sum,
    statements_of,
)

logger = logging.getLogger(__name__)

#: Rows that are loaded, and events and rows kept in the file.
_LOADED_ROWS: Final = 10_000
_KEPT_ROWS: Final = 100_000
_KEPT_EVENTS: Final = 200_000
#: Writes between two prunings.
_PRUNE_EVERY: Final = 256
_REMEMBERED_APPLICATIONS: Final = 1000


class FaultStore:
    """The one writer of a fault database."""

    def __init__(self, path: Path) -> None:
        """Use ``open``."""
        self.path: Final = path
        #: Descriptor of the lock file, held for the lifetime of this object; -1 if the folder refuses files.
        self._lock = -1
        #: ``None`` while the file cannot be opened; every write tries again.
        self._connection: sqlite3.Connection | None = None
        self._reason = ""
        self._was_closed_in_order = True
        #: Device and inode of the open file.
        self._place: tuple[int, int] | None = None
        self._restored = 0
        #: Rows that no write has begun with; guarded by ``_adding``.
        self._waiting = PendingRows()
        self._adding = threading.Lock()
        #: Rows of the present write, or of the last one, which failed.
        self._writing: Final = PendingRows()
        self._writes = 0

    @classmethod
    def open(cls, path: Path) -> "FaultStore":
        """Open the database at ``path``; create it if it is missing, and migrate it if it is old.

        A disk that refuses writes is not an error: ``is_writable`` is false, and readable rows are loaded.

        Raises:
            Conflict: another process writes it.
            InvalidArgument: the file is not ours, damaged, or newer than this program; it is left unchanged.
            Unavailable: the file cannot be read.
        """
        store = cls(path.absolute())
        try:
            store._try_open()
        except BaseException:
            store._unlock()
            raise
        return store

    @staticmethod
    def read_only(path: Path) -> FaultReader:
        """Return a reader, with or without a writer. For its errors see ``FaultReader.open``."""
        return FaultReader.open(path)

    @property
    def is_writable(self) -> bool:
        """Return whether the last write worked."""
        return not self._reason

    @property
    def reason(self) -> str:
        """Reason why the last write failed; empty if it worked."""
        return self._reason

    @property
    def pending(self) -> int:
        """Rows that are not yet in the file."""
        return len(self._waiting) + len(self._writing)

    @property
    def dropped(self) -> int:
        """Rows that were lost because too many waited for the disk."""
        return self._waiting.dropped + self._writing.dropped

    @property
    def restored(self) -> int:
        """Number of times that this process rewrote its database after a deletion."""
        return self._restored

    @property
    def is_in_place(self) -> bool:
        """Return whether the open database and lock file still have their paths: neither was replaced or deleted."""
        try:
            is_own = self._place is None or _place_of(self.path) == self._place
            return is_own and (self._lock < 0 or _place_of(lock_path(self.path)) == _place_of(self._lock))
        except OSError:  # its state is unknown; a write will show it
            return True

    @property
    def was_closed_in_order(self) -> bool:
        """Return whether the previous daemon, if there was one, closed the database."""
        return self._was_closed_in_order

    def load(self) -> FaultSnapshot:
        """Return rows to start a fault machine from: the newest, and all that are still open.

        Raises:
            InvalidArgument: a row is not valid. Unavailable: the file cannot be read.
        """
        if self._connection is None:
            if not check_file(self.path):
                return FaultSnapshot()
            with FaultReader.open(self.path) as reader:
                return reader.snapshot()
        try:
            return read_snapshot(self._connection, _LOADED_ROWS)
        except (sqlite3.Error, ValueError, OverflowError) as cause:
            raise not_ours(self.path, str(cause)) from cause

    def applications(self, limit: int = _REMEMBERED_APPLICATIONS) -> list[dict[str, object]]:
        """Return accounting rows of the newest ``limit`` leases that ended, oldest first. Raises: as ``load``."""
        if self._connection is None:
            return []
        try:
            return read_applications(self._connection, limit)[::-1]
        except (sqlite3.Error, ValueError, OverflowError) as cause:
            raise not_ours(self.path, str(cause)) from cause

    def add(self, rows: NewRows, *, now_ns: int) -> None:
        """Add rows for the next ``flush``. Never waits for a disk, even during another thread's ``flush``."""
        with self._adding:
            self._waiting.add(rows, now_ns=now_ns)

    def flush(self, now_ns: int) -> bool:
        """Write the waiting rows in one transaction. Returns whether that worked; never raises for disk errors."""
        with self._adding:
            newer, self._waiting = self._waiting, PendingRows()
            self._writing.add_newer(newer)
        try:
            if self._connection is None and not self._try_open():
                return False
            if not self.is_in_place and not self._put_in_place():
                return False
        except RdukitError as error:  # meanwhile another process has created or locked it
            self._reason = error.message
            return False
        assert self._connection is not None
        try:
            self._transact(self._connection, now_ns)
            if self._lock >= 0:
                with contextlib.suppress(OSError):  # a full disk: the database has more than it must
                    promise(self._lock, self._writes)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a damaged schema in SQLite's own message
            self._failed(error)
            return False
        self._writing.clear()
        self._reason = ""
        return True

    def write(self, rows: NewRows, *, now_ns: int) -> bool:
        """Add rows and write all that waits; for the result see ``flush``."""
        self.add(rows, now_ns=now_ns)
        return self.flush(now_ns)

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the file and wait for the disk, on any thread. Returns whether all of it was
        moved.
        """
        try:
            with contextlib.closing(connect(self.path, "rw")) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                busy, log, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            logger.warning("event=checkpoint-failed path=%s reason=%s", self.path, error)
            return False
        return not busy and bool(log == moved)

    def close(self) -> None:
        """Record a clean end, and close the file. Pending rows are lost, and logged."""
        if self.pending:
            logger.error("event=database-rows-lost path=%s rows=%s reason=%s", self.path, self.pending, self._reason)
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                if self.is_writable:
                    _set_meta(connection, "closed", "yes")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
        self._unlock()

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _try_open(self) -> bool:
        """Open the file, or raise if it may not be used; a disk that takes nothing is noted only."""
        connection = None
        try:
            if self._lock < 0:
                self._lock = _lock(self.path)
            if check_file(self.path) and (log := self.path.with_name(f"{self.path.name}-wal")).exists():
                # A killed daemon's log: if it is damaged, only a reader leaves it unchanged.
                logger.info("event=database-log-found path=%s bytes=%s", log, log.stat().st_size)
                FaultReader.check(self.path)
            connection = connect(self.path, "rwc")
            version = check_database(connection, self.path)
            self._writes = check_writes(connection, self.path, promised_writes(self.path))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA journal_size_limit = 16777216")
            connection.execute("BEGIN IMMEDIATE")
            if version < VERSION:
                migrate(connection, version)
                logger.info("event=database-migrated path=%s from=%s to=%s", self.path, version, VERSION)
            row = connection.execute("SELECT value FROM meta WHERE key = 'closed'").fetchone()
            _set_meta(connection, "closed", "no")
            connection.execute("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
            if connection is not None:
                connection.close()
            if not is_environment(error):
                raise not_ours(self.path, str(error)) from error
            self._failed(error)
            return False
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if self._place is None:
            self._was_closed_in_order = row is None or row[0] == "yes"
        self._connection, self._place = connection, _place_of(self.path)
        self._reason = ""
        return True

    def _put_in_place(self) -> bool:
        """Write the database again if it, or its lock, was deleted. Returns whether that worked.

        Raises:
            Conflict: another process writes there now, or another file exists, which is not overwritten.
        """
        old = self._connection
        assert old is not None
        logger.error("event=database-deleted path=%s", self.path)
        try:
            if self._lock < 0 or _place_of(lock_path(self.path)) != _place_of(self._lock):
                held, self._lock = self._lock, _lock(self.path)
                if held >= 0:
                    os.close(held)
            found = _place_of(self.path)
            if found == self._place:  # the lock only
                return True
            if found is not None:
                raise Conflict(
                    f"another file replaced the fault database {self.path}; remove that file so that the daemon "
                    "writes its rows again, or restart the daemon to use that file"
                )
            copy = self.path.with_name(f"{self.path.name}.new")
            copy.unlink(missing_ok=True)
            with contextlib.closing(connect(copy, "rwc")) as target:
                old.backup(target)
            # The old file's log does not belong to the new one.
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            copy.rename(self.path)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return False
        self._connection = None
        old.close()
        self._restored += 1
        return self._try_open()

    def _transact(self, connection: sqlite3.Connection, now_ns: int) -> None:
        rows = self._writing
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in statements_of(rows.changes()):
                connection.execute(statement, values)
            connection.executemany(
                "INSERT INTO events (event, row_sum) VALUES (?, ?)",
                [(event, row_sum((event,))) for event in rows.events],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO applications VALUES (?, ?, ?, ?)",
                [
                    (lease, ended_at, text, row_sum((lease, ended_at, text)))
                    for lease, (ended_at, text) in rows.applications.items()
                ],
            )
            if rows.inventory is not None:
                for statement, values in inventory_statements(rows.inventory):
                    connection.execute(statement, values)
            _set_meta(connection, "written_at", str(now_ns))
            # In the same page as the time above, so that every write has it.
            _set_meta(connection, "writes", str(self._writes + 1))
            if self._writes % _PRUNE_EVERY == 0:
                _prune(connection)
            connection.execute("COMMIT")
            self._writes += 1
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    def _failed(self, error: sqlite3.Error | UnicodeDecodeError | OSError) -> None:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if not self._reason:
            logger.error("event=database-not-writable path=%s reason=%s", self.path, error)
        self._reason = f"{error} ({name})"

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _place_of(file: Path | int) -> tuple[int, int] | None:
    """Return device and inode of a path or descriptor; ``None``: the file does not exist."""
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _lock(path: Path) -> int:
    """Return the descriptor of the lock next to ``path``; create the folder if necessary.

    Raises:
        Conflict: somebody has it. OSError: the folder takes no files, or cannot be made.
    """
    make_folder(path.parent)
    descriptor = os.open(lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        os.close(descriptor)
        raise Conflict(
            f"another node daemon uses the fault database {path}; stop it, or give this node another state folder "
            "(--state)"
        ) from cause
    return descriptor


def _set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
    )


def _prune(connection: sqlite3.Connection) -> None:
    """Delete the oldest events, closed errors and faults, hang logs and applications beyond their limits."""
    connection.execute("DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?", (_KEPT_EVENTS,))
    for table, is_over in (
        ("error", "fault_uuid IS NOT NULL AND fault_uuid NOT IN "
                  "(SELECT fault_uuid FROM fault WHERE fault_state = 'ACTIVE')"),
        ("fault", "fault_state = 'CLEARED'"),
        ("hang_log", "1"),
    ):  # fmt: skip
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        if rows > _KEPT_ROWS:
            oldest = f"SELECT rowid FROM {table} WHERE {is_over} ORDER BY rowid LIMIT ?"
            connection.execute(f"DELETE FROM {table} WHERE rowid IN ({oldest})", (rows - _KEPT_ROWS,))
    connection.execute("DELETE FROM suspects WHERE fault_uuid NOT IN (SELECT fault_uuid FROM fault)")
    (rows,) = connection.execute("SELECT count(*) FROM applications").fetchone()
    if rows > _KEPT_ROWS:
        connection.execute(
            "DELETE FROM applications WHERE lease IN (SELECT lease FROM applications ORDER BY ended_at LIMIT ?)",
            (rows - _KEPT_ROWS,),
        )
