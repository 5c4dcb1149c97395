"""Boxes of images, volumes, positions and readings: drawn data, a PEF, a training, and results with a picture.

Losses of the training are those of eager torch on the same batches, in f32.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.preprocessing.arrays import array_forms, open_arrays
from rdukit_serving.device.parameters import load_parameters
from rdukit_zoo.registry import get_model
from sambaflow.samba import utils
from support import first_short, shows
from support.boxes import run_verb

pytestmark = shows(
    "autodicnn",
    "autophasenn",
    "bert",
    "bert-classifier",
    "bert-embedder",
    "braggnn",
    "cosmictagger2d",
    "cosmictagger3d",
    "dcrnn",
    "deepvit",
    "gan",
    "lenet",
    "polymers",
    "rescalenet",
    "unet2d",
    "unet3d",
    "uno",
    "vit",
    "train-from-catalog",
    "portable",
)

#: Box → the figures of its results, beside the loss.
BOXES: dict[str, set[str]] = {
    "autodicnn": set(),
    "autophasenn": set(),
    "bert": {"accuracy"},
    "bert-classifier": {"accuracy"},
    "braggnn": {"mae", "r2", "error_p75"},
    "cosmictagger2d": {"accuracy", "foreground_accuracy", "iou_2"},
    "cosmictagger3d": {"accuracy", "foreground_accuracy", "iou_2"},
    "dcrnn": {"mae", "mae_last_value", "gain"},
    "deepvit": {"accuracy"},
    "gan": set(),
    "lenet": {"accuracy"},
    "polymers": {"mae", "r2"},
    "rescalenet": {"accuracy"},
    "unet2d": {"dice", "iou"},
    "unet3d": {"dice", "iou"},
    "uno": {"mae", "r2"},
    "vit": {"accuracy"},
}
#: Boxes whose cases take a few seconds each; the others are long.
QUICK = ("lenet",)
#: Sizes of compile and preprocess that make a box quick.
SMALL: dict[str, dict[str, Any]] = {
    "autodicnn": {"size": 16, "width": 4, "latent": 6},
    "autophasenn": {"blocks": 2, "width": 2},
    "bert": {"context_length": 24},
    "bert-classifier": {"context_length": 24},
    "cosmictagger2d": {"height": 16, "width": 16, "depth": 1, "filters": 2},
    "cosmictagger3d": {"height": 16, "width": 16, "depth": 1, "filters": 2},
    "dcrnn": {"nodes": 4, "units": 4, "steps": 3, "layers": 1},
    "deepvit": {"width": 16, "layers": 2, "heads": 2},
    "rescalenet": {"width": 4},
    "unet2d": {"image_size": 16, "init_features": 4},
    "unet3d": {"size": 8, "levels": 2, "features": 4},
    "vit": {"width": 16, "layers": 1, "heads": 2},
}
#: First decay rate of AdamW, where it is not the usual one.
BETA1 = {"gan": 0.5}
BATCH, SAMPLES, STEPS = 8, 40, 4


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kernels that need no compiler, and a home of its own."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))


def eager_losses(name: str, sizes: dict[str, Any], dataset: Path, lr: float) -> list[float]:
    """Losses of eager torch, on the batches that the box trains on."""
    box = load_box(find_box_file(name))
    entry = get_model(str(box.model))
    known = entry.check_sizes(box.sizes_with(sizes))
    data = open_arrays(dataset, array_forms(entry, known))
    utils.set_seed(0)
    model = entry.build(**known)
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(BETA1.get(name, 0.9), 0.99), weight_decay=0.0)
    losses = []
    for batch in data.batches(BATCH, 0, 0, 0):
        optimizer.zero_grad()
        loss, _ = model(*map(torch.from_numpy, batch))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[:STEPS]


@pytest.mark.parametrize("name", first_short(sorted(BOXES, key=QUICK.__contains__, reverse=True), len(QUICK)))
def test_a_box_draws_data_trains_as_eager_torch_does_and_shows_results(name: str, tmp_path: Path) -> None:
    sizes = SMALL.get(name, {})
    drawn = run_verb(name, "preprocess", tmp_path / "data", samples=SAMPLES, **sizes)
    dataset = drawn.outputs["dataset"]
    assert (drawn.figures["train_samples"], drawn.figures["test_samples"]) == (32, 8)
    assert {k: drawn.figures["compile_parameters"][k] for k in sizes} == sizes  # type: ignore[index]
    compiled = run_verb(name, "compile", tmp_path / "pef", batch_size=BATCH, **sizes)
    pef = compiled.outputs["pef"]
    trained = run_verb(
        name, "train", tmp_path / "run", {"pef": pef, "dataset": dataset}, max_steps=STEPS, lr=0.002
    )  # fmt: skip
    lines = [json.loads(line) for line in trained.outputs["metrics"].read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line and "lr" in line]
    np.testing.assert_allclose(losses, eager_losses(name, sizes, dataset, 0.002), rtol=2e-3)
    assert set(trained.figures) >= {"held_out_loss", *BOXES[name]}
    inputs = {"pef": pef, "dataset": dataset, "checkpoint": trained.outputs["checkpoint"]}
    judged = run_verb(name, "evaluate", tmp_path / "judged", inputs).figures
    named = ("held_out_loss", *BOXES[name])
    assert [judged[figure] for figure in named] == [trained.figures[figure] for figure in named]
    found = run_verb(name, "infer", tmp_path / "results", inputs)
    assert set(found.figures) >= {"loss", "samples", *BOXES[name]}
    assert found.figures["loss"] == pytest.approx(trained.figures["held_out_loss"], rel=1e-5)
    predictions = np.load(found.outputs["predictions"])
    assert len(predictions) == 8 and np.isfinite(predictions).all()
    with Image.open(found.outputs["picture"]) as picture:
        assert picture.size[0] > 100 and len(picture.getcolors(1 << 20)) > 2
    assert json.loads(found.outputs["report"].read_text())["split"] == "test"
    served = run_verb(name, "compile", tmp_path / "serve", batch_size=BATCH, purpose="serve", **sizes)
    inputs["pef"] = served.outputs["pef"]
    again = np.load(run_verb(name, "infer", tmp_path / "served", inputs).outputs["predictions"])
    np.testing.assert_allclose(again, predictions, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_of_masked_words_makes_the_vectors_of_eager_torch(tmp_path: Path) -> None:
    sizes = {"context_length": 24}
    dataset = run_verb("bert", "preprocess", tmp_path / "words", samples=20, **sizes).outputs["dataset"]
    pef = run_verb("bert", "compile", tmp_path / "pef", batch_size=4, **sizes).outputs["pef"]
    trained = run_verb("bert", "train", tmp_path / "run", {"pef": pef, "dataset": dataset}, max_steps=2)
    texts = run_verb("bert-embedder", "preprocess", tmp_path / "texts", samples=20, **sizes).outputs["dataset"]
    served = run_verb("bert-embedder", "compile", tmp_path / "serve", batch_size=4, precision="f32", **sizes)
    inputs = {"pef": served.outputs["pef"], "dataset": texts, "checkpoint": trained.outputs["checkpoint"]}
    found = run_verb("bert-embedder", "infer", tmp_path / "vectors", inputs)
    entry = get_model("bert_embedder")
    known = entry.check_sizes(sizes)
    model = entry.build(**known)
    kept = dict(load_parameters(trained.outputs["checkpoint"])[1])
    model.load_state_dict({name: kept[name] for name in model.state_dict()})
    (_, given), *_ = open_arrays(texts, array_forms(entry, known)).held_out("test", 4)
    with torch.no_grad():
        expected = model(*(torch.from_numpy(given[name]) for name in ("tokens", "types", "mask")))
    np.testing.assert_allclose(np.load(found.outputs["predictions"]), expected, rtol=1e-5, atol=1e-5)
    assert found.outputs["picture"].exists()
    with pytest.raises(InvalidArgument, match="purpose"):
        run_verb("bert-embedder", "compile", tmp_path / "other", purpose="train", **sizes)


def test_a_split_that_fills_no_batch_is_judged_whole(tmp_path: Path) -> None:
    dataset = run_verb("braggnn", "preprocess", tmp_path / "data", samples=30, test_ratio=0.5).outputs["dataset"]
    pef = run_verb("braggnn", "compile", tmp_path / "pef", batch_size=BATCH).outputs["pef"]
    trained = run_verb("braggnn", "train", tmp_path / "run", {"pef": pef, "dataset": dataset}, max_steps=1)
    step, kept = load_parameters(trained.outputs["checkpoint"])
    assert step == 1
    entry = get_model("braggnn")
    model = entry.build(**entry.sizes)
    model.load_state_dict(dict(kept))
    data = open_arrays(dataset, array_forms(entry, entry.sizes))
    (_, given), *_ = data.held_out("test", 15)
    with torch.no_grad():
        error = (model(torch.from_numpy(given["patch"])) - torch.from_numpy(given["centre"])).abs() * 11
    assert trained.figures["mae"] == pytest.approx(error.mean().item(), rel=1e-4)


def test_own_arrays_are_taken_by_name_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    entry = get_model("braggnn")
    assert entry.generate is not None
    arrays = entry.generate(20, 1, **entry.sizes)
    np.savez(tmp_path / "peaks.npz", **arrays)
    made = run_verb("braggnn", "preprocess", tmp_path / "a", {"data": tmp_path / "peaks.npz"}, test_ratio=0.25)
    assert (made.figures["train_samples"], made.figures["test_samples"]) == (15, 5)
    folder = tmp_path / "folder"
    folder.mkdir()
    for key, values in arrays.items():
        np.save(folder / f"{key}.npy", values)
    assert run_verb("braggnn", "preprocess", tmp_path / "b", {"data": folder}).figures["train_samples"] == 16
    for change, words in (
        ({"centre": arrays["centre"][:7]}, "equal numbers of samples"),
        ({"centre": arrays["centre"].astype(np.float64)}, r"expected centre float32 \['samples', 2\]"),
        ({"patch": arrays["patch"][:, :, :5]}, r"expected patch float32 \['samples', 1, 11, 11\]"),
        ({"patch": np.full_like(arrays["patch"], np.nan)}, "not finite"),
        ({"patch": np.array([{}] * 20)}, "does not contain arrays"),
    ):
        np.savez(tmp_path / "wrong.npz", **{**arrays, **change})
        with pytest.raises(InvalidArgument, match=words):
            run_verb("braggnn", "preprocess", tmp_path / "c", {"data": tmp_path / "wrong.npz"})
    np.savez(tmp_path / "wrong.npz", patch=arrays["patch"])
    with pytest.raises(InvalidArgument, match="lacks the array 'centre"):
        run_verb("braggnn", "preprocess", tmp_path / "c", {"data": tmp_path / "wrong.npz"})
    (folder / "patch.npy").unlink()
    with pytest.raises(NotFound, match=r"patch\.npy is missing; expected patch float32"):
        run_verb("braggnn", "preprocess", tmp_path / "c", {"data": folder})
    other = run_verb("braggnn", "preprocess", tmp_path / "d", samples=20, patch_size=15).outputs["dataset"]
    pef = run_verb("braggnn", "compile", tmp_path / "pef", batch_size=4).outputs["pef"]
    with pytest.raises(InvalidArgument, match="patch_size: 15 in the data set, 11 in the PEF"):
        run_verb("braggnn", "train", tmp_path / "run", {"pef": pef, "dataset": other})
