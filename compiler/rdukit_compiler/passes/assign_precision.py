"""Decide each value's dtype on the device.

Device arithmetic is bf16 unless the program converts (SDK reference 16), with the exceptions of ``keep_float32``;
``f32`` keeps the program's dtypes, for debugging. Parameters that are trained stay f32 in device memory and are
rounded to bf16 where a section reads them: an f32 master, so that small updates are not lost (Source: ours; the
vendor's default is not published). Buffers that forward updates, and the statistics of batch norms, stay f32 likewise;
a cache, in which forward only places what it has computed in bf16, is bf16.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from rdukit.pef.kernel import Argument, references, rename_references
from rdukit_compiler.capture.meta_rules import FakeMode
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.naming import dtype_name
from rdukit_compiler.operators.run_operator import run_operator
from rdukit_compiler.passes.keep_float32 import ROUNDED, find_exact, widen_losses, with_device_dtype
from rdukit_compiler.passes.round_trip_casts import RoundTripCasts

_LARGEST: Final = torch.finfo(torch.bfloat16).max
#: Operators that put values into a copy of their first argument.
_PLACING: Final = frozenset(
    {"aten.index_copy.default", "aten.index_put.default", "aten.slice_scatter.default", "aten.select_scatter.default",
     "aten.scatter.src", "aten.scatter.value"}
)  # fmt: skip
#: Operators that pass values on unchanged.
_MOVING: Final = frozenset(
    "slice select view reshape flatten squeeze unsqueeze transpose t permute expand cat roll clone contiguous"
    " index_select".split()
)


@dataclass(frozen=True, slots=True)
class Precision:
    """``bf16`` or ``f32``; ``training`` keeps f32 masters."""

    name: str
    training: bool

    def device_dtype(self, value: Value, is_statistic: bool) -> torch.dtype:
        """Return the dtype of a graph input in device memory."""
        dtype: torch.dtype = getattr(torch, value.dtype)
        if self.name == "f32" or dtype not in ROUNDED:
            return dtype
        if is_statistic or (value.kind is ValueKind.PARAMETER and self.training):
            return torch.float32
        return torch.bfloat16

    def compute_dtype(self, value: Value) -> torch.dtype:
        """Return the dtype in which operators read a graph input; a buffer ``value`` has the device's dtype."""
        dtype: torch.dtype = getattr(torch, value.dtype)
        if self.name == "f32" or dtype not in ROUNDED or value.kind is ValueKind.BUFFER or value.is_exact:
            return dtype
        return torch.bfloat16


def assign_precision(graph: ModelGraph, precision: Precision) -> ModelGraph:
    """Give the graph device dtypes, and ``requires_grad`` exactly where a gradient flows.

    The dtypes are found by running the operators on fake tensors, without data; equal calls run once.
    """
    if precision.name == "f32":
        return _typed(graph, graph.operators, precision, None)
    prepared = tuple(with_device_dtype(_in_range(o), graph) for o in graph.operators)
    typed = _typed(graph, widen_losses(prepared, graph), precision, RoundTripCasts(graph.values))
    values = dict(typed.values)
    for name, shown in find_exact(graph, typed.operators, values).items():
        values[name] = replace(values[name], dtype="float32", is_exact=True)
        values |= {made: replace(values[made], dtype="float32") for made in shown}
    return replace(typed, values=values)


def _typed(
    graph: ModelGraph, operators: Sequence[Operator], precision: Precision, back: RoundTripCasts | None
) -> ModelGraph:  # fmt: skip
    values, statistics = dict(graph.values), _statistics(graph)
    with FakeMode(allow_non_fake_inputs=True), torch.set_grad_enabled(precision.training):
        tensors: dict[str, Any] = {}
        calls = RepeatedCalls()
        for value in graph.values.values():
            if value.kind is ValueKind.OPERATOR:
                continue
            held = dtype_name(precision.device_dtype(value, value.name in statistics))
            values[value.name] = replace(value, dtype=held, requires_grad=_wants_grad(value, precision))
            tensors[value.name] = calls.tensor_like(
                torch.empty(
                    value.shape,
                    dtype=precision.compute_dtype(values[value.name]),
                    requires_grad=_wants_grad(value, precision),
                )
            )
        chosen = []
        for traced in operators:
            operator = back.convert(traced) if back is not None else traced
            chosen.append(operator)
            calls.run(operator, tensors)
            if back is not None:
                back.follow(operator, tensors)
            for name in operator.outputs:
                tensor = tensors[name]
                values[name] = replace(
                    values[name], dtype=dtype_name(tensor.dtype), requires_grad=bool(tensor.requires_grad)
                )
    return replace(graph, values=values, operators=tuple(chosen))


