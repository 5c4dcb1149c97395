"""The fault database: one SQLite file that one daemon writes and anybody may read.

A write is one transaction in the write-ahead log, which a killed process cannot lose; ``checkpoint``, called from
another thread, moves it into the file and waits for the disk. When the disk does not take a write (full, read-only),
nothing is lost as long as the process lives: rows stay in memory, in their newest form and within a bound, until one
works.

Source: runtime reference 4.2, 4.4 (a database that survives upgrades is the vendor's, SQLite is ours).
"""

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from rdukit.errors import Conflict, RdukitError
from rdukit.files.home import make_folder
from rdukit_node.faults.model import (
    ChangedRows,
    Condition,
    ErrorRow,
    FaultRow,
    FaultSnapshot,
    HangRow,
    OpState,
    Policy,
)
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
from rdukit_node.faults.tables import inventory_statements, read_snapshot, statements_of
from rdukit_node.maintenance.model import Cordon, MaintenanceChanges, MaintenanceWindow

logger = logging.getLogger(__name__)

#: Rows that are loaded, and events and rows kept in the file.
_LOADED_ROWS: Final = 10_000
_KEPT_ROWS: Final = 100_000
_KEPT_EVENTS: Final = 200_000
#: Writes between two prunings.
_PRUNE_EVERY: Final = 256
#: Events and accounting rows that wait in memory while the disk takes nothing; the oldest go first.
_WAITING_EVENTS: Final = 50_000
_WAITING_APPLICATIONS: Final = 10_000
_REMEMBERED_APPLICATIONS: Final = 1000


class FaultStore:
    """The one writer of a fault database."""

    def __init__(self, path: Path) -> None:
        """Use ``open``."""
        self.path: Final = path
        #: Descriptor of the lock file, held as long as this lives; -1 where the folder takes no files.
        self._lock = -1
        #: ``None`` while the file cannot be opened; every write tries again.
        self._connection: sqlite3.Connection | None = None
        self._reason = ""
        self._was_closed_in_order = True
        #: What is not in the file yet.
        self._changes: Final = PendingChanges()
        self._events: Final[deque[str]] = deque(maxlen=_WAITING_EVENTS)
        self._applications: Final[dict[str, tuple[int, str]]] = {}
        self._inventory: list[dict[str, object]] | None = None
        self._writes = 0

    @classmethod
    def open(cls, path: Path) -> "FaultStore":
        """Open the database at ``path``, make it if there is none, migrate it if it is old.

        A disk that takes nothing is no reason to fail: ``is_writable`` is false then, and what can be read is loaded.

        Raises:
            Conflict: another process writes it.
            InvalidArgument: the file is not ours, damaged, or newer than this program; it is left as it is.
            Unavailable: there is a file that cannot be read.
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
        """Return a reader beside the writer, or without any. For its errors see ``FaultReader.open``."""
        return FaultReader.open(path)

    @property
    def is_writable(self) -> bool:
        """True if the last write worked."""
        return not self._reason

    @property
    def reason(self) -> str:
        """Reason why the last write failed; empty if it worked."""
        return self._reason

    @property
    def pending(self) -> int:
        """Rows that are not in the file yet."""
        inventory = 0 if self._inventory is None else len(self._inventory)
        return len(self._changes) + len(self._events) + len(self._applications) + inventory

    @property
    def was_closed_in_order(self) -> bool:
        """True if the daemon before this one closed the database, or there was none."""
        return self._was_closed_in_order

    def load(self) -> FaultSnapshot:
        """Return rows to start a fault machine from: the newest, and all that are still open.

        Raises:
            InvalidArgument: a row is not legal. Unavailable: the file cannot be read.
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
        """Return accounting rows of the newest ``limit`` leases that ended, oldest first."""
        if self._connection is None:
            return []
        query = "SELECT accounting FROM applications ORDER BY ended_at DESC LIMIT ?"
        return [json.loads(text) for (text,) in self._connection.execute(query, (limit,))][::-1]

    def write(
        self,
        changes: ChangedRows,
        events: Sequence[Mapping[str, object]] = (),
        applications: Sequence[Mapping[str, object]] = (),
        *,
        inventory: Iterable[Mapping[str, object]] | None = None,
        now_ns: int,
    ) -> bool:
        """Write all of it in one transaction, with what is still pending. Returns whether that worked; never raises for
        what the disk does.

        Args:
            events: for the event log. applications: accounting rows of leases that ended.
            inventory: replaces the one in the file.
        """
        self._changes.add(changes)
        self._events.extend(json.dumps(event) for event in events)
        for row in applications:
            self._applications[str(row["lease"])] = (now_ns, json.dumps(row))
            if len(self._applications) > _WAITING_APPLICATIONS:
                del self._applications[next(iter(self._applications))]
        if inventory is not None:
            self._inventory = [dict(row) for row in inventory]
        try:
            if self._connection is None and not self._try_open():
                return False
        except RdukitError as error:  # in the meantime somebody else made one, or locked it
            self._reason = error.message
            return False
        assert self._connection is not None
        try:
            self._transact(self._connection, now_ns)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a damaged schema in SQLite's own message
            self._failed(error)
            return False
        self._changes.clear()
        self._events.clear()
        self._applications.clear()
        self._inventory = None
        self._reason = ""
        return True

    def checkpoint(self) -> bool:
        """Move the write-ahead log into the file and wait for the disk, on any thread. Whether all of it was moved."""
        try:
            with contextlib.closing(connect(self.path, "rw")) as connection:
                connection.execute("PRAGMA synchronous = NORMAL")
                busy, log, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            logger.warning("event=checkpoint-failed path=%s reason=%s", self.path, error)
            return False
        return not busy and bool(log == moved)

    def close(self) -> None:
        """Note that the end was in order, and let the file go. What is still pending is lost, and logged."""
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
            check_file(self.path)
            connection = connect(self.path, "rwc")
            version = check_database(connection, self.path)
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
        self._was_closed_in_order = row is None or row[0] == "yes"
        self._connection = connection
        self._reason = ""
        return True

    def _transact(self, connection: sqlite3.Connection, now_ns: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement, values in statements_of(self._changes.as_changes()):
                connection.execute(statement, values)
            connection.executemany("INSERT INTO events (event) VALUES (?)", [(event,) for event in self._events])
            connection.executemany(
                "INSERT OR REPLACE INTO applications VALUES (?, ?, ?)",
                [(lease, ended_at, text) for lease, (ended_at, text) in self._applications.items()],
            )
            if self._inventory is not None:
                for statement, values in inventory_statements(self._inventory):
                    connection.execute(statement, values)
            _set_meta(connection, "written_at", str(now_ns))
            self._writes += 1
            if self._writes % _PRUNE_EVERY == 1:
                _prune(connection)
            connection.execute("COMMIT")
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


def _lock(path: Path) -> int:
    """Return descriptor of the lock beside ``path``; makes the folder.

    Raises:
        Conflict: somebody has it. OSError: the folder takes no files, or cannot be made.
    """
    lock_path = path.with_name(path.name + ".lock")
    make_folder(path.parent)
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        os.close(descriptor)
        raise Conflict(
            f"another node daemon writes the fault database {path}; stop it, or give this node another state folder "
            "(--state)"
        ) from cause
    return descriptor


def _set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
    )


