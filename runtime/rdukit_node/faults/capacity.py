"""Capacity that active faults take out of service, and what follows: RDU states, component health, suspects. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, RduEvent, RduState, next_rdu_state
from rdukit_node.faults.model import FaultRow, OpState
from rdukit_node.faults.register import FaultClass, Suspect
from rdukit_node.inventory import (
    ComponentHealth,
    ComponentKind,
    NodeComponent,
    components,
    find_component,
    rdu_path,
    tile_of_path,
)


@dataclass(frozen=True, slots=True)
class LostCapacity:
    """Out of service on one RDU."""

    #: Flat tile numbers.
    tiles: frozenset[int] = frozenset()
    #: Paths of memory channels and of PCIe links.
    channels: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    memory_bytes: int = 0
    #: Whether it is completely unusable.
    whole: bool = False

    @property
    def state(self) -> RduState:
        """The operational state of an RDU that is not just being reset."""
        if self.whole:
            return RduState.UNAVAILABLE
        return RduState.DEGRADED if self.tiles or self.channels or self.links else RduState.FUNCTIONAL


NOTHING_LOST = LostCapacity()


def lost_capacity(node: NodeSpec, rdu: int, active: Iterable[FaultRow]) -> LostCapacity:
    """Sum the losses of the active faults of the RDU with the flat number ``rdu``."""
    rows = [row for row in active if row.action is not Action.NONE]
    if not rows:
        return NOTHING_LOST
    tiles = frozenset(tile_of_path(node, row.comp_name).index for row in rows if row.action is Action.EXCLUDE_TILE)
    links = frozenset(row.comp_name for row in rows if row.action is Action.REROUTE)
    channels = frozenset(channel_of(node, row.comp_name) for row in rows if row.action is Action.RETIRE_CHANNEL)
    all_channels, all_links = _paths(node, rdu, ComponentKind.DDR_CHANNEL), _paths(node, rdu, ComponentKind.PCIE)
    whole = (
        any(row.action in (Action.RETIRE_RDU, Action.RETIRE_NODE) for row in rows)
        or len(tiles) == node.chip.tiles
        or 0 < len(all_channels) == len(channels)
        or 0 < len(all_links) == len(links)
    )
    memory = node.chip.ddr_bytes if whole else sum(find_component(node, path).size_bytes for path in channels)
    return LostCapacity(tiles, channels, links, memory, whole)


def channel_of(node: NodeSpec, path: str) -> str:
    """Return the memory channel that a DIMM is on; a channel's own path is its own."""
    component = find_component(node, path)
    return component.parent if component.kind is ComponentKind.DIMM else component.path


def is_at_or_below(path: str, above: str) -> bool:
    """Return whether ``path`` is ``above`` or a component below it."""
    return path == above or path.startswith(above + "/")


def concerns(row: FaultRow, path: str) -> bool:
    """Return whether a fault may take something of the RDU ``path`` out of service: its own, or the whole node's."""
    return row.action is Action.RETIRE_NODE or is_at_or_below(row.comp_name, path)


