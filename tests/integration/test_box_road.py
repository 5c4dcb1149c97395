"""The four verbs of the boxes on real digits, over both wires, killed and cancelled in the middle too."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import torch
from safetensors.torch import load_file

from rdukit.box.client import BoxClient
from rdukit.errors import Conflict, InvalidArgument, PefCorrupt, PefMismatch, Unavailable
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from support import shows, wait_until
from support.boxes import succeed, working_children_of
from support.platform.warm import start_box

pytestmark = shows("logreg", "ffn", "o0", "operations", "training", "inference")

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RDUKIT_BOX_CANCEL_GRACE_S": "2", "RDUKIT_KERNELS": "portable"}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("box")


@pytest.fixture(scope="module")
def box(state: Path) -> Iterator[ProcessBox]:
    box = start_box(BoxSpec("logreg", state / "logreg", mounts=[state], environment=ENVIRONMENT))
    yield box
    box.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[BoxClient]:
    with BoxClient(box.rest_url) as client:
        yield client


@pytest.fixture(scope="module")
def made(client: BoxClient, state: Path) -> dict[str, str]:
    """A data set and a PEF, as input slots."""
    dataset = succeed(client, "preprocess", output=str(state / "data"))
    compiled = succeed(client, "compile", {"batch_size": 50}, output=str(state / "compiled"))
    assert compiled["result"]["sections"] >= 3
    assert compiled["result"]["section_types"].keys() >= {"fwd", "bckwd", "opt"}
    assert compiled["result"]["projected_step_seconds"] > 0
    return {"pef": compiled["outputs"]["pef"], "dataset": dataset["outputs"]["dataset"]}


@pytest.fixture(scope="module")
def trained(client: BoxClient, made: dict[str, str], state: Path) -> dict[str, Any]:
    """One training without interruption."""
    return succeed(client, "train", {"epochs": 2, "checkpoint_every": 60}, made, str(state / "trained"))


def parameters_in(folder: Path) -> dict[str, torch.Tensor]:
    latest = json.loads((folder / "latest.json").read_text())
    return {k: v for k, v in load_file(folder / latest["file"]).items() if not k.startswith("random")}


def wait_for_checkpoint(client: BoxClient, operation_id: str, beyond_step: int) -> None:
    for event in client.events(operation_id):
        if event["kind"] == "log" and event["log"].startswith("checkpoint step-"):
            step = int(event["log"].removeprefix("checkpoint step-").removesuffix(".safetensors"))
            if step > beyond_step:
                return
    pytest.fail("the training ended before it left a checkpoint")


def child_of(box: ProcessBox) -> int:
    (child,) = working_children_of(box.pid)
    return child


def test_names_and_shapes_of_what_was_trained_come_before_the_first_inference(
    box: ProcessBox, trained: dict[str, Any]
) -> None:
    assert trained["outputs"]["checkpoint"]
    with httpx.Client(trust_env=False, timeout=60, base_url=box.rest_url) as http:
        described = http.get("/v2/models/logreg")
    assert described.status_code == 200, described.text
    assert described.json()["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 784]}]


def test_the_whole_road_ends_above_ninety_percent(
    client: BoxClient, made: dict[str, str], trained: dict[str, Any], state: Path
) -> None:
    result = trained["result"]
    assert (result["steps"], result["epochs"], result["resumed_from_step"]) == (320, 2.0, 0)
    assert result["accuracy"] > 0.90
    assert result["emulated_seconds"] > 0
    assert result["emulated_cycles"] > 0
    assert result["host_seconds"] > 0
    inputs = {**made, "checkpoint": trained["outputs"]["checkpoint"]}
    done = succeed(client, "infer", {}, inputs, str(state / "inferred"))
    assert done["result"]["accuracy"] == result["accuracy"]
    assert done["result"]["samples"] == 2000
    report = json.loads(Path(done["outputs"]["report"]).read_text())
    counts = report["confusion"]["counts"]
    assert sum(map(sum, counts)) == 2000
    assert sum(counts[i][i] for i in range(10)) / 2000 == report["accuracy"]
    assert report["emulated"]["seconds"] > 0
    assert report["host"]["seconds"] > 0
    judged = succeed(client, "evaluate", {}, inputs, str(state / "evaluated"))
    assert list(judged["outputs"]) == ["report"]
    named = ("split", "held_out_loss", "accuracy")
    assert [judged["result"][name] for name in named] == [result[name] for name in named]
    lines = [json.loads(line) for line in Path(done["outputs"]["predictions"]).read_text().splitlines()]
    assert len(lines) == 2000
    assert sum(line["label"] == line["predicted"] for line in lines) / 2000 == report["accuracy"]


def requests_for(rows: list[list[float]]) -> Iterator[pb.InferRequest]:
    """One request a row, and a wrong one."""
    for number, row in enumerate([*rows, [1.0]]):
        yield pb.InferRequest(id=str(number), rows=pb.Rows(rows=[pb.Row(values=row)]))


@pytest.mark.long
def test_rows_are_answered_at_once_and_agree_with_the_data_set(
    box: ProcessBox, client: BoxClient, made: dict[str, str], trained: dict[str, Any]
) -> None:
    from rdukit_modelbox.preprocessing.datasets import load_dataset

    test = load_dataset(Path(made["dataset"])).test
    inputs = {"pef": made["pef"], "checkpoint": trained["outputs"]["checkpoint"]}
    rows = test.features_NF[:60].tolist()
    answer = client.infer_rows(rows, inputs)
    assert len(answer["outputs"]) == len(answer["labels"]) == 60
    assert sum(a == b for a, b in zip(answer["labels"], test.labels_N[:60].tolist(), strict=True)) > 48
    assert client.infer_rows(rows[:1])["labels"] == answer["labels"][:1]
    with pytest.raises(InvalidArgument, match="row 1 has 3 values; expected 784"):
        client.infer_rows([rows[0], [1, 2, 3]])
    with grpc.insecure_channel(box.grpc_address) as channel:
        message = pb.InferRequest(id="7", rows=pb.Rows(rows=[pb.Row(values=row) for row in rows]))
        told = modelbox_pb2_grpc.ModelBoxStub(channel).Infer(message, timeout=60)
        answers = list(modelbox_pb2_grpc.ModelBoxStub(channel).InferStream(requests_for(rows), timeout=60))
    assert (told.id, list(told.answer.labels)) == ("7", answer["labels"])
    assert [a.id for a in answers] == [str(number) for number in range(len(rows) + 1)]
    assert [a.answer.labels[0] for a in answers[:-1]] == answer["labels"]
    assert answers[-1].error.code == "invalid-argument"
    os.kill(child_of(box), signal.SIGKILL)
    assert client.infer_rows(rows[:1])["labels"] == answer["labels"][:1]


def test_a_wrong_file_in_a_request_leaves_the_box_ready(
    client: BoxClient, made: dict[str, str], trained: dict[str, Any]
) -> None:
    row = [[0.0] * 784]
    wrong = {"pef": f"{made['dataset']}/manifest.json", "checkpoint": trained["outputs"]["checkpoint"]}
    for _ in range(2):
        with pytest.raises(PefCorrupt):
            client.infer_rows(row, wrong)
        assert client.health() == {"status": "ready"}
    assert client.infer_rows(row, wrong | {"pef": made["pef"]})["labels"]


def test_callers_without_patience_share_one_load_and_get_their_answer(
    client: BoxClient, box: ProcessBox, made: dict[str, str], trained: dict[str, Any]
) -> None:
    files = {"pef": made["pef"], "checkpoint": trained["outputs"]["checkpoint"]}
    with pytest.raises(PefCorrupt):  # which lets go of what is loaded
        client.infer_rows([[0.0] * 784], files | {"pef": f"{made['dataset']}/manifest.json"})

    def is_answered() -> bool:
        with BoxClient(box.rest_url, timeout_s=0.4) as impatient:
            try:
                return bool(impatient.infer_rows([[0.0] * 784], files)["labels"])
            except Unavailable:
                return False

    wait_until(is_answered, 60, "an answer")
    assert client.health() == {"status": "ready"}


def test_a_killed_training_fails_and_the_same_request_goes_on_to_the_same_end(
    box: ProcessBox, client: BoxClient, made: dict[str, str], trained: dict[str, Any], state: Path
) -> None:
    request: dict[str, Any] = {
        "parameters": {"epochs": 2, "checkpoint_every": 20}, "inputs": made, "output": str(state / "killed"),
    }  # fmt: skip
    # The rows' child of an earlier test would be a second one; a training stops it first.
    first = client.submit("train", **request)
    wait_for_checkpoint(client, first["id"], 20)
    os.kill(child_of(box), signal.SIGKILL)
    ended = client.wait(first["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "child-died")
    assert "SIGKILL" in ended["error"]["message"]
    assert client.health() == {"status": "ready"}
    again = succeed(client, "train", **request)
    assert 0 < again["result"]["resumed_from_step"] < 320
    for figure in ("steps", "loss", "accuracy", "emulated_cycles"):
        assert again["result"][figure] == trained["result"][figure]
    one, other = (parameters_in(Path(o["outputs"]["checkpoint"])) for o in (trained, again))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    other_seed = client.wait(client.submit("train", {"epochs": 2, "seed": 5}, made, request["output"])["id"])
    assert other_seed["error"]["code"] == Conflict.code
    assert "another training (seed 0 against 5)" in other_seed["error"]["message"]


@pytest.mark.long
def test_a_cancelled_training_stops_soon_and_the_next_one_runs(
    client: BoxClient, made: dict[str, str], state: Path
) -> None:
    request = ({"epochs": 100, "checkpoint_every": 20}, made, str(state / "cancelled"))
    running = client.submit("train", *request)
    queued = client.submit("train", {"max_steps": 3}, made, str(state / "queued"))
    wait_for_checkpoint(client, running["id"], 0)
    assert client.operation(queued["id"])["state"] == "queued"
    assert client.cancel(running["id"])["state"] == "cancelled"
    assert client.cancel(running["id"])["state"] == "cancelled"
    ended = client.wait(queued["id"])
    assert (ended["state"], ended["result"]["steps"]) == ("succeeded", 3)
    assert list((state / "cancelled/checkpoint").glob(".*")) == []


def test_a_queued_training_can_be_cancelled_before_it_starts(
    client: BoxClient, made: dict[str, str], state: Path
) -> None:
    running = client.submit("train", {"epochs": 100}, made, str(state / "first"))
    queued = client.submit("train", {"epochs": 100}, made, str(state / "second"))
    assert client.cancel(queued["id"])["state"] == "cancelled"
    assert client.cancel(running["id"])["state"] == "cancelled"
    assert not (state / "second/checkpoint").exists()


def test_a_small_training_runs_over_grpc(
    box: ProcessBox, made: dict[str, str], trained: dict[str, Any], state: Path
) -> None:
    with grpc.insecure_channel(box.grpc_address) as channel:
        stub = modelbox_pb2_grpc.ModelBoxStub(channel)
        inputs = {**made, "checkpoint": trained["outputs"]["checkpoint"]}
        request = pb.VerbRequest(inputs=inputs, output=str(state / "grpc"))
        request.parameters.update({"max_steps": 10, "continue_as": "weights"})
        asked = stub.Train(request, timeout=60)
        events = list(stub.Watch(pb.WatchRequest(id=asked.id), timeout=60))
        operation = events[-1].operation
        assert operation.state == "succeeded", operation
        assert operation.result["steps"] == 10
        assert operation.result["accuracy"] > 0.88
        told = [event.progress for event in events if event.kind == "progress" and event.progress.stage == "train"]
        assert told[-1].step == told[-1].total == 10
        request = pb.VerbRequest(inputs={**made, "checkpoint": operation.outputs["checkpoint"]})
        asked = stub.Infer(pb.InferRequest(dataset=request), timeout=60).operation
        events = list(stub.Watch(pb.WatchRequest(id=asked.id), timeout=60))
        assert events[-1].operation.result["accuracy"] == operation.result["accuracy"]
        request = pb.VerbRequest(inputs=made, output=str(state / "grpc-cancelled"))
        request.parameters.update({"epochs": 100})
        asked = stub.Train(request, timeout=60)
        stream = stub.Watch(pb.WatchRequest(id=asked.id), timeout=60)
        assert next(stream).operation.state == "queued"
        assert stub.Cancel(pb.OperationRequest(id=asked.id), timeout=60).state == "cancelled"
        assert [event.kind for event in stream][-1] == "result"


@pytest.mark.long
def test_a_pef_of_another_box_is_refused(client: BoxClient, made: dict[str, str], state: Path) -> None:
    spec = BoxSpec("ffn", state / "ffn", mounts=[state], environment=ENVIRONMENT)
    other = start_box(spec)
    try:
        with BoxClient(other.rest_url) as ffn:
            ended = ffn.wait(ffn.submit("train", {}, made, str(state / "wrong"))["id"])
            assert (ended["state"], ended["error"]["code"]) == ("failed", PefMismatch.code)
            assert "'logreg'" in ended["error"]["message"]
            compiled = succeed(ffn, "compile", {"hidden_size": 64, "mode": "o0", "target": "sn10"})
            assert (compiled["result"]["mode"].lower(), compiled["result"]["target"]) == ("o0", "sn10")
            inputs = {**made, "pef": compiled["outputs"]["pef"]}
            done = succeed(ffn, "train", {"epochs": 1}, inputs)
            assert done["result"]["accuracy"] > 0.85
    finally:
        other.stop()


def test_no_child_survives_its_box(state: Path, made: dict[str, str]) -> None:
    box = start_box(BoxSpec("logreg", state / "dying", mounts=[state], environment=ENVIRONMENT))
    with BoxClient(box.rest_url) as client:
        operation = client.submit("train", {"epochs": 100, "checkpoint_every": 20}, made)
        wait_for_checkpoint(client, operation["id"], 0)
    child = child_of(box)
    os.kill(box.pid, signal.SIGKILL)
    box.stop()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), what="the child ends")
