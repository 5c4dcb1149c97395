from rdukit.hardware import NODES
from rdukit_node.leases.accounting import NodeTotals, UsageTotals, totals_of_page, totals_of_report
from rdukit_node.status_page import PageValues
from support import shows

pytestmark = shows("node")

NODE = NODES["SN10-8"]


def test_a_pages_values_and_an_old_clients_report_become_the_same_totals() -> None:
    page = totals_of_page(PageValues(1, (5, 4, 3, 2, 1), 10, 20, 30, 40, 50, 60, 70, 80))
    assert page == UsageTotals(5, 4, 3, 2, 1, 50, 60, 70, 80, 10, 20, 30, 40)
    report = totals_of_report({"runs": 2, "host_seconds": 0.5, "bytes": 7, "phase": "exec"})
    assert report == UsageTotals(exec_ns=500_000_000, ddr_read_bytes=7, runs=2)
    assert (page + report).runs == 12
    assert page.as_json()["bytes"] == 110


def test_time_counts_for_each_tile_and_bytes_are_spread_over_the_rdus() -> None:
    totals = NodeTotals(NODE)
    totals.book(range(8), UsageTotals(exec_ns=100, ddr_read_bytes=11))
    tiles, rdus = totals.rows([((8,), UsageTotals(exec_ns=7, pcie_rx_bytes=3))], [None] * NODE.tiles, {1: 4})
    assert [row["exec_ns"] for row in tiles[:10]] == [100] * 8 + [7, 0]
    assert [row["ddr_read_bytes"] for row in rdus[:3]] == [6, 5, 0]
    assert rdus[2]["pcie_rx_bytes"] == 3
    assert [row["pcie_replays"] for row in rdus[:2]] == [0, 4]
    again, _ = totals.rows([], [None] * NODE.tiles, {})
    assert again[8]["exec_ns"] == 0, "what is active is not booked by looking"


def test_what_chips_of_a_lease_send_each_other_counts_for_those_that_did() -> None:
    totals = NodeTotals(NODE)
    linked = UsageTotals(pcie_rx_bytes=13, pcie_tx_bytes=15, link_rx_bytes=(2, 7), link_tx_bytes=(7, 2))
    totals.book(range(4, 12), linked + linked)
    _, rdus = totals.rows([], [None] * NODE.tiles, {})
    assert [row["pcie_rx_bytes"] for row in rdus[:4]] == [0, 4 + 4, 14 + 4, 0]
    assert [row["pcie_tx_bytes"] for row in rdus[:4]] == [0, 14 + 6, 4 + 6, 0]
