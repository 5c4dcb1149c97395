"""Quantize the weights of linear layers for inference: int8 takes half of bf16's bytes, int4 slightly over a quarter.

A weight is quantized if all graphs of the PEF read it only as the weight of linear layers or as an embedding table. An
int8 weight has a scale for each row. An int4 weight has two elements a byte, and a scale for each 32 elements of a row.
With int4, a weight is int8 if it is also a table, is empty, or has rows whose length is not a multiple of 32.
Source: ours; the vendor's weight formats are not published.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rdukit.pef.kernel import Ref, Special
from rdukit.pef.model import INT4_GROUP, int4_shape
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.own_operators import INT4_LINEAR, INT8_EMBEDDING, INT8_LINEAR

_LINEAR: Final = "aten.linear.default"
_EMBEDDING: Final = "aten.embedding.default"
_FLOATS: Final = frozenset({"float32", "bfloat16"})


def quantize_weights(graphs: Sequence[ModelGraph], dtype: str) -> list[ModelGraph]:
    """Make the weights of ``graphs``, which have device dtypes, int8 or int4 where that is possible."""
    refused = {name for graph in graphs for name in _refused(graph)}
    chosen = {name for graph in graphs for name in _of_linear_layers(graph)} - refused
    grouped: set[str] = set()
    if dtype == "int4":
        tables = {operator.inputs[0] for graph in graphs for operator in graph.operators if operator.op == _EMBEDDING}
        shapes = {name: value.shape for graph in graphs for name, value in graph.values.items() if name in chosen}
        grouped = {name for name in chosen - tables if all(shapes[name]) and shapes[name][1] % INT4_GROUP == 0}
    return [_quantize(graph, chosen, grouped) for graph in graphs]


def scale_name(weight: str) -> str:
    """Return the symbol with the scales of a weight."""
    return f"{weight}__scale"


def _refused(graph: ModelGraph) -> set[str]:
    """Return the parameters that some operator reads in another way."""
    found: set[str] = set()
    for name, consumers in graph.consumers().items():
        value = graph.values[name]
        if value.kind is not ValueKind.PARAMETER:
            continue
        ways = [_way(operator, name) for operator in consumers]
        if len(value.shape) != 2 or value.dtype not in _FLOATS or None in ways or name in graph.outputs:
            found.add(name)
    return found


def _way(operator: Operator, weight: str) -> str | None:
    """Return how an operator reads a weight: as a linear layer's or as a table; None for anything else."""
    if operator.compute:
        return None
    if operator.op == _LINEAR and operator.args[1] == Ref(weight) and operator.args[0] != Ref(weight):
        return _LINEAR
    return _EMBEDDING if operator.op == _EMBEDDING and operator.args[0] == Ref(weight) else None


def _of_linear_layers(graph: ModelGraph) -> set[str]:
    """Return the parameters that linear layers read; another graph may read them as tables only."""
    readers = graph.consumers()
    return {
        value.name
        for value in graph.of_kind(ValueKind.PARAMETER)
        if any(operator.op == _LINEAR for operator in readers[value.name])
    }


def _quantize(graph: ModelGraph, wanted: set[str], grouped: set[str]) -> ModelGraph:
    chosen = [value.name for value in graph.of_kind(ValueKind.PARAMETER) if value.name in wanted]
    values = dict(graph.values)
    for name in chosen:
        scale, (rows, width) = scale_name(name), values[name].shape
        values[name] = replace(values[name], dtype="int8", requires_grad=False)
        values[scale] = Value(scale, ValueKind.PARAMETER, "float32", (rows,))
        if name in grouped:
            values[name] = replace(values[name], dtype="uint8", shape=int4_shape(rows, width))
            values[scale] = Value(scale, ValueKind.PARAMETER, "bfloat16", (rows, width // INT4_GROUP))
    operators = tuple(_with_scale(operator, frozenset(chosen), values) for operator in graph.operators)
    return replace(graph, values=values, operators=operators)


def _with_scale(operator: Operator, chosen: frozenset[str], values: dict[str, Value]) -> Operator:
    if operator.op == _LINEAR and isinstance(weight := operator.args[1], Ref) and weight.name in chosen:
        x, _, *rest = operator.args
        bias = rest[0] if rest else operator.kwargs.get("bias")
        op = INT4_LINEAR if values[weight.name].dtype == "uint8" else INT8_LINEAR
        return replace(operator, op=op, args=(x, weight, Ref(scale_name(weight.name)), bias), kwargs={})
    if operator.op == _EMBEDDING and isinstance(table := operator.args[0], Ref) and table.name in chosen:
        dtype = Special("dtype", values[operator.outputs[0]].dtype)
        args = (table, operator.args[1], Ref(scale_name(table.name)), dtype)
        return replace(operator, op=INT8_EMBEDDING, args=args, kwargs={})
    return operator
