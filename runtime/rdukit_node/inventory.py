"""The components of a node: their paths, such as ``/NODE/XRDU_0/RDU_1/TILE_3``, and their entries in an inventory.

*Flat* numbers count RDUs or tiles over the whole node, in the order of paths: tile ``t`` of flat RDU ``r`` is ``r *
chip.tiles + t``.

Serial numbers are emulated, in the vendor's form. They derive from the node's name and the path, so a node keeps them
and two nodes differ; a replaced part gets a new one.

Source: runtime reference 1.1, 1.2 (paths, attributes, order within an RDU; the formula of the flat number is ours).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from rdukit.errors import NotFound
from rdukit.hardware import NodeSpec


class ComponentKind(StrEnum):
    """Kinds of component that have a path here."""

    NODE = "NODE"
    XRDU = "XRDU"
    RDU = "RDU"
    DDR_CHANNEL = "DDRCH"
    DIMM = "DIMM"
    PCIE = "PCIE"
    TILE = "TILE"


#: Kinds that ``snfadm -l inventory`` lists; the others are only in the tree of ``snconfig show Node static``.
LISTED_KINDS: Final = frozenset({ComponentKind.RDU, ComponentKind.DIMM, ComponentKind.PCIE, ComponentKind.TILE})

#: Hexadecimal digits of the serial numbers of those kinds that have any.
_SERIAL_DIGITS: Final = {ComponentKind.RDU: 16, ComponentKind.DIMM: 7}
NONE_REPLACED: Final[Mapping[str, int]] = MappingProxyType({})
#: Text for a missing serial or part number.
NOT_APPLICABLE: Final = "N/A"


class Presence(StrEnum):
    """Presence of a component."""

    PRESENT = "Present"
    ABSENT = "Absent"
    UNKNOWN = "Unknown"


class ComponentHealth(StrEnum):
    """Health of a component. Source: ours, except ``Online``."""

    ONLINE = "Online"
    DEGRADED = "Degraded"
    EXCLUDED = "Excluded"
    UNAVAILABLE = "Unavailable"
    OFFLINE = "Offline"


@dataclass(frozen=True, slots=True)
class NodeComponent:
    """A component. ``rdu`` is the flat number of its RDU; ``tile`` counts inside the RDU."""

    path: str
    kind: ComponentKind
    rdu: int | None = None
    tile: int | None = None
    #: Device memory of the component; 0 for an empty DIMM slot, links and tiles.
    size_bytes: int = 0

    @property
    def parent(self) -> str:
        """Path of the component that carries it; empty for the node."""
        return self.path.rpartition("/")[0]

    @property
    def is_empty_slot(self) -> bool:
        """True if it is a memory slot without a module."""
        return self.kind is ComponentKind.DIMM and self.size_bytes == 0


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile: its path, its flat RDU number, its number inside that RDU, its flat number."""

    path: str
    rdu: int
    tile: int
    index: int


def rdu_path(node: NodeSpec, rdu: int) -> str:
    """Return path of the RDU with the flat number ``rdu``."""
    return f"/NODE/XRDU_{rdu // node.rdus_per_xrdu}/RDU_{rdu % node.rdus_per_xrdu}"


@lru_cache(maxsize=8)
def node_tiles(node: NodeSpec) -> tuple[Tile, ...]:
    """List the tiles, each at the position of its flat number."""
    return tuple(
        Tile(f"{rdu_path(node, rdu)}/TILE_{tile}", rdu, tile, rdu * node.chip.tiles + tile)
        for rdu in range(node.rdus)
        for tile in range(node.chip.tiles)
    )


@lru_cache(maxsize=8)
def components(node: NodeSpec) -> tuple[NodeComponent, ...]:
    """List the components in the listing's order: each RDU is followed by its DDR channels with their DIMMs, its
    PCIe links and its tiles.
    """
    return tuple(_walk(node))


def find_component(node: NodeSpec, path: str) -> NodeComponent:
    """Return the component called ``path``, with or without the ``/NODE`` that some of the vendor's tools leave out.

    Raises:
        NotFound: the node has no such component; the message names the components of its parent.
    """
    wanted = _full_path(path)
    found = _by_path(node).get(wanted)
    if found is not None:
        return found
    known = wanted
    while known not in _by_path(node):
        known = known.rpartition("/")[0] or "/NODE"
    children = [component.path for component in components(node) if component.parent == known]
    legal = f"{children[0]} to {children[-1]}" if children else known
    raise NotFound(f"{node.platform} has no component {path!r}; expected {legal}")


def tile_of_path(node: NodeSpec, path: str) -> Tile:
    """Return the tile called ``path``, with or without ``/NODE``.

    Raises:
        NotFound: the node has no such tile.
    """
    found = _by_path(node).get(_full_path(path))
    if found is not None and found.rdu is not None and found.tile is not None:
        return node_tiles(node)[found.rdu * node.chip.tiles + found.tile]
    first, last = node_tiles(node)[0].path, node_tiles(node)[-1].path
    raise NotFound(f"{node.platform} has no tile {path!r}; expected {first} to {last}")


def has_serial(component: NodeComponent) -> bool:
    """Return whether a component has a serial number of its own: it is an RDU or a DIMM."""
    return component.kind in _SERIAL_DIGITS and not component.is_empty_slot


