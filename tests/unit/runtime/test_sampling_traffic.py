"""Bytes of a window by DDR channel and PCIe link."""

from itertools import groupby

import pytest

from rdukit.hardware import find_node
from rdukit_node.telemetry.traffic import DDR, PCIE, Traffic, spread_traffic
from support import shows
from support.node.harness import FakeNode

pytestmark = shows("tools", "snddrstat", "snpciestat")

RDU = "/NODE/XRDU_0/RDU_0"
LINKS = find_node("SN10-8").chip.pcie_links


def by_path(rows: list[Traffic]) -> dict[str, tuple[int, int]]:
    return {
        path: (sum(r.in_bytes for r in group), sum(r.out_bytes for r in group))
        for path, group in ((p, list(g)) for p, g in groupby(rows, key=lambda r: r.path))
    }


@pytest.mark.parametrize("platform", ["SN10-8", "SN30-8", "SN40L-16", "TEST-1"])
def test_every_channel_and_link_of_the_node_has_a_row_in_order(platform: str) -> None:
    node = FakeNode(platform)
    spec = node.spec
    reading = node.read()
    for kind, number in ((DDR, spec.chip.ddr_channels), (PCIE, spec.chip.pcie_links)):
        rows = spread_traffic(reading, reading, kind)
        assert len(rows) == spec.rdus * number
        assert [r.path for r in rows] == [c["comp_name"] for c in node.components if c["kind"] == kind]


def test_device_memory_is_interleaved_over_the_channels_and_no_byte_is_lost() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0, 1])
    before = node.read()
    node.work("a", ddr_read_bytes=6_000_004, ddr_written_bytes=12)
    node.advance(2)
    rows = spread_traffic(before, node.read(), DDR)
    assert [r.in_bytes for r in rows[:6]] == [1_000_001] * 4 + [1_000_000] * 2
    assert [r.out_bytes for r in rows[:6]] == [2] * 6
    assert rows[0].in_rate == 500_000.5
    assert rows[0].holder is not None
    assert rows[6].holder is None and rows[6].in_bytes == 0


def test_two_tenants_of_an_rdu_have_a_row_each_for_a_channel() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0, 1], pid=1)
    node.grant("b", [2, 3], pid=2)
    before = node.read()
    node.work("a", ddr_read_bytes=600)
    node.work("b", ddr_read_bytes=60)
    node.advance(1)
    rows = [r for r in spread_traffic(before, node.read(), DDR) if r.path == f"{RDU}/DDRCH_3"]
    assert [(r.holder and r.holder.pid, r.in_bytes) for r in rows] == [(1, 100), (2, 10)]


def test_transfers_go_over_the_links_that_the_lease_was_granted() -> None:
    node = FakeNode("SN10-8")
    lanes = [
        {"path": f"{RDU}/PCIE_1", "first_lane": 0, "lanes": 12},
        {"path": f"{RDU}/PCIE_2", "first_lane": 0, "lanes": 4},
    ]
    node.grant("a", [0, 1], io=lanes)
    before = node.read()
    node.work("a", pcie_rx_bytes=1600, pcie_tx_bytes=16)
    node.advance(1)
    moved = by_path(spread_traffic(before, node.read(), PCIE))
    assert {path: amounts for path, amounts in moved.items() if any(amounts)} == {
        f"{RDU}/PCIE_1": (1200, 12),
        f"{RDU}/PCIE_2": (400, 4),
    }


def test_a_dead_link_or_channel_gets_nothing_and_says_so() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", [0], io=[{"path": f"{RDU}/PCIE_1", "first_lane": 0, "lanes": 16}])
    node.set_health(f"{RDU}/PCIE_1", "Unavailable")
    node.set_health(f"{RDU}/DDRCH_0", "Excluded")
    before = node.read()
    node.work("a", pcie_rx_bytes=100 * (LINKS - 1), ddr_read_bytes=500)
    node.advance(1)
    links = spread_traffic(before, node.read(), PCIE)[:LINKS]
    assert [r.in_bytes for r in links] == [100, 0] + [100] * (LINKS - 2)
    assert [r.is_working for r in links] == [True, False] + [True] * (LINKS - 2)
    channels = spread_traffic(before, node.read(), DDR)[:6]
    assert [r.in_bytes for r in channels] == [0, 100, 100, 100, 100, 100]
    assert channels[0].health == "Excluded"


def test_a_channel_is_no_better_than_its_memory_module() -> None:
    node = FakeNode("SN10-8")
    module = next(row for row in node.components if row["parent"] == f"{RDU}/DDRCH_4" and row["presence"] == "Present")
    module["health"] = "Unavailable"
    reading = node.read()
    rows = spread_traffic(reading, reading, DDR)[:6]
    assert [r.health for r in rows] == ["Online"] * 4 + ["Unavailable", "Online"]


def test_an_rdu_without_any_working_link_moves_nothing_over_links() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0])
    for link in range(LINKS):
        node.set_health(f"{RDU}/PCIE_{link}", "Offline")
    before = node.read()
    node.work("a", pcie_rx_bytes=300)
    node.advance(1)
    assert [r.in_bytes for r in spread_traffic(before, node.read(), PCIE)] == [0] * LINKS


def test_what_a_lease_moved_before_it_ended_is_counted_without_a_name() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0])
    before = node.read()
    node.work("a", pcie_tx_bytes=100 * LINKS)
    node.end("a")
    node.advance(1)
    rows = spread_traffic(before, node.read(), PCIE)
    assert [(r.out_bytes, r.holder) for r in rows] == [(100, None)] * LINKS


def test_a_lease_over_several_rdus_moves_its_share_on_each_and_the_rdus_totals_hold() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", range(8))
    node.grant("b", [8, 9])
    before = node.read()
    node.work("a", pcie_rx_bytes=8003)
    node.work("b", pcie_rx_bytes=101)
    node.advance(1)
    after = node.read()
    rows = spread_traffic(before, after, PCIE)
    for rdu in after.counters["rdus"]:
        moved = sum(r.in_bytes for r in rows if r.rdu == rdu["rdu"])
        assert moved == rdu["pcie_rx_bytes"]


def test_replays_belong_to_the_degraded_link() -> None:
    node = FakeNode("TEST-1")
    node.set_health(f"{RDU}/PCIE_2", "Degraded")
    before = node.read()
    node.rdus[0]["pcie_replays"] += 7
    node.advance(1)
    rows = spread_traffic(before, node.read(), PCIE)
    assert [r.replays for r in rows] == [0, 0, 7] + [0] * (LINKS - 3)
    assert rows[2].is_working


def test_utilisation_is_both_ways_of_a_channel_and_the_busier_way_of_a_link() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0], io=[{"path": f"{RDU}/PCIE_0", "first_lane": 0, "lanes": 16}])
    before = node.read()
    node.work("a", ddr_read_bytes=32_000_000_000, ddr_written_bytes=32_000_000_000)
    node.work("a", pcie_rx_bytes=8_000_000_000, pcie_tx_bytes=16_000_000_000)
    node.advance(1)
    after = node.read()
    assert spread_traffic(before, after, DDR)[0].percent == pytest.approx(50.0)
    assert spread_traffic(before, after, PCIE)[0].percent == pytest.approx(50.0)
