"""A box evaluates as torch's ``model.eval()`` does: Infer, the evaluations inside Train, and a served training PEF.

In f32 every prediction equals torch's for the checkpoint's weights, and logits are within 1e-5: the same operators in
the same dtype, additions in another order.
"""

import contextlib
import json
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit.pef import read_pef
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.models import load_own_module, read_shape
from rdukit_modelbox.contract.new_box import new_box_files
from rdukit_modelbox.preprocessing.datasets import Samples, load_dataset, save_dataset
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_serving.device.loaded_model import LoadedModel
from rdukit_serving.device.parameters import load_parameters
from support import shows
from support.boxes import run_verb

pytestmark = shows("training", "modelbox-own-model", "inference")

BATCH, FEATURES, CLASSES = 16, 12, 3
#: Neither fills whole batches.
TRAIN_SAMPLES, TEST_SAMPLES = 150, 45
OLD_PEF = Path(__file__).parents[1] / "data/pef/normed_training_1_3.pef"
MODEL = f'''
import torch
from torch import nn
import sambaflow.samba as samba
from rdukit_zoo.registry import ModelEntry


class Model(nn.Module):
    """Dropout and statistics of a batch, which mean something else in training."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.norm, self.first = nn.BatchNorm1d(num_features), nn.Linear(num_features, 24)
        self.second, self.drop, self.answer = nn.BatchNorm1d(24), nn.Dropout(0.5), nn.Linear(24, num_classes)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, rows, targets=None):
        logits = self.answer(self.drop(self.second(self.first(self.norm(rows))).relu()))
        return logits if targets is None else (self.criterion(logits, targets), logits)


class Sums(Model):
    """Rows look at each other, in evaluation mode too."""

    def forward(self, rows, targets=None):
        logits = self.answer(self.drop(self.first(rows) + rows.mean()))
        return logits if targets is None else (self.criterion(logits, targets), logits)


class Heads(Model):
    """Cannot be evaluated by a PEF: it returns something else then."""

    def forward(self, rows, targets=None):
        loss, logits = super().forward(rows, targets)
        return (loss, logits) if self.training else logits


def make_inputs(batch_size, num_features, num_classes):
    rows = samba.randn(batch_size, num_features, name="rows", batch_dim=0)
    return rows, samba.randint(num_classes, (batch_size,), name="label", batch_dim=0)


def entry(build):
    sizes = {{"num_features": {FEATURES}, "num_classes": {CLASSES}}}
    return ModelEntry(name="own", title="Own", task="classification", licence="MIT", source="ours", sizes=sizes,
                      build=build, make_inputs=make_inputs)


def make_model():
    return entry(Model)


def make_sums():
    return entry(Sums)


def make_heads():
    return entry(Heads)
'''


class Own:
    """A box with its training PEF and a data set, whose classes lie apart in places that a batch norm must move."""

    def __init__(self, folder: Path, function: str, **compiled: Any) -> None:
        self.folder, self.function = folder, function
        folder.mkdir(exist_ok=True)
        text, sizes = find_box_file("logreg").read_text(), f"num_features: {FEATURES}, num_classes: {CLASSES}"
        for name, data in new_box_files("own", text, has_module=True).items():
            data = data.replace(b"num_features: 784, num_classes: 10", sizes.encode())
            (folder / name).write_bytes(data.replace(b"make_model", function.encode()))
        (folder / "model.py").write_text(MODEL)
        chance = np.random.default_rng(5)
        parts = [self.samples(chance, count) for count in (TRAIN_SAMPLES, TEST_SAMPLES)]
        self.data = save_dataset(folder / "data", *parts, classes=CLASSES, normalize="none", source="chance")
        options = {"batch_size": BATCH, "purpose": "train", "precision": "f32", **compiled}
        self.pef = run_verb(str(folder), "compile", folder, **options).outputs["pef"]

    @staticmethod
    def samples(chance: np.random.Generator, count: int) -> Samples:
        labels_N = chance.integers(0, CLASSES, count)
        centres_CF = np.random.default_rng(1).standard_normal((CLASSES, FEATURES)) * 2
        features_NF = centres_CF[labels_N] + chance.standard_normal((count, FEATURES)) * 3 + 4
        return Samples(features_NF.astype(np.float32), labels_N.astype(np.int64))

    def train(self, to: str, **options: Any) -> Any:
        given = {"pef": self.pef, "dataset": self.data}
        return run_verb(str(self.folder), "train", self.folder / to, given, **{"lr": 0.05, "epochs": 4, **options})

    def infer(self, to: str, checkpoint: Path, **options: Any) -> tuple[Any, list[dict[str, Any]]]:
        given = {"pef": self.pef, "dataset": self.data, "checkpoint": checkpoint}
        done = run_verb(str(self.folder), "infer", self.folder / to, given, split="test", **options)
        lines = Path(done.outputs["predictions"]).read_text().splitlines()
        return done.figures, [json.loads(line) for line in lines]

    def module(self, checkpoint: Path, which: str = "newest") -> nn.Module:
        """In torch, with the checkpoint's weights and statistics, in evaluation mode."""
        entry = load_own_module(self.folder, f"model.py:{self.function}")
        module = entry.build(num_features=FEATURES, num_classes=CLASSES)
        module.load_state_dict(dict(load_parameters(checkpoint, which)[1]))
        return module.eval()

    def module_parameters(self, to: Path) -> Path:
        """A safetensors file with the parameters that the module is drawn with."""
        module = load_own_module(self.folder, f"model.py:{self.function}").build(
            num_features=FEATURES, num_classes=CLASSES
        )
        save_file(module.state_dict(), to)
        return to

    def program(self) -> ModelProgram:
        shape = read_shape(load_box(self.folder / "modelbox.yaml"), self.pef)
        return ModelProgram(shape, entry=load_own_module(self.folder, f"model.py:{self.function}"))

    def expected(self, checkpoint: Path, which: str = "newest") -> tuple[torch.Tensor, float, float]:
        """Torch's logits [N, C] of the test split in one piece, their loss and accuracy."""
        test = load_dataset(self.data).test
        with torch.inference_mode():
            logits_NC = self.module(checkpoint, which)(torch.from_numpy(test.features_NF))
        labels_N = torch.from_numpy(test.labels_N)
        accuracy = (logits_NC.argmax(1) == labels_N).double().mean()
        return logits_NC, float(functional.cross_entropy(logits_NC.double(), labels_N)), float(accuracy)


