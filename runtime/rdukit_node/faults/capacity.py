"""What active faults take out of service on one RDU, and the operational state that follows. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from rdukit.hardware import NodeSpec
from rdukit_node.faults.enums import Action, RduState
from rdukit_node.faults.model import FaultRow
from rdukit_node.inventory import ComponentKind, components, find_component, rdu_path, tile_of_path


@dataclass(frozen=True, slots=True)
class Losses:
    """Out of service on one RDU."""

    #: Flat tile numbers.
    tiles: frozenset[int] = frozenset()
    #: Paths of memory channels and of PCIe links.
    channels: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    memory_bytes: int = 0
    #: Whether nothing of it can be used.
    whole: bool = False

    @property
    def state(self) -> RduState:
        """The operational state of an RDU that is not just being reset."""
        if self.whole:
            return RduState.UNAVAILABLE
        return RduState.DEGRADED if self.tiles or self.channels or self.links else RduState.FUNCTIONAL


NO_LOSSES = Losses()


def losses_of(node: NodeSpec, rdu: int, active: Iterable[FaultRow]) -> Losses:
    """What the active faults that concern the RDU with the flat number ``rdu`` take away."""
    rows = [row for row in active if row.action is not Action.NONE]
    if not rows:
        return NO_LOSSES
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
    return Losses(tiles, channels, links, memory, whole)


def channel_of(node: NodeSpec, path: str) -> str:
    """The memory channel that a DIMM is on; a channel's own path is its own."""
    component = find_component(node, path)
    return component.parent if component.kind is ComponentKind.DIMM else component.path


def is_at_or_below(path: str, above: str) -> bool:
    """Whether ``path`` is ``above`` or a component below it."""
    return path == above or path.startswith(above + "/")


def concerns(row: FaultRow, path: str) -> bool:
    """Whether a fault may take something of the RDU ``path`` out of service: its own, or one of the whole node."""
    return row.action is Action.RETIRE_NODE or is_at_or_below(row.comp_name, path)


def _paths(node: NodeSpec, rdu: int, kind: ComponentKind) -> list[str]:
    prefix = rdu_path(node, rdu) + "/"
    return [component.path for component in components(node) if component.kind is kind and component.rdu == rdu
            and component.path.startswith(prefix)]  # fmt: skip
