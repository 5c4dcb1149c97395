"""Grants of tiles and memory."""

from collections.abc import Iterator

import pytest

from rdukit.errors import (
    InvalidArgument,
    InvalidTransition,
    LeaseLost,
    NoResources,
    NotFound,
    OutOfDeviceMemory,
)
from rdukit.hardware import GIB, find_node
from rdukit_node.leases.allocator import Allocator, Lease, LeaseId, LeaseRequest, RegionId
from rdukit_node.states import EndReason, LeaseEvent
from support import shows

pytestmark = shows("node", "isolation")


class Node:
    """An allocator with running ids and times."""

    def __init__(self, platform: str, max_applications: int | None = None) -> None:
        self.allocator = Allocator(find_node(platform), max_applications)
        self.count = 0

    def acquire(self, tiles: int, memory_bytes: int = 0, **more: object) -> Lease:
        self.count += 1
        request = LeaseRequest(f"app{self.count}", tiles, memory_bytes, **more)  # type: ignore[arg-type]
        return self.allocator.acquire(request, LeaseId(f"L{self.count}"), "secret", float(self.count))

    def release(self, lease: Lease) -> None:
        self.count += 1
        self.allocator.end(lease.id, LeaseEvent.RELEASE, float(self.count))


@pytest.fixture
def sn10() -> Iterator[Node]:
    node = Node("SN10-8", max_applications=32)
    yield node
    node.allocator.validate()


@pytest.fixture
def test1() -> Iterator[Node]:
    node = Node("TEST-1")
    yield node
    node.allocator.validate()


def test_tiles_are_contiguous_inside_an_rdu_and_first_fit(sn10: Node) -> None:
    first = sn10.acquire(3)
    assert first.tiles == (0, 1, 2)
    assert sn10.acquire(2).tiles == (4, 5)  # one tile is left in RDU 0, not two
    assert sn10.acquire(1).tiles == (3,)
    sn10.release(first)
    assert sn10.acquire(2).tiles == (0, 1)


def test_a_request_beyond_one_rdu_takes_whole_rdus_and_spreads_its_memory(sn10: Node) -> None:
    sn10.acquire(1)
    lease = sn10.acquire(6, 101)
    assert lease.tiles == tuple(range(8, 16)), "both of one XRDU: of the first one a tile is taken"
    assert lease.memory == ((2, 51), (3, 50))


def test_whole_rdus_need_not_be_neighbours(sn10: Node) -> None:
    sn10.acquire(4)
    middle = sn10.acquire(1, affinity=0xF0000)
    assert middle.tiles == (16,)
    assert sn10.acquire(24).tiles == (*range(4, 16), *range(20, 32))


def test_the_affinity_mask_says_which_tiles_may_be_used(sn10: Node) -> None:
    assert sn10.acquire(4, affinity=0xF0000000).tiles == (28, 29, 30, 31)
    assert sn10.acquire(2, affinity=0xFF000000).tiles == (24, 25)
    with pytest.raises(NoResources, match="under affinity 0xf0000000"):
        sn10.acquire(1, affinity=0xF0000000)


@pytest.mark.parametrize(("tiles", "mask"), [(1, 0), (1, 1 << 32), (3, 0b11), (5, 0xF), (2, 0b101)])
def test_a_mask_that_can_never_hold_the_request_is_refused_as_wrong(sn10: Node, tiles: int, mask: int) -> None:
    with pytest.raises(InvalidArgument, match="affinity"):
        sn10.acquire(tiles, affinity=mask)


def test_a_refusal_says_why_and_what_would_fit(test1: Node) -> None:
    test1.acquire(2, 300 * GIB)
    with pytest.raises(NoResources) as caught:
        test1.acquire(3, GIB)
    assert "2 of 4 tiles are free, at most 2 in a row" in caught.value.message
    assert "what would fit now: 2 tiles with that memory" in caught.value.message
    assert caught.value.detail["fits_tiles"] == 2
    assert caught.value.detail["fits_when_empty"] is True
    with pytest.raises(NoResources, match="2 tiles with up to 84 GiB") as caught:
        test1.acquire(2, 100 * GIB)
    assert caught.value.detail["fits_memory_bytes"] == 84 * GIB


