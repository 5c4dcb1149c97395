"""A gateway under hostile clients and wrong requests: each is told what is wrong, and nobody else notices.

The short form takes seconds. ``RDUKIT_TEST_HOSTILE_S`` is how long the OpenAPI is tried in the long one, in which also
more random requests are sent; ``make integration`` sets it.
"""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.http.limits import RESERVED_FILES, choose_connections
from support import shows, wait_until
from support.helpers import RawCaller, answer_of
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = shows("security", "errors", "jobs", "artifacts")

BOX = Path(__file__).parent / "platform_box.py"
LONG_S = int(os.environ.get("RDUKIT_TEST_HOSTILE_S", "0"))
CONNECTIONS, STREAMS = 100, 30
LIMITS = {
    "RDUKIT_GATEWAY_SILENCE_S": "3", "RDUKIT_GATEWAY_MAX_BODY_BYTES": "100000",
    "RDUKIT_GATEWAY_MAX_HEADER_BYTES": "20000", "RDUKIT_GATEWAY_MAX_CONNECTIONS": str(CONNECTIONS),
    "RDUKIT_GATEWAY_MAX_STREAMS": str(STREAMS), "RDUKIT_GATEWAY_MAX_UPLOAD_BYTES": str(16 << 20),
}  # fmt: skip


REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
JSON = "Content-Type: application/json"
FORM = "Content-Type: multipart/form-data; boundary=B"


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, LIMITS) as running:
        yield running


@pytest.fixture
def attacker(platform: PlatformUnderTest) -> Iterator["Attacker"]:
    with contextlib.closing(Attacker(platform)) as found:
        yield found
        # Whatever happened, another caller is served, and nothing broke.
        assert platform.client.get("/v1/me")["tenant"]["name"] == "default"
        log = (platform.home / "logs" / "gateway.log").read_text(errors="replace")
        assert " ERROR " not in log, log[-4000:]


class Attacker(RawCaller):
    """A caller with a token."""

    def __init__(self, platform: PlatformUnderTest) -> None:
        super().__init__(platform.running["url"])
        token = (platform.home / "token").read_text().strip()
        self.authorization = f"Authorization: Bearer {token}\r\n".encode()

    def head(self, method: str, path: str, *headers: str, is_known: bool = True) -> bytes:
        lines = "".join(f"{header}\r\n" for header in headers).encode()
        known = self.authorization if is_known else b""
        return f"{method} {path} HTTP/1.1\r\nHost: gateway\r\n".encode("latin-1") + known + lines

    def post(self, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
        head = self.head("POST", path, f"Content-Type: {kind}", f"Content-Length: {len(body)}")
        return self.send(head + b"\r\n" + body)


def nested(depth: int) -> bytes:
    return b'{"box": "counter", "verb": "train", "parameters": {"steps": ' + b"[" * depth + b"]" * depth + b"}}"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"\xff\xfe{", b'{"box": "\xff"}', b"[]", b"7", b"null", b"NaN", nested(100), nested(900),
        nested(20_000), b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"box": "counter", "verb": "preprocess", "tiles": ' + b"9" * 5000 + b"}",
        b'{"box": "counter", "verb": "preprocess", "name": "\\ud800"}',
        b'{"box": "counter", "verb": "preprocess", "parameters": {"\\udfff": 1}}',
        b'{"box": "counter", "verb": "preprocess", "inputs": {"data": "\\uD800"}}',
        b'{"box": "counter", "verb": "preprocess", "parameters": {"mood": 1e999}}',
        b'{"box": "counter", "verb": "train", "parameters": {"step_s": NaN}}',
        b'{"box": "counter", "verb": "preprocess", "inputs": {"data": "@a.b"}}',
    ],
)  # fmt: skip
def test_a_wrong_body_is_told_so(attacker: Attacker, body: bytes) -> None:
    status, answer = attacker.post("/v1/jobs", body)
    assert status == 400
    assert json.loads(answer)["error"]["code"]


