"""Losses are of all rows: a last batch that is not full counts with its rows, in each verb and each decision."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rdukit.errors import RuntimeFault
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.preprocessing.arrays import array_forms, open_arrays
from rdukit_serving.device.parameters import load_parameters
from rdukit_zoo.registry import get_model
from support import first_short, shows
from support.boxes import run_verb

pytestmark = shows("training", "portable")

#: Boxes whose loss is a mean over samples, over readings that are there, and over words that are masked.
SIZES: dict[str, dict[str, Any]] = {
    "lenet": {},
    "braggnn": {},
    "dcrnn": {"nodes": 4, "units": 4, "steps": 3, "layers": 1},
    "bert": {"context_length": 24},
}


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that need no compiler, and a home of its own."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def eager_loss(box: str, sizes: dict[str, Any], dataset: Path, checkpoint: Path) -> float:
    """Loss of eager torch over the whole test split at once."""
    found = load_box(find_box_file(box))
    entry = get_model(str(found.model))
    known = entry.check_sizes(found.sizes_with(sizes))
    model = entry.build(**known).eval()
    model.load_state_dict(dict(load_parameters(checkpoint)[1]))
    data = open_arrays(dataset, array_forms(entry, known))
    ((_, given),) = data.held_out("test", data.count("test"))
    with torch.no_grad():
        loss, _ = model(*(torch.from_numpy(values) for values in given.values()))
    return float(loss)


@pytest.mark.parametrize("box", first_short(list(SIZES), 1))
@pytest.mark.parametrize("batch", [4, 16])
def test_each_loss_is_the_mean_over_all_rows(box: str, batch: int, tmp_path: Path) -> None:
    sizes = SIZES[box]
    dataset = run_verb(box, "preprocess", tmp_path / "data", samples=27, test_ratio=0.4, **sizes).outputs["dataset"]
    pef = run_verb(box, "compile", tmp_path / "pef", batch_size=batch, **sizes).outputs["pef"]
    asked = {"pef": pef, "dataset": dataset}
    trained = run_verb(box, "train", tmp_path / "run", asked, max_steps=1, evaluate_every=1, best_by="loss",
                       validation_share=0.0)  # fmt: skip
    asked["checkpoint"] = trained.outputs["checkpoint"]
    expected = eager_loss(box, sizes, dataset, asked["checkpoint"])
    judged = run_verb(box, "evaluate", tmp_path / "judged", asked)
    found = run_verb(box, "infer", tmp_path / "found", asked)
    assert judged.figures["samples"] == 10
    losses = [trained.figures["held_out_loss"], trained.figures["best_loss"], judged.figures["held_out_loss"]]
    np.testing.assert_allclose([*losses, found.figures["loss"]], expected, rtol=1e-5)


def test_a_training_goes_on_after_a_loss_of_a_rest_as_without_it(tmp_path: Path) -> None:
    dataset = run_verb("lenet", "preprocess", tmp_path / "data", samples=27, test_ratio=0.4).outputs["dataset"]
    pef = run_verb("lenet", "compile", tmp_path / "pef", batch_size=4).outputs["pef"]
    runs = [
        run_verb("lenet", "train", tmp_path / f"run-{every}", {"pef": pef, "dataset": dataset}, max_steps=4,
                 evaluate_every=every, validation_share=0.0).outputs["checkpoint"]
        for every in (0, 1)
    ]  # fmt: skip
    quiet, often = (load_parameters(run)[1] for run in runs)
    assert all(torch.equal(quiet[name], often[name]) for name in quiet)


def test_a_training_whose_loss_diverges_fails(tmp_path: Path) -> None:
    dataset = run_verb("braggnn", "preprocess", tmp_path / "data", samples=27, test_ratio=0.4).outputs["dataset"]
    pef = run_verb("braggnn", "compile", tmp_path / "pef", batch_size=4).outputs["pef"]
    with pytest.raises(RuntimeFault, match=r"loss is .*; lower lr"):
        run_verb("braggnn", "train", tmp_path / "run", {"pef": pef, "dataset": dataset}, lr=1.0, epochs=40)
