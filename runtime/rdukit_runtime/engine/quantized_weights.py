"""Weights of linear layers in a byte or in four bits: to them, back, and the layers themselves in torch's operators.

``int8``: [N, K] int8 with a scale in f32 for each row, whose largest magnitude is 127.

``int4``: a scale in bf16, of five binary digits, for each group of 32 elements of a row [N, K / 32], and numbers from
-8 to 7 as uint8 [N, bytes], in the order that native kernels read them in: units of four groups, with zeros behind K,
are 32 little-endian words. Bits 4 p to 4 p + 3 of word i are 8 plus the number of the unit's group i / 2 % 4, of its
element 8 p + i / 8 * 2 + i % 2. A number times its scale has no more digits than bf16 holds. Source: ours; llama.cpp's
Q4_0 has groups of 32 with a scale, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from rdukit.pef.model import INT4_GROUP, INT4_UNIT

#: The elements of a unit in the order of its places, and the other way round.
_ORDER: Final = torch.tensor(
    [i // 2 % 4 * INT4_GROUP + 8 * p + i // 8 * 2 + i % 2 for p in range(4) for i in range(INT4_UNIT // 4)]
)
_PLACES: Final = torch.argsort(_ORDER)
_SHIFTS: Final = torch.tensor([[0], [4], [8], [12]], dtype=torch.int32)
#: Scales that are tried for a group, as multiples of the one by which its largest magnitude becomes 8.
_TRIED: Final = (0.86, 0.93, 1.0, 1.07, 1.14)
#: Rows that are quantised at a time.
_ROWS: Final = 4096


def int8_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., K], w int8 [N, K], scale f32 [N], bias [N] or None → [..., N] in the dtype of x; sums are in f32."""
    made = torch.nn.functional.linear(x.float(), w.float()).mul_(scale)
    if bias is not None:
        made += bias
    return made.to(x.dtype)


def int4_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., K], w uint8 [N, bytes], scale bf16 [N, K / 32], bias [N] or None → [..., N] in the dtype of x."""
    wide = None if bias is None else bias.float()
    return torch.nn.functional.linear(x.float(), dequantize_groups(w, scale), wide).to(x.dtype)


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight [N, K] as int8 [N, K] and scales f32 [N]; a row of zeros has scale 1.

    A row with NaN or an infinite number stands for NaN.
    """
    wide = weight.detach().float()
    largest = wide.abs().amax(1) if wide.shape[1] else wide.new_zeros(wide.shape[0])
    scale = torch.where(largest == 0, 1.0, largest / 127)
    return torch.round(wide / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale


def dequantize_rows(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Convert an int8 weight back to f32 [N, K]."""
    return weight.float() * scale[:, None]


def quantize_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight [N, K], K a multiple of 32, as int4 (see above): uint8 [N, bytes] and scales bf16 [N, K / 32].

    Each group has, of a few scales, that with the smallest sum of squared errors. A group with NaN or an
    infinite number stands for NaN.
    """
    parts = [_quantize_groups(weight[at : at + _ROWS].detach().float()) for at in range(0, len(weight), _ROWS)]
    data, scales = zip(*parts, strict=True)
    return torch.cat(data), torch.cat(scales)


def _quantize_groups(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count = wide.shape[0]
    groups = wide.view(count, -1, INT4_GROUP)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    scale, best = torch.full_like(extreme, torch.nan), torch.full_like(extreme, torch.inf)
    numbers = torch.zeros_like(groups)
    for factor in _TRIED:
        tried = _of_five_digits(extreme * (factor / -8))
        made = torch.round(groups / torch.where(tried == 0, 1.0, tried)).clamp_(-8, 7)
        error = (made * tried - groups).square_().sum(2, keepdim=True)
        is_better = error < best
        scale, best = torch.where(is_better, tried, scale), torch.where(is_better, error, best)
        numbers = torch.where(is_better, made, numbers)
    return _pack(numbers.view(count, -1)), scale[:, :, 0].to(torch.bfloat16)


def _of_five_digits(scale: torch.Tensor) -> torch.Tensor:
    """Round f32 numbers to five binary digits. Numbers very near zero become zero."""
    bits = scale.contiguous().view(torch.int32)
    rounded = ((bits + (1 << 18)) & ~((1 << 19) - 1)).view(torch.float32)
    return torch.where(scale.abs() < 1e-30, 0.0, rounded)


def _pack(numbers: torch.Tensor) -> torch.Tensor:
    count, width = numbers.shape
    padded = torch.nn.functional.pad(numbers, (0, -width % INT4_UNIT)) + 8
    planes = padded.to(torch.int32).view(count, -1, INT4_UNIT)[:, :, _ORDER].view(count, -1, 4, INT4_UNIT // 4)
    words = (planes << _SHIFTS).sum(2, dtype=torch.int32)
    return words.to(torch.int16).view(torch.uint8).view(count, -1)


def dequantize_groups(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Convert an int4 weight back to f32 [N, K]."""
    count, groups = scale.shape
    words = data.contiguous().view(torch.int16).view(count, -1, 1, INT4_UNIT // 4).to(torch.int32)
    numbers = (((words >> _SHIFTS.to(data.device)) & 15) - 8).view(count, -1, INT4_UNIT)[:, :, _PLACES.to(data.device)]
    kept = numbers.reshape(count, -1)[:, : groups * INT4_GROUP].view(count, groups, INT4_GROUP)
    return (kept * scale.float()[:, :, None]).view(count, -1)


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Functions from a weight [N, K] to rows of numbers and scales, and back to f32."""

    quantize: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    dequantize: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


#: By the dtype of the numbers in a PEF.
WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = {
    "int8": WeightFormat(quantize_rows, dequantize_rows), "uint8": WeightFormat(quantize_groups, dequantize_groups),
}  # fmt: skip

WEIGHT_OPERATORS: Final[dict[str, Any]] = {
    "rdukit.int8_linear.default": int8_linear, "rdukit.int4_linear.default": int4_linear,
}  # fmt: skip