@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/jobs/x/events?after=99999999999999999999999", "GET /v1/jobs?limit=99999999999999999999",
        "GET /v1/jobs?cursor=%F0%9F", "GET /v1/jobs?state=%00", "GET /v1/artifacts?limit=-1", "GET /\xff",
        "POST /v1/jobs/%ff/cancel", "GET /v1/artifacts/%2e%2e/content?path=../../etc/passwd", "GET /v1/pipelines/%00",
        "DELETE /v1/jobs", "FOO /v1/jobs", "get /v1/jobs", "TRACE /v1/me", "GET /docs/static/..%2f..%2fsettings.py",
        "POST /v1/tenants/%00/tokens", "GET /v1/catalog/" + "x" * 3000,
        "GET /v1/experts?box=a:0", "GET /v1/experts/%00:1", "POST /v1/experts/x:y/deprecate",
        "POST /v1/jobs/%00/clone", "GET /v1/jobs/compare?ids=%00,x", "GET /v1/jobs/%00/metrics",
        "GET /v1/sweeps?limit=-1", "GET /v1/sweeps/%00", "POST /v1/sweeps/%00/cancel",
    ],
)  # fmt: skip
def test_a_wrong_line_is_told_so(attacker: Attacker, line: str) -> None:
    status, answer = attacker.send(attacker.head(*line.split(" ", 1)) + b"\r\n")
    assert status in {400, 404, 405}
    assert json.loads(answer)["error"]["code"]


@pytest.mark.parametrize(
    "token",
    [b"", b"Bearer", b"Bearer ", b"Bearer \xff\xfe", b"Bearer " + b"x" * 15_000, b"Basic YTpi", b"\xc3\xa9", b"a b c"],
)
def test_a_wrong_token_is_none(attacker: Attacker, token: bytes) -> None:
    header = b"Authorization: " + token + b"\r\n\r\n"
    assert attacker.send(attacker.head("GET", "/v1/me", is_known=False) + header)[0] == 401
    assert (
        attacker.send(attacker.head("POST", "/v1/jobs", "Content-Length: 2", is_known=False) + header + b"{}")[0] == 401
    )


def test_the_last_event_of_a_stream_is_one_that_there_may_be(attacker: Attacker, platform: PlatformUnderTest) -> None:
    job_id = platform.wait_end(platform.submit("preprocess")["id"])["id"]
    for wrong in ("9" * 40, "-1", "x", "\xb2"):
        head = attacker.head("GET", f"/v1/jobs/{job_id}/events", "Accept: text/event-stream", "Last-Event-ID: ")
        assert attacker.send(head[:-2] + wrong.encode("latin-1") + b"\r\n\r\n")[0] == 400


def test_headers_have_an_end(attacker: Attacker) -> None:
    connection = attacker.connect(attacker.head("GET", "/health/live"))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for number in range(20_000):  # much is in sockets' buffers before a busy gateway looks
            connection.sendall(b"X-%d: " % number + b"y" * 10_000 + b"\r\n")
        raise AssertionError("200 MB of headers were taken")
    status, answer = attacker.send(attacker.head("GET", "/health/live", "X: " + "y" * 25_000))
    assert status in {0, 431}  # 0: the answer was lost with the rest of the headers
    assert not answer or json.loads(answer)["error"]["detail"] == {"field": "headers", "limit": 20_000}


def test_bodies_have_an_end(attacker: Attacker) -> None:
    told = attacker.head("POST", "/v1/jobs", JSON, "Content-Length: 1000000000000") + b"\r\n"
    endless = attacker.head("POST", "/v1/jobs", JSON, "Transfer-Encoding: chunked") + b"\r\n"
    for head, part in ((told, b""), (endless, b"4000\r\n" + b"1" * 0x4000 + b"\r\n")):
        connection = attacker.connect(head)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(20):
                connection.sendall(part)
        status, answer = answer_of(connection)
        assert status == 413
        assert json.loads(answer)["error"]["detail"] == {"field": "body", "limit": 100_000}


def test_a_strangers_files_are_not_read(attacker: Attacker) -> None:
    head = attacker.head(
        "POST", "/v1/artifacts", FORM, "Content-Length: 10000000", is_known=False
    )  # fmt: skip
    status, answer = answer_of(attacker.connect(head + b"\r\n"))
    assert status == 401
    assert json.loads(answer)["error"]["code"] == "unauthenticated"
    head = attacker.head("POST", "/v1/artifacts", FORM, "Content-Length: 20000000")
    assert answer_of(attacker.connect(head + b"\r\n"))[0] == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"garbage", b"--B--\r\n", b'--B\r\nContent-Disposition: form-data; name="kind"\r\n\r\n' + b"k" * 90_000],
)
def test_a_wrong_form_is_told_so(attacker: Attacker, body: bytes) -> None:
    assert attacker.post("/v1/artifacts", body, "multipart/form-data; boundary=B")[0] == 400
    assert attacker.post("/v1/artifacts", body, "multipart/form-data")[0] == 400


