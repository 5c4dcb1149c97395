"""Sets a damaged fault database aside under another name, and reads its readable rows.

Source: ours; a node should start even if the log of its past is damaged.
"""

import contextlib
import json
import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from rdukit_node.faults.log_repair import repaired_log
from rdukit_node.faults.model import ChangedRows, FaultSnapshot
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.promise import forget
from rdukit_node.faults.schema import connect
from rdukit_node.faults.store import FaultStore
from rdukit_node.faults.tables import SALVAGED, RowReader, checked, read_replaced
from rdukit_node.maintenance.model import MaintenanceChanges

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Largest number of rows that are read from either end of a table, and of accounting rows that are kept.
_MAX_ROWS: Final = 10_000
_MAX_APPLICATIONS: Final = 1000
_LOG_FILES: Final = ("-wal", "-shm")
#: Version of the database from which on rows have checksums.
_FIRST_WITH_SUMS: Final = 5


@dataclass(frozen=True, slots=True)
class Salvage:
    """The result of salvaging a damaged database."""

    #: Present path of the file.
    path: Path
    reason: str
    snapshot: FaultSnapshot
    applications: tuple[dict[str, Any], ...]

    @property
    def rows(self) -> int:
        """Number of rows that could be read."""
        return _count(self.snapshot, self.applications)

    def as_data(self) -> dict[str, object]:
        """Return the data of the error that reports the damage."""
        return {"set_aside": str(self.path), "rows_salvaged": self.rows, "reason": self.reason[:300]}


def set_aside(path: Path, reason: str, now: float) -> Salvage:
    """Rename the damaged database at ``path``, with its log, and read what can be read.

    Raises:
        OSError: the folder does not allow it.
    """
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (f"{path.name}.damaged-{stamp}{more}" for more in ("", *(f"-{number}" for number in range(1, 1000))))
    target = next(found for name in names if not (found := path.with_name(name)).exists())
    path.rename(target)
    forget(path)
    for suffix in _LOG_FILES:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    snapshot, applications = _read(target)
    logger.error("event=database-set-aside path=%s to=%s reason=%s", path, target, reason)
    return Salvage(target, reason, snapshot, applications)


def put_back(salvage: Salvage, store: FaultStore, now_ns: int) -> None:
    """Write the salvaged rows into a new database."""
    kept = salvage.snapshot
    changes = ChangedRows(
        kept.errors, kept.faults, kept.hangs, kept.op_states, kept.policies, kept.conditions,
        replaced=kept.replaced, maintenance=MaintenanceChanges(kept.cordons, kept.windows),
    )  # fmt: skip
    store.write(NewRows(changes, applications=salvage.applications), now_ns=now_ns)


def _read(path: Path) -> tuple[FaultSnapshot, tuple[dict[str, Any], ...]]:
    """Read a copy as far as possible, with its original and its repaired log; the original files stay unchanged."""
    found: list[tuple[FaultSnapshot, tuple[dict[str, Any], ...]]] = []
    kept_log = path.with_name(f"{path.name}-wal")
    for is_repaired in (True, False) if kept_log.exists() else (False,):
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent, prefix="salvage-") as folder:
            copy, log = Path(folder, path.name), Path(folder, kept_log.name)
            shutil.copyfile(path, copy)
            if kept_log.exists():
                shutil.copyfile(kept_log, log)
                if is_repaired and (data := repaired_log(log.read_bytes())) is not None:
                    log.write_bytes(data)
            found.append(_read_copy(copy))
    return max(found, key=lambda each: _count(*each), default=(FaultSnapshot(), ()))


def _read_copy(path: Path) -> tuple[FaultSnapshot, tuple[dict[str, Any], ...]]:
    try:
        connection = connect(path, "rw")  # its log is read, too
    except sqlite3.Error:
        return FaultSnapshot(), ()
    with contextlib.closing(connection):
        suspects: dict[str, list[str]] = {}
        columns = ("fault_uuid", "ord", "comp_name")
        for uuid, _, component in _rows(connection, "suspects", columns, "fault_uuid, ord"):
            if isinstance(uuid, str) and isinstance(component, str):
                suspects.setdefault(uuid, []).append(component)
        found = {name: _legal(connection, reader, suspects) for name, reader in SALVAGED.items()}
        with contextlib.suppress(sqlite3.Error, ValueError, UnicodeDecodeError):
            found["replaced"] = read_replaced(connection)
        return FaultSnapshot(**found), _applications(connection)


def _count(kept: FaultSnapshot, applications: tuple[dict[str, Any], ...]) -> int:
    tables = (
        kept.errors, kept.faults, kept.hangs, kept.op_states, kept.policies, kept.conditions, kept.cordons,
        kept.windows,
    )  # fmt: skip
    return sum(map(len, tables)) + len(applications)


def _legal(connection: sqlite3.Connection, reader: RowReader[Any], suspects: dict[str, list[str]]) -> tuple[Any, ...]:
    """Return the rows of a table that are legal, oldest first."""
    rows = []
    for row in _rows(connection, reader.table, reader.columns, reader.place):
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            rows.append(reader.make(row, suspects))
    return tuple(rows)


def _applications(connection: sqlite3.Connection) -> tuple[dict[str, Any], ...]:
    found = []
    for _, _, text in _rows(connection, "applications", ("lease", "ended_at", "accounting"), "ended_at"):
        with contextlib.suppress(ValueError, TypeError):
            row = json.loads(text)  # type: ignore[arg-type]
            if isinstance(row, dict) and isinstance(row.get("lease"), str):
                found.append(row)
    return tuple(found[-_MAX_APPLICATIONS:])


def _rows(connection: sqlite3.Connection, table: str, columns: tuple[str, ...], place: str) -> list[tuple[object, ...]]:
    """Return rows in the order of ``place``: from the end until a damaged page, then from the beginning until one. Rows
    without their checksum are left out.
    """
    version = _until_damage(lambda: connection.execute("SELECT value FROM meta WHERE key = 'schema_version'"))
    has_sums = not version or not str(version[0][0]).isdecimal() or int(str(version[0][0])) >= _FIRST_WITH_SUMS
    columns = (*columns, "row_sum" if has_sums else "NULL")
    backwards = ", ".join(f"{name} DESC" for name in place.split(", "))
    select = f"SELECT {', '.join(columns)} FROM {table} ORDER BY"
    last = _until_damage(lambda: connection.execute(f"{select} {backwards} LIMIT {_MAX_ROWS}"))[::-1]
    first = _until_damage(lambda: connection.execute(f"{select} {place} LIMIT {_MAX_ROWS}"))
    known = set(last)
    return _checked(table, [*(row for row in first if row not in known), *last])


def _checked(table: str, rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    found = []
    for row in rows:
        with contextlib.suppress(ValueError):
            found.append(checked(table, row))
    return found


def _until_damage(execute: Callable[[], Iterator[tuple[object, ...]]]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError, OverflowError):
        rows.extend(execute())
    return rows
