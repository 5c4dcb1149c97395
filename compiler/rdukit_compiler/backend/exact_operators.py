"""Operators that inductor computes wrongly, as other operators that it computes right.

Each form is what torch's own kernel for processors computes, step by step, so that results agree to the last bit, at
infinity, at NaN and in the sign of zero. A form that returns ``NotImplemented`` leaves the operator as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import fx

Number = bool | int | float
Operand = torch.Tensor | Number
aten = torch.ops.aten


def holds_inexact(module: fx.GraphModule) -> bool:
    """Return whether a flat module calls an operator that has a form here."""
    return any(node.op == "call_function" and node.target in FORMS for node in module.graph.nodes)


def _floating(*operands: Operand) -> list[torch.Tensor] | None:
    """Return operands as tensors of the dtype that they are computed in; None if that is not floating."""
    dtype = torch.result_type(*operands) if len(operands) == 2 else operands[0].dtype  # type: ignore[union-attr,arg-type,call-overload]
    if not dtype.is_floating_point:
        return None
    return [x.to(dtype) if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype) for x in operands]


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
    """What is no number is neither above nor below, and stays."""
    outside = torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, torch.zeros_like(x)))
    return torch.where(torch.isnan(x), x, outside)


def _clamp_min(x: torch.Tensor, least: Operand) -> Any:
    """-0 is not below 0, and stays."""
    return _clamp(x, least, None)


def _clamp_max(x: torch.Tensor, most: Operand) -> Any:
    return _clamp(x, None, most)


def _clamp(x: torch.Tensor, least: Operand | None = None, most: Operand | None = None) -> Any:
    if not x.is_floating_point() or any(isinstance(bound, torch.Tensor) for bound in (least, most)):
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
}
