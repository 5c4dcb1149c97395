"""A box as a process: starts, answers, refuses, survives its children, and ends. Needs no model."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rdukit.box.client import BoxClient
from rdukit.errors import IllegalValue, InvalidArgument, NotFound, Unavailable, UnknownParameter
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit_modelbox.cli.main import box as box_commands
from rdukit_modelbox.server.state_folder import StateFolder
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend, ProcessBox
from support import shows, wait_until

pytestmark = shows("box", "wire", "operations", "logreg")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessBox]:
    box = ProcessBackend().start(BoxSpec("logreg", tmp_path_factory.mktemp("box")))
    yield box
    box.stop()
    assert not box.is_alive()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[BoxClient]:
    with BoxClient(box.rest_url) as client:
        yield client


@pytest.fixture(scope="module")
def channel(box: ProcessBox) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(box.grpc_address) as channel:
        yield channel


def test_both_wires_say_that_the_box_is_healthy(box: ProcessBox, client: BoxClient, channel: grpc.Channel) -> None:
    assert client.health() == {"status": "ready"}
    assert httpx.get(f"{box.rest_url}/health/live", trust_env=False).json() == {"status": "live"}
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service="rdukit.modelbox.v1.ModelBox"), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_both_wires_describe_the_box_alike(client: BoxClient, channel: grpc.Channel) -> None:
    described = client.describe()
    message = modelbox_pb2_grpc.ModelBoxStub(channel).Describe(pb.DescribeRequest(), timeout=60)
    assert message.name == described["name"] == "logreg"
    for verb, told in zip(described["verbs"], message.verbs, strict=True):
        assert (verb["name"], [p["legal"] for p in verb["parameters"]]) == (
            told.name,
            [p.legal for p in told.parameters],
        )
        assert [(s["name"], s["required"]) for s in verb["inputs"]] == [(s.name, s.required) for s in told.inputs]


def test_reflection_lists_the_service(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = list(stub.ServerReflectionInfo(iter([request]), timeout=60))
    assert "rdukit.modelbox.v1.ModelBox" in [s.name for s in answers[0].list_services_response.service]


def test_a_bad_parameter_is_refused_over_rest_with_the_legal_values(client: BoxClient) -> None:
    with pytest.raises(IllegalValue) as caught:
        client.submit("compile", {"batch_size": 33})
    assert caught.value.detail["legal"] == [16, 32, 50, 64, 100, 128]
    with pytest.raises(UnknownParameter, match=r"expected .*limit, normalize"):
        client.submit("preprocess", {"speed": 11})


def test_a_bad_parameter_is_refused_over_grpc_with_the_legal_values(channel: grpc.Channel) -> None:
    request = pb.VerbRequest()
    request.parameters.update({"lr": 7})
    with pytest.raises(grpc.RpcError) as caught:
        modelbox_pb2_grpc.ModelBoxStub(channel).Train(request, timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "0 < x <= 1" in caught.value.details()
    metadata = dict(caught.value.trailing_metadata())
    assert json.loads(metadata["rdukit-error-bin"])["error"]["code"] == "illegal-value"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nothing", None, 404, "not-found"),
        ("GET", "/v1/operations/op-0", None, 404, "not-found"),
        ("GET", "/v1/operations/op-0/events", None, 404, "not-found"),
        ("POST", "/v1/operations/op-0/cancel", None, 404, "not-found"),
        ("DELETE", "/v1/describe", None, 405, "method-not-allowed"),
        ("POST", "/v1/train", b"{", 422, "malformed-request"),
        ("POST", "/v1/train", b'{"parameter": {}}', 422, "malformed-request"),
        ("POST", "/v1/train", b"[]", 422, "malformed-request"),
        ("POST", "/v1/infer", b'{"rows": "x"}', 422, "malformed-request"),
        ("POST", "/v1/infer", b'{"rows": [[1, 2]]}', 400, "invalid-argument"),
        ("POST", "/v1/train", b'{"inputs": {"pef": "/etc/passwd", "dataset": "x"}}', 400, "invalid-argument"),
        ("POST", "/v1/train", b'{"inputs": {"pef": "none.pef", "dataset": "x"}}', 404, "not-found"),
        ("POST", "/v1/preprocess", b'{"output": "/etc/rdukit"}', 400, "invalid-argument"),
    ],
)
def test_every_wrong_request_gets_the_one_error_body(
    box: ProcessBox, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    headers = {"content-type": "application/json", "x-request-id": "mine"}
    answer = httpx.request(method, box.rest_url + path, content=body, headers=headers, trust_env=False)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["request_id"]) == (status, code, "mine")
    assert set(error) == {"code", "message", "detail", "request_id"}


def test_a_verb_is_followed_by_the_request_that_asks_for_it(box: ProcessBox, client: BoxClient) -> None:
    with client.run("preprocess", {"limit": 64}, {}, "at-once") as followed:
        events = list(followed)
    assert [e["operation"]["state"] for e in events if e["kind"] == "state"] == ["queued", "running", "succeeded"]
    assert events[-1]["kind"] == "result"
    told = list(client.events(events[-1]["operation"]["id"]))
    assert events == told
    body = {"parameters": {"limit": 64}, "output": "at-once"}
    for accept, status in (("*/*", 202), ("text/event-stream", 200)):
        answer = httpx.post(f"{box.rest_url}/v1/preprocess", json=body, headers={"Accept": accept}, trust_env=False)
        where = f"/v1/operations/{next(client.operations())['id']}"
        assert (answer.status_code, answer.headers["Location"]) == (status, where)
    with pytest.raises(IllegalValue), client.run("compile", {"batch_size": 33}, {}, ""):
        pytest.fail("a refused verb has no events")


def test_preprocess_streams_its_progress(client: BoxClient) -> None:
    first = client.submit("preprocess", {"limit": 64}, output="small")
    assert first["state"] == "queued"
    events = list(client.events(first["id"]))
    assert [e["operation"]["state"] for e in events if e["kind"] == "state"] == ["queued", "running", "succeeded"]
    assert events[-1]["kind"] == "result"
    assert events[-1]["operation"]["result"]["train_samples"] == 64
    assert Path(events[-1]["operation"]["outputs"]["dataset"], "manifest.json").is_file()
    assert [e["progress"]["step"] for e in events if e["kind"] == "progress"][-1] == 3
    assert [e["sequence"] for e in client.events(first["id"], after=2)] == [e["sequence"] for e in events[2:]]


def test_preprocess_runs_over_grpc_too(channel: grpc.Channel) -> None:
    stub = modelbox_pb2_grpc.ModelBoxStub(channel)
    request = pb.VerbRequest(output="small-grpc")
    request.parameters.update({"limit": 32, "normalize": "none"})
    asked = stub.Preprocess(request, timeout=60)
    assert asked.state == "queued"
    events = list(stub.Watch(pb.WatchRequest(id=asked.id), timeout=60))
    assert (events[0].operation.state, events[-1].kind) == ("queued", "result")
    assert events[-1].operation.result["train_samples"] == 32
    operation = stub.GetOperation(pb.OperationRequest(id=asked.id), timeout=60)
    assert (operation.state, operation.progress.step) == ("succeeded", 3)
    again = stub.Watch(pb.WatchRequest(id=asked.id, after=events[1].sequence), timeout=60)
    assert [e.sequence for e in again] == [e.sequence for e in events[2:]]
    assert operation.id in [o.id for o in stub.ListOperations(pb.ListOperationsRequest(), timeout=60).operations]


def test_bad_data_fails_the_operation_with_its_reason(box: ProcessBox, client: BoxClient, tmp_path: Path) -> None:
    folder = Path(client.wait(client.submit("preprocess", {"limit": 1})["id"])["outputs"]["dataset"])
    (folder / "train.npz").write_bytes(b"these are no arrays")
    ended = client.wait(client.submit("preprocess", inputs={"data": str(folder)})["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "invalid-argument"), ended
    assert "train.npz" in ended["error"]["message"]
    with pytest.raises(InvalidArgument, match="outside this box's mounts"):
        client.submit("preprocess", inputs={"data": str(tmp_path)})
    assert client.health() == {"status": "ready"}


def test_metrics_count_what_ended(box: ProcessBox, client: BoxClient) -> None:
    client.wait(client.submit("preprocess", {"limit": 1})["id"])
    text = httpx.get(f"{box.rest_url}/metrics", trust_env=False).text
    assert 'rdukit_box_operations_total{box="logreg",state="succeeded",verb="preprocess"}' in text
    assert "rdukit_box_operation_seconds_bucket" in text


def test_a_second_box_on_a_taken_port_says_so(box: ProcessBox, tmp_path: Path) -> None:
    port = box.rest_url.rpartition(":")[2]
    command = [sys.executable, "-m", "rdukit_modelbox", "run", "logreg", "--rest-port", port]
    done = subprocess.run([*command, "--state", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == InvalidArgument.exit_status
    assert f"REST port {port} cannot be bound" in done.stderr


def test_an_unknown_box_does_not_start_and_the_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no ModelBox 'resnet'; installed: .*ffn, .*logreg"):
        ProcessBackend().start(BoxSpec("resnet", tmp_path))


def test_a_box_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    announce = tmp_path / "announce.json"
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-m', 'rdukit_modelbox', 'run', 'logreg', '--rest-port', '0',\n"
        f"    '--grpc-port', '0', '--state', {str(tmp_path / 'state')!r}, '--announce', {str(announce)!r}])\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(announce.exists)
        pid = json.loads(announce.read_text())["pid"]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not is_running(pid))
    assert not announce.exists()


def test_a_client_of_nothing_is_told_how_to_start_a_box() -> None:
    with BoxClient("http://127.0.0.1:9") as client, pytest.raises(Unavailable, match="rdukit box run"):
        client.describe()


def test_an_unknown_operation_is_not_found_over_both_wires(client: BoxClient, channel: grpc.Channel) -> None:
    with pytest.raises(NotFound):
        list(client.events("op-0"))
    with pytest.raises(grpc.RpcError) as caught:
        list(modelbox_pb2_grpc.ModelBoxStub(channel).Watch(pb.WatchRequest(id="op-0"), timeout=60))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def is_running(pid: int) -> bool:
    """Not ended; a zombie that nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_command_line_lists_describes_and_validates(tmp_path: Path) -> None:
    def rdukit_box(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rdukit_modelbox", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))

    assert {"ffn", "logreg"} <= {b["name"] for b in json.loads(rdukit_box("list", "--json").stdout)}
    assert "one of 16, 32, 50, 64, 100, 128" in rdukit_box("describe", "ffn").stdout
    bad = tmp_path / "modelbox.yaml"
    bad.write_text("apiVersion: rdukit.dev/v1\nname: x\n")
    done = rdukit_box("validate", str(bad), "--json")
    assert done.returncode == 2
    assert "verbs: missing" in json.loads(done.stdout)["error"]["message"]


def test_the_command_line_lists_operations_by_state_and_verb(box: ProcessBox, client: BoxClient) -> None:
    ended = client.wait(client.submit("preprocess", {"limit": 20})["id"])
    assert ended["state"] == "succeeded"

    def listed(*arguments: str) -> str:
        result = CliRunner().invoke(box_commands, ["operations", "--url", box.rest_url, *arguments])
        assert result.exception is None
        return result.output

    assert ended["id"] in listed("--state", "succeeded", "--verb", "preprocess")
    assert ended["id"] not in listed("--state", "failed")
    assert ended["id"] not in listed("--verb", "train", "--limit", "5")
    assert json.loads(listed("--state", "succeeded", "--limit", "1", "--json"))[0]["state"] == "succeeded"
    watched = CliRunner().invoke(box_commands, ["watch", "--url", box.rest_url, ended["id"]])
    assert watched.exit_code == 0
    shown = dict(line.split(None, 1) for line in watched.stdout.splitlines() if line.startswith("  "))
    assert shown["train_samples"] == "20"


def test_every_refusal_of_a_path_names_its_input_over_rest(client: BoxClient) -> None:
    for given in ("/etc/passwd", "x" * 300, "a\0b", "nowhere"):
        with pytest.raises((InvalidArgument, NotFound)) as caught:
            client.submit("preprocess", inputs={"data": given})
        assert caught.value.detail["field"] == "inputs.data"


def test_an_id_of_any_script_and_length_is_not_found_over_grpc(channel: grpc.Channel) -> None:
    stub = modelbox_pb2_grpc.ModelBoxStub(channel)
    for operation_id in ("ü" * 5000, "🎉" * 20_000, "%" * 3000):
        with pytest.raises(grpc.RpcError) as caught:
            stub.Cancel(pb.OperationRequest(id=operation_id), timeout=60)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_box_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(box_commands, ["run", "mlp", "--rest-port", "99999"])
    assert refused.exit_code == 2
    assert "0<=x<=65535" in refused.stderr
    with pytest.raises(InvalidArgument, match="pass another --state"):
        StateFolder(tmp_path / "file" / "x")
