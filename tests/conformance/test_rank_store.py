"""The store at which ranks meet: it answers as torch's does, and only ranks that have the training's token."""

import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from rdukit.errors import InvalidArgument, Unauthenticated
from rdukit.settings import resolve
from rdukit_runtime.collectives import rank_store
from rdukit_runtime.collectives.handshake import HELLO, LARGEST_FRAME, Frames, combine_tokens
from rdukit_runtime.collectives.rank_store import (
    RankStore,
    StoreCall,
    connect_rank_store,
    decode_parts,
    encode_parts,
    serve_rank_store,
)
from rdukit_runtime.engine.torch_private import PrefixStore, TCPStore
from rdukit_runtime.settings import DISTRIBUTED_TOKEN
from support import shows

pytestmark = shows("lost-ranks")

TOKEN = "a token of a training"
SHORT = timedelta(milliseconds=50)


@pytest.fixture
def served() -> RankStore:
    return serve_rank_store(TOKEN, SHORT, host="127.0.0.1")


@pytest.fixture(params=["torch", "served", "connected", "prefixed"])
def store(request: pytest.FixtureRequest, served: RankStore) -> Iterator[Any]:
    """Stores with the same contract; the first is torch's own."""
    if request.param == "torch":
        yield TCPStore("127.0.0.1", 0, None, True, timeout=SHORT, wait_for_workers=False)
    elif request.param == "served":
        yield served
    else:
        connected = connect_rank_store(served.address, TOKEN, SHORT)
        yield connected if request.param == "connected" else PrefixStore("group", connected)
        assert connected.list_keys() == served.list_keys()


