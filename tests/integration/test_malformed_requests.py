"""A box under wrong requests: each is told what is wrong, none breaks it, and none leaves anything behind."""

import contextlib
import json
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from support import shows
from support.platform.warm import start_box

pytestmark = shows("operations", "errors", "wire", "logreg")

ENVIRONMENT = {"RDUKIT_BOX_MAX_BODY_BYTES": "100000"}
REQUESTS = 1000


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    box = start_box(BoxSpec("logreg", tmp_path_factory.mktemp("box"), environment=ENVIRONMENT))
    yield box
    box.stop()


def exchange(box: ProcessBox, data: bytes, timeout_s: float = 10.0) -> bytes:
    """The answer to raw bytes, up to the end of the connection or of the answer."""
    host, _, port = box.rest_url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(data)
        answer = b""
        try:
            while block := connection.recv(1 << 16):
                answer += block
                if answer.startswith(b"HTTP/1.1 100 "):
                    answer = answer.partition(b"\r\n\r\n")[2]
                head, end, body = answer.partition(b"\r\n\r\n")
                if end and data.startswith(b"HEAD"):
                    break
                if end and b"content-length: " in head.lower():
                    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                    if len(body) >= length:
                        return head + end + body[:length]  # what follows answers bytes that were too many
        except ConnectionResetError:
            pass
        return answer


def random_request(dice: random.Random) -> bytes:
    """A request that is wrong in one or more ways."""
    method = dice.choice(["GET", "POST", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "FOO", "get"])
    path = dice.choice([
        "/v1/compile", "/v1/train", "/v1/infer", "/v1/preprocess", "/v1/operations", "/v1/operations/op-0",
        "/v1/operations/op-0/cancel", "/v1/operations/%ff%00/events", "/v1/operations?limit=-1", "/v1/%2e%2e/x",
        "/v1/operations?cursor=%F0%9F", "/v1/operations?state=x&verb=y", "/v1/operations/a/events?after=x", "//", "/..",
        "/v1/operations/" + "x" * dice.choice([10, 2000]), "/health/ready/x", "/\u00fc".encode().decode("latin-1"), "*",
    ])  # fmt: skip
    value: object = dice.choice([
        {"parameters": {"batch_size": dice.choice([1e308, -1, "x", None, [], {}, True])}}, {"parameters": 7}, [], 7,
        {"rows": dice.choice([[], [[]], [[1, "x"]], {}, [[1e400]], [None]])}, None,
        {"timeout_s": dice.choice([-1, "5", 1e99])},
        {"webhook": dice.choice([1, {}, {"url": "ftp://x"}, {"url": "http://x", "events": ["done"]}])}, "\ud800",
        {"inputs": {"pef": dice.choice(["../../etc/passwd", "\0", "", "s3://", "x" * 5000])}}, {"output": "/etc"},
        {"\ud800": 1}, {"idempotency_key": "k" * 1000, "parameters": {"nothing": 1}}, {"resume": "yes"},
    ])  # fmt: skip
    body = json.dumps(value).encode()
    match dice.randrange(8):
        case 0:
            body = body[: dice.randrange(len(body) + 1)]
        case 1:
            body = bytes(dice.randrange(256) for _ in range(dice.randrange(200)))
        case 2:
            body = b"[" * 50_000
        case 3:
            body = b'{"parameters": {"batch_size": NaN}}'
        case 4:
            body = b"x" * 150_000
    kind = dice.choice(["application/json", "text/plain", "application/xml", "multipart/form-data", "", "x/json; y=z"])
    headers = [f"content-type: {kind}", "host: localhost"]
    many = [f"h{n}: v" for n in range(500)]
    headers += dice.choice([[], [], [f"x-long: {'y' * 40_000}"], many, ["x-request-id: \x7f\x80"]])
    upgrade = ["upgrade: websocket", "connection: upgrade"]
    headers += dice.choice([[], [], ["last-event-id: -5"], ["expect: 100-continue"], upgrade])
    length = dice.choice([len(body)] * 6 + [0, -1])
    headers.append(f"content-length: {length}" if length >= 0 else "transfer-encoding: chunked")
    if length < 0:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "", ""])
    return head.encode("latin-1") + body[:200_000]


