"""Hostile callers at the doors of gateway and box: refused with a reason, soon, and nobody else notices."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend
from support import shows, wait_until
from support.helpers import RawCaller, answer_of
from support.platform.processes import platform_under_test, short_folder
from support.tiers import first_short

pytestmark = shows("security", "network-limits")

BOX = Path(__file__).parents[1] / "integration" / "platform_box.py"
SILENCE_S = 2
SETTINGS = {
    "RDUKIT_GATEWAY_SILENCE_S": str(SILENCE_S), "RDUKIT_BOX_SILENCE_S": str(SILENCE_S),
    "RDUKIT_GATEWAY_MAX_HEADER_BYTES": "20000", "RDUKIT_BOX_MAX_HEADER_BYTES": "20000",
    "RDUKIT_GATEWAY_MAX_BODY_BYTES": "100000", "RDUKIT_BOX_MAX_BODY_BYTES": "100000",
    "RDUKIT_GATEWAY_ADDRESS_CONNECTIONS": "40", "RDUKIT_BOX_ADDRESS_CONNECTIONS": "40",
    "RDUKIT_GATEWAY_MAX_CONNECTIONS": "100", "RDUKIT_BOX_MAX_CONNECTIONS": "100",
    "RDUKIT_BOX_HOSTS": "box.example, other.example",
}  # fmt: skip
LIVE = "/health/live"
#: Where a token is needed and a body is read.
POSTED = {"gateway": "/v1/jobs", "box": "/v1/train", "box with tokens": "/v1/train"}


class Door(RawCaller):
    """A caller of gateway or box."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(url)
        self.name = name

    def is_well(self) -> bool:
        """Another address is served."""
        return self.send(b"GET " + LIVE.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", "127.0.0.9")[0] == 200

    def code(self, data: bytes) -> tuple[int, str]:
        status, body = self.send(data)
        error = json.loads(body)["error"] if body else ""
        return status, (error if isinstance(error, str) else error["code"])


@pytest.fixture(scope="module", params=list(POSTED))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    if request.param == "gateway":
        with short_folder() as home, platform_under_test(home, BOX, SETTINGS) as running:
            yield request.param, running.running["url"]
        return
    folder = tmp_path_factory.mktemp("box")
    (folder / "tokens").write_text("secret\n")
    tokens = {"RDUKIT_BOX_TOKENS": str(folder / "tokens")} if request.param == "box with tokens" else {}
    box = ProcessBackend().start(BoxSpec("logreg", folder / "state", environment={**SETTINGS, **tokens}))
    try:
        yield request.param, box.rest_url
    finally:
        box.stop()


@pytest.fixture
def door(server: tuple[str, str]) -> Iterator[Door]:
    with contextlib.closing(Door(*server)) as door:
        yield door
        assert door.is_well()


def head(line: str, *headers: str) -> bytes:
    return "".join(f"{each}\r\n" for each in (f"{line} HTTP/1.1", *headers, "")).encode("latin-1")


def test_an_endless_header_is_refused(door: Door) -> None:
    connection = door.connect(b"GET " + LIVE.encode() + b" HTTP/1.1\r\nHost: localhost\r\nX: ")
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(20_000):
            connection.sendall(b"y" * 10_000)
        raise AssertionError("200 MB of one header were taken")


def test_a_head_over_the_limit_in_one_piece_is_refused(door: Door) -> None:
    for path in (LIVE, "/v2/health/live"):
        status, code = door.code(head(f"GET {path}", "Host: localhost", "X: " + "y" * 25_000))
        assert status in {431, 0}  # 0: the answer was lost with the rest of the head
        assert not code or code == "headers-too-large" or "box.max_header_bytes" in code
    status, code = door.code(head("GET /" + "x" * 25_000, "Host: localhost"))
    assert (status, code) in {(431, "headers-too-large"), (0, "")}


def test_a_missing_host_and_a_second_one_are_refused(door: Door) -> None:
    assert door.code(head(f"GET {LIVE}")) == (400, "malformed-request")
    assert door.code(head(f"GET {LIVE}", "Host: localhost", "Host: localhost")) == (400, "malformed-request")
    assert door.code(head(f"GET {LIVE}", "Host: localhost", "host: evil.example")) == (400, "malformed-request")


def test_http_1_0_with_chunks_is_refused(door: Door) -> None:
    asked = f"POST {POSTED[door.name]} HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert door.code(asked.encode()) == (400, "malformed-request")


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"), ("Content-Length: 5", "Content-Length: 6"),
        ("Transfer-Encoding: chunked, identity",), ("Content-Length: -1",), ("Transfer-Encoding: xchunked",),
    ],
)  # fmt: skip
def test_a_body_whose_end_can_be_read_in_two_ways_is_refused(door: Door, headers: tuple[str, ...]) -> None:
    status, body = door.send(head(f"POST {POSTED[door.name]}", "Host: localhost", *headers) + b"0\r\n\r\n")
    assert 400 <= status < 500, (status, body)


