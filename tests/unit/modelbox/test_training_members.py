"""Members of a training: their leases as text, their places as ranks, and their parts of a batch."""

import threading
from pathlib import Path

import numpy as np
import pytest

from rdukit.box.links import STORE_PORT, LinkedPart, part_address, read_part
from rdukit.errors import InvalidArgument, RdukitError
from rdukit.fence.spec import ALIAS
from rdukit.settings import LEASE, SND_SOCKET
from rdukit_modelbox.operations.child import main
from rdukit_modelbox.operations.forks import can_fork_members
from rdukit_modelbox.operations.members import MemberLease, find_part, other_members, place_of, read_members
from rdukit_modelbox.training.members import Members
from rdukit_node.leases.launch import read_launch
from rdukit_runtime.settings import DISTRIBUTED_TOKEN
from support import shows

pytestmark = shows("training", "node")


def fail(error: RdukitError) -> None:
    raise AssertionError(error)


def test_leases_are_read_and_each_member_is_a_rank_on_this_machine_with_its_own() -> None:
    members = read_members("lease-1:aa@/run/1.sock lease-2:bb@/run/2.sock lease-3:cc")
    assert members[1:] == (MemberLease("lease-2:bb", "/run/2.sock"), MemberLease("lease-3:cc"))
    places = [place_of(rank, members, 1234, token="a token of the members") for rank in range(3)]
    assert {place[DISTRIBUTED_TOKEN.variable] for place in places} == {"a token of the members"}
    assert [place[LEASE.variable] for place in places] == ["lease-1:aa", "lease-2:bb", "lease-3:cc"]
    assert [place.get(SND_SOCKET.variable) for place in places] == ["/run/1.sock", "/run/2.sock", None]
    launches = [read_launch(place) for place in places]
    assert [(each.rank, each.world_size, each.is_one_node) for each in launches] == [(n, 3, True) for n in range(3)]
    assert {(each.address, each.port) for each in launches} == {("127.0.0.1", 1234)}


def test_members_of_several_boxes_have_ranks_by_their_parts_and_meet_at_the_first_one() -> None:
    parts = [LinkedPart(0, 2, 0, 3, Path("/run/a/s")), LinkedPart(1, 2, 2, 3, Path("/run/b/s"))]
    assert [read_part(part.to_text()) for part in parts] == parts
    boxes = [read_members("lease-1:aa lease-2:bb"), read_members("lease-1:cc")]
    places = [
        place_of(number, members, 1234, part)
        for part, members in zip(parts, boxes, strict=True)
        for number in range(len(members))
    ]
    launches = [read_launch(place) for place in places]
    assert [(each.rank, each.world_size, each.is_one_node) for each in launches] == [(n, 3, False) for n in range(3)]
    assert [place["LOCAL_RANK"] for place in places] == ["0", "1", "0"]
    assert {(each.address, each.port) for each in launches} == {(part_address(0), STORE_PORT)}
    assert {place["GLOO_SOCKET_IFNAME"] for place in places} == {ALIAS}
    assert all(DISTRIBUTED_TOKEN.variable not in place for place in places)


@pytest.mark.parametrize(
    "text", ["1", "2/2:1/4@/s", "0/2:1/4@/s", "1/2:0/4@/s", "1/2:4/4@/s", "1/65:1/4@/s", "1/2:1/4"]
)
def test_a_part_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("RDUKIT_BOX_PART", text)
    with pytest.raises(InvalidArgument, match="expected PART/PARTS"):
        find_part()


def test_a_process_with_a_second_thread_forks_no_members() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert not can_fork_members()
    finally:
        ended.set()
        thread.join()


def test_one_lease_has_no_other_members_and_what_is_no_lease_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_BOX_MEMBERS", "lease-1:aa@/run/1.sock")
    with other_members(main, {}, fail):
        pass
    monkeypatch.setenv("RDUKIT_BOX_MEMBERS", "lease-1:aa@/run/1.sock lease-2")
    with (
        pytest.raises(InvalidArgument, match="expected <id>:<token>@<socket> for each member"),
        other_members(main, {}, fail),
    ):
        pass


def test_the_parts_of_a_batch_are_the_whole_batch_and_alone_one_has_it_all() -> None:
    batch = [np.arange(12).reshape(6, 2), np.arange(6)]
    parts = [Members(rank, 3).part_of(batch) for rank in range(3)]
    for place, whole in enumerate(batch):
        assert np.array_equal(np.concatenate([part[place] for part in parts]), whole)
    alone = Members()
    assert (
        alone.part_of(batch) is batch
        and alone.agree(True)
        and alone.mean(0.5) == 0.5
        and alone.begin_at(7) == 7
        and alone.is_first
    )
