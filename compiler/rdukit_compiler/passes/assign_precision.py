"""Decide each value's dtype on the device.

Device arithmetic is bf16 unless the program converts (SDK reference 16); ``f32`` keeps the program's dtypes, for
debugging. Parameters that are trained stay f32 in device memory and are rounded to bf16 where a section reads them:
an f32 master, so that small updates are not lost (Source: ours; the vendor's default is not published). Buffers that
forward updates, and the statistics of batch norms, stay f32 likewise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rdukit.errors import CompileError
from rdukit.pef.kernel import Special, references
from rdukit_compiler.backend.operators import callable_of, decode, dtype_name
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind

_ROUNDED = {torch.float32, torch.float64, torch.float16}


@dataclass(frozen=True, slots=True)
class Precision:
    """``bf16`` or ``f32``; ``training`` keeps f32 masters."""

    name: str
    training: bool

    def device_dtype(self, value: Value, is_statistic: bool) -> torch.dtype:
        """dtype of a graph input in device memory."""
        dtype: torch.dtype = getattr(torch, value.dtype)
        if self.name == "f32" or dtype not in _ROUNDED:
            return dtype
        if is_statistic or (value.kind is ValueKind.PARAMETER and self.training):
            return torch.float32
        return torch.bfloat16

    def compute_dtype(self, value: Value) -> torch.dtype:
        """dtype in which operators read a graph input; ``value`` has the device's dtype if it is a buffer."""
        dtype: torch.dtype = getattr(torch, value.dtype)
        if self.name == "f32" or dtype not in _ROUNDED or value.kind is ValueKind.BUFFER:
            return dtype
        return torch.bfloat16


def assign_precision(graph: ModelGraph, precision: Precision) -> ModelGraph:
    """The graph with device dtypes, and with ``requires_grad`` true exactly where a gradient flows.

    Found by running the operators once on fake tensors: no data is touched.
    """
    values = dict(graph.values)
    statistics = _statistics(graph)
    operators = tuple(_with_device_dtype(o, graph, precision) for o in graph.operators)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.set_grad_enabled(precision.training):
        tensors: dict[str, Any] = {}
        for value in graph.values.values():
            if value.kind is ValueKind.OPERATOR:
                continue
            held = dtype_name(precision.device_dtype(value, value.name in statistics))
            values[value.name] = replace(value, dtype=held, requires_grad=_wants_grad(value, precision))
            dtype = precision.compute_dtype(values[value.name])
            tensors[value.name] = torch.empty(value.shape, dtype=dtype, requires_grad=_wants_grad(value, precision))
        for operator in operators:
            run_operator(operator, tensors)
            for name in operator.outputs:
                tensor = tensors[name]
                values[name] = replace(
                    values[name], dtype=dtype_name(tensor.dtype), requires_grad=bool(tensor.requires_grad)
                )
    return replace(graph, values=values, operators=operators)


def _statistics(graph: ModelGraph) -> frozenset[str]:
    """Buffers that must not be rounded: those that forward updates, and running means and variances."""
    found = set(graph.updates)
    for operator in graph.operators:
        if operator.op_type == "batch_norm":
            found.update(references(operator.args[3:5]))
    return frozenset(found)


def _with_device_dtype(operator: Operator, graph: ModelGraph, precision: Precision) -> Operator:
    """Tensors that forward makes from nothing have the device's dtype too: f32 would spread through the rest."""
    if operator.inputs or len(operator.outputs) != 1 or precision.name == "f32":
        return operator
    if getattr(torch, graph.values[operator.outputs[0]].dtype) not in _ROUNDED:
        return operator
    schema = getattr(callable_of(operator.op), "_schema", None)
    if schema is None or not any(argument.name == "dtype" for argument in schema.arguments):
        return operator
    return replace(operator, kwargs={**operator.kwargs, "dtype": Special("dtype", "bfloat16")})


def run_operator(operator: Operator, tensors: dict[str, Any]) -> None:
    """Call one operator on the tensors it names, and add what it makes.

    Operands of mixed floating dtypes are promoted: legal on the device although torch refuses some of them.
    """
    function = callable_of(operator.op)
    args = [decode(a, tensors) for a in operator.args]
    kwargs = {k: decode(v, tensors) for k, v in operator.kwargs.items()}
    if operator.op_type == "batch_norm" and (promoted := _promoted(args)) is not None:
        # Fake tensors allow the mix with f32 statistics, the CPU does not. The output stays what the input is.
        made = _attempt(function, promoted, kwargs, operator).to(args[0].dtype)
    else:
        try:
            made = function(*args, **kwargs)
        except RuntimeError:
            made = _attempt(function, _promoted(args) or args, kwargs, operator)
    if len(operator.outputs) == 1 and isinstance(made, torch.Tensor):
        tensors[operator.outputs[0]] = made
    else:
        tensors.update(zip(operator.outputs, made, strict=True))


def _attempt(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], operator: Operator) -> Any:
    try:
        return function(*args, **kwargs)
    except RuntimeError as cause:
        where = operator.module or "forward"
        raise CompileError(f"operator {operator.op_type!r} in module {where!r} cannot run: {cause}") from cause


def _promoted(args: list[Any]) -> list[Any] | None:
    """``args`` with all floating tensors in the widest dtype among them; None if they agree already."""
    floats = {a.dtype for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()}
    if len(floats) < 2:
        return None
    widest = max(floats, key=lambda dtype: (dtype.itemsize, dtype == torch.float32))
    return [a.to(widest) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]


def _wants_grad(value: Value, precision: Precision) -> bool:
    return precision.training and value.requires_grad
