"""Component paths, inventory rows, PCIe lanes."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import NotFound
from rdukit.hardware import GIB, NODES, ChipSpec, NodeSpec, find_node
from rdukit_node.inventory import (
    LISTED_KINDS,
    ComponentKind,
    components,
    find_component,
    inventory_rows,
    lanes_of,
    node_tiles,
    tile_of_path,
)
from support import shows

pytestmark = shows("node", "tools", "fidelity")

#: A platform without tables of its own.
SMALL = NodeSpec("SMALL", ChipSpec("small", 3, 1, 1, 1, 1.0, 2, 10 * GIB, 1.0, 0, 0.0, 2, 1.0), 2, 3)
PLATFORMS = [*NODES.values(), SMALL]


@pytest.mark.parametrize("node", PLATFORMS, ids=lambda node: node.platform)
def test_every_platform_lists_each_component_once(node: NodeSpec) -> None:
    listed = components(node)
    assert len({c.path for c in listed}) == len(listed)
    slots = len(node.board.dimm_bytes) or 1
    assert Counter(c.kind for c in listed) == {
        ComponentKind.NODE: 1,
        ComponentKind.XRDU: node.xrdus,
        ComponentKind.RDU: node.rdus,
        ComponentKind.DDR_CHANNEL: node.rdus * node.chip.ddr_channels,
        ComponentKind.DIMM: node.rdus * node.chip.ddr_channels * slots,
        ComponentKind.PCIE: node.rdus * node.chip.pcie_links,
        ComponentKind.TILE: node.tiles,
    }
    assert [c.path for c in listed if c.kind is ComponentKind.TILE] == [tile.path for tile in node_tiles(node)]


@pytest.mark.parametrize("node", PLATFORMS, ids=lambda node: node.platform)
def test_the_modules_of_an_rdu_add_up_to_its_memory(node: NodeSpec) -> None:
    for rdu in range(node.rdus):
        dimms = [c.size_bytes for c in components(node) if c.rdu == rdu and c.kind is ComponentKind.DIMM]
        assert sum(dimms) == node.chip.ddr_bytes
    assert components(node)[0].size_bytes == node.rdus * node.chip.ddr_bytes


@pytest.mark.parametrize("node", PLATFORMS, ids=lambda node: node.platform)
def test_no_letter_is_printed_twice_on_a_board(node: NodeSpec) -> None:
    names = [
        c.path.rpartition("/")[2]
        for c in components(node)
        if c.kind is ComponentKind.DIMM and c.path.startswith("/NODE/XRDU_0/")
    ]
    assert len(set(names)) == len(names)


def test_flat_numbers_follow_the_paths() -> None:
    tiles = node_tiles(find_node("SN30-8"))
    assert [tile.index for tile in tiles] == list(range(64))
    assert tiles[0].path == "/NODE/XRDU_0/RDU_0/TILE_0"
    assert tiles[63].path == "/NODE/XRDU_3/RDU_1/TILE_7"
    assert (tiles[13].path, tiles[13].rdu, tiles[13].tile) == ("/NODE/XRDU_0/RDU_1/TILE_5", 1, 5)


def test_the_listing_of_an_rdu_is_in_the_published_order() -> None:
    listed = [c.path for c in components(find_node("SN10-8")) if c.kind in LISTED_KINDS]
    start = listed.index("/NODE/XRDU_0/RDU_0/PCIE_8")
    # Source: runtime reference 1.1 and the inventory listing in the vendor's overview.
    assert [path.removeprefix("/NODE/XRDU_0/") for path in listed[start : start + 13]] == [
        "RDU_0/PCIE_8", "RDU_0/PCIE_9", "RDU_0/PCIE_10", "RDU_0/PCIE_11",
        "RDU_0/TILE_0", "RDU_0/TILE_1", "RDU_0/TILE_2", "RDU_0/TILE_3",
        "RDU_1",
        "RDU_1/DDRCH_0/DIMM_G0", "RDU_1/DDRCH_0/DIMM_G1", "RDU_1/DDRCH_1/DIMM_H0", "RDU_1/DDRCH_1/DIMM_H1",
    ]  # fmt: skip
    assert listed[:3] == [
        "/NODE/XRDU_0/RDU_0",
        "/NODE/XRDU_0/RDU_0/DDRCH_0/DIMM_C0",
        "/NODE/XRDU_0/RDU_0/DDRCH_0/DIMM_C1",
    ]


def test_sn30_modules_have_the_published_letters() -> None:
    paths = {c.path for c in components(find_node("SN30-8"))}
    assert {"/NODE/XRDU_2/RDU_1/DDRCH_6/DIMM_L0", "/NODE/XRDU_2/RDU_1/DDRCH_7/DIMM_M0"} <= paths


@pytest.mark.parametrize("node", PLATFORMS, ids=lambda node: node.platform)
def test_every_component_is_found_with_and_without_the_node(node: NodeSpec) -> None:
    for component in components(node):
        assert find_component(node, component.path) is component
        assert find_component(node, component.path.removeprefix("/NODE")) is component


@pytest.mark.parametrize(
    ("path", "legal"),
    [
        ("/NODE/XRDU_9", "/NODE/XRDU_0 to /NODE/XRDU_3"),
        ("/XRDU_1/RDU_0/DDRCH_2/DIMM_X0", "/NODE/XRDU_1/RDU_0/DDRCH_2/DIMM_A0 to /NODE/XRDU_1/RDU_0/DDRCH_2/DIMM_A0"),
        ("/NODE/XRDU_0/RDU_0/TILE_0/TILE_0", "/NODE/XRDU_0/RDU_0/TILE_0"),
        ("TILE_0", "/NODE/XRDU_0 to /NODE/XRDU_3"),
    ],
)
def test_an_unknown_component_is_refused_with_what_is_there(path: str, legal: str) -> None:
    with pytest.raises(NotFound, match=re.escape(f"no component {path!r}; expected {legal}") + "$"):
        find_component(find_node("SN30-8"), path)


def test_a_tile_is_found_by_either_form_of_its_path() -> None:
    node = find_node("SN10-8")
    assert tile_of_path(node, "/XRDU_1/RDU_0/TILE_2") is tile_of_path(node, "/NODE/XRDU_1/RDU_0/TILE_2")
    assert tile_of_path(node, "/XRDU_1/RDU_0/TILE_2").index == 10
    for wrong in ("/NODE/XRDU_9/RDU_0/TILE_0", "/NODE/XRDU_0/RDU_0", ""):
        with pytest.raises(NotFound, match="expected /NODE/XRDU_0/RDU_0/TILE_0 to /NODE/XRDU_3/RDU_1/TILE_3"):
            tile_of_path(node, wrong)


def test_serials_have_the_published_form_and_belong_to_one_node() -> None:
    node = find_node("SN10-8")
    rows = inventory_rows(node, "sm-01")
    assert rows == inventory_rows(node, "sm-01")
    form = {"RDU": "[0-9A-F]{16}", "DIMM": "[0-9A-F]{7}"}
    for row in rows:
        wanted = form.get(str(row["kind"]), "N/A") if row["presence"] == "Present" else "N/A"
        assert re.fullmatch(wanted, str(row["serial"])), row
    serials = [row["serial"] for row in rows if row["serial"] != "N/A"]
    assert len(set(serials)) == len(serials) == 8 + 48
    assert not set(serials) & {row["serial"] for row in inventory_rows(node, "sm-02")}


def test_an_empty_memory_slot_is_listed_as_absent() -> None:
    rows = {row["comp_name"]: row for row in inventory_rows(find_node("SN10-8"), "sm-01")}
    first, second = (rows[f"/NODE/XRDU_0/RDU_1/DDRCH_0/DIMM_G{slot}"] for slot in (0, 1))
    assert (first["size_bytes"], first["presence"], first["health"]) == (64 * GIB, "Present", "Online")
    assert second == {
        "comp_name": "/NODE/XRDU_0/RDU_1/DDRCH_0/DIMM_G1", "kind": "DIMM", "parent": "/NODE/XRDU_0/RDU_1/DDRCH_0",
        "serial": "N/A", "part": "N/A", "presence": "Absent", "health": "Offline", "size_bytes": 0,
    }  # fmt: skip


def test_rows_ask_for_health_and_presence() -> None:
    node = find_node("TEST-1")
    rows = inventory_rows(
        node,
        "n",
        health_of=lambda c: "Excluded" if c.tile == 2 else "Online",
        presence_of=lambda c: "Absent" if c.kind is ComponentKind.RDU else "Present",
    )
    assert [row["comp_name"] for row in rows if row["health"] == "Excluded"] == ["/NODE/XRDU_0/RDU_0/TILE_2"]
    assert next(row for row in rows if row["kind"] == "RDU")["presence"] == "Absent"


@given(st.sampled_from(PLATFORMS), st.data())
def test_leases_share_all_lanes_and_none_twice(node: NodeSpec, data: st.DataObject) -> None:
    owners = data.draw(st.lists(st.integers(0, 3), min_size=node.tiles, max_size=node.tiles))
    used: Counter[tuple[str, int]] = Counter()
    for owner in set(owners):
        tiles = [index for index, of in enumerate(owners) if of == owner]
        io = lanes_of(node, tiles)
        used.update(
            (str(run["path"]), int(run["first_lane"]) + lane) for run in io for lane in range(int(run["lanes"]))
        )
        rdus = {path.rpartition("/")[0] for path in (node_tiles(node)[index].path for index in tiles)}
        assert {str(run["path"]).rpartition("/")[0] for run in io} == rdus
    links = [c.path for c in components(node) if c.kind is ComponentKind.PCIE]
    assert used == {(link, lane): 1 for link in links for lane in range(node.board.pcie_width)}


def test_neighbouring_lanes_of_one_link_are_one_run() -> None:
    node = find_node("SN30-8")
    link = "/NODE/XRDU_0/RDU_0/PCIE_"
    assert lanes_of(node, [0]) == [{"path": link + "0", "first_lane": 0, "lanes": 12}]
    assert lanes_of(node, [1, 0]) == [
        {"path": link + "0", "first_lane": 0, "lanes": 16},
        {"path": link + "1", "first_lane": 0, "lanes": 8},
    ]
    assert lanes_of(node, []) == []
