"""The components of a node and their paths, such as ``/NODE/XRDU_0/RDU_1/TILE_3``.

A *flat* RDU number counts RDUs over the whole node, a *flat* tile number counts tiles over the whole node; both follow
the paths' order, so that tile ``t`` of flat RDU ``r`` is ``r * chip.tiles + t``.

Source: runtime reference 1.1 (paths, order within an RDU; the formula of the flat number is ours). DIMMs are left out:
their letters come from board tables that are not public in full; memory is counted by RDU.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from rdukit.errors import NotFound
from rdukit.hardware import NodeSpec


class ComponentKind(StrEnum):
    """Kinds of component that have a path here."""

    NODE = "NODE"
    XRDU = "XRDU"
    RDU = "RDU"
    DDR_CHANNEL = "DDRCH"
    PCIE = "PCIE"
    TILE = "TILE"


@dataclass(frozen=True, slots=True)
class Component:
    """One component. ``rdu`` is the flat number of its RDU; ``tile`` counts inside the RDU."""

    path: str
    kind: ComponentKind
    rdu: int | None = None
    tile: int | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile: its path, its flat RDU number, its number inside that RDU, its flat number."""

    path: str
    rdu: int
    tile: int
    index: int


def rdu_path(node: NodeSpec, rdu: int) -> str:
    """Path of the RDU with the flat number ``rdu``."""
    return f"/NODE/XRDU_{rdu // node.rdus_per_xrdu}/RDU_{rdu % node.rdus_per_xrdu}"


@lru_cache(maxsize=8)
def node_tiles(node: NodeSpec) -> tuple[Tile, ...]:
    """Every tile, at the position of its flat number."""
    return tuple(
        Tile(f"{rdu_path(node, rdu)}/TILE_{tile}", rdu, tile, rdu * node.chip.tiles + tile)
        for rdu in range(node.rdus)
        for tile in range(node.chip.tiles)
    )


def tile_of_path(node: NodeSpec, path: str) -> Tile:
    """The tile called ``path``, with or without the ``/NODE`` that some of the vendor's tools leave out.

    Raises:
        NotFound: the node has no such tile.
    """
    wanted = path if path.startswith("/NODE/") else "/NODE" + path
    for tile in node_tiles(node):
        if tile.path == wanted:
            return tile
    first, last = node_tiles(node)[0].path, node_tiles(node)[-1].path
    raise NotFound(f"{node.platform} has no tile {path!r}; legal: {first} to {last}")


def components(node: NodeSpec) -> Iterator[Component]:
    """All components in the listing's order: each RDU is followed by its DDR channels, PCIe links and tiles."""
    yield Component("/NODE", ComponentKind.NODE)
    for xrdu in range(node.xrdus):
        yield Component(f"/NODE/XRDU_{xrdu}", ComponentKind.XRDU)
        for rdu in range(xrdu * node.rdus_per_xrdu, (xrdu + 1) * node.rdus_per_xrdu):
            path = rdu_path(node, rdu)
            yield Component(path, ComponentKind.RDU, rdu)
            for channel in range(node.chip.ddr_channels):
                yield Component(f"{path}/DDRCH_{channel}", ComponentKind.DDR_CHANNEL, rdu)
            for link in range(node.chip.pcie_links):
                yield Component(f"{path}/PCIE_{link}", ComponentKind.PCIE, rdu)
            for tile in range(node.chip.tiles):
                yield Component(f"{path}/TILE_{tile}", ComponentKind.TILE, rdu, tile)
