"""A recipe runs for real, quickly: through children, stopped by a signal, gone on with, and kept by step."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import Cancelled
from support import shows
from support.boxes import run_verb

pytestmark = [shows("box", "recipes", "mlp", "gpt2", "bert-classifier"), pytest.mark.long]

LIMIT_S = 240


def start(folder: Path) -> subprocess.Popen[str]:
    variables = {**os.environ, "RDUKIT_KERNELS": "portable", "RDUKIT_HOME": f"{folder}/home", "RDUKIT_NODE": "private"}
    options = ["--quick", "--json", "--folder", str(folder / "kept")]
    return subprocess.Popen(
        [sys.executable, "-m", "rdukit_modelbox", "recipe", "run", "mlp", "fine-tune", *options],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(folder: Path) -> dict[str, Any]:
    out, err = (process := start(folder)).communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    (told,) = json.loads(out)
    return dict(told)


def test_a_stopped_recipe_is_gone_on_with_and_ended_steps_are_not_run_again(tmp_path: Path) -> None:
    process, end = start(tmp_path), time.monotonic() + LIMIT_S
    while not list(tmp_path.glob("kept/*/step.json")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == Cancelled.exit_status, err
    assert json.loads(out)["error"]["message"].endswith("the same command continues there")
    assert not (tmp_path / "kept/.lock").exists()

    told = run(tmp_path)
    assert (told["box"], told["kind"], told["quick"]) == ("mlp", "fine-tune", True)
    assert told["before"].keys() == told["reached"].keys() == {"accuracy"}
    assert told["trained_parameters"] == 64 * 256 + 256 + 256 * 10 + 10
    assert Path(told["outputs"]["checkpoint"]).is_dir()
    assert json.loads((tmp_path / "kept/fine-tune.json").read_text()) == told

    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("kept/*/step.json")}
    assert len(times) == 7
    assert run(tmp_path) == told
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.parametrize("corpus", ["documentation", "sources"])
def test_a_corpus_is_read_where_no_data_are_given(corpus: str, tmp_path: Path) -> None:
    for box, few in (("gpt2", "max_seq_length"), ("bert-classifier", "samples")):
        made = run_verb(box, "preprocess", tmp_path / box, None, None, **{"corpus": corpus, few: 64})
        assert made.outputs["dataset"].is_dir()
        assert sorted(path.name for path in (tmp_path / box).iterdir()) == ["dataset"]
