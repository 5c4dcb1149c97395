"""Addresses and tokens by which ranks of several machines meet; here ranks are threads, or only what they say."""

import json
import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch

from rdukit.errors import InvalidArgument, PeerLost, RdukitError, Unauthenticated
from rdukit_node.leases.launch import LOOPBACK
from rdukit_runtime.collectives.gloo import Gloo
from rdukit_runtime.collectives.meeting import has_ended
from rdukit_runtime.collectives.membership import GroupRanks, all_ranks
from rdukit_runtime.collectives.network import (
    claim_rank,
    exchange_texts,
    find_gloo_address,
    join_network,
    use_interface_of,
)
from rdukit_runtime.collectives.ports import PortState, RankPorts, Seen
from rdukit_runtime.collectives.rank_port import RankPort
from rdukit_runtime.collectives.trusted import asks_for_token, open_trusted_store
from rdukit_runtime.engine.torch_private import HashStore, PrefixStore, Store, gloo_group
from support import shows, wait_until

pytestmark = shows("rank-machines", "collectives")


def by_rank(size: int, call: Callable[[Store, int], Any]) -> list[Any]:
    """Call as each of the ranks, in threads; returns results, or what they raised."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=60))
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = call(PrefixStore("mine", store), rank)
        except RdukitError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def meet(tokens: Sequence[str]) -> list[Any]:
    """Return each rank's store, or its error."""

    def call(store: Store, rank: int) -> Store:
        return open_trusted_store(store, rank, len(tokens), tokens[rank], LOOPBACK, timedelta(seconds=60))

    return by_rank(len(tokens), call)


def test_ranks_with_a_token_meet_at_a_store_that_asks_for_it_and_ranks_without_at_the_open_one() -> None:
    stores = meet(["one of the ranks"] * 3)
    assert all(asks_for_token(PrefixStore("of a group", store)) for store in stores)
    stores[2].set("key", "value")
    assert stores[0].get("key") == stores[1].get("key") == b"value"
    assert not any(map(asks_for_token, meet(["", ""])))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["a token", "a token", "another"], "rank 0's store and rank 2 do not agree: the store at 127.0.0.1:"),
        (["a token", "", ""], "ranks 1, 2 of 3 have no token, and the others have one"),
        (["", "a token", "a token"], "rank 0 of 3 has no token, and the others have one"),
    ],
)
def test_all_ranks_are_told_which_of_them_have_another_token_or_none(tokens: list[str], said: str) -> None:
    for error in meet(tokens):
        assert isinstance(error, Unauthenticated), error
        assert said in error.message
        assert "set $RDUKIT_DISTRIBUTED_TOKEN to the same value on every rank" in error.message


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([2, 3], ["rank 0 counts 2, rank 1 3;"] * 2),
        ([3, 3, 4], ["rank 0 counts 3, rank 2 4;"] * 3),
    ],
)  # fmt: skip
def test_ranks_with_different_numbers_of_ranks_end_at_once(
    sizes: list[int], said: list[str], interface: pytest.MonkeyPatch
) -> None:
    interface.setenv("GLOO_SOCKET_IFNAME", "lo")
    found = by_rank(len(sizes), lambda store, rank: join_network(store, rank, sizes[rank], LOOPBACK))
    for error, text in zip(found, said, strict=True):
        assert isinstance(error, InvalidArgument), error
        assert text in error.message


def test_a_group_does_not_read_what_a_former_one_left_at_the_store() -> None:
    def call(store: Store, rank: int) -> bool:
        former = open_trusted_store(store, rank, 2, "", LOOPBACK, timedelta(seconds=60))
        former.set("rdukit/address/0", "127.0.0.1")
        return open_trusted_store(store, rank, 2, "", LOOPBACK, timedelta(seconds=60)).check(["rdukit/address/0"])

    assert by_rank(2, call) == [False, False]