def serial_number(name: str, component: NodeComponent, replaced: int = 0) -> str:
    """Return serial of a component of the node ``name``: 16 hexadecimal digits for an RDU, 7 for a
    DIMM, else ``N/A``. ``replaced``: number of replacements; each part has its own serial number.
    """
    if not has_serial(component):
        return NOT_APPLICABLE
    text = f"{name}\0{component.path}" + (f"\0{replaced}" if replaced else "")
    return hashlib.sha256(text.encode()).hexdigest()[: _SERIAL_DIGITS[component.kind]].upper()


def always_online(component: NodeComponent) -> str:
    """Return health of a node without faults."""
    return ComponentHealth.ONLINE


def always_present(component: NodeComponent) -> str:
    """Presence on a node where nothing was removed."""
    return Presence.PRESENT


def inventory_rows(
    node: NodeSpec,
    name: str,
    health_of: Callable[[NodeComponent], str] = always_online,
    presence_of: Callable[[NodeComponent], str] = always_present,
    replaced: Mapping[str, int] = NONE_REPLACED,
) -> list[dict[str, str | int]]:
    """Return one row a component, of all kinds, in the listing's order; see ``LISTED_KINDS``.

    Args:
        name: the node's name, from which serials are made.
        replaced: numbers of replacements, by path.
        health_of, presence_of: called for all components except empty memory slots, which are absent and offline.
    Returns:
        Rows with ``comp_name kind parent serial part presence health size_bytes``.
    Source: runtime reference 1.2, 4.3; words other than ``Present`` and ``Online`` in a listing are ours.
    """
    return [
        {
            "comp_name": component.path,
            "kind": str(component.kind),
            "parent": component.parent,
            "serial": serial_number(name, component, replaced.get(component.path, 0)),
            "part": _part_number(node, component),
            "presence": str(Presence.ABSENT if component.is_empty_slot else presence_of(component)),
            "health": str(ComponentHealth.OFFLINE if component.is_empty_slot else health_of(component)),
            "size_bytes": component.size_bytes,
        }
        for component in components(node)
    ]


def lanes_of(node: NodeSpec, tiles: Iterable[int]) -> list[dict[str, str | int]]:
    """PCIe lanes of tiles: an RDU's lanes are divided evenly, in order, among its tiles.

    Lanes are exclusive because tiles are.

    Args:
        tiles: flat numbers.
    Returns:
        ``{"path", "first_lane", "lanes"}`` for each run of neighbouring lanes of one link, in the listing's order.
    Source: ours; that IO is exclusive is the vendor's.
    """
    chip, width = node.chip, node.board.pcie_width
    total = chip.pcie_links * width
    runs: list[tuple[int, int, int, int]] = []
    for index in sorted(set(tiles)):
        rdu, tile = divmod(index, chip.tiles)
        lane, end = tile * total // chip.tiles, (tile + 1) * total // chip.tiles
        while lane < end:
            link, first = divmod(lane, width)
            count = min(end - lane, width - first)
            if runs and runs[-1][:2] == (rdu, link) and runs[-1][2] + runs[-1][3] == first:
                first, count = runs[-1][2], runs.pop()[3] + count
            runs.append((rdu, link, first, count))
            lane = link * width + first + count
    return [
        {"path": f"{rdu_path(node, rdu)}/PCIE_{link}", "first_lane": first, "lanes": count}
        for rdu, link, first, count in runs
    ]


def _walk(node: NodeSpec) -> Iterator[NodeComponent]:
    slots = [
        [node.dimm_slots(rdu, channel) for channel in range(node.chip.ddr_channels)]
        for rdu in range(node.rdus_per_xrdu)
    ]
    of_rdu = [sum(size for channel in channels for _, size in channel) for channels in slots]
    yield NodeComponent("/NODE", ComponentKind.NODE, size_bytes=node.xrdus * sum(of_rdu))
    for xrdu in range(node.xrdus):
        yield NodeComponent(f"/NODE/XRDU_{xrdu}", ComponentKind.XRDU, size_bytes=sum(of_rdu))
        for place in range(node.rdus_per_xrdu):
            rdu = xrdu * node.rdus_per_xrdu + place
            path = rdu_path(node, rdu)
            yield NodeComponent(path, ComponentKind.RDU, rdu, size_bytes=of_rdu[place])
            for number, channel in enumerate(slots[place]):
                carried = sum(size for _, size in channel)
                yield NodeComponent(f"{path}/DDRCH_{number}", ComponentKind.DDR_CHANNEL, rdu, size_bytes=carried)
                for name, size in channel:
                    yield NodeComponent(f"{path}/DDRCH_{number}/{name}", ComponentKind.DIMM, rdu, size_bytes=size)
            for link in range(node.chip.pcie_links):
                yield NodeComponent(f"{path}/PCIE_{link}", ComponentKind.PCIE, rdu)
            for tile in range(node.chip.tiles):
                yield NodeComponent(f"{path}/TILE_{tile}", ComponentKind.TILE, rdu, tile)


@lru_cache(maxsize=8)
def _by_path(node: NodeSpec) -> dict[str, NodeComponent]:
    return {component.path: component for component in components(node)}


def _full_path(path: str) -> str:
    return path if path == "/NODE" or path.startswith("/NODE/") else "/NODE" + path.rstrip("/")


def _part_number(node: NodeSpec, component: NodeComponent) -> str:
    has_part = component.kind is ComponentKind.DIMM and not component.is_empty_slot
    return node.board.dimm_part if has_part else NOT_APPLICABLE