def test_endless_trailers_and_extensions_of_chunks_are_refused(door: Door) -> None:
    asked = head(f"POST {POSTED[door.name]}", "Host: localhost", "Content-Type: application/json",
                 "Transfer-Encoding: chunked")  # fmt: skip
    for begun, more in ((b"0\r\n", b"X-%d: " + b"y" * 1000 + b"\r\n"), (b"1;", b"a%d=b;" + b"c" * 1000)):
        connection = door.connect(asked + begun)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for number in range(50_000):
                connection.sendall(more.replace(b"%d", b"%d" % number))
            raise AssertionError("50 MB that are no body were taken")


def test_a_body_of_a_stranger_is_not_read_to_its_end(door: Door) -> None:
    if door.name == "box":  # it asks for no token, and everybody may send as much as its limit
        return
    asked = head(f"POST {POSTED[door.name]}", "Host: localhost", "Content-Length: 1000000", "Content-Type: text/plain")
    connection = door.connect(asked)
    assert answer_of(connection)[0] in {401, 413}
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(4000):
            connection.sendall(b"x" * 10_000)
        raise AssertionError("40 MB were taken after the refusal")


def test_a_body_over_the_limit_is_refused_by_what_its_head_says(door: Door) -> None:
    asked = head(f"POST {POSTED[door.name]}", "Host: localhost", "Content-Length: 1073741824",
                 "Content-Type: application/json", "Authorization: Bearer secret")  # fmt: skip
    assert door.code(asked) == (413, "request-too-large")


@pytest.mark.parametrize(
    "half",
    first_short([b"GET", b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y"]),
)
def test_half_a_head_is_not_waited_for(door: Door, half: bytes) -> None:
    connection = door.connect(half)
    assert answer_of(connection)[0] == (408 if half else 0)
    assert connection.recv(1) == b""


def test_a_head_that_comes_byte_by_byte_has_no_more_time(door: Door) -> None:
    connection = door.connect()
    connection.settimeout(0.2)
    for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100:
        try:
            connection.sendall(bytes([byte]))
            if connection.recv(1) in (b"", b"H"):
                return
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return
    raise AssertionError("20 s were given for one head")


def test_half_a_body_is_not_waited_for(door: Door) -> None:
    asked = head(f"POST {POSTED[door.name]}", "Host: localhost", "Content-Length: 10",
                 "Content-Type: application/json", "Authorization: Bearer secret")  # fmt: skip
    connection = door.connect(asked + b"{")
    assert answer_of(connection)[0] in {401, 408}
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


def test_a_body_that_comes_byte_by_byte_is_not_waited_for(door: Door) -> None:
    connection = door.connect(
        head(f"POST {POSTED[door.name]}", "Host: localhost", "Content-Length: 1000",
             "Content-Type: application/json", "Authorization: Bearer secret")
    )  # fmt: skip
    connection.settimeout(SILENCE_S / 10)
    for _ in range(100):
        try:
            connection.sendall(b" ")
            if connection.recv(1) in (b"", b"H"):
                return
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return
    raise AssertionError(f"{10 * SILENCE_S} s were given for one body")


def test_one_address_cannot_take_the_connections_of_others(door: Door) -> None:
    idle = [door.connect(b"GET") for _ in range(60)]
    assert door.is_well()

    def closed() -> int:
        found = 0
        for connection in idle:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                found += connection.recv(1000) is not None
        return found

    wait_until(lambda: closed() >= 20, what="those beyond the limit are closed, the oldest first")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9000", "localhost.evil.example", "10.0.0.1", ""])
def test_a_foreign_name_does_not_reach_a_box_without_tokens(door: Door, host: str) -> None:
    for path in ("/v1/describe", "/v2", "/health/live", "/v2/models/x/infer"):
        status, _ = door.send(head(f"GET {path}", f"Host: {host}"))
        assert (status == 403) is (door.name == "box"), (path, status)


def test_a_name_that_is_set_reaches_it(door: Door) -> None:
    for host in ("box.example:9000", "other.example", "LOCALHOST", "127.0.0.1"):
        assert door.send(head(f"GET {LIVE}", f"Host: {host}", f"Origin: http://{host}"))[0] == 200


def test_many_addresses_together_cannot_take_all_connections(door: Door) -> None:
    for number in range(5):
        for _ in range(30):
            door.connect(b"GET", f"127.0.1.{number + 1}")
    assert door.is_well()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://localhost.evil.example"])
def test_a_page_of_another_place_cannot_call_a_box_without_tokens(door: Door, origin: str) -> None:
    asked = head("POST /v1/preprocess", "Host: localhost", f"Origin: {origin}", "Content-Type: text/plain",
                 "Content-Length: 2")  # fmt: skip
    status, _ = door.send(asked + b"{}")
    assert (status == 403) is (door.name == "box")
