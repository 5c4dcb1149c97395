"""A PEF compiled to serve batches has a graph for one row: which one runs, and what it answers."""

import contextlib
import mmap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rdukit.pef import read_pef
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.contract.models import load_own_module, read_shape
from rdukit_modelbox.contract.new_box import new_box_files
from rdukit_serving.device import loaded_model
from rdukit_serving.device.loaded_model import LoadedModel, rows_run_alone
from support import shows
from support.boxes import run_verb

pytestmark = [shows("inference", "logreg"), pytest.mark.usefixtures("portable_kernels")]

BATCH, FEATURES, CLASSES = 16, 784, 10
#: To be appended to a box's file: a batch size of its own, because an override may narrow only.
ANY_BATCH_SIZE = """
remove: {compile: [batch_size]}
parameters:
  - {name: batch_size, type: int, default: 32, legal: {minimum: 1, maximum: 128}, verbs: [compile], help: Rows a step.}
"""
MODEL = f'''
import torch
from torch import nn
import sambaflow.samba as samba
from rdukit_zoo.registry import ModelEntry


class Model(nn.Module):
    """Dropout and statistics of a batch, which mean something else in training; one parameter that is never used."""

    def __init__(self, num_features, num_classes):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(num_features), nn.Dropout(0.5)
        self.answer, self.unused = nn.Linear(num_features, num_classes), nn.Linear(2, 2)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, rows, targets=None):
        logits = self.answer(self.drop(self.norm(rows)))
        return logits if targets is None else (self.criterion(logits, targets), logits)


class Sums(Model):
    """Rows look at each other, which shows what a batch holds behind those that were asked for."""

    def forward(self, rows, targets=None):
        logits = self.answer(rows) + rows.sum(0)[:{CLASSES}]
        return logits if targets is None else (self.criterion(logits, targets), logits)


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
'''


@dataclass
class Made:
    """A box with its PEF, a checkpoint, and the module in torch as it is when nothing is trained."""

    folder: Path
    pef: Path
    checkpoint: Path
    module: torch.nn.Module


def make(folder: Path, function: str, batch_size: int = BATCH) -> Made:
    """Compile ``function``'s model to serve, with parameters and statistics of its own in a checkpoint."""
    text = f"{find_box_file('logreg').read_text()}{ANY_BATCH_SIZE}"
    for name, data in new_box_files("own", text, has_module=True).items():
        (folder / name).write_bytes(data.replace(b"make_model", function.encode()))
    (folder / "model.py").write_text(MODEL)
    pef = run_verb(str(folder), "compile", folder, batch_size=batch_size, purpose="serve", precision="f32")
    torch.manual_seed(1)
    module = load_own_module(folder, f"model.py:{function}").build(num_features=FEATURES, num_classes=CLASSES).eval()
    for name, value in module.state_dict().items():
        if "running" in name:
            value.uniform_(0.5, 2.0)
    save_file(dict(module.state_dict()), folder / "own.safetensors")
    return Made(folder, pef.outputs["pef"], folder / "own.safetensors", module)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A model whose rows do not know of each other."""
    return make(tmp_path_factory.mktemp("own"), "make_model")


def loaded(made: Made) -> tuple[LoadedModel, memoryview]:
    """In this process, with the memory that it shares with nobody."""
    model = LoadedModel("own", made.pef, made.checkpoint, {})
    memory = memoryview(mmap.mmap(-1, model.signature.shared_bytes))
    model.bind(memory)
    return model, memory


def ask(model: LoadedModel, memory: memoryview, rows_NF: torch.Tensor) -> torch.Tensor:
    """[N, C]: what a run of as many rows leaves; the rows are written as a box writes them."""
    count, offsets = len(rows_NF), model.signature.offsets
    torch.frombuffer(memory, dtype=torch.float32, count=rows_NF.numel())[:] = rows_NF.flatten()
    model.run(count)
    answer = torch.frombuffer(memory, dtype=torch.float32, count=count * CLASSES, offset=offsets["output/logits"])
    return answer.view(count, CLASSES).clone()


def test_a_pef_that_serves_batches_says_which_graph_is_for_how_many_rows(own: Made) -> None:
    pef = read_pef(own.pef).pef
    assert dict(read_shape(load_box(own.folder / "modelbox.yaml"), own.pef).graphs) == {BATCH: "model", 1: "one_row"}
    assert {name: [pef.symbols[i].shape[0] for i in graph.inputs] for name, graph in pef.graphs.items()} == {
        "model": [BATCH], "one_row": [1],
    }  # fmt: skip


def test_a_pef_for_one_row_has_one_graph(tmp_path: Path) -> None:
    made = make(tmp_path, "make_model", 1)
    assert len(read_pef(made.pef).pef.graphs) == 1
    with contextlib.closing(loaded(made)[0]) as model:
        assert model.signature.batch == 1


@pytest.mark.parametrize("alone", [1, 3, BATCH])
def test_every_number_of_rows_is_answered_as_the_module_does_when_it_is_not_trained(
    own: Made, monkeypatch: pytest.MonkeyPatch, alone: int
) -> None:
    monkeypatch.setattr(loaded_model, "rows_run_alone", lambda *_: alone)
    model, memory = loaded(own)
    with contextlib.closing(model), torch.inference_mode():
        for count in (BATCH, 1, 2, 3, 4, 1, BATCH - 1):
            rows = torch.randn(count, FEATURES)
            torch.testing.assert_close(ask(model, memory, rows), own.module(rows), atol=1e-5, rtol=1e-5)


def test_behind_the_rows_of_a_batch_there_are_zeros_whatever_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_model, "rows_run_alone", lambda *_: 1)
    made = make(tmp_path, "make_sums")
    model, memory = loaded(made)
    with contextlib.closing(model), torch.inference_mode():
        for count in (1, 3, BATCH, 1, 2, 5, 1, 3):
            rows = torch.randn(count, FEATURES)
            torch.testing.assert_close(ask(model, memory, rows), made.module(rows), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("batch_s", "row_s", "alone"), [(8.0, 2.0, 4), (8.0, 3.0, 2), (1.0, 3.0, 1), (90.0, 1.0, BATCH), (1.0, 1.0, 1)]
)
def test_rows_are_run_one_by_one_as_long_as_that_is_no_slower(batch_s: float, row_s: float, alone: int) -> None:
    assert rows_run_alone(batch_s, row_s, BATCH) == alone


def test_infer_judges_with_such_a_pef_twice_alike(own: Made, tmp_path: Path) -> None:
    from rdukit_modelbox.tasks.program import ModelProgram

    shape = read_shape(load_box(own.folder / "modelbox.yaml"), own.pef)
    program = ModelProgram(shape, entry=load_own_module(own.folder, "model.py:make_model"))
    with contextlib.closing(program), torch.inference_mode():
        program.load(own.pef)
        program.parameters_to_device(own.module.state_dict())
        rows = torch.randn(5, FEATURES)
        for _ in range(2):
            found = torch.from_numpy(program.logits_of(rows.numpy()))
            torch.testing.assert_close(found, own.module(rows), atol=1e-5, rtol=1e-5)