def _paths(node: NodeSpec, rdu: int, kind: ComponentKind) -> list[str]:
    prefix = rdu_path(node, rdu) + "/"
    return [component.path for component in components(node) if component.kind is kind and component.rdu == rdu
            and component.path.startswith(prefix)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset that is under way: its end, its row in the hang log, and the requester."""

    due_ns: int
    hang: int
    rdu_path: str
    #: Component and class of the error that asked for it, and its row.
    component: str
    class_name: str
    error_uuid: str


class RduStates:
    """Operational states, parts out of service, and resets under way."""

    def __init__(self, node: NodeSpec, now_ns: int) -> None:
        self._node: Final = node
        self._states: Final = [RduState.FUNCTIONAL] * node.rdus
        self._reasons: Final = ["init passed"] * node.rdus
        self._since: Final = [now_ns] * node.rdus
        self._losses: Final = [NOTHING_LOST] * node.rdus
        #: By flat RDU number; exactly those that are PENDING.
        self.resets: Final[dict[int, Reset]] = {}
        #: RDUs whose row changed since it was last asked.
        self.changed: Final[dict[int, None]] = dict.fromkeys(range(node.rdus))
        self._unusable: frozenset[int] | None = None

    def state(self, rdu: int) -> RduState:
        """Return the operational state of an RDU."""
        return self._states[rdu]

    def losses(self, rdu: int) -> LostCapacity:
        """Return the capacity that active faults take out of service on an RDU."""
        return self._losses[rdu]

    def row(self, rdu: int) -> OpState:
        """Return the RDU as the database and tools see it."""
        state, tiles = self._states[rdu], self._node.chip.tiles
        is_running = state in (RduState.FUNCTIONAL, RduState.DEGRADED)
        available = tiles - len(self._losses[rdu].tiles) if is_running else 0
        return OpState(
            rdu, rdu_path(self._node, rdu), state, self._reasons[rdu], self._since[rdu], available,
            state is RduState.FUNCTIONAL and available == tiles,
        )  # fmt: skip

    def unusable_tiles(self) -> frozenset[int]:
        """Return flat numbers of tiles that may not be granted."""
        if self._unusable is None:
            found: set[int] = set()
            for rdu, (state, losses) in enumerate(zip(self._states, self._losses, strict=True)):
                if state in (RduState.PENDING, RduState.UNAVAILABLE):
                    found.update(range(rdu * self._node.chip.tiles, (rdu + 1) * self._node.chip.tiles))
                else:
                    found |= losses.tiles
            self._unusable = frozenset(found)
        return self._unusable

    def shift_resets(self, nanoseconds: int) -> None:
        """Shift resets under way by the nanoseconds by which the wall clock was set."""
        for rdu, reset in self.resets.items():
            self.resets[rdu] = replace(reset, due_ns=reset.due_ns + nanoseconds)

    def begin_reset(self, rdu: int, reset: Reset, reason: str, now_ns: int) -> None:
        """Make the RDU PENDING from now on."""
        self._move(rdu, RduEvent.RESET, reason, now_ns)
        self.resets[rdu] = reset

    def end_reset(self, rdu: int, active: Iterable[FaultRow], reason: str, now_ns: int) -> RduState:
        """End the reset with any outcome; the active faults determine the RDU's new state."""
        del self.resets[rdu]
        losses = self._losses[rdu] = lost_capacity(self._node, rdu, active)
        event = {
            RduState.FUNCTIONAL: RduEvent.INIT_PASSED,
            RduState.DEGRADED: RduEvent.INIT_PASSED_WITH_LOSSES,
            RduState.UNAVAILABLE: RduEvent.INIT_FAILED,
        }[losses.state]
        return self._move(rdu, event, reason, now_ns)

    def settle(self, rdu: int, active: Iterable[FaultRow], reason: str, now_ns: int) -> bool:
        """Follow the table after faults of an RDU came or went. Returns whether the operational state changed."""
        former, state = self._losses[rdu], self._states[rdu]
        losses = lost_capacity(self._node, rdu, active)
        if losses == former:
            return False
        self._losses[rdu] = losses
        self._unusable = None
        self.changed[rdu] = None
        if state is RduState.PENDING and (former.whole or not losses.whole):
            return False  # the end of the reset will say
        if losses.whole and not former.whole:
            event = RduEvent.ALL_LOST
        elif former.whole or _weight(losses) < _weight(former):
            event = {
                RduState.FUNCTIONAL: RduEvent.ALL_RETURNED,
                RduState.DEGRADED: RduEvent.PART_RETURNED,
                RduState.UNAVAILABLE: RduEvent.NOTHING_RETURNED,
            }[losses.state]
        else:
            event = RduEvent.PART_LOST
        return self._move(rdu, event, reason, now_ns) is not state

    def restore(self, rows: Iterable[OpState], active: Iterable[FaultRow], now_ns: int) -> None:
        """Derive the states from the active faults; ``rows`` have the times of unchanged states."""
        former, faults = {row.rdu: row for row in rows}, list(active)
        for rdu in range(self._node.rdus):
            path = rdu_path(self._node, rdu)
            mine = [row for row in faults if concerns(row, path)]
            self._losses[rdu] = lost_capacity(self._node, rdu, mine)
            state = self._states[rdu] = self._losses[rdu].state
            row = former.get(rdu)
            if row is not None and row.state is state and row.comp_name == path:
                self._since[rdu], self._reasons[rdu] = row.since, row.reason
            else:
                self._since[rdu] = now_ns
                self._reasons[rdu] = "init passed" if state is RduState.FUNCTIONAL else mine[-1].fault_desc
            self.changed[rdu] = None
        self._unusable = None

    def validate(self, active: Iterable[FaultRow]) -> None:
        """Derive every state again.

        Raises:
            AssertionError: a bug.
        """
        faults = list(active)
        for rdu, state in enumerate(self._states):
            path = rdu_path(self._node, rdu)
            losses = lost_capacity(self._node, rdu, [row for row in faults if concerns(row, path)])
            assert losses == self._losses[rdu], f"{path}: what is out of service"
            assert (state is RduState.PENDING) == (rdu in self.resets), f"{path} is {state}"
            assert state in (RduState.PENDING, losses.state), f"{path} is {state}, its faults say {losses.state}"
        unusable, self._unusable = self.unusable_tiles(), None
        assert unusable == self.unusable_tiles(), "unusable tiles"

    def _move(self, rdu: int, event: RduEvent, reason: str, now_ns: int) -> RduState:
        former = self._states[rdu]
        state = self._states[rdu] = next_rdu_state(rdu_path(self._node, rdu), former, event)
        self._reasons[rdu] = reason
        if state is not former:
            self._since[rdu] = now_ns
        if state is not RduState.PENDING:
            self.resets.pop(rdu, None)
        self._unusable = None
        self.changed[rdu] = None
        return state


def _weight(losses: LostCapacity) -> int:
    return len(losses.tiles) + len(losses.channels) + len(losses.links)


def health_word(node: NodeSpec, component: NodeComponent, rdus: RduStates, active_below: Mapping[str, int]) -> str:
    """Return the health of a component that is there.

    Args:
        active_below: by path, active faults at it or below it.
    """
    path, rdu = component.path, component.rdu
    if rdu is None:
        below = [number for number in range(node.rdus) if rdu_path(node, number).startswith(path + "/")]
        states = [rdus.state(number) for number in below]
        if all(state is RduState.UNAVAILABLE for state in states):
            return ComponentHealth.UNAVAILABLE
        is_pending = any(state is RduState.PENDING for state in states)
        return ComponentHealth.DEGRADED if is_pending or path in active_below else ComponentHealth.ONLINE
    losses, state = rdus.losses(rdu), rdus.state(rdu)
    if component.tile is not None and rdu * node.chip.tiles + component.tile in losses.tiles:
        return ComponentHealth.EXCLUDED
    if component.kind in (ComponentKind.DIMM, ComponentKind.DDR_CHANNEL) and channel_of(node, path) in losses.channels:
        return ComponentHealth.EXCLUDED
    if state in (RduState.PENDING, RduState.UNAVAILABLE):
        return ComponentHealth.UNAVAILABLE
    if path in losses.links:
        return ComponentHealth.UNAVAILABLE
    return ComponentHealth.DEGRADED if path in active_below else ComponentHealth.ONLINE


def suspects_of(node: NodeSpec, component: NodeComponent, entry: FaultClass) -> tuple[str, ...]:
    """Return paths of suspect components, the likeliest first."""
    rdu = None if component.rdu is None else rdu_path(node, component.rdu)
    xrdu = component.path if component.kind is ComponentKind.XRDU else None if rdu is None else rdu.rpartition("/")[0]
    places = {
        Suspect.SELF: component.path,
        Suspect.CHANNEL: channel_of(node, component.path) if component.kind is ComponentKind.DIMM else None,
        Suspect.RDU: rdu,
        Suspect.XRDU: xrdu,
        Suspect.NODE: "/NODE",
    }
    return tuple(dict.fromkeys(path for suspect in entry.suspects if (path := places[suspect]) is not None))