def test_a_second_process_with_the_number_of_a_rank_is_refused_at_once() -> None:
    store = HashStore()
    claim_rank(store, 0, 2)
    claim_rank(store, 0, 2)  # the same process may join again
    store.set("rdukit/process/1", "process 7 on host mark")
    with pytest.raises(InvalidArgument, match=r"^process 7 on host is rank 1 of 2 already, and this process"):
        claim_rank(store, 1, 2)


def join_as_first(*others: tuple[str, tuple[str, int], str]) -> RankPorts:
    """Join as rank 0; the others say their address, their place, and why they do not reach the next rank."""
    store = HashStore()
    for rank, (address, place, failure) in enumerate(others, 1):
        store.set(f"rdukit/size/{rank}", str(1 + len(others)))
        store.set(f"rdukit/address/{rank}", address)
        store.set(f"rdukit/place/{rank}", json.dumps([*place, "their key"]))
        store.set(f"rdukit/reached/{rank}", failure)
    return join_network(store, 0, 1 + len(others), LOOPBACK)


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Restores the variable."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    return monkeypatch


def test_an_interface_is_chosen_by_the_route_and_a_choice_stays(interface: pytest.MonkeyPatch) -> None:
    interface.delenv("GLOO_SOCKET_IFNAME")
    use_interface_of(LOOPBACK)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert find_gloo_address("192.0.2.1") == LOOPBACK
    interface.setenv("GLOO_SOCKET_IFNAME", "eth9")
    use_interface_of(LOOPBACK)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth9"


def test_an_interface_that_is_not_there_is_told_to_all_ranks(interface: pytest.MonkeyPatch) -> None:
    interface.setenv("GLOO_SOCKET_IFNAME", "eth9")
    said = r"GLOO_SOCKET_IFNAME names no interface that has an address; expected .*: rank 0 has .*lo.*; rank 1 has eth7"
    with pytest.raises(InvalidArgument, match=said):
        join_as_first(("!eth7", ("", 0), ""))


def test_a_machine_that_cannot_be_reached_is_told_to_all_ranks(interface: pytest.MonkeyPatch) -> None:
    interface.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.create_server(("127.0.0.2", 0)) as server:
        place = server.getsockname()[:2]
        assert join_as_first(("127.0.0.2", place, "")).look()[0] == Seen(
            PortState.RUNS, 0, False, False, "has begun no collective"
        )
        with pytest.raises(PeerLost, match=r"do not reach each other: rank 1 at 127\.0\.0\.2 does not reach rank 0 at"):
            join_as_first(("127.0.0.2", place, "rank 1 at 127.0.0.2 does not reach rank 0 at 127.0.0.1 (why)"))
    with pytest.raises(PeerLost, match=r"rank 0 at 127\.0\.0\.1 does not reach rank 1 at 127\.0\.0\.2 \(.*refused"):
        join_as_first(("127.0.0.2", place, ""))


