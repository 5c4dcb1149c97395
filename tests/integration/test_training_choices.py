"""Options of a training next to torch: accumulation, averaged weights, rates by depth, and a split to validate with."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rdukit.errors import Conflict, InvalidArgument
from rdukit_modelbox.preprocessing.datasets import Samples, save_dataset, write_dataset
from rdukit_modelbox.training.checkpoints import load_checkpoint
from rdukit_serving.device.parameters import load_parameters
from support import shows
from support.boxes import run_verb

pytestmark = shows("training", "validation")

FEATURES: Final = 784
SAMPLES: Final = 176
PLAIN: Final = {"momentum": 0.0, "weight_decay": 0.0, "lr": 0.1, "epochs": 1}


def samples(count: int, seed: int) -> Samples:
    chance = np.random.default_rng(seed)
    labels_N = chance.integers(0, 10, count)
    centres = np.random.default_rng(1).standard_normal((10, FEATURES))
    features_NF = (centres[labels_N] + chance.standard_normal((count, FEATURES))) / 10
    return Samples(features_NF.astype(np.float32), labels_N.astype(np.int64))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    return save_dataset(
        folder, samples(SAMPLES, 2), samples(40, 3), classes=10, normalize="none", source="chance"
    )  # fmt: skip


def compiled(folder: Path, box: str = "logreg", **options: Any) -> Path:
    given = {"precision": "f32", "num_tiles": 1, "batch_size": 16, **options}
    return Path(run_verb(box, "compile", folder / "pef", **given).outputs["pef"])


def trained(folder: Path, pef: Path, dataset: Path, box: str = "logreg", **options: Any) -> Any:
    return run_verb(box, "train", folder, {"pef": pef, "dataset": dataset}, **{**PLAIN, **options})


def weights(folder: Path, which: str = "newest") -> dict[str, torch.Tensor]:
    return dict(load_parameters(folder / "checkpoint", which)[1])


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"optimizer": "adamw", "clip_gradients": True}, marks=pytest.mark.long)],
    ids=["sgd", "adamw, clipped"],
)
def test_accumulated_batches_are_one_large_batch(tmp_path: Path, dataset: Path, options: dict[str, Any]) -> None:
    """Within 1e-5 in f32: the sums of gradients come in another order."""
    large = compiled(tmp_path / "large", batch_size=64, **options)
    small = compiled(tmp_path / "small", batch_size=16, accumulation_steps=4, **options)
    rate = {"lr": 0.001} if options else {}
    first, second = (
        trained(tmp_path / str(n), pef, dataset, epochs=3, max_grad_norm=0.1, **rate)
        for n, pef in enumerate((large, small))
    )
    assert first.figures["steps"] == second.figures["steps"] == 6
    assert first.figures["loss"] == pytest.approx(second.figures["loss"], abs=1e-5)
    one, other = weights(tmp_path / "0"), weights(tmp_path / "1")
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=0, atol=1e-5), name


@pytest.mark.long
def test_only_a_limit_of_gradients_that_was_asked_for_is_warned_about(
    tmp_path: Path, dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pef = compiled(tmp_path, mode="o0")
    trained(tmp_path / "plain", pef, dataset, max_steps=1)
    assert "max_grad_norm" not in caplog.text
    trained(tmp_path / "asked", pef, dataset, max_steps=1, max_grad_norm=0.5)
    assert "hyperparam_dict['max_grad_norm'] has no effect" in caplog.text


def test_accumulation_is_refused_with_members(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="accumulation_steps is 2 and members is 3; expected one of them to be 1"):
        compiled(tmp_path, accumulation_steps=2, members=3)


def test_averaged_weights_are_evaluated_kept_and_continued(tmp_path: Path, dataset: Path) -> None:
    pef = compiled(tmp_path)
    average = AveragedModel(nn.Linear(FEATURES, 10), multi_avg_fn=get_ema_multi_avg_fn(0.8))
    for step in range(1, 4):
        trained(tmp_path / "plain", pef, dataset, max_steps=step)
        newest = weights(tmp_path / "plain")
        (name,) = [name for name in newest if name.endswith("weight")]
        model = nn.Linear(FEATURES, 10)
        with torch.no_grad():
            model.weight.copy_(newest[name])
        average.update_parameters(model)
    trained(tmp_path / "ema", pef, dataset, max_steps=2, ema_decay=0.8)
    done = trained(tmp_path / "ema", pef, dataset, max_steps=3, ema_decay=0.8)
    found = load_checkpoint(tmp_path / "ema/checkpoint")
    assert torch.allclose(found.average[name], average.module.weight, rtol=0, atol=1e-6)
    assert torch.equal(found.parameters[name], newest[name]), "the training goes on with the newest weights"
    assert torch.equal(weights(tmp_path / "ema")[name], found.average[name]), "whoever reads the file has the average"
    given = {"pef": pef, "dataset": dataset, "checkpoint": tmp_path / "ema/checkpoint"}
    again = run_verb("logreg", "evaluate", tmp_path / "evaluated", given)
    assert again.figures["held_out_loss"] == done.figures["held_out_loss"]
    with pytest.raises(Conflict, match=r"ema_decay 0\.8 against 0\.5"):
        trained(tmp_path / "ema", pef, dataset, max_steps=8, ema_decay=0.5)


@pytest.mark.long
def test_tied_weights_have_one_average(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(
        "".join(f"{number} and {number + 1} are next to each other.\n" for number in range(200))
    )
    sizes = {"max_seq_length": 16, "num_training_splits": 1, "dev_ratio": 0.2}
    made = run_verb("gpt2", "preprocess", tmp_path / "data", {"data": tmp_path / "text.txt"}, **sizes)
    small = {"context_length": 16, "prompt_length": 8, "width": 16, "heads": 2, "layers": 1, "accumulation_steps": 2}
    pef = run_verb("gpt2", "compile", tmp_path / "pef", batch_size=4, **small).outputs["pef"]
    given = {"pef": pef, "dataset": made.outputs["dataset"]}
    done = run_verb("gpt2", "train", tmp_path / "run", given, max_steps=3, evaluate_every=1, ema_decay=0.9)
    assert done.figures["split"] == "dev" and done.figures["validation_loss"] == done.figures["held_out_loss"]
    kept = load_checkpoint(tmp_path / "run/checkpoint")
    (table,) = [name for name in kept.average if name.endswith("wte.weight")]
    (head,) = [name for name in kept.average if name.endswith("lm_head.weight")]
    assert torch.equal(kept.average[table], kept.average[head])
    assert not torch.equal(kept.average[table], kept.parameters[table])


def test_each_level_has_its_share_of_the_rate(tmp_path: Path, dataset: Path) -> None:
    """The first step of plain SGD changes a weight by its rate times its gradient, which is the same in both."""
    changes = []
    for decay in (1.0, 0.5):
        folder = tmp_path / str(decay)
        pef = compiled(folder, "mlp", num_features=FEATURES, layer_decay=decay, optimizer="sgd")
        trained(folder / "0", pef, dataset, "mlp", max_steps=1, lr=1e-9, seed=3)
        trained(folder / "1", pef, dataset, "mlp", max_steps=1, lr=0.1, seed=3)
        start, end = weights(folder / "0"), weights(folder / "1")
        changes.append({name: end[name] - start[name] for name in end})
    for name, share in {"answer.bias": 1, "answer.weight": 1, "hidden.bias": 0.5, "hidden.weight": 0.5}.items():
        assert torch.allclose(changes[1][name], changes[0][name] * share, rtol=0, atol=1e-7), name


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_training_is_watched_on_other_samples_than_it_reports(tmp_path: Path, dataset: Path) -> None:
    pef = compiled(tmp_path)
    done = trained(tmp_path / "run", pef, dataset, evaluate_every=2, max_steps=6, validation_share=0.25)
    held = [line for line in lines_of(tmp_path / "run") if "split" in line]
    assert [(line["step"], line["split"]) for line in held] == [(2, "dev"), (4, "dev"), (6, "dev"), (6, "test")]
    assert done.figures["split"] == "test" and done.figures["held_out_loss"] == held[-1]["loss"]
    assert done.figures["validation_loss"] == held[-2]["loss"] != held[-1]["loss"]
    assert done.figures["best_loss"] == min(line["loss"] for line in held[:3])
    assert done.figures["epochs"] == round(6 / ((SAMPLES - 44) // 16), 4), "44 samples are not trained on"
    with pytest.raises(Conflict, match=r"pass validation_share=0\.25 to continue as it began, or use another"):
        trained(tmp_path / "run", pef, dataset, evaluate_every=2, max_steps=8, validation_share=0.1)
    large = compiled(tmp_path / "large", batch_size=128)
    with pytest.raises(InvalidArgument, match="only 88 are left to train on, fewer than the 128 of a step"):
        trained(tmp_path / "none", large, dataset, evaluate_every=2, validation_share=0.5)


def test_a_split_of_its_own_is_watched_and_the_test_split_only_on_request(tmp_path: Path, dataset: Path) -> None:
    pef = compiled(tmp_path)
    parts = {
        name: samples(count, seed) for seed, (name, count) in enumerate({"train": 64, "test": 20, "dev": 12}.items())
    }
    own = write_dataset(
        tmp_path / "own", {name: [(part.features_NF, part.labels_N)] for name, part in parts.items()},
        {name: len(part) for name, part in parts.items()}, FEATURES, classes=10, normalize="none", source="chance",
    )  # fmt: skip
    done = trained(tmp_path / "a", pef, own, evaluate_every=2)
    assert done.figures["steps"] == 4 and done.figures["split"] == "test" and "validation_loss" in done.figures
    done = trained(tmp_path / "b", pef, dataset, evaluate_every=2, max_steps=2, validation_share=0.0)
    held = [line["split"] for line in lines_of(tmp_path / "b") if "split" in line]
    assert held == ["test"] and "validation_loss" not in done.figures