def _prune(connection: sqlite3.Connection) -> None:
    """Forget the oldest events, and the oldest rows that are over."""
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


#: Errors, faults and hangs that wait, each; of more, those that changed longest ago go first.
_MAX: Final = 20_000

K = TypeVar("K")
V = TypeVar("V")


class PendingChanges:
    """Rows by their key."""

    def __init__(self) -> None:
        self._errors: Final[dict[str, ErrorRow]] = {}
        self._faults: Final[dict[str, FaultRow]] = {}
        self._hangs: Final[dict[int, HangRow]] = {}
        self._op_states: Final[dict[int, OpState]] = {}
        self._policies: Final[dict[str, Policy]] = {}
        self._conditions: Final[dict[tuple[str, str], Condition]] = {}
        self._gone: Final[dict[tuple[str, str], None]] = {}
        #: ``None``: it is gone.
        self._cordons: Final[dict[str, Cordon | None]] = {}
        self._windows: Final[dict[str, MaintenanceWindow | None]] = {}

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._all())

    def add(self, changes: ChangedRows) -> None:
        """Add ``changes`` after the pending ones."""
        _put(self._errors, {row.err_uuid: row for row in changes.errors})
        _put(self._faults, {row.fault_uuid: row for row in changes.faults})
        _put(self._hangs, {row.number: row for row in changes.hangs})
        self._op_states.update((row.rdu, row) for row in changes.op_states)
        self._policies.update((row.error_type, row) for row in changes.policies)
        for key in changes.conditions_gone:
            self._conditions.pop(key, None)
            self._gone[key] = None
        for row in changes.conditions:
            key = (row.component, row.class_name)
            self._conditions[key] = row
            self._gone.pop(key, None)
        upkeep = changes.maintenance
        self._cordons.update(dict.fromkeys(upkeep.cordons_gone))
        self._cordons.update((each.component, each) for each in upkeep.cordons)
        self._windows.update(dict.fromkeys(upkeep.windows_gone))
        self._windows.update((each.window, each) for each in upkeep.windows)

    def as_changes(self) -> ChangedRows:
        """Return the pending changes."""
        return ChangedRows(
            tuple(self._errors.values()), tuple(self._faults.values()), tuple(self._hangs.values()),
            tuple(self._op_states.values()), tuple(self._policies.values()), tuple(self._conditions.values()),
            tuple(self._gone),
            MaintenanceChanges(
                tuple(each for each in self._cordons.values() if each is not None),
                tuple(each for each in self._windows.values() if each is not None),
                tuple(key for key, each in self._cordons.items() if each is None),
                tuple(key for key, each in self._windows.items() if each is None),
            ),
        )  # fmt: skip

    def clear(self) -> None:
        """Forget the changes, which are written."""
        for rows in self._all():
            rows.clear()

    def _all(self) -> tuple[dict[Any, Any], ...]:
        return (
            self._errors, self._faults, self._hangs, self._op_states, self._policies, self._conditions, self._gone,
            self._cordons, self._windows,
        )  # fmt: skip


def _put(rows: dict[K, V], newer: dict[K, V]) -> None:
    rows.update(newer)
    while len(rows) > _MAX:
        del rows[next(iter(rows))]
