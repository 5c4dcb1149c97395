"""``rdukit finetune`` with accumulated batches, averaged weights and rates by depth."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from rdukit_modelbox.cli.finetune import finetune
from rdukit_modelbox.training.checkpoints import load_checkpoint
from support import shows
from support.hub_folders import CONTEXT, our_losses, write_data, write_model

pytestmark = shows("finetune")

pytest.importorskip("transformers", reason="the extra `models` is not installed")


def tuned(folder: Path, name: str, *options: str) -> dict[str, Any]:
    words = [str(folder / "model"), str(folder / "talks.jsonl"), "--output", str(folder / name), "--json"]
    words += ["--context", str(CONTEXT), "--max-steps", "4", "--epochs", "4", "--lr", "0.01", "--layer-decay", "0.5"]
    done = CliRunner().invoke(finetune, [*words, *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.long
def test_accumulated_batches_count_by_their_tokens_and_the_average_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses within 1e-4 in f32 over four steps of AdamW: sums of gradients come in another order."""
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    write_model(tmp_path / "model", "llama")
    write_data(tmp_path)
    large = tuned(tmp_path, "large", "--batch", "8")
    parts = tuned(tmp_path, "parts", "--batch", "2", "--accumulate", "4", "--ema", "0.5")
    folder = tmp_path / "parts"
    assert our_losses(folder) == pytest.approx(our_losses(tmp_path / "large"), abs=1e-4)
    assert parts["after"]["held_out_loss"] != large["after"]["held_out_loss"]
    assert len(list((folder / "tensorboard").glob("events.out.tfevents.*"))) == 1
    kept = load_checkpoint(folder / ".finetune/train/checkpoint")
    written = load_file(folder / "model.safetensors")
    (name,) = [name for name in written if name.endswith("layers.0.mlp.gate_proj.weight")]
    (own,) = [name for name in kept.average if name.endswith("layers.0.mlp.gate_proj.weight")]
    assert torch.equal(written[name], kept.average[own])
    assert not torch.equal(written[name], kept.parameters[own])
