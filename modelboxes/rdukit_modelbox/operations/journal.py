"""The journal of operations and their events, which outlives the box's process: one SQLite file.

``add`` and ``save`` survive any kill of the process; progress and log events are buffered and written by
``flush``, so a kill may lose those of the last moment.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.errors import Unavailable
from rdukit_modelbox.operations.values import Operation, OperationEvent, VerbCall

logger = logging.getLogger(__name__)

#: Version of the tables; a file of another version is renamed and replaced.
_VERSION: Final = 1
#: Largest number of progress and log events in memory while the file cannot be written.
_MAX_GATHERED: Final = 4000
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS operations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    key TEXT NOT NULL,
    asked TEXT NOT NULL,
    call TEXT NOT NULL,
    value TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    is_passing INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (number, sequence)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A stored operation, with its request."""

    operation: Operation
    call: VerbCall
    asked: str


class OperationJournal:
    """Journal in a file. Use it in one thread and in one process at a time."""

    def __init__(self, path: Path | None = None) -> None:
        """Open or make the file at ``path``; None: in memory. An unreadable file is renamed, not deleted."""
        self._path = path
        #: Events, and changed operations, that the next ``flush`` writes.
        self._gathered: list[tuple[int, OperationEvent]] = []
        self._unsaved: dict[int, Operation] = {}
        self._is_failing = False
        try:
            self._database = _open(path)
        except sqlite3.DatabaseError as cause:
            if path is None:
                raise
            aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            logger.error("journal cannot be read, put aside path=%s aside=%s reason=%s", path, aside, cause)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            path.replace(aside)
            self._database = _open(path)

    def entries(self) -> list[JournalEntry]:
        """Return every operation, oldest first."""
        found = []
        rows = self._database.execute("SELECT number, key, asked, call, value FROM operations ORDER BY number")
        for number, key, asked, call, value in rows:
            operation = Operation.from_json(json.loads(value), number)
            found.append(JournalEntry(operation, VerbCall.from_json(json.loads(call), key), asked))
        return found

    def add(self, operation: Operation, call: VerbCall, asked: str) -> int:
        """Write a new operation and return its number.

        Raises:
            Unavailable: it cannot be written.
        """
        row = (operation.id, call.idempotency_key, asked, _text(call.to_json()), _text(operation.to_json()))
        try:
            with self._database:
                cursor = self._database.execute(
                    "INSERT INTO operations (id, key, asked, call, value) VALUES (?, ?, ?, ?, ?)", row
                )
        except sqlite3.Error as cause:
            raise Unavailable(f"the operation cannot be written to {self._path}: {cause}") from cause
        number = cursor.lastrowid
        assert number is not None
        return number

    def save(self, operation: Operation, events: Iterable[OperationEvent] = ()) -> None:
        """Write an operation with its new events, all or nothing.

        If writing fails (full disk), they stay in memory and are written later.
        """
        self._gathered += [(operation.number, event) for event in events]
        self._unsaved[operation.number] = operation
        self._write()

    def gather(self, number: int, event: OperationEvent) -> None:
        """Queue an event for the next ``flush`` or ``save``."""
        self._gathered.append((number, event))

    def flush(self) -> None:
        """Write the queued events and operations."""
        if self._gathered or self._unsaved:
            self._write()

    def events_of(self, number: int, after: int = 0) -> list[OperationEvent]:
        """Return the events of an operation with higher numbers than ``after``, in order."""
        self.flush()
        rows = self._database.execute(
            "SELECT value FROM events WHERE number = ? AND sequence > ? ORDER BY sequence", (number, after)
        )
        found = [OperationEvent.from_json(json.loads(value), number) for (value,) in rows]
        return [*found, *(event for n, event in self._gathered if n == number and event.sequence > after)]

    def drop_passing(self, number: int, below: int) -> None:
        """Delete an operation's progress and log events with numbers below ``below``, if possible."""
        with self._or_later("old events are kept"):
            self._database.execute(
                "DELETE FROM events WHERE number = ? AND sequence < ? AND is_passing", (number, below)
            )

    def forget(self, numbers: Iterable[int]) -> None:
        """Delete operations and their events, and free the space, if possible."""
        rows = [(number,) for number in numbers]
        for (number,) in rows:
            self._unsaved.pop(number, None)
        with self._or_later("old operations are kept"):
            self._database.executemany("DELETE FROM events WHERE number = ?", rows)
            self._database.executemany("DELETE FROM operations WHERE number = ?", rows)
        with self._or_later("its file keeps its size"):
            self._database.execute("PRAGMA incremental_vacuum").fetchall()

    def size_bytes(self) -> int:
        """Return the used bytes of the file."""
        pages, free, page = (
            self._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page)

    def close(self) -> None:
        """Write the queued events and close the file."""
        self.flush()
        self._database.close()

    def _write(self) -> None:
        gathered, unsaved = self._gathered, self._unsaved
        self._gathered, self._unsaved = [], {}
        rows = [(number, e.sequence, _is_passing(e), _text(e.to_json())) for number, e in gathered]
        with self._or_later("later") as is_written:
            self._database.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?)", rows)
            self._database.executemany(
                "UPDATE operations SET value = ? WHERE number = ?",
                [(_text(operation.to_json()), number) for number, operation in unsaved.items()],
            )
        if not is_written():
            # The work continues, and its watchers are notified. States and results are kept without a limit, progress
            # and logs are not.
            passing = [each for each in gathered if _is_passing(each[1])]
            dropped = {id(event) for _, event in passing[: max(0, len(passing) - _MAX_GATHERED)]}
            self._gathered = [each for each in gathered if id(each[1]) not in dropped]
            self._unsaved = unsaved

    @contextmanager
    def _or_later(self, what: str) -> Iterator[Callable[[], bool]]:
        """Run a transaction; a failure is logged once, until one succeeds. Yields a function that returns whether it
        was written.
        """
        is_written = False
        try:
            with self._database:
                yield lambda: is_written
            is_written = True
            if self._is_failing:
                logger.warning("journal can be written again path=%s", self._path)
            self._is_failing = False
        except sqlite3.Error as error:
            if not self._is_failing:
                logger.error("journal cannot be written path=%s now=%s reason=%s", self._path, what, error)
            self._is_failing = True


def _is_passing(event: OperationEvent) -> bool:
    return event.kind in {"progress", "log"}


def _open(path: Path | None) -> sqlite3.Connection:
    database = sqlite3.connect(path or ":memory:", timeout=5.0)
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in {0, _VERSION}:
            raise sqlite3.DatabaseError(f"its version is {version}, this program's is {_VERSION}")
        if version == 0:
            # Empty tables need not be durable: a damaged file is replaced.
            database.execute("PRAGMA synchronous = OFF")
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(_TABLES)
        database.execute(f"PRAGMA user_version = {_VERSION}")
        database.execute("PRAGMA synchronous = NORMAL")
        for value, call in database.execute("SELECT value, call FROM operations"):
            json.loads(value), json.loads(call)
    except ValueError as cause:
        database.close()
        raise sqlite3.DatabaseError(f"a row is not JSON: {cause}") from cause
    except sqlite3.Error:
        database.close()
        raise
    return database


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
