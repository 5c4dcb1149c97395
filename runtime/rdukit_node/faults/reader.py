"""Reading the fault database without the daemon: while it is down, busy, or on another account."""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, NotFound, RdukitError, Unavailable
from rdukit.interfaces import Closable
from rdukit_node.faults import query
from rdukit_node.faults.catalogue import catalogue_rows
from rdukit_node.faults.model import FaultSnapshot
from rdukit_node.faults.promise import check_writes, promised_writes
from rdukit_node.faults.schema import VERSION, check_database, check_file, connect, is_environment, not_ours
from rdukit_node.faults.tables import read_applications, read_events, read_inventory, read_snapshot

_MAX_ROWS: Final = 10_000
_DEFAULT_APPLICATIONS: Final = 100
_EVENTS: Final = 100


class FaultReader(Closable):
    """A fault database, opened read-only. Never blocks its writer and does not wait for it."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path: Final = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> "FaultReader":
        """Open the database at ``path``.

        Raises:
            NotFound: there is no such file. Unavailable: the file cannot be read.
            InvalidArgument: the file is not ours, damaged, or of another version; a node's start migrates an old file.
        """
        path = path.absolute()
        if not check_file(path):
            raise NotFound(f"there is no fault database at {path}; a node daemon creates it when it starts")
        promised = promised_writes(path)  # before the file is read: a daemon may write meanwhile
        try:
            connection = _connect(path)
        except sqlite3.Error as cause:
            raise Unavailable(f"the fault database {path} cannot be read: {cause}") from cause
        try:
            version = check_database(connection, path)
            check_writes(connection, path, promised)
            if version != VERSION:
                raise not_ours(
                    path, f"it has version {version}; start a node daemon on it to upgrade it to {VERSION}", False
                )
            connection.execute("PRAGMA query_only = ON")
        except sqlite3.Error as cause:
            connection.close()
            raise Unavailable(f"the fault database {path} cannot be read: {cause}") from cause
        except RdukitError:
            connection.close()
            raise
        return cls(path, connection)

    @staticmethod
    def check(path: Path) -> None:
        """Check a file without changing it or its log.

        Raises:
            InvalidArgument: the file is not ours, or damaged. sqlite3.Error: the file cannot be read.
        """
        promised = promised_writes(path)
        with contextlib.closing(connect(path, "ro")) as connection:
            check_database(connection, path)
            check_writes(connection, path, promised)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def written_at_ns(self) -> int:
        """Time of the last write; 0: never written."""
        row = self._connection.execute("SELECT value FROM meta WHERE key = 'written_at'").fetchone()
        text = "" if row is None else str(row[0])
        return int(text) if text.isdecimal() and len(text) < 20 else 0

    def age_s(self, now: float) -> float:
        """Return seconds since something was written last, at ``now`` (seconds since the epoch)."""
        return max(0.0, now - self.written_at_ns / 1e9)

    def snapshot(self) -> FaultSnapshot:
        """Read the rows about faults, the newest 10,000 of each kind, oldest first.

        Raises:
            InvalidArgument: a row is not valid. Unavailable: the file cannot be read.
        """
        with self._reading():
            return read_snapshot(self._connection, _MAX_ROWS)

    def inventory(self) -> list[dict[str, object]]:
        """Return the components as last written; empty: never written."""
        with self._reading():
            return read_inventory(self._connection)

    def applications(self, limit: int = _DEFAULT_APPLICATIONS) -> list[dict[str, object]]:
        """Return accounting rows of leases that ended, newest first."""
        with self._reading():
            return read_applications(self._connection, limit)

    def events(self, limit: int = _EVENTS) -> list[dict[str, object]]:
        """Return the newest events, oldest first."""
        with self._reading():
            return read_events(self._connection, limit)

    def answer(self, op: str, arguments: Mapping[str, object]) -> dict[str, object]:
        """Answer ``op`` from the file, as a daemon would.

        Raises:
            Unavailable: only a running daemon knows this. InvalidArgument: an argument is not valid.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        limit = given.get("limit")
        if limit is not None and (type(limit) is not int or not 1 <= limit <= _MAX_ROWS):
            raise InvalidArgument(f"limit is {limit!r}; expected 1 to {_MAX_ROWS}")
        most = {} if limit is None else {"limit": limit}
        if op == "errors":
            errors = query.find_errors(self.snapshot().errors, **given)
            return {"errors": [row.as_json() for row in errors.rows], "more": errors.more}
        if op == "faults":
            faults = query.find_faults(self.snapshot().faults, **given)
            return {"faults": [row.as_json() for row in faults.rows], "more": faults.more}
        if op == "hangs":
            component = None if "component" not in given else str(given["component"])
            return {"hangs": [row.as_json() for row in query.find_hangs(self.snapshot().hangs, component, **most)]}
        if op == "policies":
            return {"policies": [row.as_json() for row in self.snapshot().policies]}
        if op == "op_state":
            return {"rdus": [row.as_json() for row in self.snapshot().op_states]}
        if op == "maintenance":
            kept = self.snapshot()
            return {
                "cordons": [{**row.as_json(), "leases": []} for row in kept.cordons],
                "windows": [row.as_json() for row in kept.windows],
            }
        if op == "inventory":
            return {"components": self.inventory()}
        if op == "applications":
            job = given.get("job")
            if job is None:
                return {"applications": self.applications(**most)}
            found = [row for row in self.applications(_MAX_ROWS) if row.get("job") == job]
            return {"applications": found[: most.get("limit", _DEFAULT_APPLICATIONS)]}
        if op == "catalogue":
            return {"classes": catalogue_rows()}
        raise Unavailable(f"only a running node daemon answers {op!r}; start one with: rdukit node start")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as cause:
            if is_environment(cause):
                raise Unavailable(f"the fault database {self.path} cannot be read: {cause}") from cause
            raise not_ours(self.path, str(cause)) from cause
        except (ValueError, OverflowError) as cause:
            raise not_ours(self.path, str(cause)) from cause


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file next to its writer if the log's files can be used; otherwise alone, as its last writer left it."""
    try:
        connection = connect(path, "ro")
    except sqlite3.OperationalError:
        return connect(path, "ro", immutable=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        return connect(path, "ro", immutable=True)
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        pass  # damaged: the check says so
    return connection
