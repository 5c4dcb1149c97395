"""The operators of ``native_source/small_convolution.h``: convolutions of small samples, and their gradients.

Tensors are [n, channels, width] or [n, channels, height, width] in f32; a line has height 1. Padding and the distance
of taps are given by axis, y before x.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch

_HANDLES: Final = "AtenTensorHandle {}, AtenTensorHandle {}, AtenTensorHandle* {}, "
_GEOMETRY: Final = "int64_t pad_y, int64_t pad_x, int64_t step_y, int64_t step_x, "

#: As in ``products.py``: signature of each operator, and parameters of the C function that inductor's code calls.
SIGNATURES: Final[Mapping[str, tuple[str, str]]] = {
    # With a bias if there is one, and what is below zero as zero if rectified.
    "rdukit_small_convolution": (
        "(Tensor x, Tensor w, Tensor? bias, int pad_y, int pad_x, int step_y, int step_x, bool is_rectified) -> Tensor",
        _HANDLES.format("x", "w", "bias") + _GEOMETRY + "int32_t is_rectified, AtenTensorHandle* ret0",
    ),
    # The gradients of weight and bias from the output's, dy, of which elements count where mask is above zero.
    "rdukit_small_convolution_weight": (
        "(Tensor x, Tensor dy, Tensor? mask, int pad_y, int pad_x, int step_y, int step_x, int taps_y, int taps_x)"
        " -> (Tensor, Tensor)",
        _HANDLES.format("x", "dy", "mask") + _GEOMETRY + "int64_t taps_y, int64_t taps_x, "
        "AtenTensorHandle* ret0, AtenTensorHandle* ret1",
    ),
    # The gradients of input, weight and bias.
    "rdukit_small_convolution_backward": (
        "(Tensor x, Tensor dy, Tensor? mask, int pad_y, int pad_x, int step_y, int step_x, Tensor w)"
        " -> (Tensor, Tensor, Tensor)",
        _HANDLES.format("x", "dy", "mask") + _GEOMETRY + "AtenTensorHandle w, "
        "AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2",
    ),
}  # fmt: skip


def _extents(x: torch.Tensor, w: torch.Tensor, pads: tuple[int, int], steps: tuple[int, int]) -> list[int]:
    """Sizes of the axes after channels once ``x`` is padded and taps reach over it."""
    axes = x.dim() - 2
    return [
        size + 2 * pad - step * (taps - 1)
        for size, taps, pad, step in zip(x.shape[2:], w.shape[2:], pads[-axes:], steps[-axes:], strict=True)
    ]


def _convolution(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, pad_y: int, pad_x: int, step_y: int, step_x: int,
    is_rectified: bool,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty((x.shape[0], w.shape[0], *_extents(x, w, (pad_y, pad_x), (step_y, step_x))))


def _weight(
    x: torch.Tensor, dy: torch.Tensor, mask: torch.Tensor | None, pad_y: int, pad_x: int, step_y: int, step_x: int,
    taps_y: int, taps_x: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    taps = (taps_y, taps_x) if x.dim() == 4 else (taps_x,)
    return x.new_empty((dy.shape[1], x.shape[1], *taps)), x.new_empty((dy.shape[1],))


def _backward(
    x: torch.Tensor, dy: torch.Tensor, mask: torch.Tensor | None, pad_y: int, pad_x: int, step_y: int, step_x: int,
    w: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return x.new_empty(x.shape), x.new_empty(w.shape), x.new_empty((w.shape[0],))


#: What each gives for fake tensors.
SHAPES: Final[Mapping[str, Any]] = {
    "rdukit_small_convolution": _convolution,
    "rdukit_small_convolution_weight": _weight,
    "rdukit_small_convolution_backward": _backward,
}
