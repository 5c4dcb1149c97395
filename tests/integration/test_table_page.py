"""The page docs/tables.md as its reader follows it: a table, a training, and answers by column name on each way."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto.modelbox_pb2_grpc import ModelBoxStub
from rdukit_modelbox.verbs.context import VerbResult
from rdukit_platform.backends.contract import BoxSpec, RunningBox
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.raw_inputs.preprocessing import find_preprocessing, read_features
from rdukit_zoo.registry import get_model
from support import shows
from support.boxes import run_verb
from support.platform.warm import start_box

pytestmark = shows("tables", "inference")

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"


@dataclass
class Journey:
    """What the page's commands made."""

    folder: Path
    first: VerbResult
    data: VerbResult
    trained: VerbResult
    pefs: dict[str, Path]

    @property
    def checkpoint(self) -> Path:
        return Path(self.trained.outputs["checkpoint"])

    def rows(self, count: int) -> list[dict[str, Any]]:
        """The table's first rows, without id and label; an empty value is null."""
        with (self.folder / "customers.csv").open(newline="") as file:
            found = list(csv.DictReader(file))[:count]
        return [{k: v or None for k, v in row.items() if k not in {"customer", "churned"}} for row in found]


def in_page() -> tuple[str, re.RegexFlag]:
    """The page's text, and the flag that lets a pattern match its lines."""
    return PAGE.read_text(), re.MULTILINE


def printed_parameters() -> dict[str, int]:
    """What the page prints as the parameters of compile while the id is a column."""
    (found,) = re.findall(r"^compile with (.*)$", *in_page())
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", found)}


