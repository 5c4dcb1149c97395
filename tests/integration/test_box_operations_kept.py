"""Operations that outlive their box, keep to their time, and are announced."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit.box.client import BoxClient
from rdukit.errors import Conflict, Unavailable
from rdukit.http.webhooks import AddressRefused, find_address
from rdukit_modelbox.artifacts.mounts import Exchange
from rdukit_modelbox.operations.supervisor import ChildLimits, ChildOutcome, Listener, run_child
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from support import shows, wait_until
from support.platform.warm import start_box

pytestmark = shows("operations", "logreg")

SECRET = "whsec_" + base64.b64encode(b"between us").decode()
ENVIRONMENT = {
    "RDUKIT_BOX_WEBHOOK_PRIVATE": "1", "RDUKIT_BOX_WEBHOOK_SECRET": SECRET, "RDUKIT_BOX_WEBHOOK_BACKOFF_S": "0.05",
    "RDUKIT_BOX_CANCEL_GRACE_S": "1",
}  # fmt: skip


class Receiver:
    """A server that webhooks go to. Answers with ``statuses`` in turn, then 204."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.told: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.told.append(({k.lower(): v for k, v in self.headers.items()}, body))
                status = receiver.statuses.pop(0) if receiver.statuses else 204
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "http://127.0.0.1:1/")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_address[1]}/told?x=1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("box")


@pytest.fixture(scope="module")
def box(state: Path) -> Iterator[ProcessBox]:
    box = start(state)
    yield box
    box.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[BoxClient]:
    with BoxClient(box.rest_url) as client:
        yield client


def start(state: Path) -> ProcessBox:
    return start_box(BoxSpec("logreg", state, environment=ENVIRONMENT))


