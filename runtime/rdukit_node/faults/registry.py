"""The rows of one node while the daemon runs: errors, faults, conditions, hangs, policies, and which of them changed.

Bounded: the newest rows stay, and all open ones. Decides nothing; ``machine`` does.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from rdukit_node.faults.capacity import concerns, is_at_or_below
from rdukit_node.faults.catalogue import CheckedInjection, class_by_error_type, default_policies, fault_classes
from rdukit_node.faults.enums import Action, FaultState, HangEvent, HangOutcome
from rdukit_node.faults.model import ChangedRows, Condition, FaultRow, FaultSnapshot, HangRow, Policy
from rdukit_node.faults.records import ErrorRecord, record_of_row, window_of

#: Rows of errors, faults and hangs in memory, each. The database keeps more.
MAX_ROWS: Final = 10_000

#: Key of active faults: component, type and action.
FaultKey = tuple[str, str, Action]


class FaultRegistry:
    """Rows of errors, faults and conditions, their indexes, and the changes since these were taken last."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows: Final = max_rows
        #: Oldest first; open ones are also in ``open_records``.
        self.records: Final[dict[str, ErrorRecord]] = {}
        #: By component and error type: the row that the next such error is counted in.
        self.open_records: Final[dict[tuple[str, str], ErrorRecord]] = {}
        #: Oldest first; the active ones are also in ``active``.
        self.faults: Final[dict[str, FaultRow]] = {}
        self.active: Final[dict[FaultKey, str]] = {}
        #: By active fault: its errors, all of them open.
        self.records_of_fault: Final[dict[str, list[ErrorRecord]]] = {}
        #: By path: active faults at it or below it; a path without any is missing.
        self.active_below: Final[Counter[str]] = Counter()
        #: By component and class.
        self.conditions: Final[dict[tuple[str, str], Condition]] = {}
        #: By number, oldest first.
        self.hangs: Final[dict[int, HangRow]] = {}
        #: By error type.
        self.policies: Final[dict[str, Policy]] = dict(default_policies())
        #: Number of a part's replacements, by path.
        self.replaced: Final[dict[str, int]] = {}
        self._next_hang = 1
        #: Ended rows, oldest first: the first ones are forgotten first.
        self._over_records: Final[deque[str]] = deque()
        self._over_faults: Final[deque[str]] = deque()
        # Changes; dictionaries are used as ordered sets.
        self._new_errors: Final[dict[str, None]] = {}
        self._new_faults: Final[dict[str, None]] = {}
        self._new_hangs: Final[dict[int, None]] = {}
        self._new_policies: Final[dict[str, None]] = dict.fromkeys(self.policies)
        self._new_conditions: Final[dict[tuple[str, str], None]] = {}
        self._gone_conditions: Final[dict[tuple[str, str], None]] = {}
        self._new_replaced: Final[dict[str, None]] = {}

    # -- errors ------------------------------------------------------------------------------------------------------

    def open_record(self, event: CheckedInjection, new_uuid: Callable[[], str],
                    sample: Callable[[CheckedInjection], dict[str, object]],
                    now_ns: int) -> tuple[ErrorRecord, bool]:  # fmt: skip
        """Return the row that ``event`` is counted in, and whether it is new."""
        key = (event.component.path, event.entry.error_type)
        record = self.open_records.get(key)
        if record is not None:
            return record, False
        window = window_of(self.policies.get(event.entry.error_type))
        record = ErrorRecord(new_uuid(), event.entry, event.component.path, sample(event), now_ns, window)
        self.records[record.uuid] = self.open_records[key] = record
        self._forget(self.records, self._over_records, self._new_errors)
        return record, True

    def touch(self, record: ErrorRecord) -> None:
        """Note that ``record`` changed."""
        self._new_errors[record.uuid] = None

    # -- faults ------------------------------------------------------------------------------------------------------

    def add_fault(self, row: FaultRow) -> None:
        """Add an active fault."""
        self.faults[row.fault_uuid] = row
        self.active[_key(row)] = row.fault_uuid
        self.records_of_fault[row.fault_uuid] = []
        for path in _path_and_above(row.comp_name):
            self.active_below[path] += 1
        self._new_faults[row.fault_uuid] = None
        self._forget(self.faults, self._over_faults, self._new_faults)

    def diagnose(self, record: ErrorRecord, fault_uuid: str) -> None:
        """Make ``record`` part of an active fault."""
        record.diagnose(fault_uuid)
        self.records_of_fault[fault_uuid].append(record)
        self.touch(record)

    def end_fault(self, row: FaultRow, by: str, note: str, now_ns: int) -> FaultRow:
        """End a fault and its errors: the next ones open new rows."""
        ended = replace(
            row, fault_state=FaultState.CLEARED, cleared_timestamp=now_ns, cleared_by=by,
            fault_desc=f"{row.fault_desc} ({note})",
        )  # fmt: skip
        self.faults[row.fault_uuid] = ended
        del self.active[_key(row)]
        for record in self.records_of_fault.pop(row.fault_uuid):
            del self.open_records[record.component, record.entry.error_type]
            self._over_records.append(record.uuid)
        for path in _path_and_above(row.comp_name):
            self.active_below[path] -= 1
            if not self.active_below[path]:
                del self.active_below[path]
        self._over_faults.append(row.fault_uuid)
        self._new_faults[row.fault_uuid] = None
        return ended

    def active_rows(self, path: str = "/NODE") -> list[FaultRow]:
        """Return active faults at or below ``path``, in the order of their diagnosis."""
        if path not in self.active_below:
            return []
        rows = (self.faults[uuid] for uuid in self.active.values())
        return [row for row in rows if is_at_or_below(row.comp_name, path)]

    def rows_concerning(self, path: str) -> list[FaultRow]:
        """Return active faults that may take something of the RDU ``path`` out of service, in the order of their
        diagnosis.
        """
        return [row for uuid in self.active.values() if concerns(row := self.faults[uuid], path)]

    # -- conditions --------------------------------------------------------------------------------------------------

    def set_condition(self, condition: Condition) -> None:
        """Add a condition, or replace the one of its class."""
        key = (condition.component, condition.class_name)
        self.conditions[key] = condition
        self._new_conditions[key] = None
        self._gone_conditions.pop(key, None)

    def remove_condition(self, condition: Condition) -> None:
        """Remove a condition."""
        key = (condition.component, condition.class_name)
        del self.conditions[key]
        self._new_conditions.pop(key, None)
        self._gone_conditions[key] = None

    def conditions_at(self, path: str) -> list[Condition]:
        """List the conditions of the component itself."""
        return [found for (component, _), found in self.conditions.items() if component == path]

    def conditions_below(self, path: str) -> list[Condition]:
        """List the conditions of the component and everything below it."""
        return [found for (component, _), found in self.conditions.items() if is_at_or_below(component, path)]

    # -- hangs and policies ------------------------------------------------------------------------------------------

    def add_hang(self, rdu: int, path: str, event: HangEvent, outcome: HangOutcome, now_ns: int) -> HangRow:
        """Add a recovery."""
        row = HangRow(self._next_hang, rdu, path, now_ns, event, outcome)
        self._next_hang += 1
        self.hangs[row.number] = row
        self._new_hangs[row.number] = None
        if len(self.hangs) > self._max_rows:
            del self.hangs[next(iter(self.hangs))]
        return row

    def end_hang(self, number: int, outcome: HangOutcome) -> None:
        """Record the outcome of a recovery, unless its row is forgotten already."""
        row = self.hangs.get(number)
        if row is not None:
            self.hangs[number] = replace(row, outcome=outcome)
            self._new_hangs[number] = None

    def set_policy(self, policy: Policy) -> None:
        """Replace a policy. Errors that only a longer new window would include are not known any more."""
        self.policies[policy.error_type] = policy
        self._new_policies[policy.error_type] = None
        for (_, error_type), record in self.open_records.items():
            if error_type == policy.error_type:
                record.window = window_of(policy, record.window.coarse())

    def replace_part(self, path: str) -> None:
        """Count a replacement."""
        self.replaced[path] = self.replaced.get(path, 0) + 1
        self._new_replaced[path] = None

    def restart_windows(self, path: str) -> int:
        """Reset the policies' error counts at or below a component; the rows keep their totals. Returns how many
        rows."""
        found = [record for (component, _), record in self.open_records.items() if is_at_or_below(component, path)]
        for record in found:
            record.window = window_of(self.policies.get(record.entry.error_type))
            self.touch(record)
        return len(found)

    # -- the database ------------------------------------------------------------------------------------------------

    def take_changes(self) -> ChangedRows:
        """Return rows that changed since the last call. Operational states are not here."""
        changes = ChangedRows(
            errors=tuple(self.records[uuid].row() for uuid in self._new_errors if uuid in self.records),
            faults=tuple(self.faults[uuid] for uuid in self._new_faults if uuid in self.faults),
            hangs=tuple(self.hangs[number] for number in self._new_hangs if number in self.hangs),
            policies=tuple(self.policies[error_type] for error_type in self._new_policies),
            conditions=tuple(self.conditions[key] for key in self._new_conditions),
            conditions_gone=tuple(self._gone_conditions),
            replaced=tuple((path, self.replaced[path]) for path in self._new_replaced),
        )
        news: Iterable[dict[str, None] | dict[int, None] | dict[tuple[str, str], None]] = (
            self._new_errors, self._new_faults, self._new_hangs, self._new_policies, self._new_conditions,
            self._gone_conditions, self._new_replaced,
        )  # fmt: skip
        for new in news:
            new.clear()
        return changes

    def restore(self, snapshot: FaultSnapshot) -> None:
        """Start from rows of an earlier daemon, on a registry that is still empty.

        Rows of classes that are not known any more are left out. An open error whose fault is not active is over.
        """
        by_type, classes = class_by_error_type(), fault_classes()
        for policy in snapshot.policies:
            if policy.error_type in by_type:
                self.policies[policy.error_type] = policy
                self._new_policies.pop(policy.error_type, None)
        for fault in snapshot.faults:
            if fault.is_active and _key(fault) not in self.active:
                self.add_fault(fault)
            else:
                self.faults[fault.fault_uuid] = fault
                self._over_faults.append(fault.fault_uuid)
        for row in snapshot.errors:
            entry = by_type.get(row.err_type)
            if entry is None:
                continue
            record = record_of_row(row, entry, self.policies.get(row.err_type))
            self.records[record.uuid] = record
            key = (row.comp_name, row.err_type)
            if (row.fault_uuid is None or row.fault_uuid in self.records_of_fault) and key not in self.open_records:
                self.open_records[key] = record
                if row.fault_uuid is not None:
                    self.records_of_fault[row.fault_uuid].append(record)
            else:
                self._over_records.append(record.uuid)
        self.replaced.update(snapshot.replaced)
        for hang in snapshot.hangs:
            self.hangs[hang.number] = hang
        self._next_hang = max(self.hangs, default=0) + 1
        for condition in snapshot.conditions:
            if condition.class_name in classes:
                self.conditions[condition.component, condition.class_name] = condition
        self._new_faults.clear()

    def validate(self) -> None:
        """Derive every index again.

        Raises:
            AssertionError: a bug.
        """
        active = {_key(row): uuid for uuid, row in self.faults.items() if row.is_active}
        assert active == self.active, "active faults"
        below: Counter[str] = Counter()
        for row in self.active_rows():
            below.update(_path_and_above(row.comp_name))
        assert below == self.active_below, "counts of active faults"
        assert set(self.records_of_fault) == set(self.active.values()), "errors of active faults"
        for uuid, records in self.records_of_fault.items():
            assert all(record.fault == uuid for record in records), "errors know their fault"
        over = set(self._over_records)
        assert len(over) == len(self._over_records), "an error ends once"
        for (component, error_type), record in self.open_records.items():
            assert (component, error_type) == (record.component, record.entry.error_type), "index of open errors"
            assert self.records.get(record.uuid) is record and record.uuid not in over, "open errors are kept"
            assert record.fault is None or record in self.records_of_fault[record.fault], (
                "open errors' faults are active"
            )
        assert len(over) + len(self.open_records) == len(self.records), "an error is open or over"
        assert len(self._over_faults) + len(self.active) == len(self.faults), "a fault is active or over"
        assert len(self.hangs) <= self._max_rows, "hangs are bounded"

    def _forget(
        self, rows: dict[str, ErrorRecord] | dict[str, FaultRow], over: deque[str], new: dict[str, None]
    ) -> None:
        """Drop the oldest ended rows; those not yet taken for the database only at twice the limit."""
        while len(rows) > self._max_rows and over and (over[0] not in new or len(rows) > 2 * self._max_rows):
            del rows[over.popleft()]


def _key(row: FaultRow) -> FaultKey:
    return row.comp_name, row.fault_type, row.action


def _path_and_above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