def read_to_end(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes the connection, or drops it with bytes that it has not read."""
    answer = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(4096):
            answer += part
    return answer


def test_a_store_answers_as_torchs_does(store: Any) -> None:
    store.set("a", "1")
    store.set("b", b"\0\xff")
    assert (store.get("a"), store.get("b")) == (b"1", b"\0\xff")
    assert store.check(["a", "b"]) and not store.check(["a", "c"])
    assert [store.add("sum", 3), store.add("sum", -5)] == [3, -2]
    assert store.compare_set("a", "2", "3") == b"1"
    assert store.compare_set("a", "1", "3") == b"3"
    assert store.compare_set("new", "", "4") == b"4"
    assert store.compare_set("other", "5", "6") == b"5" and not store.check(["other"])
    store.append("log", "x")
    store.append("log", "y")
    store.multi_set(["d", "e"], ["7", "8"])
    assert store.multi_get(["log", "d", "e"]) == [b"xy", b"7", b"8"]
    count = store.num_keys()
    assert store.delete_key("a") and not store.delete_key("a")
    assert store.num_keys() == count - 1
    assert store.has_extended_api()


def test_a_missing_key_is_waited_for_until_the_limit(store: Any) -> None:
    with pytest.raises(dist.DistStoreError):
        store.wait(["missing"], SHORT)
    with pytest.raises(dist.DistStoreError):
        store.get("missing")
    store.set("missing", "here")
    assert store.get("missing") == b"here"


def test_a_rank_waits_for_a_key_that_another_sets(served: RankStore) -> None:
    waiting, setting = (connect_rank_store(served.address, TOKEN, timedelta(seconds=60)) for _ in range(2))
    second = waiting.clone()
    setting.set("go", "1")
    assert (waiting.get("go"), second.get("go")) == (b"1", b"1")


@pytest.mark.parametrize("token", ["", "another token of a training"])
def test_without_the_token_a_rank_is_refused_by_name_and_at_once(served: RankStore, token: str) -> None:
    with pytest.raises(Unauthenticated, match=r"127\.0\.0\.1:\d+ has another token than this rank.*DISTRIBUTED_TOKEN"):
        connect_rank_store(served.address, token, SHORT, patience_s=60)
    assert connect_rank_store(served.address, TOKEN, SHORT).num_keys() == 0


def test_torchs_own_store_without_a_token_is_refused_by_a_rank_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_store, "GREETING_S", 0.5)
    plain = TCPStore("127.0.0.1", 0, None, True, timeout=SHORT, wait_for_workers=False)
    with pytest.raises(
        (Unauthenticated, dist.DistNetworkError), match=r"has another token than this rank|does not answer"
    ):
        connect_rank_store(("127.0.0.1", plain.port), TOKEN, SHORT)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\n\r\n" + 64 * b" ", HELLO + 32 * b"n" + 32 * b"proof", HELLO + 2000 * b"x"]
)
def test_what_a_stranger_sends_reads_and_changes_nothing(served: RankStore, sent: bytes) -> None:
    served.set("secret", "held")
    with socket.create_connection(served.address) as stranger:
        with suppress(OSError):  # closed before it has sent all
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
        answer = read_to_end(stranger)
    assert len(answer) <= 64 and b"held" not in answer and b"secret" not in answer
    assert connect_rank_store(served.address, TOKEN, SHORT).get("secret") == b"held"


def test_a_stranger_that_sends_nothing_is_closed_after_the_limit(
    served: RankStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_store, "GREETING_S", 0.05)
    with socket.create_connection(served.address) as stranger:
        assert stranger.recv(1) == b""


def test_a_refused_process_is_named_in_the_log(served: RankStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), socket.create_connection(served.address) as stranger:
        stranger.sendall(HELLO + 32 * b"n" + 32 * b"-")
        read_to_end(stranger)
    assert "event=rank-refused peer=127.0.0.1: closed a connection: it does not have the token" in caplog.text


def test_frames_of_others_and_repeated_ones_are_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        sender, receiver = Frames(left, b"key", b"client", b"server"), Frames(right, b"key", b"server", b"client")
        sender.send(b"first")
        assert receiver.receive() == b"first"
        Frames(left, b"key", b"client", b"server").send(b"first")  # number 0 again
        with pytest.raises(ConnectionError, match="not written by the rank that opened the connection"):
            receiver.receive()
        Frames(left, b"other key", b"client", b"server").send(b"second")
        with pytest.raises(ConnectionError, match="not written by"):
            receiver.receive()
        left.sendall((LARGEST_FRAME + 1).to_bytes(4, "big") + 32 * b"m")
        with pytest.raises(ConnectionError, match="expected 67108864 at most"):
            receiver.receive()
        with pytest.raises(ValueError, match="too many for the ranks' store"):
            sender.send(bytes(LARGEST_FRAME + 1))


def test_frames_contents_are_read_back_or_refused() -> None:
    whole = encode_parts(StoreCall.SET, 1.5, [b"key", b"", b"value"])
    assert decode_parts(whole) == (StoreCall.SET, 1.5, [b"key", b"", b"value"])
    for wrong in (b"", whole[:-1], whole + b"x", whole[:9] + b"\xff" + whole[10:]):
        with pytest.raises(ValueError, match="a frame of"):
            decode_parts(wrong)


def test_a_port_refuses_connections_when_its_store_is_no_longer_used() -> None:
    store = serve_rank_store(TOKEN, SHORT, host="127.0.0.1")
    address = store.address
    connected = connect_rank_store(address, TOKEN, SHORT)
    with pytest.raises(dist.DistNetworkError, match=f"port {address[1]} cannot be served.*choose a free one"):
        serve_rank_store(TOKEN, SHORT, host="127.0.0.1", port=address[1])
    del store
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    with pytest.raises(dist.DistNetworkError, match="does not answer"):
        connected.check(["a"])


def test_a_trainings_token_depends_on_both_secrets() -> None:
    tokens = {combine_tokens(configured, shared) for configured in ("", "one", "two") for shared in ("", "x")}
    assert len(tokens) == 6


def test_a_short_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_TOKEN", "short")
    with pytest.raises(InvalidArgument, match="has 5 characters; expected at least 16"):
        resolve(DISTRIBUTED_TOKEN)
