"""What stays f32 on a device that computes in bf16, because rounding it would gain nothing or lose what it is for.

========================  =========================================================================================
what                      why
========================  =========================================================================================
losses, sums that leave   what a program reads and compares, and what it is made of: see ``widen_losses``
running sums              ``cumsum`` counts and locates, and differences of its numbers lose what both have in common
sequences                 ``arange``, ``linspace``, if they are given a dtype or bf16 lacks their numbers: it has no odd
                          integers above 256
what the program names    tensors that forward makes with ``dtype=torch.float32``; ``dtype=x.dtype`` means the device's
what nobody rounds        inputs, buffers and parameters of which operators make nothing in bf16: a target that only the
                          loss reads, rotary frequencies, a time step that is converted with ``.float()``
========================  =========================================================================================

From there f32 spreads as torch promotes: to what is computed with it, never from a tensor without dimensions to one
that has some. Source: ours; the vendor computes in bf16 "whatever the host dtype says" (SDK reference 16).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from rdukit.pef.kernel import Ref, Special, references
from rdukit_compiler.backend.operators import callable_of, decode
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.passes.choose_compute import DECLARED
from rdukit_compiler.passes.widen_losses import ARITHMETIC, MOVING

ROUNDED: Final = frozenset({torch.float32, torch.float64, torch.float16})
_FLOAT32: Final = Special("dtype", "float32")
_BFLOAT16: Final = Special("dtype", "bfloat16")

#: Operators that make a sequence of nothing.
_SEQUENCES: Final = frozenset({"arange", "linspace", "logspace"})
_TAKING_DTYPE: Final = frozenset({"aten.type_as.default", "aten.to.other"})


def with_device_dtype(operator: Operator, graph: ModelGraph) -> Operator:
    """Tensors that forward makes from nothing have the device's dtype too: f32 would spread through the rest.

    Sequences of numbers that bf16 lacks have not, nor what the program gives float32 by name. Integers that get the
    dtype of a buffer get the one that the program gave the buffer.
    """
    if operator.op in _TAKING_DTYPE:
        return _with_buffer_dtype(operator, graph)
    if operator.inputs or len(operator.outputs) != 1 or operator.compute == DECLARED:
        return operator
    if getattr(torch, graph.values[operator.outputs[0]].dtype) not in ROUNDED:
        return operator
    is_sequence, is_given = operator.op_type in _SEQUENCES, operator.kwargs.get("dtype") is not None
    if (is_given and (is_sequence or operator.names_dtype)) or (is_sequence and not _fits_bf16(operator)):
        return operator
    schema = getattr(callable_of(operator.op), "_schema", None)
    if schema is None or not any(argument.name == "dtype" for argument in schema.arguments):
        return operator
    return replace(operator, kwargs={**operator.kwargs, "dtype": _BFLOAT16})


def _fits_bf16(operator: Operator) -> bool:
    """Whether bf16 has each number of a sequence."""
    keywords = {key: decode(value, {}) for key, value in operator.kwargs.items()}
    numbers = callable_of(operator.op)(*(decode(argument, {}) for argument in operator.args), **keywords)
    return bool(torch.equal(numbers.bfloat16().to(numbers.dtype), numbers))


def _with_buffer_dtype(operator: Operator, graph: ModelGraph) -> Operator:
    """``positions.type_as(self.inv_freq)``."""
    read = [argument.name for argument in operator.args[:2] if isinstance(argument, Ref)]
    if len(read) != 2:
        return operator
    source, other = (graph.values[name] for name in read)
    is_count = not getattr(torch, source.dtype).is_floating_point and source.dtype != "bool"
    if not is_count or other.kind is not ValueKind.BUFFER or other.dtype != "float32":
        return operator
    return replace(operator, op="aten.to.dtype", op_type="to", args=(Ref(read[0]), _FLOAT32), kwargs={})


def find_exact(graph: ModelGraph, operators: Sequence[Operator], values: Mapping[str, Value]) -> dict[str, list[str]]:
    """Inputs, buffers and parameters of which operators make nothing in bf16, with the values that only show them.

    Args:
        values: by name, as typed with every one of them rounded.
    """
    readers: dict[str, list[Operator]] = {name: [] for name in values}
    for operator in operators:
        for name in operator.inputs:
            readers[name].append(operator)
    found: dict[str, list[str]] = {}
    for value in graph.values.values():
        if value.kind is ValueKind.OPERATOR or getattr(torch, value.dtype) not in ROUNDED or not readers[value.name]:
            continue
        if value.name not in graph.updates and (shown := _shown_exactly(value.name, readers, values)) is not None:
            found[value.name] = shown
    return found


def _shown_exactly(
    name: str, readers: Mapping[str, Sequence[Operator]], values: Mapping[str, Value]
) -> list[str] | None:  # fmt: skip
    """Values that are f32 if ``name`` is: moved numbers, scalars; None if an operator computes in bf16 with one."""
    shown: list[str] = []
    for operator in readers[name]:
        if operator.compute == DECLARED:
            continue
        moves = operator.op_type in MOVING and references(operator.args[:1]) == [name]
        if not operator.compute and (moves or _is_scalar(name, operator, values)):
            for made in (output for output in operator.outputs if moves or not values[output].shape):
                further = _shown_exactly(made, readers, values)
                if further is None:
                    return None
                shown += [made, *further]
        elif any(values[made].dtype in {"bfloat16", "float16"} for made in operator.outputs):
            return None
    return shown


def _is_scalar(name: str, reader: Operator, values: Mapping[str, Value]) -> bool:
    """Whether ``name`` has no dimensions, and so decides no dtype but that of others without."""
    return not values[name].shape and reader.op_type in ARITHMETIC


__all__ = ["ROUNDED", "find_exact", "with_device_dtype"]