def ports_of(count: int, group: GroupRanks | None = None, key: str = "mine") -> list[RankPorts]:
    """Return the ports of ranks, each as its rank has them."""
    own = [RankPort(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
    places = [port.place for port in own]
    return [RankPorts(port, key, places, group or all_ranks(count), rank) for rank, port in enumerate(own)]


def test_ports_tell_which_rank_keeps_the_others_waiting_and_what_it_does() -> None:
    first, second, third = ports_of(3)
    for ports in (first, second, third):
        ports.begin("barrier")
        ports.end()
    third.note("in section 4")
    for ports in (first, second):
        ports.begin("all_reduce")
    late = RuntimeError("Timed out waiting 8000ms for recv operation")
    lost = first.explain_loss(late, 8)
    assert lost is not None and lost.detail["silent"] == "2"
    assert lost.message == (
        "rank 2 of 3 did not answer in time, within 8 s (rank 2 finished collective 1, barrier, and is in section 4; "
        "rank 0 is in collective 2, all_reduce)"
    )
    third.begin("all_reduce")
    second.explain_loss(late, 8)  # its time has passed, too
    lost = first.explain_loss(late, 8)
    assert lost is not None and lost.message.startswith("rank 2 of 3 did not answer in time, within 8 s (rank 2 is in ")
    broken = RuntimeError("Connection closed by peer")
    assert first.explain_loss(broken, 8) is None
    second.leave()
    lost = first.explain_loss(broken, 8)
    assert lost is not None and lost.message.startswith("rank 1 of 3 gave up or left the group (")


def test_a_refused_connection_proves_that_a_rank_has_ended_and_a_stopped_rank_is_silent() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        place = server.getsockname()[:2]
    with socket.create_server((LOOPBACK, 0)) as stopped:
        own = RankPort(socket.create_server((LOOPBACK, 0)))
        ports = RankPorts(own, "mine", [own.place, place, stopped.getsockname()[:2], None], all_ranks(4), 0)
        states = [seen.state for seen in ports.look()]
        assert states == [PortState.RUNS, PortState.ENDED, PortState.SILENT, PortState.RUNS]
        ports.begin("barrier")
        lost = ports.explain_loss(RuntimeError("Connection reset"), 8)
    assert lost is not None
    assert lost.message == "rank 1 of 4 died or ended (rank 0 is in collective 1, barrier)"


def test_ports_name_ranks_of_a_group_by_the_launch_and_tell_what_they_do_elsewhere() -> None:
    first, second = ports_of(2, GroupRanks((1, 3), 4))
    whole = RankPorts(second.own, "all", [None] * 4, all_ranks(4), 3)
    first.begin("barrier")
    whole.begin("broadcast")
    second.note("in section 4")
    lost = first.explain_loss(RuntimeError("Timed out waiting"), 8)
    assert lost is not None and lost.detail["silent"] == "3"
    assert lost.message == (
        "rank 3 of the group of ranks 1, 3 did not answer in time, within 8 s (rank 3 has begun no collective, and is "
        "in collective 1, broadcast of all 4 ranks, and is in section 4; rank 1 is in collective 1, barrier)"
    )
    with second.pair("send to rank 1"):
        lost = first.explain_pair(1, RuntimeError("Timed out waiting"), 8)
        assert lost is not None and "(rank 3 is in send to rank 1, and is in section 4; " in lost.message
    assert first.explain_pair(1, RuntimeError("Connection closed"), 8) is None, "it runs"


def test_a_rank_that_is_not_in_the_group_yet_keeps_the_others_waiting() -> None:
    first, second, third = ports_of(3)
    for ports in (first, second):
        ports.begin("barrier")
    third.own.leave("mine")
    second.explain_loss(RuntimeError("Timed out waiting"), 8)
    lost = first.explain_loss(RuntimeError("Timed out waiting"), 8)
    assert lost is not None and lost.message.startswith("rank 2 of 3 did not answer in time")


def test_a_rank_that_called_something_else_is_not_said_to_be_in_it_afterwards() -> None:
    ports = ports_of(2)

    def call(store: Store, rank: int) -> str:
        plane = Gloo(gloo_group(store, rank, 2, timedelta(seconds=60)), ports=ports[rank])
        made = torch.ones(rank + 1)
        with pytest.raises(InvalidArgument, match="ranks call different collectives"):
            plane.all_reduce([made], [made])
        return ports[rank].look([rank])[0].doing

    assert by_rank(2, call) == [f"finished collective 1, all_reduce sum float32[{count}]" for count in (1, 2)]


def test_a_fork_does_not_keep_the_port_of_its_parent_open() -> None:
    port = RankPort(socket.create_server((LOOPBACK, 0)))
    ports = RankPorts(port, "mine", [port.place], all_ranks(1), 0)
    assert port.place is not None
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    place = port.place
    del ports, port
    try:
        wait_until(lambda: has_ended(place), 20)
    finally:
        os.close(end)
        os.waitpid(child, 0)


def test_ranks_that_do_not_come_are_named() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    store.set("rdukit/here/1", "1")
    with pytest.raises(RuntimeError, match=r"^ranks 2, 3 did not come$"):
        exchange_texts(store, "here", 0, 4, "1")
