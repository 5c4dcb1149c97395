"""A table whose label is a number: from the file to answers in its unit, equal offline, in a file and served."""

import csv
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import torch

from rdukit.errors import IllegalValue, InvalidArgument, PefMismatch
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto.modelbox_pb2_grpc import ModelBoxStub
from rdukit_modelbox.preprocessing.datasets import load_dataset
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.console.playground import _as_outputs
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.raw_inputs.preprocessing import TablePreprocessing, find_preprocessing, read_features
from rdukit_zoo.registry import get_model
from support import shows
from support.boxes import run_verb
from support.platform.warm import start_box

pytestmark = shows("tables", "inference")

ROWS, DEVIATION = 600, 3.0
ASKED: dict[str, Any] = {"label_column": "price", "predict": "number", "missing": "mean"}


def flats(count: int) -> list[dict[str, Any]]:
    """Prices in thousands, between 100 and 400, with noise of 3."""
    draw = random.Random(0)
    found = []
    for number in range(count):
        area, city = draw.uniform(20, 100), draw.choice(["Oslo", "Rome", "Lima"])
        price = 90 + 2.5 * area + {"Oslo": 40, "Rome": 10, "Lima": 0}[city] + draw.gauss(0, DEVIATION)
        found.append(
            {
                "flat": f"F{number}", "area": None if draw.random() < 0.05 else round(area, 2), "city": city,
                "built": f"{draw.randrange(1950, 2020)}-05-01", "price_in_cents": 100 * price, "price": round(price, 3),
            }
        )  # fmt: skip
    return found


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


@dataclass
class Trained:
    """A trained model of prices."""

    folder: Path
    table: Path
    rows: list[dict[str, Any]]
    findings: list[str]
    dataset: Path
    pefs: dict[str, Path]
    checkpoint: Path
    judged: dict[str, float]
    trained: dict[str, Any]

    def preprocessing(self) -> TablePreprocessing:
        found = find_preprocessing(self.checkpoint)
        assert found is not None
        return found

    def offline(self) -> list[float]:
        """Predictions of plain torch for the table's first rows."""
        entry, known = get_model("mlp"), self.preprocessing()
        sizes = {"num_features": known.encoding.features, "num_classes": 1, "hidden_size": 32}
        eager = entry.build(**sizes).eval()
        eager.load_state_dict(dict(load_parameters(self.checkpoint)[1]))
        with torch.no_grad():
            outputs = eager(torch.from_numpy(read_features(known, self.asked())))
        return [each.to_json()["value"] for each in known.predictions(outputs.numpy())]

    def asked(self) -> list[dict[str, Any]]:
        return [{name: row[name] for name in ("area", "city", "built")} for row in self.rows[:40]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("numbers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")
        patch.setenv("RDUKIT_HOME", str(folder / "home"))
        patch.setenv("OMP_NUM_THREADS", "1")
        rows = flats(ROWS)
        table = write(folder / "flats.csv", rows)
        looked = run_verb("mlp", "preprocess", folder / "looked", {"data": table}, **ASKED)
        exclude = {"exclude": "flat,price_in_cents"}
        data = run_verb("mlp", "preprocess", folder / "data", {"data": table}, **ASKED, **exclude)
        sizes: Any = {**data.figures["compile_parameters"], "hidden_size": 32}  # type: ignore[dict-item]
        assert sizes["num_classes"] == 1
        pefs = {
            purpose: Path(run_verb("mlp", "compile", folder / purpose, purpose=purpose, **sizes).outputs["pef"])
            for purpose in ("train", "serve")
        }
        dataset = Path(data.outputs["dataset"])
        given = {"pef": pefs["train"], "dataset": dataset}
        trained = run_verb("mlp", "train", folder / "run", given, epochs=40, lr=0.02)
        checkpoint = Path(trained.outputs["checkpoint"])
        judged = run_verb("mlp", "evaluate", folder / "judged", {**given, "checkpoint": checkpoint}).figures
        findings: Any = looked.figures["findings"]
        yield Trained(
            folder, table, rows, findings, dataset, pefs, checkpoint,
            {name: float(str(value)) for name, value in judged.items() if isinstance(value, float)},
            dict(trained.figures),
        )  # fmt: skip


def test_errors_are_in_the_labels_unit_next_to_simple_models(model: Trained) -> None:
    judged = model.judged
    assert 50 < judged["baseline_rmse"] < 90, "the deviation of the prices"
    assert DEVIATION * 0.7 < judged["rmse"] < judged["baseline_rmse"] / 4, judged
    assert judged["mae"] < judged["rmse"]
    assert 0.9 < judged["r2"] <= 1
    assert judged["linear_regression_rmse"] < judged["baseline_rmse"]
    assert judged["gradient_boosting_rmse"] < judged["baseline_rmse"]
    assert model.trained["rmse"] == pytest.approx(judged["rmse"])
    assert "accuracy" not in model.trained


def test_an_id_and_the_label_in_another_unit_are_reported_and_a_number_is_no_leak(model: Trained) -> None:
    assert len(model.findings) == 2
    assert any("'flat' differs in each" in line for line in model.findings)
    assert any("'price_in_cents' reveals the label: a linear fit" in line for line in model.findings)


def test_infer_writes_residuals_in_the_labels_unit(model: Trained) -> None:
    given = {"pef": model.pefs["train"], "dataset": model.dataset, "checkpoint": model.checkpoint}
    made = run_verb("mlp", "infer", model.folder / "inferred", given)
    report = json.loads(Path(made.outputs["report"]).read_text())
    lines = [json.loads(line) for line in Path(made.outputs["predictions"]).read_text().splitlines()]
    residuals = np.array([line["predicted"] - line["label"] for line in lines])
    np.testing.assert_allclose([line["residual"] for line in lines], residuals, atol=1e-9)
    assert report["rmse"] == pytest.approx(math.sqrt((residuals**2).mean()))
    assert report["residuals"]["p50"] == pytest.approx(np.median(residuals))
    prices = {row["price"] for row in model.rows}
    assert all(min(abs(line["label"] - price) for price in prices) < 1e-3 for line in lines[:20])


def test_a_file_requests_and_plain_torch_give_the_same_numbers(model: Trained) -> None:
    files = {"pef": model.pefs["serve"], "checkpoint": model.checkpoint, "table": model.table}
    batch = run_verb("mlp", "infer", model.folder / "batch", files)
    with Path(batch.outputs["predictions"]).open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0])[-2:] == ["price", "predicted_price"]
    offline = model.offline()
    environment = {
        "RDUKIT_BOX_PEF": str(model.pefs["serve"]), "RDUKIT_BOX_CHECKPOINT": str(model.checkpoint),
        "OMP_NUM_THREADS": "1", "RDUKIT_HOME": str(model.folder / "home"), "RDUKIT_KERNELS": "portable",
    }  # fmt: skip
    box = start_box(BoxSpec("mlp", model.folder / "state", [model.folder], environment))
    try:
        with httpx.Client(trust_env=False, timeout=120, base_url=box.rest_url) as http:
            body = {"rows": model.asked()}
            served = http.post("/v2/models/mlp/rows", json=body).raise_for_status().json()["predictions"]
            other = http.post("/v1/infer", json=body).raise_for_status().json()["predictions"]
            table = http.get("/v2/models/mlp").raise_for_status().json()["table"]
        with grpc.insecure_channel(box.grpc_address) as channel:
            request = pb.InferRequest()
            for row in model.asked():
                message = request.table.rows.add()
                message.update(row)
            called = [each.value for each in ModelBoxStub(channel).Infer(request, timeout=60).answer.predictions]
    finally:
        box.stop()
    assert served == other
    assert all(set(each) == {"value"} for each in served)
    in_file = [float(line["predicted_price"]) for line in lines[:40]]
    for found in ([each["value"] for each in served], called, in_file):
        np.testing.assert_allclose(found, offline, atol=2e-3, err_msg="f32 on the device, scaled by 70")
    assert (table["predicts"], table["label"], table["classes"]) == ("number", "price", [])
    (shown,) = _as_outputs(served)
    assert shown["shape"] == [40, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"price": "dear"}, "'dear' is not a number; expected .*, because the label is a number"),
        ({"price": ""}, "no label; expected a number"),
        ({"price": "1e999"}, "'1e999' is not finite; expected a finite number"),
    ],
)
def test_a_label_that_is_no_number_is_refused_by_its_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    rows = flats(10)
    table = write(tmp_path / "flats.csv", [rows[0], {**rows[1], **change}, *rows[2:]])
    with pytest.raises(InvalidArgument, match=rf"flats.csv:3, column 'price': {words}"):
        run_verb("mlp", "preprocess", tmp_path / "data", {"data": table}, **ASKED)


