"""``rdukit box`` from a folder of the caller's own, against a box that asks for a token: from rows to a model."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rdukit.errors import RdukitError, Unauthenticated
from rdukit_modelbox.cli.main import box as box_commands
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBox
from support import shows
from support.platform.warm import start_box

pytestmark = shows("box", "modelbox", "mlp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caller")
    lines = ["width,height,colour,label"]
    lines += [f"{i % 7},{i % 5},{('red', 'green', 'blue')[i % 3]},{('small', 'large')[i % 2]}" for i in range(120)]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    (folder / "tokens").write_text("sesame\n")
    (folder / "wrong").write_text("barley\n")
    return folder


@pytest.fixture(scope="module")
def box(folder: Path) -> Iterator[ProcessBox]:
    environment = {
        "RDUKIT_BOX_TOKENS": str(folder / "tokens"), "RDUKIT_KERNELS": "portable", "OMP_NUM_THREADS": "1",
        "RDUKIT_HOME": str(folder / "home"),
    }  # fmt: skip
    started = start_box(BoxSpec("mlp", folder / "state", [folder], environment))
    yield started
    started.stop()


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RDUKIT_TOKEN", "sesame")
    return folder


def run(box: ProcessBox, *words: str) -> Result:
    command, *rest = words
    return CliRunner().invoke(box_commands, [command, "--url", box.rest_url, *rest])


def succeed(box: ProcessBox, *words: str) -> Result:
    result = run(box, *words)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


def test_each_command_sends_the_token_of_the_setting_or_of_a_file(
    box: ProcessBox, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed(box, "operations")
    monkeypatch.delenv("RDUKIT_TOKEN")
    for words in (["operations"], ["call", "preprocess"], ["watch", "op-1"], ["cancel", "op-1"]):
        with pytest.raises(Unauthenticated, match="asks for a token: pass --token TOKEN or @FILE, or set RDUKIT_TOKEN"):
            raise run(box, *words).exception or AssertionError
        with pytest.raises(Unauthenticated, match="knows another token"):
            raise run(box, *words, "--token", "@wrong").exception or AssertionError
        ended = run(box, *words, "--token", "@tokens")
        assert not isinstance(ended.exception, Unauthenticated)
    with pytest.raises(RdukitError, match="cannot be read"):
        raise run(box, "operations", "--token", "@absent").exception or AssertionError


@pytest.mark.long
def test_relative_paths_are_the_callers_and_each_verb_ends_with_what_the_next_one_needs(
    box: ProcessBox, here: Path
) -> None:
    words = ["--input", "data=rows.csv", "--output", "made", "--set", "categorical=colour"]
    made = succeed(box, "call", "preprocess", *words)
    assert (here / "made" / "dataset" / "manifest.json").is_file()
    # Three columns became five features: a colour is one of three.
    assert re.search(r"compile_parameters +--set num_features=5 --set num_classes=2\n", made.stdout), made.output
    told = json.loads(succeed(box, "operations", "--json", "--limit", "1").stdout)[0]["result"]["compile_parameters"]
    assert told == {"num_features": 5, "num_classes": 2}

    fitting = [word for name, value in told.items() for word in ("--set", f"{name}={value}")]
    compiled = succeed(box, "call", "compile", *fitting, "--set", "batch_size=8", "--output", "pef")
    assert "sections" in compiled.output and "[info" not in compiled.output
    pef = os.path.relpath(next(here.joinpath("pef").rglob("*.pef")), here)
    inputs = ["--input", f"pef={pef}", "--input", "dataset=made/dataset", "--output", "trained"]
    trained = succeed(box, "call", "train", *inputs, "--set", "epochs=2", "--set", "evaluate_every=12",
                      "--set", "validation_share=0")  # fmt: skip
    # One figure has one name and the same digits wherever it is shown.
    table = dict(re.findall(r"^  (\w+) +(\S+)$", trained.stdout, re.MULTILINE))
    log = next(line for line in trained.stderr.splitlines() if line.startswith("trained "))
    logged = dict(re.findall(r"\b(loss|held_out_loss|accuracy) (\d[\d.e+-]*)", log))
    assert logged == {name: table[name] for name in ("loss", "held_out_loss", "accuracy")}
    last = [line for line in trained.stderr.splitlines() if line.startswith("step ")][-1]
    assert dict(re.findall(r"\b(loss|held_out_loss|accuracy) (\d[\d.e+-]*)", last)).items() <= {
        ("held_out_loss", table["held_out_loss"]), ("accuracy", table["accuracy"]),
    }  # fmt: skip
