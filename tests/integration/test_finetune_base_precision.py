"""Updates of low rank beside a base in bf16, int8 or int4, next to transformers with the numbers of that base.

The base that transformers trains beside has the rounded weights in f32. Losses differ by sums in another order: 1e-3.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument
from rdukit.pef import read_pef
from rdukit.pef.model import SymbolKind
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.run import box_for
from rdukit_modelbox.finetune.run import finetune as run
from rdukit_runtime.engine.quantized_weights import dequantize_groups, dequantize_rows, quantize_groups, quantize_rows
from support import shows
from support.boxes import RecordingContext
from support.hub_folders import CONTEXT, losses_of_transformers, our_losses, write_data, write_model

pytestmark = shows("finetune")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

RANK, ALPHA, STEPS, LR = 4, 8.0, 12, 0.02
ROUNDED = {
    "bf16": lambda weight: weight.to(torch.bfloat16).float(),
    "int8": lambda weight: dequantize_rows(*quantize_rows(weight)),
    "int4": lambda weight: dequantize_groups(*quantize_groups(weight)),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path


class Updated(torch.nn.Module):
    """A linear layer of transformers with an update, as PEFT computes it."""

    def __init__(self, layer: torch.nn.Linear, down: torch.Tensor, up: torch.Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.down, self.up = torch.nn.Parameter(down.clone()), torch.nn.Parameter(up.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + ALPHA / RANK * (x @ self.down.T @ self.up.T)


def write_adapter(folder: Path, model: Any, base: Path) -> list[torch.nn.Parameter]:
    """Write random updates of all queries in PEFT's format, and put the same beside the layers of ``model``."""
    folder.mkdir()
    torch.manual_seed(1)
    tensors, trained = {}, []
    for number, block in enumerate(model.model.layers):
        layer = block.self_attn.q_proj
        down, up = torch.randn(RANK, layer.in_features) / 8, torch.randn(layer.out_features, RANK) / 8
        name = f"base_model.model.model.layers.{number}.self_attn.q_proj"
        tensors |= {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}
        block.self_attn.q_proj = Updated(layer, down, up)
        trained += [block.self_attn.q_proj.down, block.self_attn.q_proj.up]
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": RANK,
        "lora_alpha": ALPHA, "target_modules": ["q_proj"], "bias": "none",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return trained


@pytest.mark.parametrize("precision", ["int4", *(pytest.param(p, marks=pytest.mark.long) for p in ("bf16", "int8"))])
def test_losses_are_those_of_transformers_beside_the_rounded_base(folder: Path, precision: str) -> None:
    model, data = write_model(folder / "model", "llama"), write_data(folder)
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.weight.data = ROUNDED[precision](layer.weight.data)
    rounded = {name: value.clone() for name, value in model.state_dict().items()}
    trained = write_adapter(folder / "adapter", model, folder / "model")
    options = FinetuneOptions(base_precision=precision, context=CONTEXT, epochs=9, max_steps=STEPS, lr=LR)
    box, output = box_for(folder / "adapter"), folder / "out"
    made = run(folder / "adapter", data, output, options, RecordingContext(box))
    theirs = losses_of_transformers(model, output, LR, lambda _: trained)
    assert our_losses(output) == pytest.approx(theirs, abs=1e-3)

    updates = load_file(output / "adapter" / "adapter_model.safetensors")
    assert {value.dtype for value in updates.values()} == {torch.float32}
    written = load_file(output / "model.safetensors")
    for name, value in rounded.items():
        ends = [f"base_model.model.{name.removesuffix('.weight')}.lora_{part}.weight" for part in "AB"]
        if ends[0] in updates:
            value = value + ALPHA / RANK * (updates[ends[1]] @ updates[ends[0]])
        torch.testing.assert_close(written[name], value, atol=1e-5, rtol=1e-5)

    pef = read_pef(next((output / ".finetune" / "pef").glob("*/*.pef"))).pef
    held = {s.name: s for s in pef.symbols.values() if s.name.endswith("frozen_rows")}
    assert len(held) == 2 * 7, "each linear layer of two blocks"
    assert {s.dtype for s in held.values()} == {{"bf16": "bfloat16", "int8": "int8", "int4": "uint8"}[precision]}
    kept = [s for s in pef.symbols.values() if s.kind is SymbolKind.ACTIVATION and len(s.shape) == 2]
    assert not {tuple(s.shape) for s in kept} & {(32, 64), (64, 32), (32, 32), (16, 32)}, "wide weights are not kept"
    assert made.weight_bytes < sum(value.numel() * 4 for value in rounded.values())


def test_a_base_of_fewer_bits_needs_updates_of_low_rank(folder: Path) -> None:
    write_model(folder / "model", "llama")
    box = box_for(folder / "model")
    for options, words in (
        (FinetuneOptions(base_precision="int8"), "--base-precision int8 is only for a frozen base; add --lora RANK"),
        (FinetuneOptions(augment="flip=0.5"), "--augment is only for pictures; leave it out for a text model"),
        (FinetuneOptions(base_precision="fp8", lora=2), "'fp8'; expected one of f32, bf16, int8, int4"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            run(folder / "model", write_data(folder), folder / "out", options, RecordingContext(box))