def test_half_of_a_request_does_not_keep_a_connection(attacker: Attacker) -> None:
    silent = attacker.connect()
    half_head = attacker.connect(attacker.head("GET", "/v1/me"))
    half_body = attacker.connect(attacker.head("POST", "/v1/jobs", JSON, "Content-Length: 9") + b'\r\n{"b')
    answered = attacker.connect(attacker.head("GET", "/v1/me") + b"\r\n")
    assert answer_of(answered)[0] == 200
    answered.sendall(attacker.head("GET", "/v1/me"))  # and no more
    assert answer_of(silent) == (0, b"")
    for connection in (half_head, half_body, answered):
        status, answer = answer_of(connection)
        assert status == 408
        assert json.loads(answer)["error"]["code"] == "request-timeout"
        assert connection.recv(1) == b""


def test_who_does_not_read_an_answer_loses_the_connection(attacker: Attacker, platform: PlatformUnderTest) -> None:
    size = 15 << 20
    token = attacker.authorization.decode().split()[2]
    sent = httpx.post(
        f"{platform.running['url']}/v1/artifacts", data={"kind": "k"}, files={"files": ("big", bytes(size))},
        headers={"Authorization": f"Bearer {token}"}, timeout=120, trust_env=False,
    )  # fmt: skip
    assert sent.status_code == 201
    connection = attacker.connect(attacker.head("GET", f"/v1/artifacts/{sent.json()['id']}/content") + b"\r\n")
    pid = platform.pid_of("gateway")

    def holds() -> bool:
        """Whether the gateway has a connection to that port."""
        port = f"{connection.getsockname()[1]:04X}"
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        return any(line.split()[2].endswith(f":{port}") and line.split()[3] == "01" for line in lines)

    wait_until(lambda: not holds(), what="the gateway lets go of it")
    got = 0
    with contextlib.suppress(ConnectionResetError):
        while block := connection.recv(1 << 20):
            got += len(block)
    assert got < size


def test_many_connections_keep_nobody_out(attacker: Attacker, platform: PlatformUnderTest) -> None:
    for _ in range(2 * CONNECTIONS):
        attacker.connect(attacker.head("GET", "/v1/me"))
    with httpx.Client(base_url=platform.running["url"], trust_env=False, timeout=60) as other:
        assert other.get("/health/live").status_code == 200
    assert answer_of(attacker.open[0])[0] == 408  # the first that came was the first to go


def test_many_streams_of_one_tenant_keep_nobody_waiting(attacker: Attacker, platform: PlatformUnderTest) -> None:
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    job = platform.submit("train", inputs={"dataset": dataset}, parameters={"steps": 1000, "step_s": 0.1})
    head = attacker.head("GET", f"/v1/jobs/{job['id']}/events", "Accept: text/event-stream") + b"\r\n"
    statuses = []
    for _ in range(STREAMS):
        connection = attacker.connect(head)
        statuses.append(int(connection.recv(65536).split()[1]))
    assert set(statuses) == {200}
    status, answer = attacker.send(head)
    assert (status, json.loads(answer)["error"]["code"]) == (429, "overloaded")
    name = f"other-{random.randrange(1 << 30)}"
    platform.client.post("/v1/tenants", {"name": name})
    token = platform.client.post(f"/v1/tenants/{name}/tokens", {"name": "t"})["token"]
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=platform.running["url"], headers=headers, trust_env=False, timeout=60) as other:
        submitted = other.post("/v1/jobs", json={"box": "counter", "verb": "preprocess"}).json()["id"]
        with other.stream("GET", f"/v1/jobs/{submitted}/events", headers={"Accept": "text/event-stream"}) as events:
            assert events.status_code == 200
            assert any('"succeeded"' in line for line in events.iter_lines())
    for connection in attacker.open:
        connection.close()
    wait_until(lambda: attacker.send(head.replace(b"Accept", b"X"))[0] == 200)
    wait_until(lambda: follows(attacker, head), what="who went away does not count any more")
    platform.client.post(f"/v1/jobs/{job['id']}/cancel")


def follows(attacker: Attacker, head: bytes) -> bool:
    return attacker.connect(head).recv(65536).split()[1] == b"200"