def deliveries_of(client: BoxClient, operation_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.operation(operation_id)["deliveries"]
    return found


def test_a_webhook_is_told_signed_and_again_until_it_answers(client: BoxClient, receiver: Receiver) -> None:
    receiver.statuses = [500, 503]
    webhook = {"url": receiver.url, "events": ["running", "succeeded"]}
    asked = client.submit("preprocess", {"limit": 1}, webhook=webhook)
    assert client.wait(asked["id"])["state"] == "succeeded"
    wait_until(lambda: all(d["state"] == "delivered" for d in deliveries_of(client, asked["id"])))
    first, second = deliveries_of(client, asked["id"])
    assert (first["event"], first["attempts"], first["status"]) == ("operation.running", 3, 204)
    assert (second["event"], second["attempts"], second["status"]) == ("operation.succeeded", 1, 204)
    for headers, body in receiver.told:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(b"between us", signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
    told = [json.loads(body) for _, body in receiver.told]
    assert [value["type"] for value in told] == ["operation.running"] * 3 + ["operation.succeeded"]
    assert (told[0]["operation"]["state"], told[3]["operation"]["state"]) == ("running", "succeeded")
    assert len({headers["webhook-id"] for headers, _ in receiver.told}) == 2


@pytest.mark.parametrize(("status", "words"), [(404, "answered 404"), (302, "would redirect")])
def test_a_receiver_that_refuses_is_not_tried_again(
    client: BoxClient, receiver: Receiver, status: int, words: str
) -> None:
    receiver.statuses = [status]
    asked = client.submit("preprocess", {"limit": 1}, webhook={"url": receiver.url})
    assert client.cancel(asked["id"])["state"] in {"cancelled", "succeeded"}
    wait_until(lambda: deliveries_of(client, asked["id"])[-1]["state"] == "failed")
    assert (len(receiver.told), words in deliveries_of(client, asked["id"])[-1]["error"]) == (1, True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "2130706433", "::1", "169.254.169.254"])
async def test_without_the_setting_no_webhook_reaches_this_machine(host: str) -> None:
    with pytest.raises(AddressRefused, match="not at a public address"):
        await find_address(host, 80)


def test_what_takes_too_long_fails_running_or_queued(client: BoxClient) -> None:
    running = client.submit("compile", timeout_s=0.2)
    queued = client.submit("compile", timeout_s=0.05)
    ended = client.wait(running["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "deadline-exceeded")
    ended = client.wait(queued["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "deadline-exceeded")
    assert "in the queue" in ended["error"]["message"]


def test_the_list_is_given_in_parts_and_by_state(box: ProcessBox, client: BoxClient) -> None:
    every = [operation["id"] for operation in client.operations()]
    failed = [operation["id"] for operation in client.operations(state="failed", verb="compile")]
    assert 0 < len(failed) < len(every)
    page = httpx.get(f"{box.rest_url}/v1/operations?limit=2", trust_env=False).json()
    assert [o["id"] for o in page["operations"]] == every[:2]
    assert page["next_cursor"]


def test_a_stream_goes_on_after_the_last_event_that_was_seen(box: ProcessBox, client: BoxClient) -> None:
    asked = client.submit("preprocess", {"limit": 1})
    events = list(client.events(asked["id"]))
    url = f"{box.rest_url}/v1/operations/{asked['id']}/events"
    text = httpx.get(url, headers={"last-event-id": str(events[1]["sequence"])}, trust_env=False).text
    told = [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]
    assert told == [str(event["sequence"]) for event in events[2:]]
    assert text.startswith("retry: ")


def test_a_second_box_does_not_take_the_state_folder_of_the_first(box: ProcessBox, state: Path) -> None:
    with pytest.raises(Unavailable, match="another box has the state folder"):
        start(state)


def test_what_was_asked_is_known_after_the_box_was_killed(tmp_path: Path, receiver: Receiver) -> None:
    box = start(tmp_path)
    with BoxClient(box.rest_url) as client:
        done = client.wait(client.submit("preprocess", {"limit": 1}, idempotency_key="done")["id"])
        events = list(client.events(done["id"]))
        webhook = {"url": receiver.url, "events": ["succeeded"]}
        resumed = client.submit("preprocess", {"limit": 2}, idempotency_key="resumed", resume=True, webhook=webhook)
        lost = client.submit("preprocess", {"limit": 3})
        wait_until(lambda: client.operation(resumed["id"])["state"] == "running")
        os.kill(box.pid, signal.SIGKILL)
    box.stop()
    box = start(tmp_path)
    try:
        with BoxClient(box.rest_url) as client:
            assert client.operation(done["id"]) == done
            assert list(client.events(done["id"])) == events
            assert client.submit("preprocess", {"limit": 1}, idempotency_key="done") == done
            with pytest.raises(Conflict, match="another request"):
                client.submit("preprocess", {"limit": 9}, idempotency_key="done")
            failed = client.operation(lost["id"])
            assert (failed["state"], failed["error"]["code"]) == ("failed", "interrupted")
            ended = client.wait(resumed["id"])
            assert (ended["state"], ended["runs"], ended["result"]["train_samples"]) == ("succeeded", 2, 2)
            states = [e["operation"]["state"] for e in client.events(resumed["id"]) if e["kind"] == "state"]
            assert states == ["queued", "running", "queued", "running", "succeeded"]
            wait_until(lambda: deliveries_of(client, resumed["id"])[0]["state"] == "delivered")
    finally:
        box.stop()


async def run_limited(
    tmp_path: Path, limits: ChildLimits, look: Callable[[int], object] = lambda pid: None
) -> ChildOutcome:
    """Preprocess in a child with limits; ``look`` gets the process whenever it tells something."""
    from dataclasses import asdict

    from rdukit_modelbox.contract.box import find_box_file

    def find(_: object) -> None:
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                if b"rdukit_modelbox.operations.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    look(int(pid))

    (tmp_path / "out").mkdir()
    request = {
        "kind": "verb", "verb": "preprocess", "box_file": str(find_box_file("logreg")), "inputs": {},
        "parameters": {"limit": 1, "normalize": "none"}, "output": str(tmp_path / "out"),
        "exchange": asdict(Exchange()),
    }  # fmt: skip
    listener = Listener(progress=find, log=find)
    return await run_child(request, tmp_path / "log", listener, asyncio.Event(), limits)


async def test_a_child_that_takes_too_much_memory_is_killed_and_the_reason_is_told(tmp_path: Path) -> None:
    outcome = await run_limited(tmp_path, ChildLimits(memory_bytes=10 << 20))
    assert outcome.failed is not None
    assert outcome.failed.code == "out-of-memory"
    assert "its box allows 10 MiB" in outcome.failed.message
    assert (outcome.peak_memory_bytes or 0) > 10 << 20


@pytest.mark.parametrize("by", [0, 7])
async def test_a_verb_runs_at_a_lower_priority_than_its_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    monkeypatch.setenv("RDUKIT_BOX_VERB_NICE", str(by))
    seen = list[int]()
    outcome = await run_limited(tmp_path, ChildLimits(), lambda pid: seen.append(os.getpriority(os.PRIO_PROCESS, pid)))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert outcome.failed is None and set(seen) == {min(own + by, 19)}


async def test_a_child_that_hangs_is_killed_and_the_reason_is_told(tmp_path: Path) -> None:
    outcome = await run_limited(tmp_path, ChildLimits(stall_s=1.5), lambda pid: os.kill(pid, signal.SIGSTOP))
    assert outcome.failed is not None, outcome
    assert (outcome.failed.code, outcome.failed.detail["exit"]) == ("stalled", "was killed by SIGKILL")
