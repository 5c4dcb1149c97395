"""LoRA: linear layers with frozen weights that learn an additional update of low rank.

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2021), arXiv 2106.09685.

Axes: I inputs, O outputs, R rank, N adapters, B texts of a call, T tokens of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.pef.checkpoint_files import ADAPTER_PARTS
from rdukit.pef.identity import SizeValue
from rdukit_serving.device.parameters import Tensors, merge_adapters


class AdaptedLinear(nn.Linear):
    """A linear layer and its update: x W^T + b + scale · x A^T B^T. Only A [R, I] and B [O, R] train; B begins at 0."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter
    lora_scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        update = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return F.linear(x, self.weight, self.bias) + self.lora_scale * update


@dataclass(slots=True)
class AdapterShares:
    """Mask [B, 1, N * R] of ones and zeros: the ranks of each text's adapter; ``None``: no mask."""

    value: torch.Tensor | None = None


class SharedLinear(nn.Linear):
    """A linear layer with updates of several adapters: A [N * R, I], and B [O, N * R] with the scales included.

    A layer in which each text uses its adapter's ranks: x W^T + b + ((x A^T) * shares) B^T.
    """

    lora_A: torch.Tensor
    lora_B: torch.Tensor
    shares: AdapterShares

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = F.linear(x, self.weight, self.bias)
        if self.shares.value is None:
            return plain
        return plain + F.linear(F.linear(x, self.lora_A) * self.shares.value, self.lora_B)


def share_adapters(model: nn.Module, adapters: int, rank: int, *outputs: int) -> None:
    """Prepare each linear layer, except heads, for the updates of several adapters of at most a rank.

    The model then has a further input, ``AdapterShares.value``, which selects each text's adapter.

    Raises:
        InvalidArgument: there is no such layer, or the rank reaches a layer's size.
    """
    shares = AdapterShares()
    for layer in _layers_to_adapt(model, rank, "adapter_rank", *outputs):
        layer.__class__ = SharedLinear
        # Buffers, because a checkpoint need not contain them.
        layer.register_buffer("lora_A", torch.zeros(adapters * rank, layer.in_features))
        layer.register_buffer("lora_B", torch.zeros(layer.out_features, adapters * rank))
        layer.shares = shares

    def take_shares(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        has_shares = inputs[-1].dim() == 3
        shares.value = inputs[-1] if has_shares else None
        return inputs[:-1] if has_shares else inputs

    model.register_forward_pre_hook(take_shares)


def _layers_to_adapt(
    model: nn.Module, rank: int, name: str, *outputs: int, layers: Sequence[str] = ()
) -> list[Any]:  # fmt: skip
    named = {
        path: module
        for path, module in model.named_modules()
        if type(module) is nn.Linear and module.out_features not in outputs
    }
    unknown = [end for end in layers if not any(_is_named(path, end) for path in named)]
    if unknown:
        ends = sorted({path.rpartition(".")[2] for path in named})
        raise InvalidArgument(
            f"the model has no linear layer {', '.join(unknown)} for adapters; expected some of "
            f"{', '.join(ends)}, or full names"
        )
    chosen = {path: m for path, m in named.items() if not layers or any(_is_named(path, end) for end in layers)}
    return _checked_layers(list(chosen.values()), rank, name)


def _is_named(path: str, end: str) -> bool:
    """Return whether ``name`` means a layer: its full name or its last parts, as in PEFT's target_modules."""
    return path == end or path.endswith("." + end)


def _checked_layers(layers: list[Any], rank: int, name: str) -> list[Any]:
    if not layers:
        raise InvalidArgument(f"the model has no linear layer for adapters; expected {name}=0")
    narrowest = min(min(layer.in_features, layer.out_features) for layer in layers)
    if rank >= narrowest:
        raise InvalidArgument(f"{name} is {rank}; expected 0 to {narrowest - 1}, less than the narrowest layer")
    return layers


def add_adapters(model: nn.Module, rank: int, alpha: float, *outputs: int, layers: Sequence[str] = ()) -> None:
    """Freeze the model, and give linear layers an update.

    Existing names are unchanged.

    Args:
        outputs: numbers of outputs of heads; heads get no adapters.
        layers: names of the layers, or their last parts; empty: all.
    Raises:
        InvalidArgument: there is no such layer, or the rank reaches a layer's size.
    """
    adapted = _layers_to_adapt(model, rank, "lora_rank", *outputs, layers=layers)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in adapted:
        layer.__class__ = AdaptedLinear
        layer.lora_A = nn.Parameter(torch.empty(rank, layer.in_features))
        nn.init.kaiming_uniform_(layer.lora_A, a=5**0.5)
        layer.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))
        layer.register_buffer("lora_scale", torch.tensor([alpha / rank]))


def head_outputs(sizes: Mapping[str, SizeValue]) -> tuple[int, ...]:
    """Return the possible numbers of outputs of a model's heads: tokens, or classes."""
    return tuple(int(sizes[name]) for name in ("vocabulary", "num_classes") if name in sizes)


def fit_adapters(parameters: Tensors, wanted: Mapping[str, torch.Tensor]) -> Tensors:
    """Convert a checkpoint's parameters to those of a model, ``wanted``.

    A model without adapters gets merged weights. A model with adapters keeps their initial values if the checkpoint has
    none.
    """
    own = {name: value for name, value in wanted.items() if name.endswith(ADAPTER_PARTS)}
    if not own:
        return merge_adapters(parameters)
    return parameters if any(name.endswith(ADAPTER_PARTS) for name in parameters) else {**parameters, **own}
