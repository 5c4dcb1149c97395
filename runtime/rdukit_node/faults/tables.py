"""Conversion between rows of the fault database and values. Content of a file is checked like any input."""

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rdukit_node.faults.enums import Action, FaultSeverity, FaultState, HangEvent, HangOutcome, RduState
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
from rdukit_node.maintenance.model import Cordon, MaintenanceWindow

Statement = tuple[str, tuple[object, ...]]
T = TypeVar("T")

_ERROR: Final = (
    "err_uuid", "err_type", "err_type_desc", "err_data", "err_count", "orig_timestamp", "last_timestamp", "comp_name",
    "fault_uuid", "application", "tenant", "job", "recent", "lease", "pid",
)  # fmt: skip
_FAULT: Final = (
    "fault_uuid", "fault_type", "fault_state", "severity", "comp_name", "comp_ser_num", "fault_desc", "recovery_act",
    "action", "err_uuid", "timestamp", "cleared_timestamp", "cleared_by", "application", "tenant", "job", "lease",
    "pid",
)  # fmt: skip
_POLICY: Final = (
    "error_type", "fault_type", "count", "window_s", "action", "severity", "fault_desc", "fault_detail_desc",
    "recovery_act",
)  # fmt: skip
_HANG: Final = ("number", "rdu", "comp_name", "timestamp", "event", "outcome")
_OP_STATE: Final = ("rdu", "comp_name", "state", "reason", "since", "available_tiles", "perfect")
_CONDITION: Final = ("component", "class_name", "since", "resets_that_fail", "data")
_INVENTORY: Final = ("comp_name", "ord", "kind", "parent", "serial", "part", "presence", "health", "size_bytes")

_CORDON: Final = ("component", "reason", "set_by", "since", "is_draining", "deadline")
_WINDOW: Final = ("window_id", "component", "starts_at", "ends_at", "grace_ns", "reason", "set_by")


@dataclass(frozen=True, slots=True)
class RowReader(Generic[T]):
    """Reader of a table's rows, one by one. ``place``: the columns of their order."""

    table: str
    columns: tuple[str, ...]
    make: Callable[[tuple[object, ...], Mapping[str, list[str]]], T]
    place: str = "rowid"


def row_sum(values: Sequence[object]) -> int:
    """Return the checksum that is stored with a row: a CRC-32 of its values in order."""
    return zlib.crc32(json.dumps(values, default=repr).encode())