@pytest.fixture(scope="module", autouse=True)
def portable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")
        yield


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    return Own(tmp_path_factory.mktemp("own") / "own", "make_model")


@pytest.fixture(scope="module")
def trained(own: Own) -> Path:
    """The checkpoint of a training."""
    checkpoint: Path = own.train("run").outputs["checkpoint"]
    return checkpoint


def test_predictions_and_metrics_of_infer_are_torchs_for_the_checkpoint(own: Own, trained: Path) -> None:
    figures, lines = own.infer("inferred", trained)
    logits_NC, loss, accuracy = own.expected(trained)
    assert [line["predicted"] for line in lines] == logits_NC.argmax(1).tolist()
    probability_N = logits_NC.softmax(1).max(1).values
    assert [line["probability"] for line in lines] == pytest.approx(probability_N.tolist(), abs=1e-5)
    assert (figures["accuracy"], figures["samples"]) == (accuracy, TEST_SAMPLES)
    assert figures["loss"] == pytest.approx(loss, abs=1e-5)


def test_evaluate_gives_torchs_figures_for_a_checkpoint_under_a_trainings_names(own: Own, trained: Path) -> None:
    given = {"pef": own.pef, "dataset": own.data, "checkpoint": trained}
    done = run_verb(str(own.folder), "evaluate", own.folder / "evaluated", given)
    _, loss, accuracy = own.expected(trained)
    assert done.figures["held_out_loss"] == pytest.approx(loss, abs=1e-5)
    assert (done.figures["accuracy"], done.figures["samples"], done.figures["split"]) == (
        accuracy,
        TEST_SAMPLES,
        "test",
    )
    report = json.loads(done.outputs["report"].read_text())
    assert {"box": "own", **done.figures}.items() <= report.items()
    assert {"confusion", "auc", "classes"} <= set(report)
    on_train = run_verb(str(own.folder), "evaluate", own.folder / "evaluated", given, split="train")
    assert (on_train.figures["samples"], on_train.figures["split"]) == (TRAIN_SAMPLES, "train")


