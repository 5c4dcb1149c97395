"""Three tables of 2,000 rows from the raw file to answers: dates, categories, blanks, an id, and a skewed label.

What preprocess reports is left out, as its words say; the predictions of a file, of requests and of plain torch agree.
"""

import csv
import datetime
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from rdukit_platform.backends.contract import BoxSpec
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.raw_inputs.preprocessing import find_preprocessing, read_features
from rdukit_zoo.registry import get_model
from support import shows
from support.boxes import run_verb
from support.platform.warm import start_box

pytestmark = [shows("tables"), pytest.mark.long]

ROWS = 2000
Rows = list[dict[str, Any]]


def loans(draw: random.Random) -> Rows:
    """One in twelve defaults; a branch that never changes, and a column that is known only afterwards."""
    found = []
    for number in range(ROWS):
        income, amount = draw.lognormvariate(10.5, 0.5), draw.lognormvariate(9, 0.7)
        job = draw.choices(["clerk", "driver", "nurse", "smith", "abbot"], [40, 30, 20, 9.6, 0.4])[0]
        asked = datetime.date(2022, 1, 1) + datetime.timedelta(days=draw.randrange(1000))
        risk = math.log(amount / income) + (0.8 if job == "driver" else 0) + draw.gauss(0, 0.3)
        late = risk > 0.35
        found.append(
            {
                "loan": 100_000 + number, "asked": asked.isoformat(), "job": job,
                "income": None if draw.random() < 0.06 else round(income, 2), "amount": round(amount, 2),
                "branch": "north", "written_off": int(late), "outcome": "late" if late else "paid",
            }
        )  # fmt: skip
    return found


def machines(draw: random.Random) -> Rows:
    """Three states, times with a zone, and truth values."""
    found: Rows = []
    for number in range(ROWS):
        state = draw.choices(["idle", "busy", "worn"], [60, 33, 7])[0]
        at = datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC) + datetime.timedelta(minutes=7 * number)
        found.append(
            {
                "at": at, "hall": draw.choice(["A", "B", None]), "is_new": draw.random() < 0.5,
                "celsius": {"idle": 30, "busy": 60, "worn": 75}[state] + draw.gauss(0, 5),
                "bar": None if draw.random() < 0.1 else {"idle": 1, "busy": 5, "worn": 4}[state] + draw.gauss(0, 0.5),
                "state": state,
            }
        )  # fmt: skip
    return found


def answers(draw: random.Random) -> Rows:
    """Classes that are numbers, and names of which many are rare."""
    found: Rows = []
    for number in range(ROWS):
        age, town = (
            draw.randrange(18, 90),
            draw.choices([f"T{n}" for n in range(60)], [2 ** -(n / 4) for n in range(60)])[0],
        )
        grade = 2 if age > 60 else int(draw.random() < (0.9 if town in {"T0", "T3"} else 0.1))
        found.append({"person": f"P{number}", "age": age, "town": town, "seen": "", "grade": grade})
    return found


def write(path: Path, rows: Rows) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


def sent(row: dict[str, Any], features: set[str]) -> dict[str, Any]:
    """A row as a caller has it: features alone, times as text."""
    times = {name: value.isoformat() for name, value in row.items() if isinstance(value, datetime.datetime)}
    return {name: times.get(name, value) for name, value in row.items() if name in features}


@pytest.mark.parametrize(
    ("make", "ending", "label", "parameters", "told", "least"),
    [
        (loans, "csv", "outcome", {}, {"loan", "branch", "written_off"}, 0.9),
        (machines, "parquet", "state", {}, set(), 0.93),
        (answers, "jsonl", "grade", {"rare_below": 40}, {"person", "seen"}, 0.8),
    ],
)
def test_a_table_becomes_answers_that_agree_on_each_way(
    make: Callable[[random.Random], Rows], ending: str, label: str, parameters: dict[str, Any], told: set[str],
    least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    rows = make(random.Random(0))
    table = write(tmp_path / f"table.{ending}", rows)
    asked = {"label_column": label, "missing": "mean", **parameters}
    first = run_verb("mlp", "preprocess", tmp_path / "first", {"data": table}, **asked)
    findings = first.figures.get("findings", [])
    assert isinstance(findings, list)
    assert {re.findall(r"column '(\w+)'", line)[0] for line in findings} == told
    asked |= {"exclude": ",".join(sorted(told))}
    data = run_verb("mlp", "preprocess", tmp_path / "data", {"data": table}, **asked)
    assert "findings" not in data.figures
    sizes = {**data.figures["compile_parameters"], "hidden_size": 32}  # type: ignore[dict-item]
    pefs = {
        purpose: Path(run_verb("mlp", "compile", tmp_path / purpose, purpose=purpose, **sizes).outputs["pef"])
        for purpose in ("train", "serve")
    }
    dataset = Path(data.outputs["dataset"])
    trained = run_verb("mlp", "train", tmp_path / "run", {"pef": pefs["train"], "dataset": dataset}, epochs=20)
    checkpoint = Path(trained.outputs["checkpoint"])
    given = {"pef": pefs["train"], "dataset": dataset, "checkpoint": checkpoint}
    judged = {name: float(str(value)) for name, value in run_verb(
        "mlp", "evaluate", tmp_path / "judged", given
    ).figures.items() if name.endswith("accuracy")}  # fmt: skip
    assert judged["accuracy"] >= max(least, judged["baseline_accuracy"] - 0.01), judged
    assert {"logistic_regression_accuracy", "gradient_boosting_accuracy"} <= judged.keys()

    batch = run_verb(
        "mlp", "infer", tmp_path / "batch", {"pef": pefs["serve"], "checkpoint": checkpoint, "table": table}
    )
    with Path(batch.outputs["predictions"]).open(newline="") as file:
        in_file = list(csv.DictReader(file))
    preprocessing = find_preprocessing(checkpoint)
    assert preprocessing is not None
    wanted = [sent(row, {*preprocessing.layout.columns}) for row in rows]
    entry = get_model("mlp")
    eager = entry.build(**{name: int(value) for name, value in sizes.items()}).eval()
    eager.load_state_dict(dict(load_parameters(checkpoint)[1]))
    with torch.no_grad():
        made = eager(torch.from_numpy(read_features(preprocessing, wanted)))
    offline = preprocessing.predictions((made[-1] if isinstance(made, tuple) else made).numpy())

    environment = {
        "RDUKIT_BOX_PEF": str(pefs["serve"]), "RDUKIT_BOX_CHECKPOINT": str(checkpoint), "OMP_NUM_THREADS": "1",
        "RDUKIT_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    running = start_box(BoxSpec("mlp", tmp_path / "state", [tmp_path], environment))
    try:
        with httpx.Client(trust_env=False, timeout=120, base_url=running.rest_url) as http:
            served = http.post("/v2/models/mlp/rows", json={"rows": wanted}).raise_for_status().json()["predictions"]
    finally:
        running.stop()
    shares = np.array([
        [one.probability, found["probability"], float(line[f"predicted_{label}_probability"])]
        for one, found, line in zip(offline, served, in_file, strict=True)
    ])  # fmt: skip
    assert np.abs(shares - shares[:, :1]).max() < 2e-6, "six digits in the file, f32 on the device"
    assert [one.label for one in offline] == [found["label"] for found in served]
    assert [one.label for one in offline] == [line[f"predicted_{label}"] for line in in_file]
