"""What common operators make of plain operands, without asking torch, whose first answer for each takes 5 to 20 ms.

torch takes these operators apart in Python and follows each part. Of operands without gaps, of one floating dtype and
of shapes that fit, they make a tensor without gaps of that dtype, and its shape is plain. For anything else there is
no answer here: torch has one, or an error.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

Shape = tuple[int, ...]
aten = torch.ops.aten

_NO_REDUCTION: Final = 0


def find_form(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.dtype, Shape] | None:
    """dtype and shape of the one tensor, without gaps, that ``func`` makes; None where it is not known."""
    rule = _RULES.get(func)
    if rule is None or kwargs or torch.is_autocast_enabled("cpu"):
        return None
    tensors = [argument for argument in args if isinstance(argument, torch.Tensor)]
    may_have_gaps = func in _ANY_LAYOUT
    if not all(type(t) is FakeTensor and (may_have_gaps or t.is_contiguous()) and t.numel() for t in tensors):
        return None
    floats = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    devices = {tensor.fake_device for tensor in tensors}  # type: ignore[attr-defined]
    if len(floats) != 1 or devices != {torch.device("cpu")}:
        return None
    shape = rule(*args)
    return None if shape is None else (floats.pop(), shape)


def _same(x: torch.Tensor, *_: object) -> Shape | None:
    return tuple(x.shape) if x.is_floating_point() else None


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Shape | None:
    if weight.dim() != 2 or x.dim() < 2 or x.shape[-1] != weight.shape[1]:
        return None
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return None
    return (*x.shape[:-1], weight.shape[0]) if x.is_floating_point() and weight.is_floating_point() else None


def _layer_norm(
    x: torch.Tensor, normed: Sequence[int], weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    eps: float = 1e-5, cudnn_enable: bool = True,
) -> Shape | None:  # fmt: skip
    shape = tuple(normed)
    fits = bool(shape) and tuple(x.shape[-len(shape) :]) == shape
    return tuple(x.shape) if fits and all(p is None or tuple(p.shape) == shape for p in (weight, bias)) else None


def _cross_entropy(
    x: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1, *_: object
) -> Shape | None:
    """Of classes by number: x [N, C], labels [N]."""
    fits = x.dim() == 2 and tuple(labels.shape) == tuple(x.shape[:1]) and labels.dtype == torch.int64
    return () if fits and weight is None and reduction != _NO_REDUCTION else None


def _mean_squares(x: torch.Tensor, y: torch.Tensor, reduction: int = 1) -> Shape | None:
    return () if x.shape == y.shape and x.dtype == y.dtype and reduction != _NO_REDUCTION else None


def _grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor | None = None, *rest: object) -> Shape | None:
    """Of rows by groups: x [S, K], w [G, K, N]; torch's own record takes bf16 only."""
    fits = x.dim() == 2 and w.dim() == 3 and ends is not None and tuple(ends.shape) == tuple(w.shape[:1])
    plain = x.is_floating_point() and not any(r is not None for r in rest)
    return (x.shape[0], w.shape[2]) if fits and plain and x.shape[1] == w.shape[1] else None


#: Operators of which operands may have gaps.
_ANY_LAYOUT: Final = frozenset({aten._grouped_mm.default})

_RULES: Final[dict[Any, Callable[..., Shape | None]]] = {
    aten.linear.default: _linear,
    aten.layer_norm.default: _layer_norm,
    aten.cross_entropy_loss.default: _cross_entropy,
    aten.mse_loss.default: _mean_squares,
    aten._grouped_mm.default: _grouped,
    **dict.fromkeys(
        (aten.relu.default, aten.tanh.default, aten.sigmoid.default, aten.silu.default, aten.gelu.default), _same
    ),
}