def test_a_request_larger_than_the_node_says_that_waiting_cannot_help(test1: Node) -> None:
    for tiles, memory in [(5, 0), (1, 385 * GIB)]:
        with pytest.raises(NoResources, match="waiting cannot help") as caught:
            test1.acquire(tiles, memory)
        assert caught.value.detail["fits_when_empty"] is False


def test_no_wait_gives_back_memory_that_is_retired(test1: Node) -> None:
    test1.allocator.set_health(frozenset(), [GIB])
    whole = LeaseRequest("whole", 1, 384 * GIB)
    with pytest.raises(NoResources, match=r"1 GiB of memory are out of service.*repair the node") as caught:
        test1.acquire(whole.tiles, whole.memory_bytes)
    assert caught.value.detail["fits_when_empty"] is False
    with pytest.raises(NoResources, match="out of service"):
        test1.allocator.check_possible(whole)
    assert test1.acquire(1, 383 * GIB).memory == ((0, 383 * GIB),)


@pytest.mark.parametrize(("tiles", "memory"), [(0, 0), (-1, 0), (1, -1)])
def test_numbers_below_the_legal_ones_are_refused(test1: Node, tiles: int, memory: int) -> None:
    with pytest.raises(InvalidArgument, match="expected"):
        test1.acquire(tiles, memory)


def test_eight_applications_is_the_limit_and_a_launch_counts_once() -> None:
    node = Node("SN30-8")
    ranks = [node.acquire(4, launch="mpi-1") for _ in range(8)]
    for _ in range(7):
        node.acquire(1)
    with pytest.raises(NoResources, match="already runs 8 applications"):
        node.acquire(1)
    node.acquire(1, launch="mpi-1")
    node.release(ranks[0])
    with pytest.raises(NoResources):
        node.acquire(1)
    node.allocator.validate()


def test_regions_are_accounted_to_the_lease(test1: Node) -> None:
    lease = test1.acquire(1, 100)
    test1.allocator.allocate(lease.id, RegionId("a"), "weights", 60)
    with pytest.raises(OutOfDeviceMemory, match=r"'cache' needs 41 B.* 40 B left of 100 B"):
        test1.allocator.allocate(lease.id, RegionId("b"), "cache", 41)
    test1.allocator.allocate(lease.id, RegionId("b"), "cache", 40)
    test1.allocator.free(lease.id, RegionId("a"))
    assert test1.allocator.memory_allocated[lease.id] == 40
    with pytest.raises(NotFound):
        test1.allocator.free(lease.id, RegionId("a"))
    with pytest.raises(InvalidArgument):
        test1.allocator.allocate(lease.id, RegionId("b"), "again", 1)
    with pytest.raises(InvalidArgument):
        test1.allocator.allocate(lease.id, RegionId("c"), "empty", 0)


def test_an_ended_lease_says_why_and_ends_once(test1: Node) -> None:
    lease = test1.acquire(1, 10)
    ended = test1.allocator.end(lease.id, LeaseEvent.HOLDERS_GONE, 5.0)
    assert ended.reason is EndReason.HOLDERS_GONE
    with pytest.raises(LeaseLost, match="the last connection that held it closed"):
        test1.allocator.allocate(lease.id, RegionId("a"), "late", 1)
    with pytest.raises(InvalidTransition, match="is lost") as caught:
        test1.allocator.end(lease.id, LeaseEvent.RELEASE, 6.0)
    history = caught.value.detail["history"]
    assert isinstance(history, list)
    assert [step["event"] for step in history] == ["grant", "holders-gone"]
    with pytest.raises(NotFound):
        test1.allocator.end(LeaseId("never"), LeaseEvent.RELEASE, 7.0)
    with pytest.raises(InvalidArgument):
        test1.allocator.acquire(LeaseRequest("again", 1, 0), lease.id, "", 8.0)


def test_the_token_is_not_in_the_lease_s_text(test1: Node) -> None:
    assert "secret" not in repr(test1.acquire(1))
