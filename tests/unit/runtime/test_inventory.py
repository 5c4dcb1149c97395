"""Component paths."""

from collections import Counter

import pytest

from rdukit.errors import NotFound
from rdukit.hardware import NODES, NodeSpec, find_node
from rdukit_runtime.inventory import ComponentKind, components, node_tiles, tile_of_path


@pytest.mark.parametrize("node", NODES.values(), ids=lambda node: node.platform)
def test_every_platform_lists_each_component_once(node: NodeSpec) -> None:
    listed = list(components(node))
    assert len({c.path for c in listed}) == len(listed)
    assert Counter(c.kind for c in listed) == {
        ComponentKind.NODE: 1,
        ComponentKind.XRDU: node.xrdus,
        ComponentKind.RDU: node.rdus,
        ComponentKind.DDR_CHANNEL: node.rdus * node.chip.ddr_channels,
        ComponentKind.PCIE: node.rdus * node.chip.pcie_links,
        ComponentKind.TILE: node.tiles,
    }
    assert [c.path for c in listed if c.kind is ComponentKind.TILE] == [tile.path for tile in node_tiles(node)]


def test_flat_numbers_follow_the_paths() -> None:
    tiles = node_tiles(find_node("SN30-8"))
    assert [tile.index for tile in tiles] == list(range(64))
    assert tiles[0].path == "/NODE/XRDU_0/RDU_0/TILE_0"
    assert tiles[63].path == "/NODE/XRDU_3/RDU_1/TILE_7"
    assert (tiles[13].path, tiles[13].rdu, tiles[13].tile) == ("/NODE/XRDU_0/RDU_1/TILE_5", 1, 5)


def test_links_come_before_tiles_and_after_their_rdu() -> None:
    paths = [c.path for c in components(find_node("TEST-1"))]
    assert paths[:4] == ["/NODE", "/NODE/XRDU_0", "/NODE/XRDU_0/RDU_0", "/NODE/XRDU_0/RDU_0/DDRCH_0"]
    assert paths[-5:-3] == ["/NODE/XRDU_0/RDU_0/PCIE_3", "/NODE/XRDU_0/RDU_0/TILE_0"]


def test_a_tile_is_found_by_either_form_of_its_path() -> None:
    node = find_node("SN10-8")
    assert tile_of_path(node, "/XRDU_1/RDU_0/TILE_2") == tile_of_path(node, "/NODE/XRDU_1/RDU_0/TILE_2")
    with pytest.raises(NotFound, match="legal: /NODE/XRDU_0/RDU_0/TILE_0 to /NODE/XRDU_3/RDU_1/TILE_3"):
        tile_of_path(node, "/NODE/XRDU_9/RDU_0/TILE_0")
