"""The page docs/own-model-csv.md as its reader follows it: its files, its verbs, and a box that answers."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit_modelbox.contract.models import load_own_module
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_platform.backends.contract import BoxSpec
from rdukit_serving.device.parameters import load_parameters
from rdukit_serving.shape import shape_of
from rdukit_zoo.registry import ServedModule
from support import shows
from support.boxes import run_verb
from support.platform.warm import start_box

pytestmark = shows("own-model-csv", "inference")

PAGE = Path(__file__).parents[2] / "docs" / "own-model-csv.md"


def in_page() -> tuple[str, re.RegexFlag]:
    """The page's text, and the flag that lets a pattern match its lines."""
    return PAGE.read_text(), re.MULTILINE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, and the table that the first of them writes."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    (tmp_path / "pump").mkdir()
    blocks = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["make.py", "pump/modelbox.yaml", "pump/model.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    return tmp_path


def test_a_table_becomes_an_endpoint_with_inputs_and_outputs_of_its_own(folder: Path) -> None:
    box = str(folder / "pump")
    dataset = run_verb(box, "preprocess", folder / "data", {"data": folder / "pumps.csv"}).outputs["dataset"]
    train = run_verb(box, "compile", folder / "train").outputs["pef"]
    trained = run_verb(box, "train", folder / "run", {"pef": train, "dataset": dataset})
    printed = {n: float(v) for n, v in re.findall(r"^  (held_out_loss|accuracy) +([\d.]+)$", *in_page())}
    assert {name: float(str(trained.figures[name])) for name in printed} == pytest.approx(printed, abs=0.01)
    assert printed["accuracy"] > 0.85
    checkpoint = trained.outputs["checkpoint"]
    serve = run_verb(box, "compile", folder / "serve", purpose="serve").outputs["pef"]
    with pytest.raises(InvalidArgument, match="serves requests and does not accept the data set"):
        run_verb(box, "infer", folder / "no", {"pef": serve, "dataset": dataset, "checkpoint": checkpoint})

    readings = {"celsius": [56.4, 50.1], "bar": [4.8, 2.2], "amperes": [9.1, 5.2], "vibration": [3.3, 1.9]}
    inputs = [{"name": n, "datatype": "FP32", "shape": [2, 1], "data": values} for n, values in readings.items()]
    environment = {
        "RDUKIT_BOX_PEF": str(serve), "RDUKIT_BOX_CHECKPOINT": str(checkpoint), "OMP_NUM_THREADS": "1",
        "RDUKIT_HOME": str(folder / "home"),
    }  # fmt: skip
    running = start_box(BoxSpec(box, folder / "state", [folder], environment))
    try:
        with httpx.Client(trust_env=False, timeout=60, base_url=running.rest_url) as http:
            answer = http.post("/v2/models/pump/infer", json={"inputs": inputs}).raise_for_status().json()
    finally:
        running.stop()
    (told,) = re.findall(r"^```json\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for output, printed_output in zip(answer["outputs"], json.loads(told)["outputs"], strict=True):
        assert output == {**printed_output, "data": pytest.approx(printed_output["data"], abs=0.01)}
    found = {output["name"]: torch.tensor(output["data"]).reshape(output["shape"]) for output in answer["outputs"]}
    assert list(found) == ["chances", "state"]
    assert found["state"].tolist() == [2, 0]

    entry = load_own_module(folder / "pump", "model.py:make_model")
    assert entry.serving is not None
    eager = entry.serving.build(**entry.sizes).eval()
    eager.load_state_dict(dict(load_parameters(checkpoint)[1]))
    chances, _ = eager(*(torch.tensor(values).unsqueeze(1) for values in readings.values()))
    torch.testing.assert_close(found["chances"], chances.detach(), rtol=1e-4, atol=1e-4)


def test_a_served_module_with_other_parameters_is_refused(folder: Path) -> None:
    entry = load_own_module(folder / "pump", "model.py:make_model")
    assert entry.serving is not None
    serve = run_verb(str(folder / "pump"), "compile", folder / "serve", purpose="serve").outputs["pef"]
    wrong = ServedModule(lambda **_: torch.nn.Linear(4, 3), entry.serving.make_inputs, ("chances",))
    with pytest.raises(InvalidArgument, match="creates weight, bias, which the trained model lacks"):
        ModelProgram(shape_of(read_pef(serve).pef, "pump"), entry=replace(entry, serving=wrong))
