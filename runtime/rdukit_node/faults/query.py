"""Choosing rows by filters: for the daemon's answers and for tools that read the database themselves. Pure.

All lists are oldest first. ``after`` requests a page: the uuid of the last row of the previous page.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rdukit.errors import InvalidArgument, NotFound
from rdukit_node.faults.capacity import is_at_or_below
from rdukit_node.faults.enums import FaultSeverity
from rdukit_node.faults.model import ErrorRow, FaultRow, HangRow

_MAX: Final = 10_000
DEFAULT_LIMIT: Final = 1000

Row = TypeVar("Row", ErrorRow, FaultRow)


@dataclass(frozen=True, slots=True)
class RowPage(Generic[Row]):
    """A page of rows, and whether there are more after it."""

    rows: tuple[Row, ...]
    more: bool


def find_errors(rows: Iterable[ErrorRow], **filters: object) -> RowPage[ErrorRow]:
    """Return errors that pass every filter; an absent filter, or ``None``, passes all.

    Args:
        filters: ``component`` (a path, with or without ``/NODE``; parts below it match, too), ``type`` (with or without
            ``ETYPE_``), ``since`` and ``until`` (nanoseconds, inclusive: rows that counted something in between),
            ``fault`` (its uuid), ``limit`` (1 to 10,000), ``after`` (uuid).
    Raises:
        InvalidArgument: a filter is unknown or its value not legal. NotFound: there is no row ``after``.
    """
    _check(filters, _COMMON)
    tests: list[Callable[[ErrorRow], bool]] = [lambda row: row.last_timestamp >= _time(filters, "since", 0)]
    tests.append(lambda row: row.orig_timestamp <= _time(filters, "until", row.orig_timestamp))
    if (fault := filters.get("fault")) is not None:
        tests.append(lambda row: row.fault_uuid == fault)
    if (type_ := _type(filters, "ETYPE_")) is not None:
        tests.append(lambda row: row.err_type == type_)
    return _page(list(rows), tests, filters, _error_uuid)


def find_faults(rows: Iterable[FaultRow], **filters: object) -> RowPage[FaultRow]:
    """Return faults that pass every filter, as for errors.

    Args:
        filters: those of ``find_errors``; ``since`` and ``until`` are about the diagnosis. Also ``severity`` (that or
            worse) and ``cleared`` (bool: cleared ones, too; otherwise only active ones, unless ``fault`` is given).
    Raises:
        InvalidArgument: a filter is unknown or its value not legal. NotFound: there is no row ``after``.
    """
    _check(filters, (*_COMMON, "severity", "cleared"))
    tests: list[Callable[[FaultRow], bool]] = [lambda row: row.timestamp >= _time(filters, "since", 0)]
    tests.append(lambda row: row.timestamp <= _time(filters, "until", row.timestamp))
    if (fault := filters.get("fault")) is not None:
        tests.append(lambda row: row.fault_uuid == fault)
    elif not filters.get("cleared"):
        tests.append(lambda row: row.is_active)
    if (type_ := _type(filters, "FTYPE_")) is not None:
        tests.append(lambda row: row.fault_type == type_)
    if (severity := filters.get("severity")) is not None:
        least = _severity(severity).rank
        tests.append(lambda row: row.severity.rank >= least)
    return _page(list(rows), tests, filters, _fault_uuid)


def find_hangs(rows: Iterable[HangRow], component: str | None = None, limit: int = DEFAULT_LIMIT) -> list[HangRow]:
    """Return the newest ``limit`` rows of the hang-recovery log at or below a component, oldest first.

    Raises:
        InvalidArgument: a value is not valid.
    """
    _check({"component": component, "limit": limit}, _COMMON)
    path = None if component is None else _path(component)
    found = [row for row in rows if path is None or is_at_or_below(row.comp_name, path)]
    return found[-limit:]


_COMMON: Final = ("component", "type", "since", "until", "fault", "limit", "after")
_TEXTS: Final = frozenset({"component", "type", "fault", "after", "severity"})
_TIMES: Final = frozenset({"since", "until"})


def _check(filters: Mapping[str, object], legal: Sequence[str]) -> None:
    for name, value in filters.items():
        if name not in legal:
            raise InvalidArgument(f"unknown filter {name!r}; expected {', '.join(legal)}")
        if value is None:
            continue
        if name in _TEXTS and (not isinstance(value, str) or not value or len(value) > 256):
            raise InvalidArgument(f"{name} is {str(value)[:80]!r}; expected a text of 1 to 256 characters")
        if name in _TIMES and (type(value) is not int or value < 0):
            raise InvalidArgument(f"{name} is {value!r}; expected whole nanoseconds since the epoch")
        if name == "limit" and (type(value) is not int or not 1 <= value <= _MAX):
            raise InvalidArgument(f"limit is {value!r}; expected 1 to {_MAX}")
        if name == "cleared" and not isinstance(value, bool):
            raise InvalidArgument(f"cleared is {value!r}; expected true, false")


def _time(filters: Mapping[str, object], name: str, default: int) -> int:
    value = filters.get(name)
    return value if isinstance(value, int) else default


def _type(filters: Mapping[str, object], prefix: str) -> str | None:
    value = filters.get("type")
    if value is None:
        return None
    text = str(value).upper()
    return text if text.startswith(prefix) else prefix + text


def _page(
    rows: Sequence[Row], tests: Sequence[Callable[[Row], bool]], filters: Mapping[str, object],
    uuid_of: Callable[[Row], str],
) -> RowPage[Row]:  # fmt: skip
    start, after, limit, component = 0, filters.get("after"), filters.get("limit"), filters.get("component")
    path = _path(component) if isinstance(component, str) else None
    if after is not None:
        place = next((index for index, row in enumerate(rows) if uuid_of(row) == after), None)
        if place is None:
            raise NotFound(f"there is no row {after!r} to continue after; leave it out to get the first page")
        start = place + 1
    most = limit if isinstance(limit, int) else DEFAULT_LIMIT
    found: list[Row] = []
    for index in range(start, len(rows)):
        row = rows[index]
        if (path is None or is_at_or_below(row.comp_name, path)) and all(test(row) for test in tests):
            if len(found) == most:
                return RowPage(tuple(found), True)
            found.append(row)
    return RowPage(tuple(found), False)


def _path(component: str) -> str:
    path = "/" + component.strip("/")
    return path if is_at_or_below(path, "/NODE") else "/NODE" + path.rstrip("/")


def _severity(value: object) -> FaultSeverity:
    for severity in FaultSeverity:
        if str(value).lower() == severity.lower():
            return severity
    raise InvalidArgument(f"severity is {value!r}; expected {', '.join(FaultSeverity)}")


def _error_uuid(row: ErrorRow) -> str:
    return row.err_uuid


def _fault_uuid(row: FaultRow) -> str:
    return row.fault_uuid