def checked(table: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row whose last one is its checksum; rows of earlier versions have none.

    Raises:
        ValueError: the values differ from the written ones.
    """
    *values, found = row
    if found is not None and found != row_sum(values):
        raise ValueError(f"a row of table {table} does not match its stored checksum")
    return tuple(values)


#: Keys of ``meta`` for parts that were replaced begin with it; their paths follow.
_REPLACED: Final = "replaced:"


def statements_of(changes: ChangedRows) -> Iterable[Statement]:
    """Return the statements that write ``changes``; repeating them changes nothing more."""
    return _with_sums(_statements_of(changes))


def _with_sums(statements: Iterable[Statement]) -> Iterable[Statement]:
    for statement, values in statements:
        yield statement, (*values, row_sum(values)) if statement.startswith("INSERT") else values


def _statements_of(changes: ChangedRows) -> Iterable[Statement]:
    for error in changes.errors:
        yield _upsert("error", _ERROR, 1), (
            error.err_uuid, error.err_type, error.err_type_desc, json.dumps(dict(error.err_data)), error.err_count,
            error.orig_timestamp, error.last_timestamp, error.comp_name, error.fault_uuid, error.application,
            error.tenant, error.job, json.dumps(error.recent), error.lease, error.pid,
        )  # fmt: skip
    for fault in changes.faults:
        yield _upsert("fault", _FAULT, 1), (
            fault.fault_uuid, fault.fault_type, str(fault.fault_state), str(fault.severity), fault.comp_name,
            fault.comp_ser_num, fault.fault_desc, fault.recovery_act, str(fault.action), fault.err_uuid,
            fault.timestamp, fault.cleared_timestamp, fault.cleared_by, fault.application, fault.tenant, fault.job,
            fault.lease, fault.pid,
        )  # fmt: skip
        for place, path in enumerate(fault.suspects):
            yield "INSERT OR REPLACE INTO suspects VALUES (?, ?, ?, ?)", (fault.fault_uuid, place, path)
    for policy in changes.policies:
        yield _upsert("policy", _POLICY, 1), (
            policy.error_type, policy.fault_type, policy.count, policy.window_s, str(policy.action),
            str(policy.severity), policy.fault_desc, policy.fault_detail_desc, policy.recovery_act,
        )  # fmt: skip
    for hang in changes.hangs:
        yield _upsert("hang_log", _HANG, 1), (
            hang.number, hang.rdu, hang.comp_name, hang.timestamp, str(hang.event), str(hang.outcome),
        )  # fmt: skip
    for state in changes.op_states:
        yield _upsert("op_state", _OP_STATE, 1), (
            state.rdu, state.comp_name, str(state.state), state.reason, state.since, state.available_tiles,
            int(state.perfect),
        )  # fmt: skip
    for condition in changes.conditions:
        yield _upsert("condition", _CONDITION, 2), (
            condition.component, condition.class_name, condition.since, condition.resets_that_fail,
            json.dumps(dict(condition.data)),
        )  # fmt: skip
    for key in changes.conditions_gone:
        yield "DELETE FROM condition WHERE component = ? AND class_name = ?", key
    for path, count in changes.replaced:
        yield "REPLACE INTO meta VALUES (?, ?)", (f"{_REPLACED}{path}", str(count))
    for cordon in changes.maintenance.cordons:
        yield _upsert("cordon", _CORDON, 1), (
            cordon.component, cordon.reason, cordon.by, cordon.since, int(cordon.is_draining), cordon.deadline,
        )  # fmt: skip
    for window in changes.maintenance.windows:
        yield _upsert("maintenance", _WINDOW, 1), (
            window.window, window.component, window.starts_at, window.ends_at, window.grace_ns, window.reason,
            window.by,
        )  # fmt: skip
    for component in changes.maintenance.cordons_gone:
        yield "DELETE FROM cordon WHERE component = ?", (component,)
    for window_id in changes.maintenance.windows_gone:
        yield "DELETE FROM maintenance WHERE window_id = ?", (window_id,)


def inventory_statements(rows: Iterable[Mapping[str, object]]) -> Iterable[Statement]:
    """Return the statements that replace the inventory."""
    yield "DELETE FROM inventory", ()
    for place, row in enumerate(rows):
        values = tuple(place if name == "ord" else row[name] for name in _INVENTORY)
        yield _upsert("inventory", _INVENTORY, 1), (*values, row_sum(values))


def read_snapshot(connection: sqlite3.Connection, max_rows: int) -> FaultSnapshot:
    """Return the newest rows, oldest first, and all open ones.

    Raises:
        ValueError: a row is not valid.
    """
    suspects: dict[str, list[str]] = {}
    query = "SELECT * FROM suspects ORDER BY fault_uuid, ord LIMIT ?"
    for row in connection.execute(query, (8 * max_rows,)):
        uuid, _, path = checked("suspects", row)
        suspects.setdefault(uuid, []).append(path)
    is_open = "fault_uuid IS NULL OR fault_uuid IN (SELECT fault_uuid FROM fault WHERE fault_state = 'ACTIVE')"
    return FaultSnapshot(
        errors=_newest(connection, "error", _ERROR, is_open, max_rows, _error),
        faults=_newest(
            connection, "fault", _FAULT, "fault_state = 'ACTIVE'", max_rows, lambda row: _fault(row, suspects)
        ),
        hangs=_newest(connection, "hang_log", _HANG, "1 = 0", max_rows, _hang),
        op_states=_newest(connection, "op_state", _OP_STATE, "1 = 0", max_rows, _op_state),
        policies=_newest(connection, "policy", _POLICY, "1 = 0", max_rows, _policy),
        conditions=_newest(connection, "condition", _CONDITION, "1 = 0", max_rows, _condition),
        cordons=_newest(connection, "cordon", _CORDON, "1 = 0", max_rows, _cordon),
        windows=_newest(connection, "maintenance", _WINDOW, "1 = 0", max_rows, _window),
        replaced=read_replaced(connection),
    )


def read_replaced(connection: sqlite3.Connection) -> tuple[tuple[str, int], ...]:
    """Return the replaced parts, and their numbers of replacements.

    Raises:
        ValueError: a row is not valid.
    """
    query = "SELECT key, value FROM meta WHERE substr(key, 1, ?) = ? ORDER BY key LIMIT 10000"
    rows = connection.execute(query, (len(_REPLACED), _REPLACED))
    return tuple((str(key).removeprefix(_REPLACED), int(value)) for key, value in rows)


def read_inventory(connection: sqlite3.Connection) -> list[dict[str, object]]:
    """Return the inventory as written, in its order."""
    rows = connection.execute(f"SELECT {', '.join(_INVENTORY)}, row_sum FROM inventory ORDER BY ord LIMIT 100000")
    found = [dict(zip(_INVENTORY, checked("inventory", row), strict=True)) for row in rows]
    return [{name: row[name] for name in _INVENTORY if name != "ord"} for row in found]


def read_applications(connection: sqlite3.Connection, limit: int) -> list[dict[str, object]]:
    """Return accounting rows of the newest ``limit`` leases that ended, newest first.

    Raises:
        ValueError: a row is not valid.
    """
    query = "SELECT lease, ended_at, accounting, row_sum FROM applications ORDER BY ended_at DESC LIMIT ?"
    return [_object(checked("applications", row)[2]) for row in connection.execute(query, (limit,))]


def read_events(connection: sqlite3.Connection, limit: int) -> list[dict[str, object]]:
    """Return the newest ``limit`` events, oldest first. Raises: as ``read_applications``."""
    rows = connection.execute("SELECT event, row_sum FROM events ORDER BY number DESC LIMIT ?", (limit,))
    return [_object(checked("events", row)[0]) for row in rows][::-1]


def _newest(
    connection: sqlite3.Connection,
    table: str,
    columns: tuple[str, ...],
    is_kept: str,
    most: int,
    make: Callable[[tuple[object, ...]], T],
) -> tuple[T, ...]:
    """Return the newest rows; those for which ``is_kept`` holds come first if there are more than ``most``."""
    place = "since" if table == "condition" else "rowid"  # the one table without row numbers
    names = ", ".join((*columns, "row_sum"))
    query = f"SELECT {place} AS place, {names} FROM {table} ORDER BY ({is_kept}) DESC, place DESC LIMIT ?"
    rows = sorted(connection.execute(query, (most,)), key=lambda row: int(row[0]))
    return tuple(make(checked(table, row[1:])) for row in rows)


def _error(row: tuple[object, ...]) -> ErrorRow:
    (uuid, type_, desc, data, count, first, last, component, fault, application, tenant, job, recent, lease, pid) = row
    return ErrorRow(
        _text(uuid), _text(type_), _text(desc), _object(data), _whole(count, 1), _whole(first), _whole(last),
        _text(component), _find_text(fault), _find_text(application), _find_text(tenant), _find_text(job),
        _recent(recent), _find_text(lease), _find_whole(pid),
    )  # fmt: skip


def _fault(row: tuple[object, ...], suspects: Mapping[str, list[str]]) -> FaultRow:
    (uuid, type_, state, severity, component, serial, desc, recovery, action, error, at, cleared, by, *owner) = row
    cleared_at = None if cleared is None else _whole(cleared)
    found = FaultRow(
        _text(uuid), _text(type_), FaultState(_text(state)), FaultSeverity(_text(severity)), _text(component),
        _text(serial), _text(desc), _text(recovery), Action(_text(action)), _text(error), _whole(at), cleared_at,
        _find_text(by), tuple(_text(path) for path in suspects.get(_text(uuid), ())),
        _find_text(owner[0]), _find_text(owner[1]), _find_text(owner[2]), _find_text(owner[3]), _find_whole(owner[4]),
    )  # fmt: skip
    if found.is_active != (cleared_at is None):
        raise ValueError(f"fault {found.fault_uuid} is {found.fault_state}, but its clearing time is {cleared_at}")
    return found


def _policy(row: tuple[object, ...]) -> Policy:
    error_type, fault_type, count, window_s, action, severity, desc, detail, recovery = row
    return Policy(
        _text(error_type), _text(fault_type), _whole(count, 1), _whole(window_s, 1), Action(_text(action)),
        FaultSeverity(_text(severity)), _text(desc), _text(detail), _text(recovery),
    )  # fmt: skip


def _hang(row: tuple[object, ...]) -> HangRow:
    number, rdu, component, at, event, outcome = row
    return HangRow(
        _whole(number, 1), _whole(rdu), _text(component), _whole(at), HangEvent(_text(event)),
        HangOutcome(_text(outcome)),
    )  # fmt: skip


def _op_state(row: tuple[object, ...]) -> OpState:
    rdu, component, state, reason, since, available, perfect = row
    return OpState(
        _whole(rdu), _text(component), RduState(_text(state)), _text(reason), _whole(since), _whole(available),
        bool(_whole(perfect)),
    )  # fmt: skip


def _condition(row: tuple[object, ...]) -> Condition:
    component, class_name, since, resets, data = row
    return Condition(
        _text(component), _text(class_name), _whole(since), None if resets is None else _whole(resets), _object(data)
    )  # fmt: skip


def _cordon(row: tuple[object, ...]) -> Cordon:
    component, reason, by, since, is_draining, deadline = row
    return Cordon(
        _text(component), _text(reason), _text(by), _whole(since), bool(_whole(is_draining)), _find_whole(deadline)
    )  # fmt: skip


def _window(row: tuple[object, ...]) -> MaintenanceWindow:
    window, component, starts_at, ends_at, grace, reason, by = row
    return MaintenanceWindow(
        _text(window), _text(component), _whole(starts_at), _find_whole(ends_at), _find_whole(grace), _text(reason),
        _text(by),
    )  # fmt: skip


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError(f"{str(value)[:80]!r} is not valid; expected text of up to 4096 characters")
    return value


def _find_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _whole(value: object, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{str(value)[:80]!r} is not valid; expected a whole number from {least}")
    return value


def _find_whole(value: object) -> int | None:
    return None if value is None else _whole(value)


def _object(value: object) -> dict[str, object]:
    found = _json(value)
    if not isinstance(found, dict):
        raise ValueError(f"{str(value)[:80]!r} is not valid; expected a JSON object")  # noqa: TRY004
    return found


def _recent(value: object) -> tuple[tuple[int, int], ...]:
    found = _json(value)
    if not isinstance(found, list) or len(found) > 64:
        raise ValueError(f"{str(value)[:80]!r} is not valid; expected a list of up to 64 times")
    pairs = []
    for pair in found:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{str(pair)[:80]!r} is not valid; expected a time and a number")
        pairs.append((_whole(pair[0]), _whole(pair[1], 1)))
    return tuple(sorted(pairs))


def _json(value: object) -> object:
    text = value if isinstance(value, str) else ""
    if not 0 < len(text) <= 16_384:
        raise ValueError(f"{str(value)[:80]!r} is not valid; expected JSON of up to 16384 characters")
    try:
        return json.loads(text)
    except RecursionError as cause:
        raise ValueError("JSON is nested too deeply") from cause


def _upsert(table: str, columns: tuple[str, ...], keys: int) -> str:
    """Insert or change a row, keeping its place in the order; its checksum is the last value."""
    columns = (*columns, "row_sum")
    changed = ", ".join(f"{name} = excluded.{name}" for name in columns[keys:])
    marks = ", ".join("?" * len(columns))
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(columns[:keys])}) DO UPDATE SET {changed}"
    )


#: Readers by field of ``FaultSnapshot``, for a partly damaged file.
SALVAGED: Final[Mapping[str, RowReader[Any]]] = {
    "errors": RowReader("error", _ERROR, lambda row, _: _error(row)),
    "faults": RowReader("fault", _FAULT, _fault),
    "hangs": RowReader("hang_log", _HANG, lambda row, _: _hang(row)),
    "op_states": RowReader("op_state", _OP_STATE, lambda row, _: _op_state(row)),
    "policies": RowReader("policy", _POLICY, lambda row, _: _policy(row)),
    "conditions": RowReader("condition", _CONDITION, lambda row, _: _condition(row), "component, class_name"),
    "cordons": RowReader("cordon", _CORDON, lambda row, _: _cordon(row)),
    "windows": RowReader("maintenance", _WINDOW, lambda row, _: _window(row)),
}