def test_a_thousand_wrong_requests_get_an_answer_that_is_not_the_boxs_fault(box: ProcessBox) -> None:
    dice = random.Random(20)
    statuses: dict[int, int] = {}
    for number in range(REQUESTS):
        data = random_request(dice)
        answer = exchange(box, data)
        words = answer.split(maxsplit=2)
        assert len(words) > 1, (number, data[:300], answer)
        status = int(words[1])
        statuses[status] = statuses.get(status, 0) + 1
        assert status < 500, (number, data[:300], answer[:500])
        body = answer.partition(b"\r\n\r\n")[2]
        if status >= 400 and not data.startswith(b"HEAD"):
            error = json.loads(body)["error"]
            assert error["message"], number
            if status in {400, 422} and error["code"] != "method-not-allowed":
                assert error["detail"].get("field"), (number, data[:300], error)
    assert {404, 405, 413, 422, 431} <= statuses.keys(), statuses
    assert httpx.get(f"{box.rest_url}/health/live", trust_env=False).status_code == 200
    assert box.is_alive()
    assert "Traceback" not in box.logs()


def test_headers_without_end_are_cut_off(box: ProcessBox) -> None:
    answer = exchange(box, b"GET /health/live HTTP/1.1\r\nx: " + b"y" * 5_000_000)
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:100]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["detail"]["field"] == "headers"


def test_a_body_without_length_that_gets_too_long_is_cut_off(box: ProcessBox) -> None:
    def blocks() -> Iterator[bytes]:
        yield from (b"x" * 10_000 for _ in range(100))

    headers = {"content-type": "application/json"}
    try:
        answer = httpx.post(f"{box.rest_url}/v1/compile", content=blocks(), headers=headers, trust_env=False)
    except httpx.WriteError:
        return  # it closed the connection while more was coming
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request-too-large")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"timeout_s": -1}', "timeout_s"),
        (b'{"timeout_s": "5"}', "timeout_s"),
        (b'{"parameters": {"batch_size": 33}}', "parameters.batch_size"),
        (b'{"parameters": {"batch_size": 1e999}}', "parameters.batch_size"),
        (b'{"parameters": {"speed": 1}}', "parameters.speed"),
        (b'{"inputs": {"nothing": "x"}}', "inputs.nothing"),
        (b'{"output": "/etc"}', "output"),
        (b'{"webhook": {"url": "http://"}}', "webhook"),
        (b'{"idempotency_key": 7}', "idempotency_key"),
        (b'{"resume": []}', "resume"),
        (b'{"extra": 1}', "extra"),
        (b"{", "body"),
        (b"\xff\xfe", "body"),
        (b"[" * 100_000, "body"),
        (b'{"parameters": {}, "parameters": {"batch_size": 8}}', "parameters"),
        (b'{"parameters": {"batch_size": 8, "batch_size": 16}}', "batch_size"),
        (b"[]", "body"),
    ],
)
def test_the_error_names_the_field(box: ProcessBox, body: bytes, field: str) -> None:
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{box.rest_url}/v1/compile", content=body, headers=headers, trust_env=False)
    assert answer.status_code in {400, 413, 422}
    assert answer.json()["error"]["detail"]["field"] == field, answer.text


def test_nothing_was_started_by_all_this(box: ProcessBox, tmp_path: Path) -> None:
    told = httpx.get(f"{box.rest_url}/v1/operations", trust_env=False).json()["operations"]
    assert [operation for operation in told if operation["state"] == "running"] == []


@pytest.mark.long
def test_the_routes_keep_to_their_openapi_when_it_is_followed_and_when_it_is_not(
    box: ProcessBox, tmp_path: Path
) -> None:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{box.rest_url}/openapi.json",
        "--phases", "coverage", "--no-shrink", "--max-examples", "5", "--seed", "1", "--request-timeout", "10",
        # What is legal depends on the box and on what lies on its disk, which no OpenAPI says.
        "--exclude-checks", "positive_data_acceptance",
        # Each legal request starts a compilation.
        "--exclude-path", "/v1/compile",
    ]  # fmt: skip
    for seconds in ("4", "16", "40"):  # on a machine with much else to do, the first may end before the first case
        bounded = [*command, "--max-time", seconds]
        done = subprocess.run(bounded, capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path)
        if "Empty test suite" not in done.stdout:
            break
    assert re.search(r"\b[1-9]\d* generated", done.stdout), done.stdout[-3000:]
    assert done.returncode == 0, done.stdout[-3000:]
    for operation in httpx.get(f"{box.rest_url}/v1/operations?limit=1000", trust_env=False).json()["operations"]:
        httpx.post(f"{box.rest_url}/v1/operations/{operation['id']}/cancel", timeout=60, trust_env=False)
