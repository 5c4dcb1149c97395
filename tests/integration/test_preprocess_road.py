"""Preprocess of text by a real box: killed and cancelled in the middle, and asked for again."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.box.client import BoxClient
from rdukit_modelbox.preprocessing.token_dataset import load_token_dataset
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from support import shows
from support.boxes import succeed, working_children_of
from support.platform.warm import start_box

pytestmark = shows("preprocess", "llama", "operations")

PARAMETERS: dict[str, Any] = {"max_seq_length": 64, "num_training_splits": 12, "dev_ratio": 0.1}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("box")


@pytest.fixture(scope="module")
def box(state: Path) -> Iterator[ProcessBox]:
    box = start_box(BoxSpec("llama", state))
    yield box
    box.stop()


@pytest.fixture(scope="module")
def client(box: ProcessBox) -> Iterator[BoxClient]:
    with BoxClient(box.rest_url) as client:
        yield client


@pytest.fixture(scope="module")
def data(state: Path) -> Path:
    path = state / "talk.jsonl"
    pairs = ({"prompt": f"what is {n} and {n}?", "completion": f"it is {n + n}, " * 8} for n in range(10_000))
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def first_finished_file(client: BoxClient, operation: str, output: Path) -> None:
    """Returns as soon as one of the output's files is written, and others are not."""
    for _ in client.events(operation):
        if list((output / ".preprocess").glob("train_*.json")):
            return
    pytest.fail("it ended too soon")


@pytest.mark.long
def test_a_killed_preprocess_goes_on_to_the_same_data_set(
    box: ProcessBox, client: BoxClient, data: Path, state: Path
) -> None:
    whole = succeed(client, "preprocess", PARAMETERS, {"data": str(data)}, str(state / "whole"))
    output = state / "killed"
    killed = client.submit("preprocess", PARAMETERS, {"data": str(data)}, str(output))
    first_finished_file(client, killed["id"], output)
    for child in working_children_of(box.pid):
        os.kill(child, signal.SIGKILL)
    assert client.wait(killed["id"])["error"]["code"] == "child-died"
    finished = {path.stem for path in (output / ".preprocess").glob("train_*.json")}
    assert 1 <= len(finished) < 12
    before = {path: path.stat().st_mtime_ns for path in (output / ".preprocess/sequences").glob("*.hdf5")}
    again = client.submit("preprocess", PARAMETERS, {"data": str(data)}, str(output))
    for event in client.events(again["id"]):
        # The text is not read again.
        assert "'stage': 'read'" not in str(event)
    done = client.wait(again["id"])
    assert done["result"] == whole["result"]
    assert before.keys() <= {output / ".preprocess/sequences" / p.name for p in (output / "dataset").glob("*.hdf5")}
    dataset = load_token_dataset(output / "dataset", verify=True)
    assert dataset.rows("train") == whole["result"]["train_sequences"]
    dataset.close()


def test_a_cancelled_preprocess_stops_soon_and_leaves_no_data_set(client: BoxClient, data: Path, state: Path) -> None:
    output = state / "cancelled"
    running = client.submit("preprocess", PARAMETERS, {"data": str(data)}, str(output))
    first_finished_file(client, running["id"], output)
    assert client.cancel(running["id"])["state"] in {"cancelled", "cancelling"}
    assert client.wait(running["id"])["state"] == "cancelled"
    assert not (output / "dataset").exists()


def test_a_bad_line_is_told_with_its_place(client: BoxClient, state: Path) -> None:
    (state / "bad.jsonl").write_text('{"completion": "x"}\n{"text": "y"}\n')
    ended = client.wait(
        client.submit("preprocess", PARAMETERS, {"data": str(state / "bad.jsonl")}, str(state / "bad"))["id"]
    )
    assert (ended["state"], ended["error"]["code"]) == ("failed", "invalid-argument")
    assert "bad.jsonl:2: Object missing required field `completion`" in ended["error"]["message"]
