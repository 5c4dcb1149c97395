"""Frozen weights in fewer bits (bf16, int8 or int4), next to which low-rank updates train.

Serving with the same ``weight_dtype`` has the same numbers. Products use them as f32, so arithmetic and updates stay
f32; each is converted when needed, once forward and once backward.

Source: Dettmers et al., QLoRA: Efficient Finetuning of Quantized LLMs (2023), arXiv 2305.14314; formats ours.

Axes: O outputs, I inputs, G groups of ``GROUP`` inputs.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from rdukit.pef.model import INT4_GROUP
from rdukit_modelbox.tasks.adapters import AdaptedLinear
from rdukit_runtime.engine.quantized_weights import quantize_rows, round_groups
from rdukit_serving.device.parameters import Tensors

#: Precisions of a frozen base; f32 leaves weights as they are.
F32: Final = "f32"
BASE_PRECISIONS: Final = (F32, "bf16", "int8", "int4")
#: Inputs that share a scale in int4.
GROUP: Final = INT4_GROUP
#: Parts of a frozen layer in place of its ``.weight``.
ROWS: Final = ".frozen_rows"
SCALE: Final = ".frozen_scale"
WEIGHT: Final = ".weight"


class FrozenLinear(nn.Linear):
    """A linear layer whose weight [O, I] is computed from rows of fewer bits."""

    frozen_rows: torch.Tensor
    frozen_scale: torch.Tensor

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """Return the weight [O, I] in f32."""
        rows = self.frozen_rows
        if rows.dtype == torch.bfloat16:
            return rows.float()
        if rows.dtype == torch.int8:
            return rows.float() * self.frozen_scale
        low, high = rows & 15, rows >> 4
        grouped_OGI = torch.stack((low, high), -1).view(self.out_features, -1, GROUP).float() - 8
        return (grouped_OGI * self.frozen_scale.float()).view(self.out_features, -1)


class FrozenAdaptedLinear(FrozenLinear, AdaptedLinear):
    """Frozen layer with an update of low rank."""


def freeze_weights(model: nn.Module, precision: str, *outputs: int) -> None:
    """Hold the weights of linear layers, except heads, in a precision; ``add_adapters`` has frozen them before.

    int4 needs groups of ``GROUP`` inputs; a layer of another width is held in int8.

    Args:
        outputs: numbers of outputs of heads, which stay f32, as embeddings and norms do.
    """
    if precision == F32:
        return
    kinds = {nn.Linear: FrozenLinear, AdaptedLinear: FrozenAdaptedLinear}
    for layer in list(model.modules()):
        if not isinstance(layer, nn.Linear) or type(layer) not in kinds or layer.out_features in outputs:
            continue
        weight = layer._parameters.pop("weight")
        assert isinstance(weight, torch.Tensor)
        parts = _frozen(weight.detach(), precision)
        layer.__class__ = kinds[type(layer)]
        for part, value in parts.items():
            layer.register_buffer(part.removeprefix("."), value)


def _frozen(weight: torch.Tensor, precision: str) -> dict[str, torch.Tensor]:
    """Return the parts of a weight [O, I]: bf16; int8 with a scale [O, 1]; uint8 [O, I / 2] with scales [O, G, 1]."""
    if precision == "bf16":
        return {ROWS: weight.to(torch.bfloat16)}
    if precision == "int8" or weight.shape[1] % GROUP:
        rows, scale = quantize_rows(weight)
        return {ROWS: rows, SCALE: scale[:, None]}
    numbers, scale = round_groups(weight)
    pairs = (numbers + 8).to(torch.uint8).view(len(weight), -1, 2)
    return {ROWS: pairs[:, :, 0] | (pairs[:, :, 1] << 4), SCALE: scale[:, :, None]}


def fit_frozen(parameters: Tensors, wanted: Mapping[str, torch.Tensor]) -> Tensors:
    """Round a checkpoint's weights if the model, with the tensors ``wanted``, holds them in fewer bits."""
    found = dict(parameters)
    for name in wanted:
        layer = name.removesuffix(ROWS)
        if layer != name and layer + WEIGHT in found:
            weight = found.pop(layer + WEIGHT)
            found |= {layer + part: value for part, value in _frozen(weight, _precision_of(wanted[name])).items()}
    return found


def thawed(parameters: Tensors) -> dict[str, torch.Tensor]:
    """Return parameters with the weights that frozen layers computed with, in f32, in place of their parts."""
    found = dict(parameters)
    for name in parameters:
        layer = name.removesuffix(ROWS)
        if layer == name:
            continue
        frozen: Any = FrozenLinear(1, 1, bias=False, device="meta")
        del frozen._parameters["weight"]
        frozen.frozen_rows, frozen.out_features = found.pop(name), len(parameters[name])
        if layer + SCALE in found:
            frozen.frozen_scale = found.pop(layer + SCALE)
        found[layer + WEIGHT] = frozen.weight
    return found


def _precision_of(rows: torch.Tensor) -> str:
    return {torch.bfloat16: "bf16", torch.int8: "int8", torch.uint8: "int4"}[rows.dtype]
