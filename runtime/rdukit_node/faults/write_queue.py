"""Changes that wait for the disk: each row once, in its newest form, within a bound."""

from typing import Any, Final, TypeVar

from rdukit_node.faults.model import (
    Changes,
    Condition,
    ErrorRow,
    FaultRow,
    HangRow,
    OpState,
    Policy,
)

#: Errors, faults and hangs that wait, each; of more, those that changed longest ago go first.
_MOST: Final = 20_000

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

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._all())

    def add(self, changes: Changes) -> None:
        """``changes`` come after what is there."""
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

    def as_changes(self) -> Changes:
        """All of it."""
        return Changes(
            tuple(self._errors.values()), tuple(self._faults.values()), tuple(self._hangs.values()),
            tuple(self._op_states.values()), tuple(self._policies.values()), tuple(self._conditions.values()),
            tuple(self._gone),
        )  # fmt: skip

    def clear(self) -> None:
        """It is written."""
        for rows in self._all():
            rows.clear()

    def _all(self) -> tuple[dict[Any, Any], ...]:
        return (
            self._errors, self._faults, self._hangs, self._op_states, self._policies, self._conditions, self._gone,
        )  # fmt: skip


def _put(rows: dict[K, V], newer: dict[K, V]) -> None:
    rows.update(newer)
    while len(rows) > _MOST:
        del rows[next(iter(rows))]
