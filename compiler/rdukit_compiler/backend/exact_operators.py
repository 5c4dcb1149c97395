"""Operators that inductor computes wrongly, as other operators that it computes right.

Each form is what torch's own kernel for processors computes, step by step, so that results agree to the last bit, at
infinity, at NaN and in the sign of zero. A form that returns ``NotImplemented`` leaves the operator as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

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
    """Python's ``//``: the quotient of what ``fmod`` leaves over, which is whole but for rounding."""
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
    """Shrink; what is no number is neither above nor below, and stays."""
    outside = torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, torch.zeros_like(x)))
    return torch.where(torch.isnan(x), x, outside)


def _clamp_min(x: torch.Tensor, least: Operand) -> Any:
    """-0 is not below 0, and stays."""
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
    """Of two zeros the first."""
    return torch.where((a >= b) | torch.isnan(b), a, b)


def _fmin(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.where((a <= b) | torch.isnan(b), a, b)


def _power(base: torch.Tensor, exponent: Number) -> Any:
    return torch.rsqrt(base) if exponent == -0.5 and base.is_floating_point() else NotImplemented


def _next_after(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Count a narrow number's bits up or down: inductor takes the next number of f32, and rounds it back."""
    if x.dtype not in {torch.bfloat16, torch.float16} or y.dtype != x.dtype:
        return NotImplemented
    bits = x.view(torch.int16).to(torch.int32)
    grows = (y > x) == (x > 0)
    stepped = (bits + torch.where(grows, 1, -1)).to(torch.int16).view(x.dtype)
    least = torch.full((), 1, dtype=torch.int16).view(x.dtype)
    stepped = torch.where(x == 0, torch.copysign(least, y), stepped)
    return torch.where(torch.isnan(x) | torch.isnan(y), x + y, torch.where(x == y, y, stepped))


def _in_whole_lanes(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a form that looks for the place of an extreme among numbers of 32 bits: of narrower ones a vector of
    inductor's holds more than the loop fills.
    """

    def form(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype not in {torch.bool, torch.uint8, torch.int8, torch.int16}:
            return NotImplemented
        found = operator(x.to(torch.int32), *args, **kwargs)
        return found if isinstance(found, torch.Tensor) else (found[0].to(x.dtype), found[1])

    return form


def _average_pool_gradient(
    gradient: torch.Tensor, x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    """Divide by what each window covers.

    Of windows that ceil_mode lets reach beyond the padding inductor counts what is out there, too.
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
    """Return the gradient; a difference that is no number is neither small nor large."""
    off, share = x - target, 1.0 / x.numel() if reduction == 1 else 1.0
    inside = share * off * gradient / beta
    return torch.where(off <= -beta, -share * gradient, torch.where(off >= beta, share * gradient, inside))


def _soft_margin_gradient(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:  # fmt: skip
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    power = torch.exp(-target * x)
    return target * -share * power / (power + 1) * gradient


#: Classes of labels up to which all pairs are compared at once.
_MOST_CLASSES: Final = 256


def _label_margins(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return for rows, labels and classes: which labels count, which classes are labels, and the margins.

    Labels count up to the first that is negative.
    """
    counts = torch.cumprod((target >= 0).to(torch.int64), 1) > 0
    named = target.unsqueeze(2) == torch.arange(x.shape[1])
    is_label = (named & counts.unsqueeze(2)).any(1)
    of_labels = torch.gather(x, 1, target.clamp(0, x.shape[1] - 1))
    return counts, is_label, 1 - of_labels.unsqueeze(2) + x.unsqueeze(1)


def _multilabel_margin(x: torch.Tensor, target: torch.Tensor, reduction: int) -> Any:
    """Return loss and labels: inductor's are wrong, of labels behind the first negative one, or of few."""
    if x.shape[-1] > _MOST_CLASSES:
        raise NotImplementedError(f"multilabel_margin_loss of more than {_MOST_CLASSES} classes")
    rows, labels = (x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1]))
    counts, is_label, margins = _label_margins(rows, labels)
    counted = torch.where(counts.unsqueeze(2) & ~is_label.unsqueeze(1), margins.clamp_min(0), torch.zeros_like(margins))
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


def _with_mean(spread: Callable[..., Any]) -> Callable[..., Any]:
    """Return the form of ``var_mean`` or ``std_mean``, whose mean is torch's where numbers are infinite.

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


def _interpolate(axes: int) -> Callable[..., Any]:
    """Return the form of a linear interpolation: inductor adds a share of the difference of two neighbours, which is
    NaN where both are infinite, or one is and does not count.
    """

    def form(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, *scales: float | None) -> Any:
        if x.dtype not in {torch.float32, torch.float64}:
            return NotImplemented
        made = x
        for axis, size, scale in zip(
            range(-1, -axes - 1, -1), reversed(sizes), [*reversed(scales), *[None] * axes], strict=False
        ):
            made = _interpolate_along(made, axis, size, align_corners, scale)
        return made

    return form


def _interpolate_along(x: torch.Tensor, axis: int, size: int, align_corners: bool, scale: float | None) -> torch.Tensor:
    given = x.shape[axis]
    if size == given:  # torch adds nothing times itself, which is NaN of infinity
        return x + x * 0
    places = torch.arange(size, dtype=x.dtype)
    if align_corners:
        step = (given - 1) / (size - 1) if size > 1 else 0.0
        places, last = places * step, (size - 1) * step
    else:
        step = 1 / scale if scale is not None and scale > 0 else given / size
        places, last = ((places + 0.5) * step - 0.5).clamp_min(0), (size - 0.5) * step - 0.5
    first = places.to(torch.int64)
    share = places - first
    if last > given - 0.01:  # else all lie within, whatever is rounded
        first, share = first.clamp_max(given - 1), (places - first.clamp_max(given - 1)).clamp(0, 1)
    share = share.reshape([-1] + [1] * (-axis - 1))
    ahead = [None] * (x.dim() + axis)
    before, after = (aten._unsafe_index(x, [*ahead, at]) for at in (first, (first + 1).clamp_max(given - 1)))
    made: torch.Tensor = before * (1 - share) + after * share
    return made


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
    aten.nextafter.default: _next_after,
    aten.var_mean.correction: _with_mean(torch.var),
    aten.std_mean.correction: _with_mean(torch.std),
    aten.upsample_linear1d.default: _interpolate(1),
    aten.upsample_bilinear2d.default: _interpolate(2),
    aten.upsample_trilinear3d.default: _interpolate(3),
    aten.min.dim: _in_whole_lanes(aten.min.dim),
    aten.max.dim: _in_whole_lanes(aten.max.dim),
    aten.argmin.default: _in_whole_lanes(aten.argmin.default),
    aten.argmax.default: _in_whole_lanes(aten.argmax.default),
    aten.avg_pool2d_backward.default: _average_pool_gradient,
    aten.avg_pool3d_backward.default: _average_pool_gradient,
    aten.smooth_l1_loss_backward.default: _smooth_l1_gradient,
    aten.soft_margin_loss_backward.default: _soft_margin_gradient,
    aten.multilabel_margin_loss_forward.default: _multilabel_margin,
    aten.multilabel_margin_loss_backward.default: _multilabel_margin_gradient,
}
