"""Operations of a box that keep to their time and their limits, and end with their box; fields of 0.1.0 are refused."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from click.testing import CliRunner

from rdukit.box.client import BoxClient
from rdukit.errors import InvalidArgument, NotFound, Unavailable
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit_modelbox.artifacts.mounts import Exchange
from rdukit_modelbox.cli.main import box as box_commands
from rdukit_modelbox.operations.supervisor import ChildLimits, ChildOutcome, Listener, run_child
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from support import shows, wait_until
from support.platform.warm import start_box

pytestmark = shows("operations", "logreg")

ENVIRONMENT = {"RDUKIT_BOX_CANCEL_GRACE_S": "1"}


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


def test_what_takes_too_long_fails_running_or_queued(client: BoxClient) -> None:
    running = client.submit("compile", timeout_s=0.2)
    queued = client.submit("compile", timeout_s=0.05)
    ended = client.wait(running["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "deadline-exceeded")
    ended = client.wait(queued["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "deadline-exceeded")
    assert "in the queue" in ended["error"]["message"]


def test_the_list_is_given_in_parts_and_by_state(box: ProcessBox, client: BoxClient) -> None:
    client.wait(client.submit("preprocess", {"limit": 1})["id"])
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


def test_operations_end_with_their_box_and_the_next_process_says_so(tmp_path: Path) -> None:
    box = start(tmp_path)
    with BoxClient(box.rest_url) as client:
        done = client.wait(client.submit("preprocess", {"limit": 1})["id"])
        running = client.submit("preprocess", {"limit": 5000})["id"]
        wait_until(lambda: client.operation(running)["state"] == "running")
        os.kill(box.pid, signal.SIGKILL)
    box.stop()
    box = start(tmp_path)
    try:
        with BoxClient(box.rest_url) as client:
            assert list(client.operations()) == []
            for operation in (done["id"], running):
                with pytest.raises(
                    NotFound, match="keeps operations only in memory, so it may belong to an earlier process"
                ):
                    client.operation(operation)
                with pytest.raises(NotFound, match="to an earlier process"):
                    list(client.events(operation))
            assert Path(done["outputs"]["dataset"], "manifest.json").is_file(), "outputs stay"
            with pytest.raises(
                InvalidArgument, match="not trained or served one since its start; pass inputs pef and checkpoint"
            ):
                client.infer_rows([[0.0] * 784])
    finally:
        box.stop()


@pytest.mark.parametrize("field", ["idempotency_key", "resume", "webhook"])
def test_a_field_that_boxes_had_is_refused_with_what_replaces_it(box: ProcessBox, field: str) -> None:
    sent = {"idempotency_key": "k", "resume": True, "webhook": {"url": "https://example.com"}}[field]
    answer = httpx.post(f"{box.rest_url}/v1/preprocess", json={field: sent}, trust_env=False)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["detail"]["field"]) == (422, "malformed-request", field)
    assert f"{field}: removed after 0.1.0" in error["message"] and "a job to the platform" in error["message"]


OLD_MESSAGES = {
    "idempotency_key": b"\x22\x01k", "resume": b"\x30\x01", "webhook": b"\x3a\x0b\x0a\x09http://x/",
}  # fmt: skip


@pytest.mark.parametrize("field", OLD_MESSAGES)
def test_a_message_of_an_older_client_is_refused_by_the_fields_name(box: ProcessBox, field: str) -> None:
    request = pb.VerbRequest.FromString(OLD_MESSAGES[field])
    with grpc.insecure_channel(box.grpc_address) as channel:
        stub = modelbox_pb2_grpc.ModelBoxStub(channel)
        calls = (
            lambda: stub.Train(request, timeout=60),
            lambda: stub.Infer(pb.InferRequest(dataset=request), timeout=60),
        )
        for call in calls:
            with pytest.raises(
                grpc.RpcError, match=f"{field} was removed after 0.1.0: .*a job to the platform"
            ) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("option", [("--key", "k"), ("--resume",), ("--webhook", "https://example.com")])
def test_an_option_that_the_command_had_is_refused_with_what_replaces_it(
    box: ProcessBox, client: BoxClient, option: tuple[str, ...]
) -> None:
    before = list(client.operations())
    asked = CliRunner().invoke(box_commands, ["call", "--url", box.rest_url, "preprocess", *option])
    assert isinstance(asked.exception, InvalidArgument)
    assert f"{option[0]} was removed after 0.1.0" in str(asked.exception)
    assert "a job to the platform" in str(asked.exception)
    assert list(client.operations()) == before
    assert option[0] not in CliRunner().invoke(box_commands, ["call", "--help"]).output


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
