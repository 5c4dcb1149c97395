"""Calls of endpoints at boxes of our own: streams come as they are made, failures move on, nothing foreign passes."""

import asyncio
import gzip
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from rdukit.box.client import BoxClient
from rdukit.errors import OutputRefused
from rdukit.http.unix_sockets import REST_SOCKET, rest_address
from rdukit_platform.api.replica_connection import HANG_S
from rdukit_platform.db.models import EndpointReplicaRow
from rdukit_platform.endpoints import replicas
from rdukit_platform.endpoints.replicas import ReplicaToken
from rdukit_platform.endpoints.states import ReplicaReason
from support import shows, wait_until
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder
from support.platform.replica_box import Application, answer, box, serve

pytestmark = shows("endpoints", "endpoint calls", "endpoint-calls")

USAGE = b'data: {"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        monkeypatch.setenv("RDUKIT_ENDPOINT_WAIT_S", "1")
        with gateway_under_test() as running:
            yield running


def test_a_stream_comes_as_it_is_made_and_its_tokens_are_counted(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    seen: list[dict[bytes, bytes]] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]))
        await answer(send, 200, b"text/event-stream", b"data: 1\n\n", USAGE, b"data: [DONE]\n\n", pause_s=0.5)

    with box(tmp_path / "box", stream) as address:
        token = serve(gateway, address)
        began, times = time.monotonic(), []
        url, body = f"{gateway.url}/v1/endpoints/chat/v1/chat/completions", {"stream": True}
        headers = {"Authorization": f"Bearer {token}", "Cookie": "secret=1"}
        with httpx.stream("POST", url, json=body, headers=headers, timeout=20) as found:
            assert found.headers["content-type"] == "text/event-stream"
            assert "set-cookie" not in found.headers
            for _ in found.iter_raw():
                times.append(time.monotonic() - began)
        assert times[0] + 0.3 < times[-1]
        assert {b"authorization", b"cookie"} & set(seen[0]) == set()
        deadline = time.monotonic() + 10
        while not (used := gateway.ask("GET", "/v1/endpoints/chat", token).json()["usage"])["requests"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert (used["prompt_tokens"], used["completion_tokens"], used["failures"]) == (3, 2, 0)
        # Clients of other APIs have the token in headers of their own, which mean nothing elsewhere.
        for header, path in (("x-api-key", "v1/messages"), ("key", "api/v2/predict/generic/stream/p/chat")):
            found = httpx.post(f"{gateway.url}/v1/endpoints/chat/{path}", json={}, headers={header: token}, timeout=20)
            assert found.status_code == 200 and header.encode() not in seen[-1], found.text
            for at, own in ((path, "wrong"), ("v2", "wrong"), ("../../me", token)):
                assert httpx.get(f"{gateway.url}/v1/endpoints/chat/{at}", headers={header: own}).status_code == 401


def test_what_fails_before_its_first_byte_is_tried_elsewhere(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    async def busy(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 503, b"application/json", b'{"error": "not yet"}')

    async def good(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, b"text/html", b"<script>")

    gone = tmp_path / "gone"
    gone.mkdir()
    with box(tmp_path / "busy", busy) as one, box(tmp_path / "good", good) as other:
        token = serve(gateway, one, rest_address(gone / REST_SOCKET), other)
        for _ in range(6):
            found = gateway.ask("POST", "/v1/endpoints/chat/v1/completions", token, json={})
            assert (found.status_code, found.content) == (200, b"<script>")
            assert found.headers["content-type"] == "application/octet-stream"


def test_of_why_a_replica_is_not_ready_only_the_beginning_is_read(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    sent = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-type", b"application/json")]})
        await receive()
        gone = asyncio.ensure_future(receive())
        for _ in range(256):
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
            if gone.done():  # what is sent from now on goes nowhere
                return
            sent.append(1)

    with box(tmp_path / "box", endless) as address:
        token = serve(gateway, address)
        status, said = gateway.refused("POST", "/v1/endpoints/chat/v1/completions", token, json={})
    assert (status, said.count("x") <= 500) == (503, True)
    assert len(sent) < 128  # of several tries, each of which takes what buffers take


def test_a_packed_answer_is_refused_and_not_unpacked(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    seen: list[dict[bytes, bytes]] = []

    async def packed(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]))
        headers = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": gzip.compress(b" " * (1 << 20))})

    with box(tmp_path / "box", packed) as address:
        token = serve(gateway, address)
        status, said = gateway.refused("POST", "/v1/endpoints/chat/v1/completions", token, json={})
        assert (status, "Content-Encoding" in said) == (422, True)
        with BoxClient(address) as client, pytest.raises(OutputRefused, match="Content-Encoding"):
            client.describe()
    assert {each[b"accept-encoding"] for each in seen} == {b"identity"}


def test_the_time_at_a_replica_is_no_waiting_for_one(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    asked = []

    async def again(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        if len(asked) == 1:
            await asyncio.sleep(1.2)  # longer than the gateway waits
        status = 503 if len(asked) < 4 else 200
        await answer(send, status, b"application/json", b'{"error": {"message": "stops"}}')

    with box(tmp_path / "box", again) as address:
        token = serve(gateway, address)
        assert gateway.ask("POST", "/v1/endpoints/chat/v1/completions", token, json={}).status_code == 200
    assert len(asked) == 4


def test_a_link_in_the_place_of_a_socket_is_not_followed(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    async def secret(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, b"application/json", b"secret")

    with box(tmp_path / "other", secret):
        own = tmp_path / "own"
        own.mkdir()
        (own / REST_SOCKET).symlink_to(tmp_path / "other" / REST_SOCKET)
        token = serve(gateway, rest_address(own / REST_SOCKET))
        status, said = gateway.refused("POST", "/v1/endpoints/chat/v1/completions", token, json={})
        assert (status, "secret" in said) == (503, False)


def test_a_replica_that_says_nothing_ends_a_call_and_is_not_asked_twice(
    gateway: GatewayUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_ENDPOINT_ANSWER_S", "0.4")
    asked = []

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await asyncio.sleep(1.0)

    with box(tmp_path / "box", silent) as address:
        token = serve(gateway, address)
        status, said = gateway.refused("POST", "/v1/endpoints/chat/v1/completions", token, json={})
    assert (status, "endpoint.answer_s" in said) == (504, True)
    assert asked == ["/v1/completions"]


@pytest.mark.long
def test_what_waits_at_a_replica_that_hangs_is_tried_on_another_and_it_gets_no_more(
    gateway: GatewayUnderTest, tmp_path: Path
) -> None:
    is_hung, asked = threading.Event(), []
    is_hung.set()

    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        while is_hung.is_set():
            await asyncio.sleep(0.05)
        await answer(send, 200, b"application/json", b"back")

    async def good(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, b"application/json", b"good")

    with box(tmp_path / "one", hangs, lambda: not is_hung.is_set()) as one, box(tmp_path / "two", good) as two:
        token = serve(gateway, one, two)

        def ask() -> bytes:
            found = gateway.ask("POST", "/v1/endpoints/chat/v1/completions", token, json={})
            assert found.status_code == 200
            return found.content

        began = time.monotonic()
        assert [ask() for _ in range(6)] == [b"good"] * 6
        assert time.monotonic() - began < 2 * HANG_S and len(asked) == 1
        is_hung.clear()
        wait_until(lambda: ask() == b"back", timeout_s=30, what="it gets calls when it answers again")


@pytest.mark.long
def test_a_call_waits_at_one_of_the_replicas_that_hang_and_then_asks_one_that_answers_looks(
    gateway: GatewayUnderTest, tmp_path: Path
) -> None:
    """Those of a node hang together: a call that tries each would wait as often."""
    asked: list[str] = []

    def hangs(name: str) -> Application:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            asked.append(name)
            await asyncio.sleep(3600.0)

        return application

    async def good(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, b"application/json", b"good")

    with ExitStack() as stack:
        hung = [stack.enter_context(box(tmp_path / name, hangs(name), lambda: False)) for name in ("a", "b", "c")]
        token = serve(gateway, *hung, stack.enter_context(box(tmp_path / "d", good)))
        # Calls take turns: one of four begins at the replica that answers.
        for _ in range(2):
            found = gateway.ask("POST", "/v1/endpoints/chat/v1/completions", token, json={})
            assert (found.status_code, found.content) == (200, b"good")
    assert 1 <= len(asked) <= 2, "one for each call"


@pytest.mark.long
def test_a_call_that_only_finds_replicas_that_hang_ends_after_its_wait_and_one_more_look(
    gateway: GatewayUnderTest, tmp_path: Path
) -> None:
    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(3600.0)

    with ExitStack() as stack:
        hung = [stack.enter_context(box(tmp_path / name, hangs, lambda: False)) for name in ("a", "b", "c")]
        token, began = serve(gateway, *hung), time.monotonic()
        status, said = gateway.refused("POST", "/v1/endpoints/chat/v1/completions", token, json={})
        assert (status, "hangs" in said) == (503, True)
        assert time.monotonic() - began < 2 * HANG_S, "not as long for each of the three"


def test_what_waits_at_a_replica_that_has_ended_is_tried_on_another(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """Its worker may be lost, and its box there."""
    asked, is_over = [], threading.Event()

    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        while not is_over.is_set():
            await asyncio.sleep(0.05)

    async def good(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, 200, b"application/json", b"good")

    with box(tmp_path / "one", stuck) as one, box(tmp_path / "two", good) as two, ThreadPoolExecutor() as pool:
        token = serve(gateway, one, two)
        path = "/v1/endpoints/chat/v1/completions"
        found = [pool.submit(gateway.ask, "POST", path, token, json={}) for _ in range(2)]
        wait_until(lambda: bool(asked), what="one waits at the box that is stuck")
        with gateway.platform.database.write() as session:
            row = session.scalars(select(EndpointReplicaRow).where(EndpointReplicaRow.address == one)).one()
            replicas.end(session, ReplicaToken(row.id, row.token), ReplicaReason.LOST, None, time.time())
        assert [each.result(30).content for each in found] == [b"good"] * 2
        is_over.set()


def test_a_call_under_way_ends_when_its_token_is_blocked(gateway: GatewayUnderTest, tmp_path: Path) -> None:
    """So do calls whose answers have not begun; those of other tokens go on."""
    is_over, asked = threading.Event(), []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        if scope["path"].endswith("/completions"):
            await answer(send, 200, b"text/event-stream", *[b"data: 1\n\n"] * 600, pause_s=0.1)
        while not is_over.is_set():
            await asyncio.sleep(0.1)
        await answer(send, 200, b"application/json", b"{}")

    def call(path: str, token: str) -> tuple[int, bool]:
        url, headers = f"{gateway.url}/v1/endpoints/chat/{path}", {"Authorization": f"Bearer {token}"}
        with httpx.stream("POST", url, json={}, headers=headers, timeout=90) as found:
            try:
                return found.status_code, bool(found.read()[:0] or True)
            except httpx.HTTPError:
                return found.status_code, False

    with box(tmp_path / "box", endless) as address, ThreadPoolExecutor() as pool:
        token = serve(gateway, address)
        token_id, other = gateway.id_and_token("lab", "endpoints:call")
        stream, waiting = (pool.submit(call, path, other) for path in ("v1/completions", "v1/embeddings"))
        kept = pool.submit(call, "v1/embeddings", token)
        wait_until(lambda: len(asked) == 3, what="all are under way")
        blocked = gateway.ask("POST", f"/v1/tokens/{token_id}/block", gateway.admin)
        assert blocked.status_code == 200
        assert stream.result(30) == (200, False), "it breaks off"
        assert waiting.result(30) == (401, True)
        assert not kept.done()
        is_over.set()
        assert kept.result(30) == (200, True)
