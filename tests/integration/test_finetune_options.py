"""``rdukit finetune`` with accumulated batches, averaged weights and rates by depth."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from rdukit.errors import IllegalValue, InvalidArgument
from rdukit_modelbox.cli.finetune import finetune
from rdukit_modelbox.contract.box import Verb, find_box_file, load_box
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.run import box_for
from rdukit_modelbox.finetune.run import finetune as run
from rdukit_modelbox.training.checkpoints import load_checkpoint
from support import shows
from support.boxes import RecordingContext
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


#: Options of the command → parameters of the box, where their names differ.
NAMES = {
    "batch": "batch_size", "warmup": "warmup_steps", "held_out": "dev_ratio", "accumulate": "accumulation_steps",
    "ema": "ema_decay",
}  # fmt: skip
#: Options that say where, not how.
PLACES = {"folder", "data", "output", "base", "as_job", "as_json"}


def test_the_command_has_the_parameters_of_the_job_with_their_defaults() -> None:
    options = {NAMES.get(str(each.name), str(each.name)): each.default for each in finetune.params}
    box = load_box(find_box_file("finetune"))
    wanted = {each.name: each.default for each in box.parameters_of(Verb.TRAIN)}
    assert {name: value for name, value in options.items() if name not in PLACES} == wanted


@pytest.mark.parametrize("where", [(), ("--job",)])
@pytest.mark.parametrize(
    ("option", "value", "parameter"),
    [
        ("--max-steps", "2000000", "max_steps"), ("--lr", "nan", "lr"), ("--augment", "Flip=1", "augment"),
        ("--lora-layers", "q_proj;v_proj", "lora_layers"), ("--context", "2000000", "context"),
    ],
)  # fmt: skip
def test_what_a_job_refuses_is_refused_here_before_anything_is_read(
    tmp_path: Path, where: tuple[str, ...], option: str, value: str, parameter: str
) -> None:
    words = [str(tmp_path / "none"), str(tmp_path / "none"), "--output", str(tmp_path / "out"), "--lora", "2", *where]
    with pytest.raises(IllegalValue, match=f"'{parameter}'"):
        CliRunner().invoke(finetune, [*words, option, value], catch_exceptions=False)


def test_layers_without_a_rank_are_refused_in_a_job_too(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "llama")
    box = box_for(tmp_path / "model")
    for options in (FinetuneOptions(lora_layers=("q_proj",)), FinetuneOptions(lora_alpha=8.0)):
        with pytest.raises(InvalidArgument, match="are only for low-rank updates; add --lora RANK"):
            run(tmp_path / "model", write_data(tmp_path), tmp_path / "out", options, RecordingContext(box))