def test_a_constant_label_and_limits_are_refused(tmp_path: Path) -> None:
    table = write(tmp_path / "flats.csv", [{**row, "price": 3} for row in flats(10)])
    with pytest.raises(InvalidArgument, match="the label 'price' is 3 in all training rows; expected numbers"):
        run_verb("mlp", "preprocess", tmp_path / "data", {"data": table}, **ASKED)
    with pytest.raises(IllegalValue, match="limit applies only to classes"):
        run_verb("mlp", "preprocess", tmp_path / "data", {"data": table}, **ASKED, limit=5)


def test_a_pef_of_classes_and_a_label_that_is_a_number_do_not_go_together(model: Trained, tmp_path: Path) -> None:
    features = load_dataset(model.dataset).features
    pef = run_verb("mlp", "compile", tmp_path, num_features=features, num_classes=2, hidden_size=32).outputs["pef"]
    with pytest.raises(
        InvalidArgument, match="label is a number, but the PEF predicts classes; compile with num_classes=1"
    ):
        run_verb("mlp", "train", tmp_path / "run", {"pef": Path(pef), "dataset": model.dataset})
    classes = write(tmp_path / "flats.csv", model.rows[:60])
    data = run_verb(
        "mlp", "preprocess", tmp_path / "data", {"data": classes}, label_column="city", missing="mean",
        exclude="flat,price_in_cents,built,price",
    )  # fmt: skip
    with pytest.raises(InvalidArgument, match="label is a class, but the PEF predicts a number"):
        run_verb("mlp", "train", tmp_path / "r", {"pef": model.pefs["train"], "dataset": Path(data.outputs["dataset"])})
    with pytest.raises(PefMismatch, match="classes is 1, but 2 in the PEF"):
        model.preprocessing().check_model(features, 2, None, "preprocessing.json")
