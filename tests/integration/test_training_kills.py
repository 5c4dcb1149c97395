"""A training that is killed with SIGKILL goes on to the same losses and parameters, for rows and for texts."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.training.checkpoints import load_checkpoint
from rdukit_modelbox.training.journal import read_lines
from rdukit_modelbox.verbs.context import VerbResult
from support import FIND_SUPPORT, first_short, shows
from support.boxes import run_verb
from support.vision import transforms_or_skip

pytestmark = [shows("training", "logreg", "llama"), pytest.mark.usefixtures("portable_kernels"), pytest.mark.long]

PROGRAM = (
    FIND_SUPPORT
    + """
import json, os, signal, sys
from pathlib import Path
from support.boxes import run_verb
box, output, inputs, parameters, last = json.loads(sys.argv[1])

def look(progress):
    if progress.stage == "train" and progress.step == last:
        os.kill(os.getpid(), signal.SIGKILL)

run_verb(box, "train", Path(output), {name: Path(path) for name, path in inputs.items()}, look, **parameters)
"""
)
#: The step after which a killed training is killed: some steps after a checkpoint and an evaluation.
LAST: Final = 53

TINY = {
    "width": 16, "layers": 1, "heads": 2, "key_value_heads": 1, "feed_forward": 24, "vocabulary": 260,
    "context_length": 16, "prompt_length": 8, "batch_size": 4,
}  # fmt: skip
#: Everything that has a state: warm-up and decay, clipping, evaluations, the best checkpoint. The rows also have
#: accumulated batches, an average of the weights, and validation samples taken from those of the training.
TRAINING = {"schedule": "cosine", "warmup_steps": 20, "evaluate_every": 45, "checkpoint_every": 12}


@dataclass(frozen=True)
class Case:
    """A box with its PEF and data set, and how to train."""

    box: str
    inputs: dict[str, Path]
    parameters: dict[str, Any]

    def train(self, output: Path, **more: Any) -> VerbResult:
        return run_verb(self.box, "train", output, self.inputs, **{**self.parameters, **more})

    def start(self, output: Path) -> subprocess.Popen[bytes]:
        """The same in a process of its own."""
        inputs = {name: str(path) for name, path in self.inputs.items()}
        request = json.dumps([self.box, str(output), inputs, self.parameters, LAST])
        return subprocess.Popen([sys.executable, "-c", PROGRAM, request], stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def rows(folder: Path) -> Case:
    data = run_verb("logreg", "preprocess", folder / "digits", limit=480).outputs["dataset"]
    pef = run_verb(
        "logreg", "compile", folder / "logreg", batch_size=16, accumulation_steps=2, optimizer="adamw",
        clip_gradients=True,
    )  # fmt: skip
    parameters = {**TRAINING, "epochs": 8, "lr": 0.003, "best_by": "accuracy", "max_grad_norm": 0.5, "ema_decay": 0.9}
    return Case("logreg", {"pef": pef.outputs["pef"], "dataset": data}, parameters)


@pytest.fixture(scope="module")
def texts(folder: Path) -> Case:
    text = folder / "text.txt"
    text.write_text("".join(f"{i} times {j} is {i * j}.\n" for i in range(30) for j in range(10)))
    data = run_verb("llama", "preprocess", folder / "texts", {"data": text}, max_seq_length=16).outputs["dataset"]
    pef = run_verb("llama", "compile", folder / "llama", **TINY)
    return Case("llama", {"pef": pef.outputs["pef"], "dataset": data}, {**TRAINING, "epochs": 2})


@pytest.fixture(scope="module")
def killed(rows: Case, texts: Case, folder: Path) -> dict[str, Path]:
    """Folders of two trainings that SIGKILL ended on their way; both run at a time."""
    outputs = {case.box: folder / f"killed-{case.box}" for case in (rows, texts)}
    running = [case.start(outputs[case.box]) for case in (rows, texts)]
    try:
        assert [process.wait(timeout=120) for process in running] == [-signal.SIGKILL] * 2
    finally:
        for process in running:
            process.kill()
    return outputs


def losses_in(output: Path) -> list[tuple[object, object, object]]:
    """Every step's number, loss and learning rate, and every evaluation's."""
    return [(line["step"], line["loss"], line.get("lr")) for line in read_lines(output / "metrics.jsonl")]


@pytest.mark.parametrize("box", first_short(["logreg", "llama"]))
def test_a_killed_training_goes_on_to_the_same_losses_parameters_and_best_checkpoint(
    box: str, rows: Case, texts: Case, killed: dict[str, Path], folder: Path
) -> None:
    assert_equal_after_a_kill(rows if box == "logreg" else texts, killed[box], folder)


def test_a_killed_training_on_augmented_pictures_goes_on_to_the_same(folder: Path) -> None:
    transforms_or_skip()
    chance = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    np.save(folder / "pictures/image.npy", chance.integers(0, 256, (160, 8, 8, 3), np.uint8))
    np.save(folder / "pictures/label.npy", np.arange(160) % 2)
    sizes = {
        "image_size": 8, "patch_size": 4, "channels": 3, "num_classes": 2, "width": 16, "layers": 1, "heads": 2
    }  # fmt: skip
    augmented = {"augment_flip": 0.5, "augment_rotation": 10.0, "augment_colour": 0.2}
    data = run_verb("vit", "preprocess", folder / "shapes", {"data": folder / "pictures"}, **sizes, **augmented)
    pef = run_verb("vit", "compile", folder / "vit", **sizes, batch_size=4, accumulation_steps=2, layer_decay=0.9)
    parameters = {**TRAINING, "epochs": 6, "ema_decay": 0.9, "validation_share": 0.2, "lr": 0.01}
    case = Case("vit", {"pef": pef.outputs["pef"], "dataset": data.outputs["dataset"]}, parameters)
    with case.start(folder / "killed-vit") as running:
        assert running.wait(timeout=240) == -signal.SIGKILL
    assert_equal_after_a_kill(case, folder / "killed-vit", folder)


def assert_equal_after_a_kill(case: Case, killed: Path, folder: Path) -> None:
    whole = case.train(folder / f"whole-{case.box}")
    again = case.train(killed)
    assert again.figures["resumed_from_step"] == 48
    assert losses_in(killed) == losses_in(folder / f"whole-{case.box}")
    # Sums of another order, and times.
    measured = {"host_seconds", "train_seconds", "emulated_seconds", "resumed_from_step"}
    assert {k: v for k, v in again.figures.items() if k not in measured} == {
        k: v for k, v in whole.figures.items() if k not in measured
    }
    for which in ("newest", "best"):
        ours, gold = (load_checkpoint(done.outputs["checkpoint"], which) for done in (again, whole))
        assert ours.step == gold.step
        assert all(torch.equal(ours.parameters[name], tensor) for name, tensor in gold.parameters.items())
        assert ours.average.keys() == gold.average.keys()
        assert bool(gold.average) == ("ema_decay" in case.parameters)
        assert all(torch.equal(ours.average[name], tensor) for name, tensor in gold.average.items())
        for index, states in gold.optimizer["state"].items():
            assert all(torch.equal(ours.optimizer["state"][index][key], value) for key, value in states.items())
    assert 2 <= len(list(killed.glob("checkpoint/step-*.safetensors"))) <= 3, "the newest two, and the best"
    if case.box != "vit":  # whose pictures are chance
        losses = [loss for _, loss, rate in losses_in(killed) if rate is not None]
        assert float(str(losses[-1])) < float(str(losses[0])) / 1.3


def test_time_target_and_patience_end_a_training_and_asking_again_changes_nothing(rows: Case, folder: Path) -> None:
    timed = rows.train(folder / "timed", max_seconds=0.01)
    assert timed.figures["ended_by"] == "time"
    assert 1 <= int(str(timed.figures["steps"])) < 120
    options = {"evaluate_every": 10, "checkpoint_every": 1000}
    reached = rows.train(folder / "reached", target_accuracy=0.5, **options)
    assert reached.figures["ended_by"] == "target"
    assert int(str(reached.figures["steps"])) % 10 == 0 and int(str(reached.figures["steps"])) < 120
    assert float(str(reached.figures["validation_accuracy"])) >= 0.5
    again = rows.train(folder / "reached", target_accuracy=0.5, **options)
    assert (again.figures["steps"], again.figures["resumed_from_step"]) == (reached.figures["steps"],) * 2
    # Steps so small that bf16 gives the same accuracy again and again.
    stuck = rows.train(folder / "stuck", lr=1e-12, patience=2, **options)
    assert (stuck.figures["ended_by"], stuck.figures["steps"], stuck.figures["best_step"]) == ("patience", 30, 10)


def test_the_picture_and_the_journal_are_outputs(killed: dict[str, Path], rows: Case, folder: Path) -> None:
    done = rows.train(folder / "short", max_steps=5, evaluate_every=0)
    assert set(done.outputs) == {"checkpoint", "metrics", "report", "curves"}
    assert "loss of the steps" in done.outputs["report"].read_text()
    with pytest.raises(NotFound, match=r"no best.json; train with evaluate_every"):
        load_checkpoint(done.outputs["checkpoint"], "best")


def test_what_does_not_fit_together_is_refused_before_a_tile_is_leased(rows: Case, texts: Case, folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="needs evaluations; set evaluate_every"):
        rows.train(folder / "bad", patience=3, evaluate_every=0)
    serving = run_verb("logreg", "compile", folder / "serving", batch_size=16, purpose="serve").outputs["pef"]
    with pytest.raises(InvalidArgument, match="train needs one compiled with purpose=train"):
        run_verb("logreg", "train", folder / "bad", {**rows.inputs, "pef": serving})
    other = run_verb("llama", "preprocess", folder / "long", {"data": folder / "text.txt"}, max_seq_length=32)
    with pytest.raises(InvalidArgument, match="preprocess with max_seq_length=16"):
        run_verb("llama", "train", folder / "bad", {**texts.inputs, "dataset": other.outputs["dataset"]})
