"""Rows that wait to be written into the fault database: in their newest form, within a bound, and counted.

Source: ours.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rdukit_node.faults.model import (
    ChangedRows,
    Condition,
    ErrorRow,
    FaultRow,
    HangRow,
    OpState,
    Policy,
)
from rdukit_node.maintenance.model import Cordon, MaintenanceChanges, MaintenanceWindow

#: Largest numbers of waiting errors, faults and hangs; beyond them, the least recently changed ones are dropped.
_MAX: Final = 20_000
#: Maximum events and accounting rows that wait while the disk fails; the oldest are dropped first.
_MAX_EVENTS: Final = 50_000
_MAX_APPLICATIONS: Final = 10_000

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows for the next write.

    Attributes:
        events: for the event log. applications: accounting rows of leases that ended.
        inventory: replaces the one in the file; ``None`` keeps that.
    """

    changes: ChangedRows
    events: Sequence[Mapping[str, object]] = ()
    applications: Sequence[Mapping[str, object]] = ()
    inventory: Iterable[Mapping[str, object]] | None = None


class PendingRows:
    """Rows that wait, by their key. Not for use by several threads at once."""

    def __init__(self) -> None:
        #: Rows that were dropped because too many waited.
        self.dropped = 0
        self.events: Final[deque[str]] = deque()
        #: Accounting by lease: when it ended, and the row as JSON.
        self.applications: Final[dict[str, tuple[int, str]]] = {}
        self.inventory: list[dict[str, object]] | None = None
        self._errors: Final[dict[str, ErrorRow]] = {}
        self._faults: Final[dict[str, FaultRow]] = {}
        self._hangs: Final[dict[int, HangRow]] = {}
        self._op_states: Final[dict[int, OpState]] = {}
        self._policies: Final[dict[str, Policy]] = {}
        self._conditions: Final[dict[tuple[str, str], Condition]] = {}
        self._gone: Final[dict[tuple[str, str], None]] = {}
        self._replaced: Final[dict[str, int]] = {}
        #: ``None``: it is gone.
        self._cordons: Final[dict[str, Cordon | None]] = {}
        self._windows: Final[dict[str, MaintenanceWindow | None]] = {}

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._all()) + len(self.events) + len(self.inventory or ())

    def add(self, rows: NewRows, *, now_ns: int) -> None:
        """Add rows after those that wait."""
        self._add_changes(rows.changes)
        self.events.extend(json.dumps(event) for event in rows.events)
        ended = {str(row["lease"]): (now_ns, json.dumps(row)) for row in rows.applications}
        self._put(self.applications, ended, _MAX_APPLICATIONS)
        if rows.inventory is not None:
            self.inventory = [dict(row) for row in rows.inventory]
        self._drop_events()

    def add_newer(self, newer: "PendingRows") -> None:
        """Append the rows of ``newer``."""
        self._add_changes(newer.changes())
        self.events.extend(newer.events)
        self._put(self.applications, newer.applications, _MAX_APPLICATIONS)
        if newer.inventory is not None:
            self.inventory = newer.inventory
        self.dropped += newer.dropped
        self._drop_events()

    def changes(self) -> ChangedRows:
        """Return the changes that wait."""
        return ChangedRows(
            tuple(self._errors.values()), tuple(self._faults.values()), tuple(self._hangs.values()),
            tuple(self._op_states.values()), tuple(self._policies.values()), tuple(self._conditions.values()),
            tuple(self._gone),
            tuple(self._replaced.items()),
            MaintenanceChanges(
                tuple(each for each in self._cordons.values() if each is not None),
                tuple(each for each in self._windows.values() if each is not None),
                tuple(key for key, each in self._cordons.items() if each is None),
                tuple(key for key, each in self._windows.items() if each is None),
            ),
        )  # fmt: skip

    def clear(self) -> None:
        """Forget the rows, which are written."""
        for rows in self._all():
            rows.clear()
        self.events.clear()
        self.inventory = None

    def _add_changes(self, changes: ChangedRows) -> None:
        self._put(self._errors, {row.err_uuid: row for row in changes.errors})
        self._put(self._faults, {row.fault_uuid: row for row in changes.faults})
        self._put(self._hangs, {row.number: row for row in changes.hangs})
        self._op_states.update((row.rdu, row) for row in changes.op_states)
        self._policies.update((row.error_type, row) for row in changes.policies)
        for key in changes.conditions_gone:
            self._conditions.pop(key, None)
            self._gone[key] = None
        for row in changes.conditions:
            key = (row.component, row.class_name)
            self._conditions[key] = row
            self._gone.pop(key, None)
        self._replaced.update(changes.replaced)
        upkeep = changes.maintenance
        self._cordons.update(dict.fromkeys(upkeep.cordons_gone))
        self._cordons.update((each.component, each) for each in upkeep.cordons)
        self._windows.update(dict.fromkeys(upkeep.windows_gone))
        self._windows.update((each.window, each) for each in upkeep.windows)

    def _put(self, rows: dict[K, V], newer: Mapping[K, V], most: int = _MAX) -> None:
        rows.update(newer)
        while len(rows) > most:
            del rows[next(iter(rows))]
            self.dropped += 1

    def _drop_events(self) -> None:
        while len(self.events) > _MAX_EVENTS:
            self.events.popleft()
            self.dropped += 1

    def _all(self) -> tuple[dict[Any, Any], ...]:
        return (
            self._errors, self._faults, self._hangs, self._op_states, self._policies, self._conditions, self._gone,
            self._replaced, self._cordons, self._windows, self.applications,
        )  # fmt: skip
