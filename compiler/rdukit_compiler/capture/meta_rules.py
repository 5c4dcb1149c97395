"""Meta rules: dtype, shape and strides of common operators' results, without torch's inference.

torch decomposes these operators in Python, which takes 5 to 20 ms for the first call. For dense operands of one
floating dtype and of fitting shapes, the result is a dense tensor of that dtype, whose shape is easy to compute. Any
other call is left to torch. For a few operators, torch infers other strides than the real result has, which decides
whether ``reshape`` and similar operators return a view. These operators were found by running torch's table ``op_db``
on operands in another order.

``FakeMode`` is torch's mode of tensors without data. For a few operators torch infers the result by calling others on
the fake tensors, outside of their mode. There its C++ checks for distributed tensors and imports their package, which
takes 0.3 s. Inside the mode, where torch calls most decompositions, it does not check.

All of it is private to torch. Source: ours.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from rdukit_compiler.torch_private import FakeTensor, FakeTensorMode, prims_common

Shape = tuple[int, ...]
aten = torch.ops.aten

_NO_REDUCTION: Final = 0

#: Operators whose operands may have gaps.
_ANY_LAYOUT: Final = frozenset({aten._grouped_mm.default})
#: Operators whose results are dense, in the order of the axes, or channels last if the operand is.
_PLAIN: Final = frozenset({
    aten.batch_norm.default, aten.upsample_nearest1d.default, aten.upsample_nearest1d.vec,
    aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact1d.vec,
})  # fmt: skip
#: Elementwise operators, whose results have their operands' strides.
_ELEMENTWISE: Final = frozenset({
    aten.copysign.Tensor, aten.copysign.Scalar, aten.floor_divide.default, aten.floor_divide.Scalar,
    aten.div.Tensor_mode, aten.div.Scalar_mode,
})  # fmt: skip
_BY_OTHERS: Final = frozenset({
    torch.ops.aten.native_layer_norm.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default,
    torch.ops.aten.view_copy.default, torch.ops.aten._reshape_copy.default, torch.ops.aten.select.int,
})  # fmt: skip


def infer_result(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.dtype, Shape] | None:
    """Infer dtype and shape of the dense tensor that ``func`` returns; None if they are not known."""
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
    """Infer the loss of classes by number: x [N, C], labels [N]."""
    fits = x.dim() == 2 and tuple(labels.shape) == tuple(x.shape[:1]) and labels.dtype == torch.int64
    return () if fits and weight is None and reduction != _NO_REDUCTION else None


def _mean_squares(x: torch.Tensor, y: torch.Tensor, reduction: int = 1) -> Shape | None:
    return () if x.shape == y.shape and x.dtype == y.dtype and reduction != _NO_REDUCTION else None


def _grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor | None = None, *rest: object) -> Shape | None:
    """Infer a product of rows by groups: x [S, K], w [G, K, N]; torch's own record takes bf16 only."""
    fits = x.dim() == 2 and w.dim() == 3 and ends is not None and tuple(ends.shape) == tuple(w.shape[:1])
    plain = x.is_floating_point() and not any(r is not None for r in rest)
    return (x.shape[0], w.shape[2]) if fits and plain and x.shape[1] == w.shape[1] else None


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


def find_true_stride(func: Any, args: Sequence[Any], made: torch.Tensor) -> tuple[int, ...] | None:
    """Return the true strides of the result of ``func``; None if those of ``made``, torch's record of it, are right."""
    operands = [argument for argument in args if isinstance(argument, torch.Tensor)]
    if not operands:  # all are numbers, as in torch.div(x.size(0), 2, rounding_mode="trunc")
        return None
    if func in _ELEMENTWISE:
        alike = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in operands]
        strides = torch.add(alike[0], alike[1] if len(alike) > 1 else 1).stride()
    elif func in _PLAIN:
        order = prims_common.suggest_memory_format(operands[0])
        strides = tuple(torch.empty(made.shape, device="meta", memory_format=order).stride())
    else:
        return None
    return None if strides == made.stride() else strides


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's mode of fake tensors, made faster; results are the same."""

    def _dispatch_impl(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _BY_OTHERS:
            with self:
                return super()._dispatch_impl(func, types, args, kwargs)
        return super()._dispatch_impl(func, types, args, kwargs)