def options(command: str) -> dict[str, str]:
    return dict(re.findall(r"--set (\w+)=(\S+)", command))


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journey]:
    folder = tmp_path_factory.mktemp("table")
    text = PAGE.read_text()
    (program,) = re.findall(r"```python\n# make\.py\n(.*?)```", text, re.DOTALL)
    (folder / "make.py").write_text(program)
    subprocess.run([sys.executable, "make.py"], cwd=folder, check=True)
    commands = re.findall(r"rdukit box call (.*?)(?:\n(?! )|;)", text.replace("\\\n", ""), re.DOTALL)
    first, second, compiling, training = (options(command) for command in commands[:4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")
        patch.setenv("RDUKIT_HOME", str(folder / "home"))
        table = {"data": folder / "customers.csv"}
        looked = run_verb("mlp", "preprocess", folder / "first", table, **first)
        data = run_verb("mlp", "preprocess", folder / "data", table, **second)
        sizes = {name: int(value) for name, value in compiling.items() if name != "purpose"}
        pefs = {
            purpose: Path(run_verb("mlp", "compile", folder / purpose, purpose=purpose, **sizes).outputs["pef"])
            for purpose in ("train", "serve")
        }
        epochs = int(training["epochs"])
        given = {"pef": pefs["train"], "dataset": Path(data.outputs["dataset"])}
        trained = run_verb("mlp", "train", folder / "run", given, epochs=epochs)
        yield Journey(folder, looked, data, trained, pefs)


@pytest.fixture(scope="module")
def box(journey: Journey) -> Iterator[RunningBox]:
    environment = {
        "RDUKIT_BOX_PEF": str(journey.pefs["serve"]), "RDUKIT_BOX_CHECKPOINT": str(journey.checkpoint),
        "OMP_NUM_THREADS": "1", "RDUKIT_HOME": str(journey.folder / "home"),
    }  # fmt: skip
    running = start_box(BoxSpec("mlp", journey.folder / "state", [journey.folder], environment))
    yield running
    running.stop()


@pytest.fixture
def http(box: RunningBox) -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=60, base_url=box.rest_url) as client:
        yield client


def test_the_id_is_reported_before_the_training_and_left_out_afterwards(journey: Journey) -> None:
    (told,) = journey.first.figures["findings"]  # type: ignore[misc]
    assert told.startswith("column 'customer' differs in each of the 2000 rows")
    assert told in PAGE.read_text()
    assert journey.first.figures["compile_parameters"] == printed_parameters()
    assert journey.data.figures["compile_parameters"] == {"num_features": 13, "num_classes": 2}
    assert "findings" not in journey.data.figures
    majority = float(str(journey.data.figures["majority_share"]))
    assert float(str(journey.trained.figures["accuracy"])) > max(0.85, majority)


def test_simple_models_stand_next_to_ours(journey: Journey) -> None:
    given = {"pef": journey.pefs["train"], "dataset": Path(journey.data.outputs["dataset"])}
    found = run_verb("mlp", "evaluate", journey.folder / "judged", {**given, "checkpoint": journey.checkpoint}).figures
    names = ("baseline_accuracy", "logistic_regression_accuracy", "gradient_boosting_accuracy")
    most, logistic, boosting = (float(str(found[name])) for name in names)
    assert most < 0.6
    assert logistic > 0.8
    assert boosting > 0.8
    assert float(str(found["accuracy"])) > max(logistic, boosting) - 0.05
    printed = {name: float(value) for name, value in re.findall(r"^  (\w+accuracy|accuracy) +([\d.]+)$", *in_page())}
    assert set(printed) == {"accuracy", *names}
    assert {name: float(str(found[name])) for name in printed} == pytest.approx(printed, abs=0.01)


def test_rows_by_name_have_the_same_answers_on_each_way(journey: Journey, box: RunningBox, http: httpx.Client) -> None:
    rows = journey.rows(100)
    batch = run_verb(
        "mlp", "infer", journey.folder / "answers",
        {"pef": journey.pefs["serve"], "checkpoint": journey.checkpoint, "table": journey.folder / "customers.csv"},
    )  # fmt: skip
    lines = Path(batch.outputs["predictions"]).read_text().splitlines()
    given = (journey.folder / "customers.csv").read_text().splitlines()
    assert lines[0] == f"{given[0]},predicted_churned,predicted_churned_probability"
    assert [line.rsplit(",", 2)[0] for line in lines] == given
    header, printed = re.findall(r"^customer,.*predicted.*$|^C-00000,.*$", *in_page())
    assert (header, printed.rsplit(",", 1)[0]) == (lines[0], lines[1].rsplit(",", 1)[0])
    assert float(printed.rsplit(",", 1)[1]) == pytest.approx(float(lines[1].rsplit(",", 1)[1]), abs=0.002)
    in_file = [(line.split(",")[-2], float(line.split(",")[-1])) for line in lines[1 : len(rows) + 1]]

    served = http.post("/v2/models/mlp/rows", json={"rows": rows}).raise_for_status().json()["predictions"]
    own = http.post("/v1/infer", json={"rows": rows}).raise_for_status().json()["predictions"]
    with grpc.insecure_channel(box.grpc_address) as channel:
        request = pb.InferRequest()
        for row in rows:
            message = Struct()
            message.update(row)
            request.table.rows.append(message)
        wired = ModelBoxStub(channel).Infer(request).answer.predictions

    table = find_preprocessing(journey.checkpoint)
    assert table is not None
    entry = get_model("mlp")
    eager = entry.build(num_features=13, num_classes=2, hidden_size=32).eval()
    eager.load_state_dict(dict(load_parameters(journey.checkpoint)[1]))
    import torch

    with torch.no_grad():
        made = eager(torch.from_numpy(read_features(table, rows)))
    offline = table.predictions((made[-1] if isinstance(made, tuple) else made).numpy())
    for each, (label, probability), one, other, rpc in zip(offline, in_file, served, own, wired, strict=True):
        assert label == each.label == one["label"] == other["label"] == rpc.label
        for found in (probability, one["probability"], other["probability"], rpc.probability):
            assert found == pytest.approx(each.probability, abs=2e-6)  # six digits in the file
        assert one["probabilities"] == other["probabilities"] == pytest.approx(dict(rpc.probabilities))


def test_the_pages_request_has_the_pages_labels_and_wrong_ones_are_refused(http: httpx.Client) -> None:
    text = PAGE.read_text()
    (asked,) = re.findall(r"/rows -d '(.*?)'", text, re.DOTALL)
    (told,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    answer = http.post("/v2/models/mlp/rows", content=asked).raise_for_status().json()
    assert answer.keys() == json.loads(told).keys()
    for found, printed in zip(answer["predictions"], json.loads(told)["predictions"], strict=True):
        assert found["label"] == printed["label"]
        assert found["probability"] == pytest.approx(printed["probability"], abs=1e-5)
        assert found["probabilities"] == pytest.approx(printed["probabilities"], abs=1e-5)
    row = json.loads(asked)["rows"][0]
    for body, words in (
        ({"rows": [{**row, "city": "Bern"}]}, "row 0, column 'city': 'Bern' is a category that no training row had"),
        ({"rows": [{k: v for k, v in row.items() if k != "fee"}]}, "row 0: column 'fee' is missing"),
        ({"rows": [[1, 2]]}, "row 0 is not an object"),
        ({"rows": []}, "there are no rows"),
        ({"rows": [row], "more": 1}, "without other fields"),
        ([], "the request must be"),
    ):
        refused = http.post("/v2/models/mlp/rows", json=body)
        assert (refused.status_code, words in refused.json()["error"]) == (400, True), refused.text
    columns = http.get("/v2/models/mlp").json()["table"]["columns"]
    assert {column["name"]: column["kind"] for column in columns} == {
        "fee": "number", "calls": "number", "city": "category", "plan": "category", "since": "date"
    }  # fmt: skip


def test_a_file_that_lacks_a_column_or_has_a_wrong_value_is_refused_with_its_place(journey: Journey) -> None:
    given = {"pef": journey.pefs["serve"], "checkpoint": journey.checkpoint}
    header, row = "since,city,plan,fee,calls", "2024-01-01,Oslo,basic,5,1"
    for name, lines, words in (
        ("a.csv", ["since,city,plan,fee", "2024-01-01,Oslo,basic,5"], r"a\.csv: column 'calls' is missing"),
        ("b.csv", [header, row, row.replace("Oslo", "Bern")], r"b\.csv:3, column 'city': 'Bern' is a category"),
        ("c.csv", [header + ",predicted_churned", row + ",x"], r"has a column 'predicted_churned'"),
    ):
        (journey.folder / name).write_text("\n".join(lines) + "\n")
        with pytest.raises(InvalidArgument, match=words):
            run_verb("mlp", "infer", journey.folder / "no", {**given, "table": journey.folder / name})
    with pytest.raises(InvalidArgument, match="the input dataset or the input table"):
        run_verb("mlp", "infer", journey.folder / "no", given)


def test_a_preprocessing_of_another_model_is_refused_before_the_first_row(journey: Journey, tmp_path: Path) -> None:
    other = Path(journey.first.outputs["dataset"]) / "preprocessing.json"
    (tmp_path / "model.safetensors").write_bytes(next(journey.checkpoint.glob("step-*.safetensors")).read_bytes())
    (tmp_path / "preprocessing.json").write_bytes(other.read_bytes())
    given = {"pef": journey.pefs["serve"], "checkpoint": tmp_path / "model.safetensors"}
    with pytest.raises(PefMismatch, match=r"preprocessing\.json belongs to another model: features is 2013, but 13 in"):
        run_verb("mlp", "infer", tmp_path / "no", {**given, "table": journey.folder / "customers.csv"})
    assert np.isfinite(load_parameters(tmp_path / "model.safetensors")[0])
