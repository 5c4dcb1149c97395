"""Differences of a node's counters: shares of time, amounts a second."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from rdukit_node.telemetry.sampling import apportion, lease_rates, rdu_rates, tile_shares
from support import shows
from support.node.harness import FakeNode

pytestmark = shows("tools", "sntilestat")

COUNTS = st.integers(min_value=0, max_value=2**63 - 1)


@given(st.integers(min_value=0, max_value=10**15), st.lists(COUNTS, min_size=1, max_size=12))
def test_parts_add_up_and_are_less_than_one_away_from_their_share(total: int, weights: list[int]) -> None:
    parts = apportion(total, weights)
    assert sum(parts) == total
    whole = sum(weights)
    if whole:
        assert all(abs(part * whole - total * weight) < whole for part, weight in zip(parts, weights, strict=True))


def test_without_weights_the_parts_are_equal_and_nothing_among_none_is_nothing() -> None:
    assert apportion(7, [0, 0, 0]) == [3, 2, 2]
    assert apportion(7, []) == []


@given(st.lists(st.integers(min_value=0, max_value=10**12), min_size=5, max_size=5), st.floats(0.001, 100))
def test_the_six_shares_of_a_tile_always_add_up_to_a_hundred(busy: list[int], seconds: float) -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0])
    before = node.read()
    names = ("exec_ns", "pload_ns", "aload_ns", "chkpt_ns", "quiesce_ns")
    node.work("a", **dict(zip(names, busy, strict=True)))
    node.advance(seconds)
    for tile in tile_shares(before, node.read()):
        assert sum(tile.tenths) == 1000
        assert min(tile.tenths) >= 0


def test_a_tile_is_idle_when_the_program_is_on_the_host() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0, 1])
    before = node.read()
    node.work("a", exec_ns=957_000_000, pload_ns=6_000_000, aload_ns=3_000_000)
    node.advance(1)
    first, second, third, _ = tile_shares(before, node.read())
    assert first.tenths == second.tenths == (34, 957, 6, 3, 0, 0)
    assert first.holder is not None and first.holder.pid == 41207
    assert third.tenths == (1000, 0, 0, 0, 0, 0)
    assert third.holder is None


def test_two_processes_that_are_busy_at_once_in_one_lease_fill_the_tile_and_no_more() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0])
    before = node.read()
    node.work("a", exec_ns=1_500_000_000, aload_ns=500_000_000)
    node.advance(1)
    assert tile_shares(before, node.read())[0].tenths == (0, 750, 0, 250, 0, 0)


def test_a_machine_whose_clock_was_set_back_gives_no_nonsense() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0])
    before = node.read()
    node.work("a", exec_ns=10)
    node.advance(-3600)
    assert sum(tile_shares(before, node.read())[0].tenths) == 1000


def test_a_lease_of_the_window_counts_from_nothing_and_one_that_ended_is_not_listed() -> None:
    node = FakeNode("SN10-8")
    node.grant("old", [0])
    before = node.read()
    node.end("old")
    node.grant("new", [4, 5], job="j7")
    node.work("new", flops=3e12, ddr_read_bytes=4_000, exec_ns=500_000_000)
    node.advance(2)
    (rates,) = lease_rates(before, node.read())
    assert (rates.holder.lease, rates.holder.job) == ("new", "j7")
    assert (rates.flops, rates.ddr_read_bytes) == (1.5e12, 2000.0)
    assert rates.tenths[:2] == (750, 250)


def test_an_rdu_moves_what_its_leases_move() -> None:
    node = FakeNode("SN10-8")
    node.grant("a", range(8))
    before = node.read()
    node.work("a", pcie_rx_bytes=8_000_000, pcie_tx_bytes=800)
    node.advance(0.5)
    rates = rdu_rates(before, node.read())
    assert [r.pcie_rx_bytes for r in rates[:3]] == [8e6, 8e6, 0.0]
    assert rates[0].state == "FUNCTIONAL"


def test_unknown_health_words_and_missing_details_are_shown_not_fatal() -> None:
    node = FakeNode("TEST-1")
    node.grant("a", [0])
    node.set_health("/NODE/XRDU_0/RDU_0/TILE_1", "Puzzled")
    reading = dataclasses.replace(node.read(), status={**node.answer("status"), "leases": []})
    tiles = tile_shares(reading, reading)
    assert tiles[0].holder is not None and tiles[0].holder.pids == (41207,)
    assert tiles[1].health == "Puzzled" and not tiles[1].is_working
