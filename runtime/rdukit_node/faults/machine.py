"""Fault management of one node: hardware events in; errors, diagnoses and their consequences out. Pure.

An event becomes an *error* row, or is counted in the open row of its component and type. The error type's policy
decides when errors are diagnosed as a *fault*, and the node's action: resets, exclusion, retirement. The components
that active faults take out of service determine the operational state of each RDU (table in ``enums``) and what may be
granted.

In addition to the known rows there are *conditions*: the parts that are really broken. They decide whether a reset
succeeds and whether a cleared fault returns.

Source: runtime reference 1.4, 4.1, 4.2; ours where those say so. A machine keeps the newest rows only (``registry``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.hardware import NodeSpec
from rdukit_node.faults.actions import FaultActions, OutcomeBuilder
from rdukit_node.faults.capacity import RduStates, health_word, is_at_or_below
from rdukit_node.faults.catalogue import CheckedInjection, InjectionChecker, check_policy, find_class
from rdukit_node.faults.enums import FaultState, HangOutcome
from rdukit_node.faults.model import (
    ChangedRows,
    Condition,
    ErrorRow,
    FaultOutcome,
    FaultRow,
    FaultSnapshot,
    FindOwner,
    HangRow,
    Injection,
    NoticeKind,
    OpState,
    Policy,
    nobody,
)
from rdukit_node.faults.registry import MAX_ROWS, FaultRegistry
from rdukit_node.inventory import ComponentHealth, ComponentKind, NodeComponent, Presence, has_serial, rdu_path


def no_serial(path: str, replaced: int) -> str:
    """Return the serial numbers of a node without any."""
    return "N/A"


#: Seconds that a thermal reading without a fault holds; as long as the window of its policy.
RECENT_S: Final = 60
_THERMAL_TYPES: Final = ("ETYPE_THERMAL_WARNING", "ETYPE_THERMAL_SHUTDOWN")


class FaultMachine:
    """The faults of one node: known errors and diagnoses, and the conditions that are really there."""

    def __init__(
        self,
        node: NodeSpec,
        new_uuid: Callable[[], str],
        *,
        now_ns: int = 0,
        rdu_reset_ns: int = 0,
        serial_of: Callable[[str, int], str] = no_serial,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """
        Args:
            new_uuid: returns a new uuid.
            rdu_reset_ns: duration of an RDU's reset; the RDU is PENDING meanwhile, until ``advance``. 0: no time.
            serial_of: serial number of the component with a path, by its number of replacements.
        """
        self.node: Final = node
        self._checker: Final = InjectionChecker(node)
        self._registry: Final = FaultRegistry(max_rows)
        self._rdus: Final = RduStates(node, now_ns)
        self._actions: Final = FaultActions(
            node, self._registry, self._rdus, self._checker.find, new_uuid, serial_of, rdu_reset_ns
        )
        self._next_seed = 0

    # -- known state
    # ------------------------------------------------------------------------------------------------------

    @property
    def errors(self) -> tuple[ErrorRow, ...]:
        """Oldest first."""
        return tuple(record.row() for record in self._registry.records.values())

    @property
    def faults(self) -> tuple[FaultRow, ...]:
        """Oldest first, cleared ones too."""
        return tuple(self._registry.faults.values())

    @property
    def hangs(self) -> tuple[HangRow, ...]:
        """The hang-recovery log, oldest first."""
        return tuple(self._registry.hangs.values())

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Policies, one for each error type."""
        return tuple(self._registry.policies.values())

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions that exist; tools do not show them."""
        return tuple(self._registry.conditions.values())

    @property
    def is_healthy(self) -> bool:
        """True if no fault is active and no recovery is under way."""
        return not self._registry.active and not self._rdus.resets

    @property
    def next_due_ns(self) -> int | None:
        """Time at which ``advance`` is due; ``None``: no reset is under way."""
        return min((reset.due_ns for reset in self._rdus.resets.values()), default=None)

    def op_states(self) -> tuple[OpState, ...]:
        """Return one an RDU, by flat number."""
        return tuple(self._rdus.row(rdu) for rdu in range(self.node.rdus))

    def unusable_tiles(self) -> frozenset[int]:
        """Return flat numbers of tiles that may not be granted."""
        return self._rdus.unusable_tiles()

    def retired_memory(self, rdu: int) -> int:
        """Return bytes of an RDU's memory that may not be granted."""
        return self._rdus.losses(rdu).memory_bytes

    def active_faults(self, component: str = "/NODE") -> list[FaultRow]:
        """Return active faults at or below a component, oldest first."""
        return self._registry.active_rows(self._actions.component(component).path)

    def pcie_replays(self) -> Mapping[int, int]:
        """Count the corrected errors of PCIe links by flat RDU number, since the machine was created."""
        return self._actions.replays

    def reported_celsius(self, now_ns: int) -> dict[int, float]:
        """Return the hottest reading that thermal errors report, by flat RDU number.

        An error counts while its fault is active; without a fault for ``RECENT_S`` after it came last.
        """
        found: dict[int, float] = {}
        for rdu in range(self.node.rdus):
            for error_type in _THERMAL_TYPES:
                record = self._registry.open_records.get((rdu_path(self.node, rdu), error_type))
                celsius = None if record is None else record.data.get("celsius")
                if record is None or not isinstance(celsius, int | float):
                    continue
                if record.fault is not None or now_ns - record.last <= RECENT_S * 10**9:
                    found[rdu] = max(found.get(rdu, 0.0), float(celsius))
        return found

    def health_of(self, component: NodeComponent | str) -> str:
        """Return a word of ``inventory.Health``. Never ``Online`` while the component, or a part of it, has an active
        fault or a reset in progress.
        """
        found = self._actions.component(component)
        return ComponentHealth.OFFLINE if self.presence_of(found) == Presence.ABSENT else health_word(
            self.node, found, self._rdus, self._registry.active_below
        )  # fmt: skip

    def presence_of(self, component: NodeComponent | str) -> str:
        """Return a word of ``inventory.Presence``: parts of a removed RDU are absent, too."""
        return self._actions.presence_of(component)

    # -- what happens ------------------------------------------------------------------------------------------------

    def inject(self, events: Sequence[Injection], owner_of: FindOwner, now_ns: int) -> FaultOutcome:
        """Apply hardware events, in order. All are checked first: if one is invalid, no event is applied.

        Raises:
            InvalidArgument: a value is not valid; the message has the legal ones.
        """
        seed = self._next_seed
        checked = [self._checker.check(event, seed + number) for number, event in enumerate(events)]
        self._next_seed += len(checked)
        builder = OutcomeBuilder()
        self._actions.finish_due(builder, owner_of, now_ns)
        for event in checked:
            self._actions.occur(event, builder, owner_of, now_ns)
        return builder.outcome(self._registry.faults)

    def advance(self, owner_of: FindOwner, now_ns: int) -> FaultOutcome:
        """End the resets that are due."""
        builder = OutcomeBuilder()
        self._actions.finish_due(builder, owner_of, now_ns)
        return builder.outcome(self._registry.faults)

    def clock_stepped(self, nanoseconds: int) -> None:
        """Shift pending times by the nanoseconds by which the wall clock was set."""
        self._rdus.shift_resets(nanoseconds)

    def clear(
        self, fault_uuid: str, by: str, owner_of: FindOwner, now_ns: int
    ) -> tuple[FaultRow, str | None, FaultOutcome]:
        """End a fault and initialise its component again. If the cause is still there the fault comes back.

        Returns:
            The cleared row; the uuid of the fault that took its place, if any; what followed.
        Raises:
            NotFound: there is no such fault.
            Conflict: the fault is already cleared.
        """
        fault = self._registry.faults.get(fault_uuid)
        if fault is None:
            raise NotFound(f"unknown fault {fault_uuid!r}; `snfadm -l fault` lists faults")
        if not fault.is_active:
            raise Conflict(f"fault {fault_uuid} was already cleared by {fault.cleared_by}", fault=fault_uuid)
        builder = OutcomeBuilder()
        self._actions.finish_due(builder, owner_of, now_ns)
        ended = self._actions.end_fault(fault, by, "cleared", NoticeKind.CLEAR, builder, now_ns)
        returned = self._actions.initialise(ended, builder, now_ns)
        self._actions.settle(ended.comp_name, f"{ended.fault_type} was cleared", None, builder, owner_of, now_ns)
        return ended, returned, builder.outcome(self._registry.faults)

    def repair(self, component: str, by: str, now_ns: int) -> FaultOutcome:
        """Mend everything that is broken at or below a component, and clear its faults.

        Returns:
            ``repaired`` counts conditions, ``cleared`` has the faults.
        Raises:
            InvalidArgument: the node has no such component.
        """
        path = self._actions.component(component).path
        builder = OutcomeBuilder()
        self._actions.finish_due(builder, nobody, now_ns)
        for condition in self._registry.conditions_below(path):
            self._registry.remove_condition(condition)
            builder.repaired += 1
        touched = {fault.comp_name for fault in self._registry.active_rows(path)}
        for fault in self._registry.active_rows(path):
            self._actions.end_fault(fault, by, "repaired", NoticeKind.CLEAR, builder, now_ns)
        builder.notice(NoticeKind.REPAIR, path, f"{builder.repaired} conditions repaired by {by}")
        for touched_path in sorted(touched):
            self._actions.settle(touched_path, f"{touched_path} was repaired", None, builder, nobody, now_ns)
        return builder.outcome(self._registry.faults)

    def replace(self, component: str, by: str, now_ns: int) -> tuple[dict[str, str], FaultOutcome]:
        """Replace the parts with serial numbers at or below a component.

        Damage disappears with the old parts, and counts of errors restart.

        Returns:
            New serial numbers by path, and the result of ``repair``.
        Raises:
            InvalidArgument: the node has no such component, or no part of it has a serial number.
        """
        path = self._actions.component(component).path
        parts = [each.path for each in self._checker.components if has_serial(each) and is_at_or_below(each.path, path)]
        if not parts:
            raise InvalidArgument(
                f"{path} has no replaceable part; expected an RDU, a DIMM, or a component that contains one"
            )
        outcome = self.repair(path, by, now_ns)
        self._registry.restart_windows(path)
        for part in parts:
            self._registry.replace_part(part)
        return {part: self._actions.serial_of(part) for part in parts}, outcome

    def reset_counts(self, component: str) -> int:
        """Reset the error counts at or below a component: earlier errors no longer contribute to faults.

        Returns:
            Rows that this concerns; they keep their totals.
        Raises:
            InvalidArgument: the node has no such component.
        """
        return self._registry.restart_windows(self._actions.component(component).path)

    @property
    def replaced(self) -> Mapping[str, int]:
        """Number of replacements of parts, by path."""
        return self._registry.replaced

    def reset(self, component: str, owner_of: FindOwner, now_ns: int) -> tuple[HangRow, FaultOutcome]:
        """Reset a tile or an RDU. Programs on it end; active faults stay until they are cleared.

        Raises:
            InvalidArgument: the component is neither.
            Conflict: its RDU is being reset, or is not there.
        """
        found = self._actions.component(component)
        if found.kind not in (ComponentKind.TILE, ComponentKind.RDU) or found.rdu is None:
            raise InvalidArgument(f"{found.path} is a {found.kind}, which cannot be reset; expected a TILE or an RDU")
        builder = OutcomeBuilder()
        self._actions.finish_due(builder, owner_of, now_ns)
        if found.rdu in self._rdus.resets or self.presence_of(found) == Presence.ABSENT:
            state = "is being reset" if found.rdu in self._rdus.resets else "is not there"
            raise Conflict(f"{rdu_path(self.node, found.rdu)} {state}; look at `snconfig show Node op-state`")
        entry = find_class("tile-reset" if found.kind is ComponentKind.TILE else "chip-reset")
        last = next(reversed(self._registry.hangs), 0)
        self._actions.occur(CheckedInjection(entry, found, 1, 0, {}, False, 0, None), builder, owner_of, now_ns)
        hang = next(row for row in reversed(self._registry.hangs.values()) if row.comp_name == found.path)
        assert hang.number > last, "the hang log records the reset"
        return hang, builder.outcome(self._registry.faults)

    def set_policy(self, policy: Policy) -> Policy:
        """Put a policy in force, with the catalogue's texts.

        Raises:
            InvalidArgument: a value is not valid; the message has the legal ones.
        """
        checked = check_policy(policy)
        self._registry.set_policy(checked)
        return checked

    # -- the database ------------------------------------------------------------------------------------------------

    def take_changes(self) -> ChangedRows:
        """Return rows to write since the last call."""
        changes = self._registry.take_changes()
        changed = tuple(self._rdus.row(rdu) for rdu in self._rdus.changed)
        self._rdus.changed.clear()
        return replace(changes, op_states=changed)

    def restore(self, snapshot: FaultSnapshot, now_ns: int = 0) -> None:
        """Continue from the rows of an earlier daemon. Only for a new machine, without events.

        An unfinished reset counts as failed; the RDU is initialised again, which is diagnosed if it also fails.
        Rows about components that this node does not have stay in the lists, but such faults are cleared.
        """
        self._registry.restore(
            fit_to_node(snapshot, {component.path for component in self._checker.components}, now_ns)
        )
        builder = OutcomeBuilder()
        for rdu in {row.rdu for row in snapshot.hangs if row.outcome in UNFINISHED and row.rdu < self.node.rdus}:
            path = rdu_path(self.node, rdu)
            if not self._actions.try_reset(path):
                self._actions.diagnose_conditions(self._actions.component(path), None, builder, now_ns)
        self._rdus.restore(snapshot.op_states, self._registry.active_rows(), now_ns)

    def validate(self) -> None:
        """Derive every index, total and state again.

        Raises:
            AssertionError: a bug.
        """
        self._registry.validate()
        self._rdus.validate(self._registry.active_rows())
        for rdu in range(self.node.rdus):
            path = rdu_path(self.node, rdu)
            if self._registry.active_below[path] or rdu in self._rdus.resets:
                assert self.health_of(path) != ComponentHealth.ONLINE, f"{path} cannot be healthy"
        assert self.is_healthy == (self.health_of("/NODE") == ComponentHealth.ONLINE), "the node's health"


#: Outcomes of recoveries that were under way.
UNFINISHED: Final = frozenset({HangOutcome.IN_PROGRESS, HangOutcome.PENDING})


def fit_to_node(snapshot: FaultSnapshot, paths: Collection[str], now_ns: int) -> FaultSnapshot:
    """Return ``snapshot`` for a node with the components ``paths``.

    Faults of other components are cleared, their conditions left out; recoveries that were under way have failed.
    """
    faults = tuple(
        row
        if not row.is_active or row.comp_name in paths
        else replace(
            row, fault_state=FaultState.CLEARED, cleared_timestamp=now_ns, cleared_by="snd",
            fault_desc=f"{row.fault_desc} (this node has no such component)",
        )
        for row in snapshot.faults
    )  # fmt: skip
    hangs = tuple(
        replace(row, outcome=HangOutcome.FAILED) if row.outcome in UNFINISHED else row for row in snapshot.hangs
    )
    conditions = tuple(row for row in snapshot.conditions if row.component in paths)
    return replace(snapshot, faults=faults, hangs=hangs, conditions=conditions)
