"""``rdukit finetune`` with accumulated batches, averaged weights and rates by depth."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rdukit_modelbox.contract.box import load_box
from rdukit_modelbox.finetune.run import Finetuned, FinetuneOptions, box_file_of, finetune
from rdukit_modelbox.training.checkpoints import load_checkpoint
from support import shows
from support.boxes import RecordingContext
from support.hub_folders import CONTEXT, our_losses, write_data, write_model

pytestmark = shows("finetune")

pytest.importorskip("transformers", reason="the extra `models` is not installed")


def tuned(folder: Path, name: str, **options: object) -> Finetuned:
    chosen = {"context": CONTEXT, "max_steps": 4, "epochs": 4, "lr": 0.01, "layer_decay": 0.5, **options}
    context = RecordingContext(load_box(box_file_of(folder / "model")))
    return finetune(folder / "model", folder / "data.jsonl", folder / name, FinetuneOptions(**chosen), context)  # type: ignore[arg-type]


@pytest.mark.long
def test_accumulated_batches_count_by_their_tokens_and_the_average_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses within 1e-4 in f32 over four steps of AdamW: sums of gradients come in another order."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    write_model(tmp_path / "model", "llama")
    write_data(tmp_path).rename(tmp_path / "data.jsonl")
    large = tuned(tmp_path, "large", batch_size=8)
    parts = tuned(tmp_path, "parts", batch_size=2, accumulation_steps=4, ema_decay=0.5)
    assert our_losses(parts.folder) == pytest.approx(our_losses(large.folder), abs=1e-4)
    assert parts.after["held_out_loss"] != large.after["held_out_loss"]
    assert len(list((parts.folder / "tensorboard").glob("events.out.tfevents.*"))) == 1
    kept = load_checkpoint(parts.folder / ".finetune/train/checkpoint")
    written = load_file(parts.folder / "model.safetensors")
    (name,) = [name for name in written if name.endswith("layers.0.mlp.gate_proj.weight")]
    (own,) = [name for name in kept.average if name.endswith("layers.0.mlp.gate_proj.weight")]
    assert torch.equal(written[name], kept.average[own])
    assert not torch.equal(written[name], kept.parameters[own])
