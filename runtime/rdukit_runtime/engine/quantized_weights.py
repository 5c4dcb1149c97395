"""Weights of linear layers in a byte or in four bits: to them, back, and the layers themselves in torch's operators.

``int8``: [N, K] int8 with a scale in f32 for each row, whose largest magnitude is 127.

``int4``: each group of 32 elements of a row has a scale in bf16, of five binary digits [N, K / 32], and numbers from -8
to 7, two per byte, as uint8 [N, K / 32, 16]. Both lie in blocks of 16 rows, in the order in which native kernels read
them; the last block has the remaining rows. A block's scales are [groups, rows]. Its bytes are [groups, 4 lines, rows,
4 bytes]. The low half of byte i of line j is 8 plus the group's element 8 j + i; the high half is 8 plus element 8 j +
4 + i. A number times its scale has no more digits than bf16 holds. Source: ours; llama.cpp's Q4_0 has groups of 32 with
a scale, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from rdukit.pef.model import INT4_GROUP, int4_shape

#: Rows of a block, and lines of its groups.
_BLOCK: Final = 16
_LINES: Final = 4
#: Scales that are tried for a group, as multiples of the one that maps its largest magnitude to 8.
_TRIED: Final = (0.86, 0.93, 1.0, 1.07, 1.14)
#: Rows that are quantised at a time: complete blocks.
_ROWS: Final = 4096


def int8_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., K], w int8 [N, K], scale f32 [N], bias [N] or None → [..., N] in the dtype of x; sums are in f32."""
    made = torch.nn.functional.linear(x.float(), w.float()).mul_(scale)
    if bias is not None:
        made += bias
    return made.to(x.dtype)


def int4_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x [..., K], w uint8 [N, K / 32, 16], scale bf16 [N, K / 32], bias [N] or None → [..., N] in the dtype of x."""
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
    """Return a weight [N, K], K a multiple of 32, as int4: uint8 [N, K / 32, 16] and scales bf16 [N, K / 32].

    Each group gets the scale, of a few candidates, with the smallest sum of squared errors. A group with NaN or an
    infinite number stands for NaN.
    """
    made = [round_groups(weight[at : at + _ROWS]) for at in range(0, len(weight), _ROWS)]
    parts = [(_pack(numbers), _in_blocks(scales)) for numbers, scales in made]
    data, scales = zip(*parts, strict=True)
    return torch.cat(data), torch.cat(scales)


def round_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of ``quantize_groups`` in rows, f32 [N, K / 32, 32], and scales bf16 [N, K / 32].

    Numbers are whole, from -8 to 7; a number times its group's scale is the rounded weight.
    """
    groups = weight.detach().float().reshape(len(weight), -1, INT4_GROUP)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    scale, best = torch.full_like(extreme, torch.nan), torch.full_like(extreme, torch.inf)
    numbers = torch.zeros_like(groups)
    unit = torch.where(extreme == 0, 1.0, extreme)
    for factor in _TRIED:
        tried = _of_five_digits(extreme * (factor / -8))
        made = torch.round(groups / torch.where(tried == 0, 1.0, tried)).clamp_(-8, 7)
        # Relative to the extreme: squares of very large and very small weights leave the range of f32.
        error = ((made * tried - groups) / unit).square_().sum(2, keepdim=True)
        is_better = error < best
        scale, best = torch.where(is_better, tried, scale), torch.where(is_better, error, best)
        numbers = torch.where(is_better, made, numbers)
    return numbers, scale[:, :, 0].to(torch.bfloat16)


def _of_five_digits(scale: torch.Tensor) -> torch.Tensor:
    """Round f32 numbers to five binary digits. Numbers very near zero become zero."""
    bits = scale.contiguous().view(torch.int32)
    rounded = ((bits + (1 << 18)) & ~((1 << 19) - 1)).view(torch.float32)
    return torch.where(scale.abs() < 1e-30, 0.0, rounded)


def _pack(numbers_NGE: torch.Tensor) -> torch.Tensor:
    """Return numbers [N, groups, 32] from -8 to 7 as bytes, in blocks."""
    count, groups, _ = numbers_NGE.shape
    halves = (numbers_NGE + 8).to(torch.uint8).view(count, groups, _LINES, 2, 4)
    both = halves[:, :, :, 0] | halves[:, :, :, 1] << 4
    return _in_blocks(both.view(count, groups * _LINES, 4)).view(int4_shape(count, groups * INT4_GROUP))


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    """Reorder values [N, parts, ...] to [blocks, parts, rows of the block, ...] in memory; the shape stays."""
    return _turn(values, lambda block, rows, parts: block.reshape(-1, rows, *block.shape[1:]).transpose(1, 2))


def _in_rows(values: torch.Tensor) -> torch.Tensor:
    """Undo ``_in_blocks``."""
    return _turn(values, lambda block, rows, parts: block.reshape(-1, parts, rows, *block.shape[2:]).transpose(1, 2))


def _turn(values: torch.Tensor, order: Callable[[torch.Tensor, int, int], torch.Tensor]) -> torch.Tensor:
    """Reorder complete blocks of rows, and the rows after them; ``order`` reorders some blocks at a time."""
    complete = len(values) // _BLOCK * _BLOCK
    pieces = [(values[:complete], _BLOCK), (values[complete:], len(values) - complete)]
    turned = [order(piece, rows, piece.shape[1]).reshape(piece.shape) for piece, rows in pieces if len(piece)]
    return torch.cat(turned) if turned else values


def dequantize_groups(data: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Convert an int4 weight back to f32 [N, K]."""
    count, groups = scale.shape
    both = _in_rows(data.reshape(count, groups * _LINES, 4)).view(count, groups, _LINES, 1, 4)
    numbers = torch.cat([both & 15, both >> 4], 3).view(count, groups, INT4_GROUP).float() - 8
    return (numbers * _in_rows(scale).float()[:, :, None]).view(count, -1)


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
