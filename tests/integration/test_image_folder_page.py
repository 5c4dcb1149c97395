"""The page docs/image-folders.md as its reader follows it: a folder of pictures, a training, and a file's label."""

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest

from rdukit_platform.backends.contract import BoxSpec
from rdukit_serving.raw_inputs.pictures import find_picture_preprocessing
from support import shows
from support.boxes import run_verb
from support.pages import read_page
from support.platform.warm import start_box

pytestmark = [shows("image-folders", "vit", "inference"), pytest.mark.long]


def test_a_folder_of_pictures_becomes_labels_with_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = read_page("image-folders.md")
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    (program,) = re.findall(r"```python\n# make\.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "make.py").write_text(program)
    subprocess.run([sys.executable, "make.py"], cwd=tmp_path, check=True)
    commands = re.findall(r"rdukit box call (\w+) (.*)", text)
    chosen = {verb: dict(re.findall(r"--set (\w+)=(\w+)", words)) for verb, words in commands}
    sizes = {name: int(value) for name, value in chosen["preprocess"].items()}
    made = run_verb("vit", "preprocess", tmp_path / "data", {"data": tmp_path / "shapes"}, **sizes)
    pefs = {
        purpose: Path(run_verb("vit", "compile", tmp_path / purpose, purpose=purpose, **sizes).outputs["pef"])
        for purpose in ("train", "serve")
    }
    given = {"pef": pefs["train"], "dataset": Path(made.outputs["dataset"])}
    trained = run_verb("vit", "train", tmp_path / "run", given, epochs=int(chosen["train"]["epochs"]))
    assert float(str(trained.figures["accuracy"])) > 0.6, "five classes, 160 pictures"
    checkpoint = Path(trained.outputs["checkpoint"])
    judged = run_verb("vit", "infer", tmp_path / "judged", {**given, "pef": pefs["serve"], "checkpoint": checkpoint})
    logits_NK = np.load(judged.outputs["predictions"])

    preprocessing = find_picture_preprocessing(checkpoint)
    assert preprocessing is not None
    files = sorted((tmp_path / "shapes").rglob("*.png"))
    by_array = {preprocessing.array_of(path.read_bytes()).tobytes(): path for path in files}
    held = [by_array[image.tobytes()] for image in np.load(tmp_path / "data/dataset/test/image.npy")]
    offline = preprocessing.predictions(logits_NK)

    environment = {
        "RDUKIT_BOX_PEF": str(pefs["serve"]), "RDUKIT_BOX_CHECKPOINT": str(checkpoint), "OMP_NUM_THREADS": "1",
        "RDUKIT_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    running = start_box(BoxSpec("vit", tmp_path / "state", [tmp_path], environment))
    try:
        with httpx.Client(trust_env=False, timeout=120, base_url=running.rest_url) as http:
            route = "/v2/models/vit/images"
            images = [base64.b64encode(path.read_bytes()).decode() for path in held]
            answered = http.post(route, json={"images": images}).raise_for_status().json()["predictions"]
            one = http.post(route, content=held[0].read_bytes(), headers={"content-type": "image/png"})
            one_said = one.raise_for_status().json()
            no_picture = http.post(route, content=b"x", headers={"content-type": "image/png"})
            no_rows = http.post("/v2/models/vit/rows", json={"rows": [{"a": 1}]})
            described = http.get("/v2/models/vit").json()["pictures"]
    finally:
        running.stop()
    (told,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert one_said.keys() == json.loads(told).keys()
    assert one_said["predictions"][0].keys() == json.loads(told)["predictions"][0].keys()
    for found, wanted in zip(answered, offline, strict=True):
        assert found["label"] == wanted.label
        assert found["probability"] == pytest.approx(wanted.probability, abs=0.02), "bf16 or f32 by its own graph"
        assert found["top"][0]["label"] == wanted.label
        assert len(found["top"]) == 5
    assert described["classes"] == ["cross", "disc", "ring", "square", "stripe"]
    assert (no_picture.status_code, "picture 0: not readable" in no_picture.text) == (400, True)
    assert (no_rows.status_code, "does not accept rows by column name" in no_rows.text) == (400, True)
