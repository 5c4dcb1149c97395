import pytest

from rdukit.errors import InvalidArgument, NoResources
from rdukit_node.leases.allocator import LeaseRequest
from rdukit_node.leases.queue import MAX_WAITING, LeaseQueue, PendingLease
from support import shows

pytestmark = shows("node")


def request(tiles: int) -> LeaseRequest:
    return LeaseRequest("program", tiles, 0)


class Node:
    """Grants while tiles are left."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.granted: list[int] = []

    def acquire(self, wanted: LeaseRequest, connection: int) -> None:
        if wanted.tiles > self.free:
            raise NoResources(f"{self.free} are free", fits_when_empty=wanted.tiles <= 8)
        self.free -= wanted.tiles
        self.granted.append(connection)


def line(*tiles: int, patience: float = 10.0) -> LeaseQueue:
    waiting = LeaseQueue()
    for number, count in enumerate(tiles):
        waiting.join(PendingLease(number, request(count), 0.0, patience + number, NoResources("full")))
    return waiting


def test_requests_are_granted_in_the_order_in_which_they_came() -> None:
    waiting, node = line(2, 2, 2), Node(4)
    assert [s.connection for s in waiting.settle(node.acquire, 1.0)] == node.granted == [0, 1]
    assert 2 in waiting


def test_nobody_overtakes_a_large_request_at_the_head() -> None:
    waiting, node = line(8, 1), Node(4)
    assert waiting.settle(node.acquire, 1.0) == []
    node.free = 8
    assert [s.connection for s in waiting.settle(node.acquire, 2.0)] == [0]


def test_who_waited_long_enough_is_told_why_it_did_not_fit_and_the_next_has_its_turn() -> None:
    waiting, node = line(8, 1), Node(4)
    first, second = waiting.settle(node.acquire, 10.0)
    assert isinstance(first.refusal, NoResources)
    assert "4 are free" in first.refusal.message
    assert first.refusal.detail["waited_s"] == 10.0
    assert second.refusal is None
    assert node.granted == [1]
    assert len(waiting) == 0


def test_a_request_that_cannot_fit_any_more_is_refused_at_once() -> None:
    waiting, node = line(9, 1), Node(1)
    first, second = waiting.settle(node.acquire, 1.0)
    assert isinstance(first.refusal, NoResources)
    assert second.refusal is None


def test_a_request_that_turns_out_not_to_be_legal_leaves_with_its_error() -> None:
    def refuse(wanted: LeaseRequest, connection: int) -> None:
        raise InvalidArgument("no such mask")

    (settled,) = line(1).settle(refuse, 1.0)
    assert isinstance(settled.refusal, InvalidArgument)


def test_the_next_deadline_is_the_earliest() -> None:
    waiting = line(1, 1)
    assert waiting.next_deadline() == 10.0
    waiting.leave(0)
    assert waiting.next_deadline() == 11.0
    assert waiting.leave(0) is None


def test_the_line_has_an_end() -> None:
    waiting = line(*[1] * MAX_WAITING)
    with pytest.raises(NoResources, match="already wait"):
        waiting.join(PendingLease(999, request(1), 0.0, 1.0, NoResources("full")))
    waiting.validate()
