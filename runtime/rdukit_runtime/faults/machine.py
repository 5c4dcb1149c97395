"""Fault management of one node: hardware events in; errors, diagnoses and their consequences out. Pure.

An event becomes an *error* row, or is counted in the one that is open for its component and type. The error type's
policy says when errors are diagnosed as a *fault* and what the node does then: resets, exclusion, retirement. What
active faults take out of service makes the operational state of each RDU (table in ``words``) and what may be granted.

Beside what is known there is what is true: *conditions*, things that are really broken. They decide whether a reset
passes and whether a fault that was cleared comes back.

Source: runtime reference 1.4, 4.1, 4.2; ours where those say so. A machine keeps the newest rows only (``books``).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.hardware import NodeSpec
from rdukit_runtime.faults.books import MOST_ROWS, FaultBooks
from rdukit_runtime.faults.catalogue import fault_classes, find_class
from rdukit_runtime.faults.checks import Event, InjectionChecker, check_policy
from rdukit_runtime.faults.gathering import Gathering
from rdukit_runtime.faults.health import health_word, suspects_of
from rdukit_runtime.faults.hits import hit_by, owners_on
from rdukit_runtime.faults.model import (
    Changes,
    Condition,
    ErrorRow,
    FaultRow,
    HangRow,
    Injection,
    NoticeKind,
    OpState,
    Outcome,
    OwnerOf,
    Policy,
    Snapshot,
    nobody,
)
from rdukit_runtime.faults.rdus import RduStates, Reset
from rdukit_runtime.faults.records import ErrorRecord
from rdukit_runtime.faults.restoring import UNFINISHED, fitted
from rdukit_runtime.faults.words import Action, FaultState, HangEvent, HangOutcome, RduState
from rdukit_runtime.inventory import Component, ComponentKind, Health, Presence, node_tiles, rdu_path

_RESETS: Final = frozenset({Action.RESET_TILE, Action.RESET_RDU})
#: What a policy does when a reset failed or did not help often enough.
_INSTEAD_OF_RESET: Final = {Action.RESET_TILE: Action.EXCLUDE_TILE, Action.RESET_RDU: Action.RETIRE_RDU}
#: Classes whose condition makes the reset of their component fail: those about a tile or an RDU that does not work.
_STOPS_RESETS: Final = frozenset({*_RESETS, Action.EXCLUDE_TILE, Action.RETIRE_RDU})
_REPLAYS: Final = frozenset({"ETYPE_PCIE_CE", "ETYPE_PCIE_REPLAY"})


def no_serial(path: str) -> str:
    """Serial numbers of a node that knows none."""
    return "N/A"


class FaultMachine:
    """Everything that is known, and true, about what is broken on one node."""

    def __init__(
        self,
        node: NodeSpec,
        new_uuid: Callable[[], str],
        *,
        now_ns: int = 0,
        rdu_reset_ns: int = 0,
        serial_of: Callable[[str], str] = no_serial,
        most_rows: int = MOST_ROWS,
    ) -> None:
        """
        Args:
            new_uuid: returns one that was never used.
            rdu_reset_ns: how long the reset of an RDU takes; it is PENDING meanwhile, until ``advance``. 0: no time.
            serial_of: serial number of the component with a path.
        """
        self.node: Final = node
        self._new_uuid = new_uuid
        self._rdu_reset_ns = rdu_reset_ns
        self._serial_of = serial_of
        self._checker: Final = InjectionChecker(node)
        self._books: Final = FaultBooks(most_rows)
        self._rdus: Final = RduStates(node, now_ns)
        self._next_seed = 0
        #: By flat RDU number: corrected errors of its PCIe links since the machine was made.
        self._replays: Final[dict[int, int]] = dict.fromkeys(range(node.rdus), 0)

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def errors(self) -> tuple[ErrorRow, ...]:
        """Oldest first."""
        return tuple(record.row() for record in self._books.records.values())

    @property
    def faults(self) -> tuple[FaultRow, ...]:
        """Oldest first, cleared ones too."""
        return tuple(self._books.faults.values())

    @property
    def hangs(self) -> tuple[HangRow, ...]:
        """The hang-recovery log, oldest first."""
        return tuple(self._books.hangs.values())

    @property
    def policies(self) -> tuple[Policy, ...]:
        """One an error type."""
        return tuple(self._books.policies.values())

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is really broken; tools are not shown it."""
        return tuple(self._books.conditions.values())

    @property
    def is_healthy(self) -> bool:
        """No fault is active and no recovery is under way."""
        return not self._books.active and not self._rdus.resets

    @property
    def next_due_ns(self) -> int | None:
        """When ``advance`` has something to do; ``None``: nothing is under way."""
        return min((reset.due_ns for reset in self._rdus.resets.values()), default=None)

    def op_states(self) -> tuple[OpState, ...]:
        """One an RDU, by flat number."""
        return tuple(self._rdus.row(rdu) for rdu in range(self.node.rdus))

    def unusable_tiles(self) -> frozenset[int]:
        """Flat numbers of tiles that may not be granted."""
        return self._rdus.unusable_tiles()

    def retired_memory(self, rdu: int) -> int:
        """Bytes of an RDU's memory that may not be granted."""
        return self._rdus.losses(rdu).memory_bytes

    def active_faults(self, component: str = "/NODE") -> list[FaultRow]:
        """Active faults at or below a component, oldest first."""
        return self._books.active_rows(self._component(component).path)

    def pcie_replays(self) -> Mapping[int, int]:
        """By flat RDU number: corrected errors of its PCIe links since the machine was made."""
        return self._replays

    def health_of(self, component: Component | str) -> str:
        """A word of ``inventory.Health``. Never ``Online`` while a fault is active or a reset is under way at it, or
        below it."""
        found = self._component(component)
        return Health.OFFLINE if self.presence_of(found) == Presence.ABSENT else health_word(
            self.node, found, self._rdus, self._books.active_below
        )  # fmt: skip

    def presence_of(self, component: Component | str) -> str:
        """A word of ``inventory.Presence``: what is on an RDU that was removed is gone with it."""
        rdu = self._component(component).rdu
        if rdu is None or self._rdus.state(rdu) is not RduState.UNAVAILABLE:
            return Presence.PRESENT
        path = rdu_path(self.node, rdu)
        gone = any(fault_classes()[found.class_name].removes for found in self._books.conditions_at(path))
        return Presence.ABSENT if gone else Presence.PRESENT

    # -- what happens ------------------------------------------------------------------------------------------------

    def inject(self, events: Sequence[Injection], owner_of: OwnerOf, now_ns: int) -> Outcome:
        """Let hardware events happen, in order. All are checked first: if one is not legal none happens.

        Raises:
            InvalidArgument: a value is not legal; the message says what is.
        """
        seed = self._next_seed
        checked = [self._checker.check(event, seed + number) for number, event in enumerate(events)]
        self._next_seed += len(checked)
        gathering = Gathering()
        self._finish_due(gathering, owner_of, now_ns)
        for event in checked:
            self._occur(event, gathering, owner_of, now_ns)
        return gathering.outcome(self._books.faults)

    def advance(self, owner_of: OwnerOf, now_ns: int) -> Outcome:
        """End the resets that are due."""
        gathering = Gathering()
        self._finish_due(gathering, owner_of, now_ns)
        return gathering.outcome(self._books.faults)

    def clear(self, fault_uuid: str, by: str, owner_of: OwnerOf, now_ns: int) -> tuple[FaultRow, str | None, Outcome]:
        """End a fault and initialise its component again. If the cause is still there the fault comes back.

        Returns:
            The cleared row; the uuid of the fault that took its place, if any; what followed.
        Raises:
            NotFound: there is no such fault.
            Conflict: it is cleared already.
        """
        fault = self._books.faults.get(fault_uuid)
        if fault is None:
            raise NotFound(f"there is no fault {fault_uuid!r}; `snfadm -l fault` lists them")
        if not fault.is_active:
            raise Conflict(f"fault {fault_uuid} was cleared by {fault.cleared_by} already", fault=fault_uuid)
        gathering = Gathering()
        self._finish_due(gathering, owner_of, now_ns)
        ended = self._end_fault(fault, by, "cleared", NoticeKind.CLEAR, gathering, now_ns)
        returned = self._initialise(ended, gathering, now_ns)
        self._settle(ended.comp_name, f"{ended.fault_type} was cleared", None, gathering, owner_of, now_ns)
        return ended, returned, gathering.outcome(self._books.faults)

    def repair(self, component: str, by: str, now_ns: int) -> Outcome:
        """Mend everything that is broken at or below a component, and clear its faults.

        Returns:
            ``repaired`` counts conditions, ``cleared`` has the faults.
        Raises:
            InvalidArgument: the node has no such component.
        """
        path = self._component(component).path
        gathering = Gathering()
        self._finish_due(gathering, nobody, now_ns)
        for condition in self._books.conditions_below(path):
            self._books.remove_condition(condition)
            gathering.repaired += 1
        touched = {fault.comp_name for fault in self._books.active_rows(path)}
        for fault in self._books.active_rows(path):
            self._end_fault(fault, by, "repaired", NoticeKind.CLEAR, gathering, now_ns)
        gathering.notice(NoticeKind.REPAIR, path, f"{gathering.repaired} conditions repaired by {by}")
        for touched_path in sorted(touched):
            self._settle(touched_path, f"{touched_path} was repaired", None, gathering, nobody, now_ns)
        return gathering.outcome(self._books.faults)

    def reset(self, component: str, owner_of: OwnerOf, now_ns: int) -> tuple[HangRow, Outcome]:
        """Reset a tile or an RDU. Programs on it end; active faults stay until they are cleared.

        Raises:
            InvalidArgument: it is neither.
            Conflict: its RDU is being reset, or is not there.
        """
        found = self._component(component)
        if found.kind not in (ComponentKind.TILE, ComponentKind.RDU) or found.rdu is None:
            raise InvalidArgument(f"{found.path} is a {found.kind}; legal for a reset: a TILE or an RDU")
        gathering = Gathering()
        self._finish_due(gathering, owner_of, now_ns)
        if found.rdu in self._rdus.resets or self.presence_of(found) == Presence.ABSENT:
            state = "is being reset" if found.rdu in self._rdus.resets else "is not there"
            raise Conflict(f"{rdu_path(self.node, found.rdu)} {state}; look at `snconfig show Node op-state`")
        entry = find_class("tile-reset" if found.kind is ComponentKind.TILE else "chip-reset")
        last = next(reversed(self._books.hangs), 0)
        self._occur(Event(entry, found, 1, 0, {}, False, 0, None), gathering, owner_of, now_ns)
        hang = next(row for row in reversed(self._books.hangs.values()) if row.comp_name == found.path)
        assert hang.number > last, "a reset is in the hang log"
        return hang, gathering.outcome(self._books.faults)

    def set_policy(self, policy: Policy) -> Policy:
        """Put a policy in force, with its texts filled in.

        Raises:
            InvalidArgument: a value is not legal; the message says what is.
        """
        checked = check_policy(policy)
        self._books.set_policy(checked)
        return checked

    # -- the database ------------------------------------------------------------------------------------------------

    def take_changes(self) -> Changes:
        """Rows to write since the last call."""
        changes = self._books.take_changes()
        changed = tuple(self._rdus.row(rdu) for rdu in self._rdus.changed)
        self._rdus.changed.clear()
        return replace(changes, op_states=changed)

    def restore(self, snapshot: Snapshot, now_ns: int = 0) -> None:
        """Go on from what an earlier daemon wrote. Only for a machine to which nothing happened yet.

        A reset that was under way counts as failed; the RDU is initialised anew, which is diagnosed if it fails too.
        Rows about components that this node does not have stay in the lists, but such faults are cleared.
        """
        self._books.restore(fitted(snapshot, {component.path for component in self._checker.components}, now_ns))
        gathering = Gathering()
        for rdu in {row.rdu for row in snapshot.hangs if row.outcome in UNFINISHED and row.rdu < self.node.rdus}:
            path = rdu_path(self.node, rdu)
            if not self._try_reset(path):
                self._diagnose_conditions(self._component(path), None, gathering, now_ns)
        self._rdus.restore(snapshot.op_states, self._books.active_rows(), now_ns)

    def validate(self) -> None:
        """Derive every index, total and state again.

        Raises:
            AssertionError: a bug.
        """
        self._books.validate()
        self._rdus.validate(self._books.active_rows())
        for rdu in range(self.node.rdus):
            path = rdu_path(self.node, rdu)
            if self._books.active_below[path] or rdu in self._rdus.resets:
                assert self.health_of(path) != Health.ONLINE, f"{path} cannot be healthy"
        assert self.is_healthy == (self.health_of("/NODE") == Health.ONLINE), "the node's health"

    # -- consequences ------------------------------------------------------------------------------------------------

    def _occur(self, event: Event, gathering: Gathering, owner_of: OwnerOf, now_ns: int) -> None:
        entry, path = event.entry, event.component.path
        books = self._books
        record, is_new = books.open_record(event, self._new_uuid, self._draw, now_ns)
        owners = hit_by(self.node, event, owner_of)
        owner = owners[0] if owners else None
        in_window = record.add(event.count, owner, now_ns)
        books.touch(record)
        gathering.error(record, is_new, owner)
        if event.persists:
            books.set_condition(Condition(path, entry.name, now_ns, event.resets_that_fail, event.data))
        for hit in owners if entry.is_uncorrectable else ():
            gathering.hit(hit, path, entry.exception_code, record)
        if entry.error_type in _REPLAYS and event.component.rdu is not None:
            self._replays[event.component.rdu] += event.count
        policy = books.policies.get(entry.error_type)
        if policy is None:
            return
        if policy.action in _RESETS:
            self._respond(record, policy, in_window, event.component, gathering, owner_of, now_ns)
        elif record.fault is None and in_window >= policy.count:
            self._diagnose(record, policy, policy.action, gathering, now_ns)
            self._settle(path, policy.fault_desc, record, gathering, owner_of, now_ns)

    def _respond(
        self,
        record: ErrorRecord,
        policy: Policy,
        in_window: int,
        component: Component,
        gathering: Gathering,
        owner_of: OwnerOf,
        now_ns: int,
    ) -> None:
        """Try a reset; diagnose when it fails or errors come too often."""
        assert component.rdu is not None, "only parts of an RDU are reset"
        if component.rdu in self._rdus.resets or self.presence_of(component) == Presence.ABSENT:
            return  # a reset is under way already, or there is nothing to reset
        if record.fault is not None and not record.entry.is_command:
            return  # out of service already
        too_often = record.fault is None and in_window >= policy.count
        if policy.action is Action.RESET_RDU and not too_often:
            self._begin_reset(component.rdu, record, gathering, owner_of, now_ns)
            return
        passed = policy.action is Action.RESET_TILE and self._reset_tile(record, component, gathering, now_ns)
        if record.fault is None and (too_often or not passed):
            self._diagnose(record, policy, _INSTEAD_OF_RESET[policy.action], gathering, now_ns)
            self._settle(component.path, policy.fault_desc, record, gathering, owner_of, now_ns)

    def _reset_tile(self, record: ErrorRecord, component: Component, gathering: Gathering, now_ns: int) -> bool:
        assert component.rdu is not None, "a tile is on an RDU"
        passed = self._try_reset(component.path)
        outcome = HangOutcome.SUCCEEDED if passed else HangOutcome.FAILED
        self._books.add_hang(component.rdu, component.path, HangEvent.TILE_RESET, outcome, now_ns)
        gathering.notice(NoticeKind.RESET, component.path, f"tile reset {outcome.lower()}", record.uuid)
        return passed

    def _begin_reset(self, rdu: int, record: ErrorRecord, gathering: Gathering, owner_of: OwnerOf, now_ns: int) -> None:
        path = rdu_path(self.node, rdu)
        hang = self._books.add_hang(rdu, path, HangEvent.CHIP_RESET, HangOutcome.IN_PROGRESS, now_ns)
        for owner in owners_on(self.node, rdu, owner_of):
            gathering.hit(owner, path, record.entry.exception_code or "hardware-error", record)
        reset = Reset(now_ns + self._rdu_reset_ns, hang.number, path, record.component, record.entry.name, record.uuid)
        self._rdus.begin_reset(rdu, reset, record.entry.error_desc, now_ns)
        gathering.notice(NoticeKind.STATE, path, f"{RduState.PENDING}: {record.entry.error_desc}", record.uuid)
        if not self._rdu_reset_ns:
            self._finish_reset(rdu, gathering, now_ns)

    def _finish_due(self, gathering: Gathering, owner_of: OwnerOf, now_ns: int) -> None:
        for rdu in [rdu for rdu, reset in self._rdus.resets.items() if reset.due_ns <= now_ns]:
            self._finish_reset(rdu, gathering, now_ns)

    def _finish_reset(self, rdu: int, gathering: Gathering, now_ns: int) -> None:
        """Nobody is on the RDU: its programs ended when the reset began."""
        books, path, reset = self._books, rdu_path(self.node, rdu), self._rdus.resets[rdu]
        for tile in range(self.node.chip.tiles):
            self._try_reset(f"{path}/TILE_{tile}")
        passed = self._try_reset(path)
        books.end_hang(reset.hang, HangOutcome.SUCCEEDED if passed else HangOutcome.FAILED)
        gathering.notice(NoticeKind.RESET, path, f"RDU reset {'succeeded' if passed else 'failed'}", reset.error_uuid)
        reason = "init passed"
        if not passed:
            record = self._record_of_reset(reset, gathering, now_ns)
            policy = books.policies[record.entry.error_type]
            reason = policy.fault_desc
            if record.fault is None:
                self._diagnose(record, policy, Action.RETIRE_RDU, gathering, now_ns)
        active = books.active_rows(path)
        if passed and active:
            reason = f"{active[-1].fault_type} is active: {active[-1].fault_desc}"
        state = self._rdus.end_reset(rdu, active, reason, now_ns)
        gathering.notice(NoticeKind.STATE, path, f"{state}: {reason}", reset.error_uuid)

    def _record_of_reset(self, reset: Reset, gathering: Gathering, now_ns: int) -> ErrorRecord:
        """The error that asked for a reset which failed; another if a fault without consequence has that one."""
        books = self._books
        for component, name in ((reset.component, reset.class_name), (reset.rdu_path, "chip-reset")):
            entry = find_class(name)
            event = Event(entry, self._component(component), 1, reset.hang, {}, False, None, None)
            record, is_new = books.open_record(event, self._new_uuid, self._draw, now_ns)
            if is_new:
                record.add(1, None, now_ns)
                books.touch(record)
                gathering.error(record, is_new, None)
            if record.fault is None or books.faults[record.fault].action is Action.RETIRE_RDU:
                break
        return record

    def _try_reset(self, path: str) -> bool:
        """Whether the reset of the component passes: whatever is broken there takes one reset nearer to its cure."""
        passed = True
        for condition in self._books.conditions_at(path):
            if fault_classes()[condition.class_name].action not in _STOPS_RESETS:
                continue
            left = condition.resets_that_fail
            if left == 0:
                self._books.remove_condition(condition)
                continue
            passed = False
            if left is not None:
                self._books.set_condition(replace(condition, resets_that_fail=left - 1))
        return passed

    def _initialise(self, fault: FaultRow, gathering: Gathering, now_ns: int) -> str | None:
        """Start the component of a fault that was just cleared; the new fault if its cause is still there."""
        path = fault.comp_name
        component = self._component(path)
        if fault.action in (Action.EXCLUDE_TILE, Action.RETIRE_RDU):
            passed = self._try_reset(path)
            outcome = HangOutcome.SUCCEEDED if passed else HangOutcome.FAILED
            assert component.rdu is not None, "only parts of an RDU are taken out of service"
            self._books.add_hang(component.rdu, path, HangEvent.OTHER, outcome, now_ns)
            gathering.notice(NoticeKind.RESET, path, f"initialised again: {outcome.lower()}")
        return self._diagnose_conditions(component, fault.fault_type, gathering, now_ns)

    def _diagnose_conditions(
        self, component: Component, fault_type: str | None, gathering: Gathering, now_ns: int
    ) -> str | None:
        """The first active fault for what is broken at a component, made at once: those of one type, or those that stop
        a reset."""
        books, returned = self._books, None
        for condition in books.conditions_at(component.path):
            entry = find_class(condition.class_name)
            policy = books.policies.get(entry.error_type)
            if policy is None:
                continue
            if policy.fault_type != fault_type if fault_type is not None else entry.action not in _STOPS_RESETS:
                continue
            event = Event(entry, component, 1, now_ns, dict(condition.data), True, None, None)
            record, is_new = books.open_record(event, self._new_uuid, self._draw, now_ns)
            record.add(1, None, now_ns)
            books.touch(record)
            gathering.error(record, is_new, None)
            if record.fault is None:
                action = _INSTEAD_OF_RESET.get(policy.action, policy.action)
                made = self._diagnose(record, policy, action, gathering, now_ns)
                returned = returned or made
        return returned

    def _diagnose(self, record: ErrorRecord, policy: Policy, action: Action, gathering: Gathering, now_ns: int) -> str:
        """The active fault of this kind: a new one, or the one that is there already."""
        books, path = self._books, record.component
        known = books.active.get((path, policy.fault_type, action))
        if known is not None:
            books.diagnose(record, known)
            return known
        application, tenant, job = record.owner
        fault = FaultRow(
            fault_uuid=self._new_uuid(), fault_type=policy.fault_type, fault_state=FaultState.ACTIVE,
            severity=policy.severity, comp_name=path, comp_ser_num=self._serial_of(path),
            fault_desc=policy.fault_desc, recovery_act=policy.recovery_act, action=action, err_uuid=record.uuid,
            timestamp=now_ns, cleared_timestamp=None, cleared_by=None,
            suspects=suspects_of(self.node, self._component(path), record.entry),
            application=application, tenant=tenant, job=job,
        )  # fmt: skip
        books.add_fault(fault)
        books.diagnose(record, fault.fault_uuid)
        gathering.fault(fault)
        return fault.fault_uuid

    def _end_fault(
        self, fault: FaultRow, by: str, verb: str, kind: NoticeKind, gathering: Gathering, now_ns: int
    ) -> FaultRow:
        ended = self._books.end_fault(fault, by, f"{verb} by {by} at {_iso(now_ns)}", now_ns)
        gathering.cleared(ended, kind, by)
        return ended

    def _settle(
        self,
        path: str,
        reason: str,
        record: ErrorRecord | None,
        gathering: Gathering,
        owner_of: OwnerOf,
        now_ns: int,
    ) -> None:
        """Faults of a component came or went: operational state; programs on what is gone, because of ``record``."""
        rdu = self._component(path).rdu
        if rdu is None:
            return
        former = self._rdus.losses(rdu)
        reset = self._rdus.resets.get(rdu)
        rdu_name = rdu_path(self.node, rdu)
        moved = self._rdus.settle(rdu, self._books.active_rows(rdu_name), reason, now_ns)
        if reset is not None and rdu not in self._rdus.resets:
            self._books.end_hang(reset.hang, HangOutcome.FAILED)
        if moved:
            error_uuid = None if record is None else record.uuid
            gathering.notice(NoticeKind.STATE, rdu_name, f"{self._rdus.state(rdu)}: {reason}", error_uuid)
        if record is None:
            return
        losses = self._rdus.losses(rdu)
        if losses.whole and not former.whole:
            for owner in owners_on(self.node, rdu, owner_of):
                gathering.hit(owner, path, "hardware-error", record)
        for index in sorted(losses.tiles - former.tiles):
            tile = node_tiles(self.node)[index].path
            if (tile_owner := owner_of(tile)) is not None:
                gathering.hit(tile_owner, tile, "tile-fault", record)

    def _draw(self, event: Event) -> dict[str, object]:
        drawn = event.entry.draw(random.Random(f"{event.seed}:{event.entry.name}:{event.component.path}"), self.node)
        return {**drawn, **event.data}

    def _component(self, component: Component | str) -> Component:
        return component if isinstance(component, Component) else self._checker.find(component)


def _iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