def test_logits_are_torchs_whatever_number_of_rows_and_no_state_changes(own: Own, trained: Path) -> None:
    module = own.module(trained)
    with contextlib.closing(own.program()) as program, torch.inference_mode():
        program.load(own.pef)
        program.parameters_to_device(load_parameters(trained)[1])
        before = program.parameters_to_host()
        for count in (1, 3, BATCH - 1, BATCH):
            rows_NF = np.random.default_rng(count).standard_normal((count, FEATURES)).astype(np.float32) * 4
            expected = module(torch.from_numpy(rows_NF))
            torch.testing.assert_close(torch.from_numpy(program.logits_of(rows_NF)), expected, atol=1e-5, rtol=1e-5)
        after = program.parameters_to_host()
    assert before.keys() == after.keys() >= {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_evaluations_inside_a_training_are_torchs_and_the_best_is_the_best_by_them(own: Own) -> None:
    every, steps = 5, 20
    for best_by in ("loss", "accuracy"):
        done = own.train(f"judged_{best_by}", evaluate_every=every, max_steps=steps, best_by=best_by, lr=0.3, epochs=9,
                         validation_share=0.0)  # fmt: skip
        lines = [json.loads(line) for line in Path(done.outputs["metrics"]).read_text().splitlines()]
        judged = {line["step"]: line for line in lines if "split" in line}
        scores = {}
        for step in range(every, steps + 1, every):
            checkpoint = own.train(f"to_{step}", max_steps=step, lr=0.3, epochs=9).outputs["checkpoint"]
            _, loss, accuracy = own.expected(checkpoint)
            assert judged[step]["loss"] == pytest.approx(loss, abs=1e-5)
            assert judged[step]["accuracy"] == accuracy
            scores[step] = loss if best_by == "loss" else -accuracy
        assert done.figures["best_step"] == min(scores, key=lambda step: (scores[step], step))
        _, loss, accuracy = own.expected(done.outputs["checkpoint"], "best")
        assert done.figures[f"best_{best_by}"] == pytest.approx(loss if best_by == "loss" else accuracy, abs=1e-5)


def test_evaluations_change_no_step_of_a_training(own: Own, trained: Path) -> None:
    judged = own.train("often", evaluate_every=1, validation_share=0.0).outputs["checkpoint"]
    quiet, often = load_parameters(trained)[1], load_parameters(judged)[1]
    assert quiet["norm.num_batches_tracked"] == 4 * (TRAIN_SAMPLES // BATCH), "whole batches, no row of zeros"
    assert all(torch.equal(value, often[name]) for name, value in quiet.items())


def test_a_training_steps_loss_and_statistics_are_torchs_on_whole_batches(own: Own) -> None:
    """One epoch's first step with nothing dropped out, from the seed's parameters."""
    from rdukit_modelbox.tasks.classification import RowData

    rows = RowData(load_dataset(own.data), own.data)
    batches = list(rows.batches(BATCH, 0, 0, 0))
    assert len(batches) == TRAIN_SAMPLES // BATCH
    assert all(len(features) == BATCH for features, _ in batches)
    with contextlib.closing(own.program()) as program:
        program.load(own.pef)
        module = load_own_module(own.folder, "model.py:make_model").build(num_features=FEATURES, num_classes=CLASSES)
        module.load_state_dict(program.parameters_to_host())
        module.drop.p = 0.0
        loss = program.train_step(batches[0], {"lr": 0.0, "p": 0.0})
        expected = module(*(torch.from_numpy(values) for values in batches[0]))[0]
        assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
        found = program.parameters_to_host()
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(found[name], buffer, atol=1e-5, rtol=1e-5)


def test_a_served_training_pef_answers_in_evaluation_mode(own: Own, trained: Path) -> None:
    model = LoadedModel("own", own.pef, trained, {})
    rows_NF = np.random.default_rng(3).standard_normal((5, FEATURES)).astype(np.float32) * 4
    with contextlib.closing(model), torch.inference_mode():
        memory = memoryview(mmap.mmap(-1, model.signature.shared_bytes))
        model.bind(memory)
        assert [spec.name for spec in model.signature.outputs] == ["logits"]
        expected = own.module(trained)(torch.from_numpy(rows_NF))
        for _ in range(2):
            torch.frombuffer(memory, dtype=torch.float32, count=rows_NF.size)[:] = torch.from_numpy(rows_NF).flatten()
            model.run(len(rows_NF))
            offset = model.signature.offsets["output/logits"]
            answer = torch.frombuffer(memory, dtype=torch.float32, count=5 * CLASSES, offset=offset).view(5, CLASSES)
            torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-5)


def test_an_earlier_training_pef_whose_forward_keeps_statistics_is_not_served(tmp_path: Path) -> None:
    serving = {"inputs": [{"name": "rows", "symbol": "x"}], "outputs": [{"name": "logits", "symbol": "1"}]}
    with pytest.raises(PefMismatch, match="has no evaluation graph; compile it again"):
        LoadedModel("own", OLD_PEF, None, serving)


def test_rows_that_depend_on_each_other_are_refused_before_the_training(tmp_path: Path) -> None:
    sums = Own(tmp_path / "sums", "make_sums")
    with pytest.raises(InvalidArgument, match=r"13 samples do not fill batches of 16, and padding would change"):
        sums.train("run")
    assert not (sums.folder / "run" / "checkpoint").exists()


def test_a_model_that_no_graph_can_evaluate_is_refused_before_the_training(tmp_path: Path) -> None:
    heads = Own(tmp_path / "heads", "make_heads")
    assert "returns float32[16, 3] in evaluation mode" in read_pef(heads.pef).pef.metadata["no_evaluation_graph"]
    with pytest.raises(PefMismatch, match="has no evaluation graph, because forward returns"):
        heads.train("run")
    parameters = heads.module_parameters(tmp_path / "drawn.safetensors")
    given = {"pef": heads.pef, "dataset": heads.data, "checkpoint": parameters}
    with pytest.raises(PefMismatch, match="has no evaluation graph, because forward returns"):
        run_verb(str(heads.folder), "evaluate", heads.folder / "evaluated", given)
    with pytest.raises(PefMismatch, match="has no evaluation graph, because forward returns"):
        LoadedModel("own", heads.pef, None, {})
