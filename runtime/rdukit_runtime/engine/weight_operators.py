"""Operators on int8 weights in generated code, and the conversion of weights on their way to and from the device.

A weight [N, K] is int8 with a scale in f32 for each row: the largest magnitude of a row is 127. Source: ours.
"""

from typing import Any, Final

import torch


def int8_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., K], w int8 [N, K], scale f32 [N], bias [N] or None → [..., N] in the dtype of x; sums are in f32."""
    made = torch.nn.functional.linear(x.float(), w.float()).mul_(scale)
    if bias is not None:
        made += bias
    return made.to(x.dtype)


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [N, K] as int8 [N, K] and scales f32 [N]; a row of zeros has scale 1."""
    wide = weight.detach().float()
    largest = wide.abs().amax(1) if wide.shape[1] else wide.new_zeros(wide.shape[0])
    scale = torch.where(largest > 0, largest / 127, 1.0)
    return torch.round(wide / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale


def dequantize_rows(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What an int8 weight stands for, f32 [N, K]."""
    return weight.float() * scale[:, None]


WEIGHT_OPERATORS: Final[dict[str, Any]] = {"rdukit.int8_linear.default": int8_linear}
