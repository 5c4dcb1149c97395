"""A verb that is asked for and followed by one request, of boxes that stream with their answer and of older ones."""

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rdukit.box.client import BoxClient
from rdukit.box.sse import EVENT_STREAM, frame_event
from rdukit.errors import IllegalValue, Unavailable
from rdukit.http.unix_sockets import rest_address
from support import shows

pytestmark = shows("operations", "wire")

QUEUED = {"sequence": 1, "kind": "state", "operation": {"id": "op-1", "state": "queued"}}
ENDED = {"sequence": 2, "kind": "result", "operation": {"id": "op-1", "state": "succeeded"}}


class SmallBox(ThreadingHTTPServer):
    """A server with the routes of operations. It counts its connections, and keeps what it was asked."""

    address_family = socket.AF_UNIX
    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Handler)
        #: Events of an answer, by where they were asked for; the others are kept back.
        self.told = {"with the answer": 2, "apart": 2}
        self.asked: list[str] = []
        self.connections = 0
        self.url = rest_address(path)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SmallBox

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(f"POST {self.path} {body['output']}")
        if body["parameters"]:
            self.answer(400, {"error": {"code": "illegal-value", "message": "no", "detail": {}}})
        elif self.server.told["with the answer"] and self.headers["Accept"] == EVENT_STREAM:
            self.stream([QUEUED, ENDED][: self.server.told["with the answer"]])
        else:
            self.answer(202, QUEUED["operation"])

    def do_GET(self) -> None:
        self.server.asked.append(f"GET {self.path}")
        after = int(self.path.rpartition("=")[2])
        self.stream([QUEUED, ENDED][after : self.server.told["apart"]])

    def stream(self, events: list[dict[str, Any]]) -> None:
        data = b"".join(frame_event(event["kind"], event["sequence"], event) for event in events)
        headers = {"Location": "/v1/operations/op-1", "Transfer-Encoding": "chunked"}
        self.send(200, EVENT_STREAM, b"%x\r\n%b\r\n" % (len(data), data) if data else b"", headers)
        if events[-1:] == [ENDED]:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

    def answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send(status, "application/json", data, {"Content-Length": str(len(data))})

    def send(self, status: int, kind: str, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def box(tmp_path: Path) -> Iterator[SmallBox]:
    with SmallBox(tmp_path / "rest.sock") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def run(client: BoxClient, **parameters: object) -> list[dict[str, Any]]:
    with client.run("train", parameters, {}, "out", is_alive=lambda: True) as events:
        return list(events)


def test_events_come_with_the_answer_and_the_connection_stays(box: SmallBox) -> None:
    with BoxClient(box.url) as client:
        assert [run(client) for _ in range(3)] == [[QUEUED, ENDED]] * 3
    assert box.asked == ["POST /v1/train out"] * 3
    assert box.connections == 1


@pytest.mark.parametrize(("first", "after"), [(0, 0), (1, 1)], ids=["an older box", "a stream that breaks"])
def test_events_that_did_not_come_with_the_answer_are_asked_for(box: SmallBox, first: int, after: int) -> None:
    box.told["with the answer"] = first
    with BoxClient(box.url) as client:
        assert run(client) == [QUEUED, ENDED]
    assert box.asked == ["POST /v1/train out", f"GET /v1/operations/op-1/events?after={after}"]


def test_a_refusal_comes_before_the_block(box: SmallBox) -> None:
    with BoxClient(box.url) as client:
        with pytest.raises(IllegalValue), client.run("train", {"lr": 7}, {}, "out"):
            pytest.fail("a refused verb has no events")
        assert run(client) == [QUEUED, ENDED]


def test_a_box_that_is_gone_is_unavailable(box: SmallBox, tmp_path: Path) -> None:
    with BoxClient(rest_address(tmp_path / "none.sock")) as client, pytest.raises(Unavailable, match="no box answers"):
        run(client)
    box.told["with the answer"] = 1
    with (
        BoxClient(box.url) as client,
        pytest.raises(Unavailable, match=r"^the box broke off its answer: \w[\w ]*"),
        client.run("train", {}, {}, "out", is_alive=lambda: False) as events,
    ):
        list(events)
