"""LoRA on models that are no language models: what trains, what stays, and one checkpoint for every kind of PEF."""

from pathlib import Path

import pytest
import torch

from rdukit_modelbox.tasks.adapters import ADAPTER_PARTS
from rdukit_serving.device.parameters import load_parameters
from support import first_short, shows
from support.boxes import run_verb

pytestmark = [shows("training", "vit", "deepvit", "bert", "bert-classifier"), pytest.mark.long]


@pytest.mark.parametrize("box", first_short(["bert", "vit", "deepvit", "bert-classifier"]))
def test_adapters_alone_train_and_the_checkpoint_fits_a_pef_without_them(
    box: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    dataset = run_verb(box, "preprocess", tmp_path / "data", samples=40).outputs["dataset"]
    full = run_verb(box, "compile", tmp_path / "full", batch_size=8).outputs["pef"]
    adapted = run_verb(box, "compile", tmp_path / "adapted", batch_size=8, lora_rank=4).outputs["pef"]
    base = run_verb(box, "train", tmp_path / "base", {"pef": full, "dataset": dataset}, epochs=1)
    inputs = {"pef": adapted, "dataset": dataset, "checkpoint": base.outputs["checkpoint"]}
    tuned = run_verb(box, "train", tmp_path / "tuned", inputs, epochs=1, lr=0.01, continue_as="weights")
    before = load_parameters(base.outputs["checkpoint"])[1]
    after = load_parameters(tuned.outputs["checkpoint"])[1]
    trains = {name for name in after if name.endswith(("lora_A", "lora_B"))}
    assert any(after[name].any() for name in trains if name.endswith("lora_B"))
    buffers = ("running_mean", "running_var", "num_batches_tracked")  # of a batch norm, which are no parameters
    kept = [name for name in before if not name.endswith(buffers)]
    assert all(torch.equal(after[name], before[name]) for name in kept)
    assert set(after) - set(before) == {name for name in after if name.endswith(ADAPTER_PARTS)}
    assert tuned.figures["trained_parameters"] == sum(after[name].numel() for name in trains)
    assert tuned.figures["trained_parameters"] < base.figures["trained_parameters"]
    judged = [
        run_verb(
            box, "infer", tmp_path / f"judged-{number}",
            {"pef": pef, "dataset": dataset, "checkpoint": tuned.outputs["checkpoint"]},
        )
        for number, pef in enumerate((adapted, full))
    ]  # fmt: skip
    assert judged[0].figures["loss"] == pytest.approx(judged[1].figures["loss"], rel=1e-4)
    evaluated = [
        run_verb(
            box, "evaluate", tmp_path / f"evaluated-{number}",
            {"pef": pef, "dataset": dataset, "checkpoint": tuned.outputs["checkpoint"]},
        ).figures
        for number, pef in enumerate((adapted, full))
    ]  # fmt: skip
    assert evaluated[0]["held_out_loss"] == tuned.figures["held_out_loss"]
    assert evaluated[1]["held_out_loss"] == pytest.approx(tuned.figures["held_out_loss"], rel=1e-4)
