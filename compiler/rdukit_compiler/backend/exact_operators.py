"""Replaces operators that inductor computes wrongly, or not at all, by others that it computes correctly.

Each form repeats the steps of torch's own CPU kernel, so that results agree to the last bit, at infinity, at NaN and in
the sign of zero. A form that returns ``NotImplemented`` leaves the operator unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import torch
from torch import fx

from rdukit_compiler.backend.exact_interpolations import INTERPOLATIONS
from rdukit_compiler.torch_private import suggest_memory_format

Number = bool | int | float
Operand = torch.Tensor | Number
aten = torch.ops.aten


def holds_inexact(module: fx.GraphModule) -> bool:
    """Return whether a flat module calls an operator that has a form here."""
    return any(node.op == "call_function" and node.target in FORMS for node in module.graph.nodes)


def _floating(a: Operand, b: Operand) -> list[torch.Tensor] | None:
    """Return operands as tensors of the dtype that they are computed in; None if that is not floating."""
    dtype = torch.result_type(a, b)
    if not dtype.is_floating_point:
        return None
    return [x.to(dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype) for x in (a, b)]


def _has_other_sign(mod: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    return (mod != 0) & ((divisor < 0) ^ (mod < 0))


def _remainder(a: Operand, b: Operand) -> Any:
    operands = _floating(a, b)
    if operands is None:
        return NotImplemented
    dividend, divisor = operands
    mod = torch.fmod(dividend, divisor)
    return torch.where(_has_other_sign(mod, divisor), mod + divisor, mod)


def _floor_quotient(a: Operand, b: Operand) -> Any:
    """Python's ``//``: subtract the remainder of ``fmod``, divide, and round to a whole number."""
    operands = _floating(a, b)
    if operands is None:
        return NotImplemented
    dividend, divisor = operands
    quotient = dividend / divisor
    mod = torch.fmod(dividend, divisor)
    whole = torch.where(torch.isinf(quotient) & ~torch.isinf(dividend), dividend, dividend - mod) / divisor
    whole = torch.where(_has_other_sign(mod, divisor), whole - 1, whole)
    floor = torch.floor(whole)
    floor = torch.where(whole - floor > 0.5, floor + 1, floor)
    floor = torch.where(whole == 0, torch.copysign(torch.zeros_like(quotient), quotient), floor)
    return torch.where(divisor == 0, quotient, floor)


def _divide(a: Operand, b: Operand, *, rounding_mode: str | None) -> Any:
    return _floor_quotient(a, b) if rounding_mode == "floor" else NotImplemented


def _softshrink(x: torch.Tensor, lambd: Number = 0.5) -> Any:
    """Shrink; NaN stays."""
    outside = torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, torch.zeros_like(x)))
    return torch.where(torch.isnan(x), x, outside)


def _clamp_min(x: torch.Tensor, least: Operand) -> Any:
    """Clamp from below; -0 is not below 0, and stays."""
    return _clamp(x, least, None)


def _clamp_max(x: torch.Tensor, most: Operand) -> Any:
    return _clamp(x, None, most)


def _clamp(x: torch.Tensor, least: Operand | None = None, most: Operand | None = None) -> Any:
    if not x.is_floating_point() or isinstance(least, torch.Tensor) or isinstance(most, torch.Tensor):
        return NotImplemented
    if least is not None:
        x = torch.where(x < least, torch.full((), least, dtype=x.dtype), x)
    if most is not None:
        x = torch.where(x > most, torch.full((), most, dtype=x.dtype), x)
    return x.clone() if least is None and most is None else x


def _hardtanh(x: torch.Tensor, least: Number = -1, most: Number = 1) -> Any:
    return _clamp(x, least, most)


def _relu6(x: torch.Tensor) -> Any:
    return _clamp(x, 0, 6)