def random_request(attacker: Attacker, dice: random.Random) -> bytes:
    """A request that is wrong in one or more ways."""
    method = dice.choice(["GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "FOO"])
    path = dice.choice([
        "/v1/jobs", "/v1/jobs/x", "/v1/jobs/x/events", "/v1/jobs/x/cancel", "/v1/pipelines", "/v1/artifacts",
        "/v1/tenants", "/v1/artifacts/x/lineage", "/v1/catalog/x", "/v1/nodes", "/v1/boxes", "/v1/experts",
        "/v1/experts/x:1/deprecate", "/console/jobs", "/console/login", "/docs", "//", "*",
    ])  # fmt: skip
    query = dice.choice(
        ["", "", "?limit=%00", "?cursor=" + "A" * dice.choice([4, 400]), "?after=-1", "?state=%ff&kind=", "?path=.."]
    )
    value: Any = dice.choice([
        {"box": dice.choice(["counter", "", "x" * 200, 7, None]), "verb": dice.choice(["train", "preprocess", "?", {}]),
         "parameters": dice.choice([{}, {"steps": dice.choice([0, 1e308, "x", [], None])}, 7, [1]]),
         "inputs": dice.choice([{}, {"dataset": dice.choice(["art-1", "@a.b", "", 3])}])},
        {"name": dice.choice(["a", "A", "\0", "x" * 300]),
         "steps": dice.choice([[], [{}], [{"name": "a", "box": "counter"}]])},
        [], 7, None, {"scopes": ["root"]},
    ])  # fmt: skip
    body = json.dumps(value).encode()
    spoiled = bytearray(body)
    for _ in range(dice.choice([0, 0, 1, 5])):
        spoiled[dice.randrange(len(spoiled))] = dice.randrange(256)
    length = dice.choice([len(spoiled), len(spoiled), 0])
    kind = dice.choice(["application/json", "application/json", "text/plain", "multipart/form-data; boundary=B", "x"])
    head = attacker.head(
        method, path + query, f"Content-Type: {kind}", f"Content-Length: {length}", "Connection: close"
    )
    return head + b"\r\n" + bytes(spoiled[:length])


def test_no_random_request_breaks_it(attacker: Attacker) -> None:
    dice = random.Random(19)
    for number in range(3000 if LONG_S else 150):
        data = random_request(attacker, dice)
        status, _ = attacker.send(data)
        attacker.open.pop().close()
        assert 200 <= status < 500, (number, status, data)


@pytest.mark.parametrize(
    ("path", "legal"),
    [
        ("/v1/jobs", "GET, POST"),
        ("/v1/jobs/compare", "GET"),
        ("/v1/endpoints/x/promote", "POST"),
        ("/v1/endpoints/x/v2/health/ready", "GET, POST"),
    ],
)
def test_a_method_that_a_path_has_not_is_told_those_that_it_has(
    platform: PlatformUnderTest, path: str, legal: str
) -> None:
    token = (platform.home / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.options(platform.running["url"] + path, headers=headers, trust_env=False)
    assert (answer.status_code, answer.headers["allow"]) == (405, legal)


@pytest.mark.long
def test_the_routes_keep_to_their_openapi_when_it_is_followed_and_when_it_is_not(
    attacker: Attacker, platform: PlatformUnderTest, tmp_path: Path
) -> None:
    # A body that is too long is refused for that, before anybody looks at what it says.
    (tmp_path / "schemathesis.toml").write_text(f"[checks.negative_data_rejection]\nexpected-statuses = {REFUSALS}\n")
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{platform.running['url']}/openapi.json",
        "-H", attacker.authorization.decode().strip(), "--phases", "coverage,fuzzing" if LONG_S else "coverage",
        "--no-shrink", "--max-examples", "200" if LONG_S else "5", "--seed", "1", "--request-timeout", "60",
        "--continue-on-failure",
        # What is legal depends on boxes and artifacts, which no OpenAPI says.
        "--exclude-checks", "positive_data_acceptance",
        "--exclude-path", "/v1/logout",  # ends the token that it is called with
        "--max-time", str(LONG_S or 5),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S + 300, check=False, cwd=tmp_path)
    if "Empty test suite" in done.stdout:  # on a machine with much else to do, the first may end before the first case
        command[-1] = "40"
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert re.search(r"\b[1-9]\d* generated", done.stdout), done.stdout[-3000:]
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize(
    ("most", "files", "taken"),
    [(4096, 20_000, 4096), (4096, 4000, 4000 - RESERVED_FILES), (4096, 256, 128), (1, 9000, 8)],
)
def test_connections_leave_files_for_everything_else(most: int, files: int, taken: int) -> None:
    assert choose_connections(most, files) == taken