def _statistics(graph: ModelGraph) -> frozenset[str]:
    """Return the buffers that must not be rounded: dropout rates, updated buffers, and running means and variances."""
    found = {*(name for name in graph.updates if not is_cache(graph, name)), *graph.rates}
    for operator in graph.operators:
        if operator.op_type == "batch_norm":
            found.update(references(operator.args[3:5]))
    return frozenset(found)


def is_cache(graph: ModelGraph, buffer: str) -> bool:
    """Return whether forward only places values into ``buffer`` that were computed without it, so that rounding errors
    cannot add up.
    """
    producers = graph.producers()

    def is_moved(name: str) -> bool:
        """Return whether ``name`` holds the buffer's numbers only moved, and not used in a computation."""
        operator = producers.get(name)
        if operator is None:
            return True
        adds = operator.op == "aten.index_put.default" and True in operator.args[3:]
        if (operator.op in _PLACING and not adds) or operator.op_type in _MOVING:
            return all(is_moved(source) for source in operator.inputs)
        return buffer not in _ancestors(name, producers)

    return is_moved(graph.updates[buffer])


def _ancestors(name: str, producers: Mapping[str, Operator]) -> set[str]:
    """Return the values that ``name`` is computed from, itself included."""
    found, todo = set(), [name]
    while todo:
        current = todo.pop()
        if current not in found:
            found.add(current)
            todo.extend(producers[current].inputs if current in producers else ())
    return found


def _in_range(operator: Operator) -> Operator:
    """Clamp finite numbers beyond bf16, such as f32's minimum in attention masks, to bf16's largest."""
    if not any(_is_beyond(argument) for argument in (*operator.args, *operator.kwargs.values())):
        return operator
    return replace(
        operator,
        args=tuple(_clamped(argument) for argument in operator.args),
        kwargs={name: _clamped(argument) for name, argument in operator.kwargs.items()},
    )


def _is_beyond(argument: Argument) -> bool:
    return isinstance(argument, float) and _LARGEST < abs(argument) < float("inf")


def _clamped(argument: Argument) -> Argument:
    return math.copysign(_LARGEST, argument) if isinstance(argument, float) and _is_beyond(argument) else argument


def _wants_grad(value: Value, precision: Precision) -> bool:
    return precision.training and value.requires_grad


class RepeatedCalls:
    """Runs operators; a call with the arguments of an earlier call gets that call's results.

    One fake tensor stands for all values that torch cannot distinguish without data. Operators of a model graph do not
    overwrite values, so sharing is safe. Valid for one graph, in one fake mode.
    """

    def __init__(self) -> None:
        #: Description → the tensor that stands for all values with it.
        self._tensors: dict[tuple[object, ...], torch.Tensor] = {}
        #: Operator, arguments and compute dtype → results. Tensors are keyed by ``id``: those in ``_tensors`` live as
        #: long as this object.
        self._made: dict[str, tuple[torch.Tensor, ...]] = {}

    def tensor_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor that stands for this one."""
        described = (
            tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes(),
            tensor.device, tensor.requires_grad, tensor.is_conj(), tensor.is_neg(),
        )  # fmt: skip
        return self._tensors.setdefault(described, tensor)

    def run(self, operator: Operator, tensors: dict[str, torch.Tensor]) -> None:
        """Run the operator as ``run_operator`` does; ``tensors`` holds tensors from ``tensor_like``.

        Raises:
            CompileError: torch refuses the operator.
        """
        names = {name: str(id(tensors[name])) for name in operator.inputs}
        args = [rename_references(argument, names) for argument in operator.args]
        kwargs = [(key, rename_references(argument, names)) for key, argument in operator.kwargs.items()]
        call = f"{operator.op} {args!r} {kwargs!r} {len(operator.outputs)} {operator.compute}"
        made = self._made.get(call)
        if made is None:
            run_operator(operator, tensors)
            made = self._made[call] = tuple(self.tensor_like(tensors[name]) for name in operator.outputs)
        tensors.update(zip(operator.outputs, made, strict=True))