def _fmax(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Return the larger number; of two zeros the first."""
    return torch.where((a >= b) | torch.isnan(b), a, b)


def _fmin(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.where((a <= b) | torch.isnan(b), a, b)


def _power(base: torch.Tensor, exponent: Number) -> Any:
    return torch.rsqrt(base) if exponent == -0.5 and base.is_floating_point() else NotImplemented


def _next_after(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Count a narrow number's bits up or down: inductor takes the next f32 number and rounds it back."""
    if x.dtype not in {torch.bfloat16, torch.float16} or y.dtype != x.dtype:
        return NotImplemented
    bits = x.view(torch.int16).to(torch.int32)
    grows = (y > x) == (x > 0)
    stepped = (bits + torch.where(grows, 1, -1)).to(torch.int16).view(x.dtype)
    least = torch.full((), 1, dtype=torch.int16).view(x.dtype)
    stepped = torch.where(x == 0, torch.copysign(least, y), stepped)
    return torch.where(torch.isnan(x) | torch.isnan(y), x + y, torch.where(x == y, y, stepped))


def _in_whole_lanes(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a form that finds an extreme, or its index, among 32-bit numbers.

    Inductor's vectors of narrower numbers hold more lanes than the loop fills (pytorch issue 191499).
    """

    def form(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype not in {torch.bool, torch.uint8, torch.int8, torch.int16}:
            return NotImplemented
        found = operator(x.to(torch.int32), *args, **kwargs)
        if isinstance(found, torch.Tensor):
            return found if operator in _PLACES else found.to(x.dtype)
        return found[0].to(x.dtype), found[1]

    return form


#: Operators that return indices.
_PLACES: Final = frozenset({aten.argmin.default, aten.argmax.default})


def _any(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return uint8 for uint8, as torch does; inductor returns bool (pytorch issue 198081)."""
    return torch.any(x != 0, *args, **kwargs).to(torch.uint8) if x.dtype == torch.uint8 else NotImplemented


def _average_pool_gradient(
    gradient: torch.Tensor, x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    """Divide by the number of elements that each window covers.

    With ceil_mode, windows may reach beyond the padding; inductor wrongly counts positions there, too.
    """
    if not (ceil_mode and count_include_pad and divisor_override is None):
        return NotImplemented
    axes = len(kernel)
    sizes = [each[0] if len(each) == 1 else each for each in (kernel, stride or kernel, padding)]
    spread = [[each] * axes if isinstance(each, int) else list(each) for each in sizes]
    counts = torch.ones((), dtype=gradient.dtype)
    for axis in range(axes):
        k, step, pad = (each[axis] for each in spread)
        size, outputs = x.shape[x.dim() - axes + axis], gradient.shape[gradient.dim() - axes + axis]
        first = torch.arange(outputs) * step - pad
        reach = torch.clamp_max(first + k, size + pad) - first
        counts = counts * reach.to(gradient.dtype).reshape([-1 if each == axis else 1 for each in range(axes)])
    operator = aten.avg_pool2d_backward.default if axes == 2 else aten.avg_pool3d_backward.default
    return operator(gradient / counts, x, kernel, stride, padding, ceil_mode, count_include_pad, 1)


def _smooth_l1_gradient(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """Return the gradient; a NaN difference is neither small nor large."""
    off, share = x - target, 1.0 / x.numel() if reduction == 1 else 1.0
    inside = share * off * gradient / beta
    return torch.where(off <= -beta, -share * gradient, torch.where(off >= beta, share * gradient, inside))


def _hardswish_gradient(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient; NaN is not above three."""
    is_narrow = x.dtype in {torch.bfloat16, torch.float16}
    wide, at = (gradient.float(), x.float()) if is_narrow else (gradient, x)
    made = torch.where(at >= 3, wide, wide * (at / 3 + 0.5))
    return torch.where(at <= -3, torch.zeros_like(made), made).to(gradient.dtype)


def _hardtanh_gradient(gradient: torch.Tensor, x: torch.Tensor, least: Number, most: Number) -> torch.Tensor:
    """Return the gradient; NaN is not between the limits."""
    return torch.where((x > least) & (x < most), gradient, torch.zeros_like(gradient))


def _elu_gradient(
    gradient: torch.Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: torch.Tensor
) -> torch.Tensor:
    """Return the gradient; NaN is not above zero."""
    is_narrow = x.dtype in {torch.bfloat16, torch.float16}
    wide, at = (gradient.float(), x.float()) if is_narrow else (gradient, x)
    slope = at + alpha * scale if is_result else alpha * scale * torch.exp(at * input_scale)
    return torch.where(at > 0, wide * scale, wide * input_scale * slope).to(gradient.dtype)


def _binary_cross_entropy(x: torch.Tensor, target: torch.Tensor, *_: Any, **__: Any) -> Any:
    """Refuse values outside [0, 1], as torch does (pytorch issue 193757); the operator stays."""
    for value, name in ((x, "input"), (target, "target")):
        are_probabilities = ((value >= 0) & (value <= 1)).all()
        aten._assert_async.msg(are_probabilities, f"all elements of {name} should be between 0 and 1")
    return NotImplemented


def _soft_margin_gradient(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:  # fmt: skip
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    power = torch.exp(-target * x)
    return target * -share * power / (power + 1) * gradient


def _in_memory_of_its_own(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a form that writes into a copy if several elements share memory.

    Inductor writes into such memory itself if nothing else reads it (pytorch issue 183986).
    """

    def form(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _overlaps(x):
            return NotImplemented
        return operator(x.clone(memory_format=torch.contiguous_format), *args, **kwargs)

    return form


def _from_first_on(form: Callable[..., Any]) -> Callable[..., Any]:
    """Return a form that refuses indices below zero, as torch does: inductor counts them from the end (pytorch issue
    197554).
    """

    def checked(x: torch.Tensor, axis: int, index: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        aten._assert_async.msg((index >= 0).all(), "index out of range: expected none below zero")
        return form(x, axis, index, *args, **kwargs)

    return checked


def _overlaps(x: torch.Tensor) -> bool:
    """Return whether elements may lie at the same place in memory."""
    reach = 0
    for step, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


#: Classes of labels up to which all pairs are compared at once.
_MOST_CLASSES: Final = 256


def _label_margins(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return which labels of each row count, which classes are labels, and the margins of each label and class.

    Labels count up to the first negative one.
    """
    counts = torch.cumprod((target >= 0).to(torch.int64), 1) > 0
    named = target.unsqueeze(2) == torch.arange(x.shape[1])
    is_label = (named & counts.unsqueeze(2)).any(1)
    of_labels = torch.gather(x, 1, target.clamp(0, x.shape[1] - 1))
    return counts, is_label, 1 - of_labels.unsqueeze(2) + x.unsqueeze(1)


def _multilabel_margin(x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    """Return loss and labels: inductor's are wrong for labels behind the first negative one, and for few labels."""
    if x.shape[-1] > _MOST_CLASSES:
        raise NotImplementedError(f"multilabel_margin_loss of more than {_MOST_CLASSES} classes")
    rows, labels = (x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1]))
    counts, is_label, margins = _label_margins(rows, labels)
    is_counted = counts.unsqueeze(2) & ~is_label.unsqueeze(1) & (margins > 0)  # torch leaves NaN out
    counted = torch.where(is_counted, margins, torch.zeros_like(margins))
    losses = counted.sum((1, 2)) / x.shape[-1]
    loss = losses.reshape(x.shape[:-1]) if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()
    return loss, is_label.to(x.dtype).reshape(x.shape)


def _multilabel_margin_gradient(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, is_target: torch.Tensor
) -> Any:  # fmt: skip
    if x.shape[-1] > _MOST_CLASSES:
        return NotImplemented
    rows, labels = (x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1]))
    counts, is_label, margins = _label_margins(rows, labels)
    over = (counts.unsqueeze(2) & ~is_label.unsqueeze(1) & (margins > 0)).to(x.dtype)
    named = (labels.unsqueeze(2) == torch.arange(x.shape[-1])).to(x.dtype)
    moved = over.sum(1) - (named * over.sum(2, keepdim=True)).sum(1)
    share = 1.0 / (x.shape[-1] * (rows.shape[0] if reduction == 1 else 1))
    arriving = gradient.reshape(-1, 1) if reduction == 0 else gradient
    return (moved * share * arriving).reshape(x.shape)


def _deviation(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: Number | None = None, keepdim: bool = False
) -> Any:
    """Deviate in double precision, as torch does: squares of large numbers overflow, their root need not."""
    if x.dtype not in {torch.float32, torch.bfloat16, torch.float16}:
        return NotImplemented
    return aten.std.correction(x.double(), dim, correction=correction, keepdim=keepdim).to(x.dtype)


def _with_mean(spread: Callable[..., Any]) -> Callable[..., Any]:
    """Return the form of ``var_mean`` or ``std_mean``, whose mean equals torch's if numbers are infinite.

    torch takes numbers one after the other: infinity minus infinity is NaN in the step after the first infinite one.
    """

    def form(
        x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: Number | None = None, keepdim: bool = False
    ) -> Any:
        if not x.is_floating_point() or not x.dim() or not x.numel():
            return NotImplemented
        axes = [axis % x.dim() for axis in dim] if dim else list(range(x.dim()))
        last = x
        for axis in axes:
            last = last.narrow(axis, x.shape[axis] - 1, 1)
        mean = x.mean(axes, keepdim)
        goes_on = torch.isinf(x).sum(axes, keepdim=True) > torch.isinf(last)
        mean = torch.where(goes_on.reshape(mean.shape), torch.full((), float("nan"), dtype=mean.dtype), mean)
        return spread(x, axes, correction=correction, keepdim=keepdim), mean

    return form


def _with_product(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: Number = 1) -> torch.Tensor:
    """Add value * a * b from the left; inductor multiplies a by b first, which may overflow."""
    return x + (a if value == 1 else a * value) * b


def _with_quotient(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, value: Number = 1) -> torch.Tensor:
    """Add value * a / b from the left."""
    return x + (a if value == 1 else a * value) / b


def _joined(tensors: Sequence[torch.Tensor], axis: int = 0) -> Any:
    """Return the only tensor with elements in the layout of a joined one; inductor keeps its strides."""
    filled = [each for each in tensors if each.numel()]
    if len(filled) != 1:
        return NotImplemented
    dtype = reduce(torch.promote_types, (each.dtype for each in tensors))
    return filled[0].to(dtype).clone(memory_format=suggest_memory_format(filled[0]))


def _maximum_of_all(x: torch.Tensor, sizes: Sequence[int]) -> Any:
    """Return the maximum of each picture or volume and its position, which is that of the last NaN."""
    if any(size != 1 for size in sizes):
        return NotImplemented
    axes = len(sizes)
    flat = x.flatten(-axes)
    is_nan = flat.isnan()
    last = torch.where(is_nan, torch.arange(flat.shape[-1]), 0).amax(-1)
    positions = torch.where(is_nan.any(-1), last, flat.argmax(-1))
    shape = [*x.shape[:-axes], *sizes]
    return flat.amax(-1).reshape(shape), positions.reshape(shape)


def _weight_norm_gradient(
    gradient: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, axis: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of direction and length; inductor has no form of them."""
    others = [each for each in range(v.dim()) if each != axis % v.dim()]
    along = (gradient * v).sum(others, keepdim=True)
    norms = norms.reshape(along.shape)
    scale, of_length = g.reshape(along.shape) / norms, along / norms
    return scale * gradient - scale * of_length / norms * v, of_length.reshape(g.shape)


#: Operators that write into their first argument, or into a copy of it.
_WRITING: Final = (
    aten.index_put.default, aten._unsafe_index_put.default, aten.index_copy.default, aten.index_fill.int_Scalar,
    aten.index_fill.int_Tensor, aten.index_add.default, aten.index_reduce.default, aten.scatter.src,
    aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_add.default,
    aten.scatter_reduce.two, aten.masked_scatter.default, aten.put.default, aten.slice_scatter.default,
    aten.select_scatter.default, aten.diagonal_scatter.default,
)  # fmt: skip

#: Operator → its form.
FORMS: Final[Mapping[Any, Callable[..., Any]]] = {
    aten.remainder.Tensor: _remainder,
    aten.remainder.Scalar: _remainder,
    aten.remainder.Scalar_Tensor: _remainder,
    aten.floor_divide.default: _floor_quotient,
    aten.floor_divide.Scalar: _floor_quotient,
    aten.div.Tensor_mode: _divide,
    aten.div.Scalar_mode: _divide,
    aten.softshrink.default: _softshrink,
    aten.clamp.default: _clamp,
    aten.clamp_min.default: _clamp_min,
    aten.clamp_max.default: _clamp_max,
    aten.hardtanh.default: _hardtanh,
    aten.relu6.default: _relu6,
    aten.fmax.default: _fmax,
    aten.fmin.default: _fmin,
    aten.pow.Tensor_Scalar: _power,
    aten.addcmul.default: _with_product,
    aten.addcdiv.default: _with_quotient,
    aten.nextafter.default: _next_after,
    aten.std.correction: _deviation,
    aten.var_mean.correction: _with_mean(torch.var),
    aten.std_mean.correction: _with_mean(torch.std),
    **INTERPOLATIONS,
    **{operator: _in_memory_of_its_own(operator) for operator in _WRITING},
    aten.index_select.default: _from_first_on(lambda *_: NotImplemented),
    aten.index_add.default: _from_first_on(_in_memory_of_its_own(aten.index_add.default)),
    aten.index_copy.default: _from_first_on(_in_memory_of_its_own(aten.index_copy.default)),
    aten.min.dim: _in_whole_lanes(aten.min.dim),
    aten.max.dim: _in_whole_lanes(aten.max.dim),
    aten.argmin.default: _in_whole_lanes(aten.argmin.default),
    aten.argmax.default: _in_whole_lanes(aten.argmax.default),
    aten.min.default: _in_whole_lanes(aten.min.default),
    aten.max.default: _in_whole_lanes(aten.max.default),
    aten.amin.default: _in_whole_lanes(aten.amin.default),
    aten.amax.default: _in_whole_lanes(aten.amax.default),
    aten.any.default: _any,
    aten.any.dim: _any,
    aten.any.dims: _any,
    aten.avg_pool2d_backward.default: _average_pool_gradient,
    aten.avg_pool3d_backward.default: _average_pool_gradient,
    aten.smooth_l1_loss_backward.default: _smooth_l1_gradient,
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.hardswish_backward.default: _hardswish_gradient,
    aten.hardtanh_backward.default: _hardtanh_gradient,
    aten.elu_backward.default: _elu_gradient,
    aten.soft_margin_loss_backward.default: _soft_margin_gradient,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin,
    aten.multilabel_margin_loss_backward.default: _multilabel_margin_gradient,
    aten.cat.default: _joined,
    aten.adaptive_max_pool2d.default: _maximum_of_all,
    aten.adaptive_max_pool3d.default: _maximum_of_all,
    aten._weight_norm_interface_backward.default: _weight_norm_gradient,
}
