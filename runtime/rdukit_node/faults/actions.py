"""Actions that follow from hardware events: diagnoses, resets, retirement, interrupts of the owners. Pure."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from rdukit.hardware import NodeSpec
from rdukit_node.faults.capacity import RduStates, Reset, suspects_of
from rdukit_node.faults.catalogue import CheckedInjection, fault_classes, find_class
from rdukit_node.faults.enums import Action, FaultState, HangEvent, HangOutcome, RduState
from rdukit_node.faults.model import (
    Condition,
    FaultOutcome,
    FaultRow,
    FindOwner,
    Interrupt,
    Notice,
    NoticeKind,
    Policy,
    TileOwner,
)
from rdukit_node.faults.records import ErrorRecord, owner_fields
from rdukit_node.faults.register import ImpactScope
from rdukit_node.faults.registry import FaultRegistry
from rdukit_node.inventory import ComponentKind, NodeComponent, Presence, node_tiles, rdu_path


class OutcomeBuilder:
    """Grows into an ``FaultOutcome``."""

    def __init__(self) -> None:
        #: Distinct, in the order in which they were added or counted up.
        self._errors: Final[dict[str, None]] = {}
        self._faults: Final[dict[str, None]] = {}
        self._notices: Final[list[Notice]] = []
        #: By lease: the owner that was hit, with the component, exception code and error of the first hit.
        self._hits: Final[dict[str, tuple[TileOwner, str, str, ErrorRecord]]] = {}
        self._cleared: Final[list[str]] = []
        self.repaired = 0

    def error(self, record: ErrorRecord, is_new: bool, owner: TileOwner | None) -> None:
        """Add an error row that was opened or counted up."""
        self._errors[record.uuid] = None
        if record.fault is not None:
            self._faults[record.fault] = None
        if is_new:
            kind, entry = NoticeKind.ERROR, record.entry
            self._notices.append(
                Notice(kind, record.component, record.uuid, None, f"{entry.error_type}: {entry.error_desc}", owner)
            )

    def fault(self, row: FaultRow) -> None:
        """Add a diagnosed fault."""
        self._faults[row.fault_uuid] = None
        reason = f"{row.severity} {row.fault_type}: {row.fault_desc}; action: {row.action}"
        self._notices.append(Notice(NoticeKind.FAULT, row.comp_name, row.err_uuid, row.fault_uuid, reason))

    def cleared(self, row: FaultRow, kind: NoticeKind, by: str) -> None:
        """Add a fault that was cleared."""
        self._cleared.append(row.fault_uuid)
        self._notices.append(Notice(kind, row.comp_name, row.err_uuid, row.fault_uuid, f"{row.fault_type} by {by}"))

    def notice(self, kind: NoticeKind, component: str, reason: str, error_uuid: str | None = None) -> None:
        """Add another notice."""
        self._notices.append(Notice(kind, component, error_uuid, None, reason))

    def hit(self, owner: TileOwner, component: str, code: str, record: ErrorRecord) -> None:
        """Add a lease whose program must end; its first error counts."""
        self._hits.setdefault(owner.lease, (owner, component, code, record))

    def outcome(self, faults: dict[str, FaultRow]) -> FaultOutcome:
        """Build the outcome; ``faults`` has the rows that errors were diagnosed into."""
        return FaultOutcome(
            tuple(self._errors),
            tuple(self._faults),
            tuple(_interrupt(*hit, faults) for hit in self._hits.values()),
            tuple(self._notices),
            self.repaired,
            tuple(self._cleared),
        )


def _interrupt(
    owner: TileOwner, component: str, code: str, record: ErrorRecord, faults: dict[str, FaultRow]
) -> Interrupt:
    fault = None if record.fault is None else faults.get(record.fault)
    row = record.row()
    known_as = f"error {row.err_uuid}" + ("" if fault is None else f", fault {fault.fault_uuid}")
    step = "start the program again" if fault is None else fault.recovery_act
    message = f"{record.entry.error_desc} ({record.component}) under {owner.label}; {known_as}. Next: {step}"
    return Interrupt(component, code, row, fault, message, owner)


def affected_owners(node: NodeSpec, event: CheckedInjection, owner_of: FindOwner) -> list[TileOwner]:
    """Return the leases that ``event`` hits. An event on a tile always gives the owner of the tile, for the record."""
    component, impact = event.component, event.entry.impact
    if component.kind is ComponentKind.TILE:
        owner = owner_of(component.path)
        return [] if owner is None else [owner]
    if component.rdu is None or impact is ImpactScope.NOBODY:
        return []
    owners = owners_on(node, component.rdu, owner_of)
    if impact is ImpactScope.RDU or not owners:
        return owners
    chosen = [owner for owner in owners if owner.lease == event.lease] if event.lease is not None else []
    return chosen or [random.Random(f"{event.seed}:{component.path}").choice(owners)]


def owners_on(node: NodeSpec, rdu: int, owner_of: FindOwner) -> list[TileOwner]:
    """List the holders of tiles on an RDU, in the order of their first tile."""
    path = rdu_path(node, rdu)
    found = (owner_of(f"{path}/TILE_{tile}") for tile in range(node.chip.tiles))
    return list({owner.lease: owner for owner in found if owner is not None}.values())


_RESETS: Final = frozenset({Action.RESET_TILE, Action.RESET_RDU})
#: Actions of a policy after a reset that failed, or did not help often enough.
_INSTEAD_OF_RESET: Final = {Action.RESET_TILE: Action.EXCLUDE_TILE, Action.RESET_RDU: Action.RETIRE_RDU}
#: Classes whose condition makes a reset of the component fail: broken tiles and RDUs.
_STOPS_RESETS: Final = frozenset({*_RESETS, Action.EXCLUDE_TILE, Action.RETIRE_RDU})
_REPLAYS: Final = frozenset({"ETYPE_PCIE_CE", "ETYPE_PCIE_REPLAY"})


class FaultActions:
    """The actions of events, clears and resets, on the rows and the RDU states that the machine shares."""

    def __init__(
        self,
        node: NodeSpec,
        registry: FaultRegistry,
        rdus: RduStates,
        find: Callable[[str], NodeComponent],
        new_uuid: Callable[[], str],
        serial_of: Callable[[str, int], str],
        rdu_reset_ns: int,
    ) -> None:
        """
        Args:
            find: the component of a path, or ``InvalidArgument``.
            new_uuid, serial_of, rdu_reset_ns: as of ``FaultMachine``.
        """
        self.node: Final = node
        self._registry = registry
        self._rdus = rdus
        self._find = find
        self._new_uuid = new_uuid
        self._serial_of = serial_of
        self._rdu_reset_ns = rdu_reset_ns
        #: By flat RDU number: corrected errors of its PCIe links since the machine was created.
        self.replays: Final[dict[int, int]] = dict.fromkeys(range(node.rdus), 0)

    def serial_of(self, path: str) -> str:
        """Return the serial number of the part that is there now."""
        return self._serial_of(path, self._registry.replaced.get(path, 0))

    def component(self, component: NodeComponent | str) -> NodeComponent:
        """Return the component of a path.

        Raises:
            InvalidArgument: the node lacks the component.
        """
        return component if isinstance(component, NodeComponent) else self._find(component)

    def presence_of(self, component: NodeComponent | str) -> str:
        """Return a word of ``inventory.Presence``: parts of a removed RDU are absent, too."""
        rdu = self.component(component).rdu
        if rdu is None or self._rdus.state(rdu) is not RduState.UNAVAILABLE:
            return Presence.PRESENT
        path = rdu_path(self.node, rdu)
        gone = any(fault_classes()[found.class_name].removes for found in self._registry.conditions_at(path))
        return Presence.ABSENT if gone else Presence.PRESENT

    def occur(self, event: CheckedInjection, builder: OutcomeBuilder, owner_of: FindOwner, now_ns: int) -> None:
        """Apply one event: record its error, follow its policy, interrupt the owners."""
        entry, path = event.entry, event.component.path
        registry = self._registry
        record, is_new = registry.open_record(event, self._new_uuid, self._sample, now_ns)
        owners = affected_owners(self.node, event, owner_of)
        owner = owners[0] if owners else None
        in_window = record.add(event.count, owner, now_ns)
        registry.touch(record)
        builder.error(record, is_new, owner)
        if event.persists:
            registry.set_condition(Condition(path, entry.name, now_ns, event.resets_that_fail, event.data))
        for hit in owners if entry.is_uncorrectable else ():
            builder.hit(hit, path, entry.exception_code, record)
        if entry.error_type in _REPLAYS and event.component.rdu is not None:
            self.replays[event.component.rdu] += event.count
        policy = registry.policies.get(entry.error_type)
        if policy is None:
            return
        if policy.action in _RESETS:
            self._respond(record, policy, in_window, event.component, builder, owner_of, now_ns)
        elif record.fault is None and in_window >= policy.count:
            self._diagnose(record, policy, policy.action, builder, now_ns)
            self.settle(path, policy.fault_desc, record, builder, owner_of, now_ns)

    def _respond(
        self,
        record: ErrorRecord,
        policy: Policy,
        in_window: int,
        component: NodeComponent,
        builder: OutcomeBuilder,
        owner_of: FindOwner,
        now_ns: int,
    ) -> None:
        """Try a reset; diagnose when it fails or errors come too often."""
        assert component.rdu is not None, "only an RDU or its tiles can be reset"
        if component.rdu in self._rdus.resets or self.presence_of(component) == Presence.ABSENT:
            return  # a reset is under way already, or the component is absent
        if record.fault is not None and not record.entry.is_command:
            return  # out of service already
        too_often = record.fault is None and in_window >= policy.count
        if policy.action is Action.RESET_RDU and not too_often:
            self._begin_reset(component.rdu, record, builder, owner_of, now_ns)
            return
        passed = policy.action is Action.RESET_TILE and self._reset_tile(record, component, builder, now_ns)
        if record.fault is None and (too_often or not passed):
            self._diagnose(record, policy, _INSTEAD_OF_RESET[policy.action], builder, now_ns)
            self.settle(component.path, policy.fault_desc, record, builder, owner_of, now_ns)

    def _reset_tile(self, record: ErrorRecord, component: NodeComponent, builder: OutcomeBuilder, now_ns: int) -> bool:
        assert component.rdu is not None, "a tile is on an RDU"
        passed = self.try_reset(component.path)
        outcome = HangOutcome.SUCCEEDED if passed else HangOutcome.FAILED
        self._registry.add_hang(component.rdu, component.path, HangEvent.TILE_RESET, outcome, now_ns)
        builder.notice(NoticeKind.RESET, component.path, f"tile reset {outcome.lower()}", record.uuid)
        return passed

    def _begin_reset(
        self, rdu: int, record: ErrorRecord, builder: OutcomeBuilder, owner_of: FindOwner, now_ns: int
    ) -> None:
        path = rdu_path(self.node, rdu)
        hang = self._registry.add_hang(rdu, path, HangEvent.CHIP_RESET, HangOutcome.IN_PROGRESS, now_ns)
        for owner in owners_on(self.node, rdu, owner_of):
            builder.hit(owner, path, record.entry.exception_code or "hardware-error", record)
        reset = Reset(now_ns + self._rdu_reset_ns, hang.number, path, record.component, record.entry.name, record.uuid)
        self._rdus.begin_reset(rdu, reset, record.entry.error_desc, now_ns)
        builder.notice(NoticeKind.STATE, path, f"{RduState.PENDING}: {record.entry.error_desc}", record.uuid)
        if not self._rdu_reset_ns:
            self._finish_reset(rdu, builder, now_ns)

    def finish_due(self, builder: OutcomeBuilder, owner_of: FindOwner, now_ns: int) -> None:
        """End the resets that are due."""
        for rdu in [rdu for rdu, reset in self._rdus.resets.items() if reset.due_ns <= now_ns]:
            self._finish_reset(rdu, builder, now_ns)

    def _finish_reset(self, rdu: int, builder: OutcomeBuilder, now_ns: int) -> None:
        """End a reset. The RDU is empty: its programs ended when the reset began."""
        registry, path, reset = self._registry, rdu_path(self.node, rdu), self._rdus.resets[rdu]
        for tile in range(self.node.chip.tiles):
            self.try_reset(f"{path}/TILE_{tile}")
        passed = self.try_reset(path)
        registry.end_hang(reset.hang, HangOutcome.SUCCEEDED if passed else HangOutcome.FAILED)
        builder.notice(NoticeKind.RESET, path, f"RDU reset {'succeeded' if passed else 'failed'}", reset.error_uuid)
        reason = "init passed"
        if not passed:
            record = self._record_of_reset(reset, builder, now_ns)
            policy = registry.policies[record.entry.error_type]
            reason = policy.fault_desc
            if record.fault is None:
                self._diagnose(record, policy, Action.RETIRE_RDU, builder, now_ns)
        active = registry.rows_concerning(path)
        if passed and active:
            reason = f"{active[-1].fault_type} is active: {active[-1].fault_desc}"
        state = self._rdus.end_reset(rdu, active, reason, now_ns)
        builder.notice(NoticeKind.STATE, path, f"{state}: {reason}", reset.error_uuid)

    def _record_of_reset(self, reset: Reset, builder: OutcomeBuilder, now_ns: int) -> ErrorRecord:
        """Return the error that requested a failed reset, or another if a fault without consequence has that one."""
        registry = self._registry
        for component, name in ((reset.component, reset.class_name), (reset.rdu_path, "chip-reset")):
            entry = find_class(name)
            event = CheckedInjection(entry, self.component(component), 1, reset.hang, {}, False, None, None)
            record, is_new = registry.open_record(event, self._new_uuid, self._sample, now_ns)
            if is_new:
                record.add(1, None, now_ns)
                registry.touch(record)
                builder.error(record, is_new, None)
            if record.fault is None or registry.faults[record.fault].action is Action.RETIRE_RDU:
                break
        return record

    def try_reset(self, path: str) -> bool:
        """Return whether the component's reset succeeds; each reset reduces the remaining failures of its
        conditions."""
        passed = True
        for condition in self._registry.conditions_at(path):
            if fault_classes()[condition.class_name].action not in _STOPS_RESETS:
                continue
            left = condition.resets_that_fail
            if left == 0:
                self._registry.remove_condition(condition)
                continue
            passed = False
            if left is not None:
                self._registry.set_condition(replace(condition, resets_that_fail=left - 1))
        return passed

    def initialise(self, fault: FaultRow, builder: OutcomeBuilder, now_ns: int) -> str | None:
        """Start the component of a fault that was just cleared; the new fault if its cause is still there."""
        path = fault.comp_name
        component = self.component(path)
        if fault.action in (Action.EXCLUDE_TILE, Action.RETIRE_RDU):
            passed = self.try_reset(path)
            outcome = HangOutcome.SUCCEEDED if passed else HangOutcome.FAILED
            assert component.rdu is not None, "only an RDU's parts can be taken out of service"
            self._registry.add_hang(component.rdu, path, HangEvent.OTHER, outcome, now_ns)
            builder.notice(NoticeKind.RESET, path, f"initialised again: {outcome.lower()}")
        return self.diagnose_conditions(component, fault.fault_type, builder, now_ns)

    def diagnose_conditions(
        self, component: NodeComponent, fault_type: str | None, builder: OutcomeBuilder, now_ns: int
    ) -> str | None:
        """Diagnose the conditions of a component at once, of one type or those that stop a reset; return the first
        active fault.
        """
        registry, returned = self._registry, None
        for condition in registry.conditions_at(component.path):
            entry = find_class(condition.class_name)
            policy = registry.policies.get(entry.error_type)
            if policy is None:
                continue
            if policy.fault_type != fault_type if fault_type is not None else entry.action not in _STOPS_RESETS:
                continue
            event = CheckedInjection(entry, component, 1, now_ns, dict(condition.data), True, None, None)
            record, is_new = registry.open_record(event, self._new_uuid, self._sample, now_ns)
            record.add(1, None, now_ns)
            registry.touch(record)
            builder.error(record, is_new, None)
            if record.fault is None:
                action = _INSTEAD_OF_RESET.get(policy.action, policy.action)
                made = self._diagnose(record, policy, action, builder, now_ns)
                returned = returned or made
        return returned

    def _diagnose(
        self, record: ErrorRecord, policy: Policy, action: Action, builder: OutcomeBuilder, now_ns: int
    ) -> str:
        """Return the active fault of this kind: the existing one, or a new one."""
        registry, path = self._registry, record.component
        known = registry.active.get((path, policy.fault_type, action))
        if known is not None:
            registry.diagnose(record, known)
            return known
        application, tenant, job, lease, pid = owner_fields(record.owner)
        uuid = self._new_uuid()
        fault = FaultRow(
            fault_uuid=uuid, fault_type=policy.fault_type, fault_state=FaultState.ACTIVE,
            severity=policy.severity, comp_name=path, comp_ser_num=self.serial_of(path),
            fault_desc=policy.fault_desc, recovery_act=self._advice(policy, path, uuid), action=action,
            err_uuid=record.uuid,
            timestamp=now_ns, cleared_timestamp=None, cleared_by=None,
            suspects=suspects_of(self.node, self.component(path), record.entry),
            application=application, tenant=tenant, job=job, lease=lease, pid=pid,
        )  # fmt: skip
        registry.add_fault(fault)
        registry.diagnose(record, fault.fault_uuid)
        builder.fault(fault)
        return fault.fault_uuid

    def _advice(self, policy: Policy, path: str, fault_uuid: str) -> str:
        """Return advice for a real node, and for this one, whose parts cannot be removed by hand."""
        is_broken = any(find_class(each.class_name).fault_type == policy.fault_type
                        for each in self._registry.conditions_at(path))  # fmt: skip
        command = f"--repair {path}" if is_broken else f"--clear {fault_uuid}"
        return f"{policy.recovery_act} On emulated hardware: snfadm {command}".lstrip()

    def end_fault(
        self, fault: FaultRow, by: str, verb: str, kind: NoticeKind, builder: OutcomeBuilder, now_ns: int
    ) -> FaultRow:
        """Clear a fault; the cleared row. ``verb``: how, for its description."""
        ended = self._registry.end_fault(fault, by, f"{verb} by {by} at {_iso(now_ns)}", now_ns)
        builder.cleared(ended, kind, by)
        return ended

    def settle(
        self,
        path: str,
        reason: str,
        record: ErrorRecord | None,
        builder: OutcomeBuilder,
        owner_of: FindOwner,
        now_ns: int,
    ) -> None:
        """Update the operational state after changes of faults; ``record`` interrupts programs on lost components."""
        component = self.component(path)
        if component.rdu is not None:
            self._settle_rdu(component.rdu, path, reason, record, builder, owner_of, now_ns)
        elif component.kind is ComponentKind.NODE:
            # The affected program is unknown, so programs with tiles continue.
            for rdu in range(self.node.rdus):
                self._settle_rdu(rdu, path, reason, None, builder, owner_of, now_ns)

    def _settle_rdu(
        self,
        rdu: int,
        path: str,
        reason: str,
        record: ErrorRecord | None,
        builder: OutcomeBuilder,
        owner_of: FindOwner,
        now_ns: int,
    ) -> None:
        former = self._rdus.losses(rdu)
        reset = self._rdus.resets.get(rdu)
        rdu_name = rdu_path(self.node, rdu)
        moved = self._rdus.settle(rdu, self._registry.rows_concerning(rdu_name), reason, now_ns)
        if reset is not None and rdu not in self._rdus.resets:
            self._registry.end_hang(reset.hang, HangOutcome.FAILED)
        if moved:
            error_uuid = None if record is None else record.uuid
            builder.notice(NoticeKind.STATE, rdu_name, f"{self._rdus.state(rdu)}: {reason}", error_uuid)
        if record is None:
            return
        losses = self._rdus.losses(rdu)
        if losses.whole and not former.whole:
            for owner in owners_on(self.node, rdu, owner_of):
                builder.hit(owner, path, "hardware-error", record)
        for index in sorted(losses.tiles - former.tiles):
            tile = node_tiles(self.node)[index].path
            if (tile_owner := owner_of(tile)) is not None:
                builder.hit(tile_owner, tile, "tile-fault", record)

    def _sample(self, event: CheckedInjection) -> dict[str, object]:
        data = event.entry.sample(random.Random(f"{event.seed}:{event.entry.name}:{event.component.path}"), self.node)
        return {**data, **event.data}


def _iso(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
