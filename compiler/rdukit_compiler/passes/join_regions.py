"""Give the tensors that share a region of device memory one dtype: they are the same bytes.

A graph may write a region in f32, because the program converts, where another one reads it in bf16. The region is held
in the widest: who reads it in bf16 rounds, who writes bf16 converts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rdukit.errors import CompileError
from rdukit.pef.kernel import Argument, Ref, Special
from rdukit.pef.model import ITEM_BYTES
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind

_FLOATS: Final = frozenset({"bfloat16", "float32"})


def join_regions(graphs: Sequence[ModelGraph], regions: Mapping[str, str]) -> list[ModelGraph]:
    """The graphs, which have device dtypes, with one dtype per region. ``regions``: tensor → its region if shared.

    Raises:
        CompileError: tensors of one region differ in dtype otherwise than bf16 and f32.
    """
    if not regions:
        return list(graphs)
    widest: dict[str, Value] = {}
    for graph in graphs:
        for value in _ends(graph):
            region = regions.get(value.name, value.name)
            known = widest.setdefault(region, value)
            if known.dtype != value.dtype and not {known.dtype, value.dtype} <= _FLOATS:
                raise CompileError(
                    f"{known.name!r} and {value.name!r} share region {region!r}, but are {known.dtype} and "
                    f"{value.dtype} on the device; tensors of one region must have one dtype"
                )
            if ITEM_BYTES[value.dtype] > ITEM_BYTES[known.dtype]:
                widest[region] = value
    return [
        _held_in(graph, {v.name: widest[regions.get(v.name, v.name)].dtype for v in _ends(graph)}) for graph in graphs
    ]


def _ends(graph: ModelGraph) -> Iterator[Value]:
    """Values that lie in regions: inputs and outputs."""
    yield from graph.of_kind(ValueKind.INPUT)
    yield from (graph.values[name] for name in graph.outputs)


def _held_in(graph: ModelGraph, dtypes: Mapping[str, str]) -> ModelGraph:
    values = dict(graph.values)
    operators = list(graph.operators)
    for name, dtype in dtypes.items():
        value = values[name]
        if value.dtype == dtype:
            continue
        if value.kind is ValueKind.OPERATOR:
            source = f"{name}__{value.dtype}"
            values[source] = replace(value, name=source)
            operators = [_renamed(operator, name, source) for operator in operators]
            arguments = (Ref(source), Special("dtype", dtype))
            operators.append(Operator(f"{name}__to", "aten.to.dtype", "to", arguments, {}, (name,)))
        values[name] = replace(value, dtype=dtype)
    return replace(graph, values=values, operators=tuple(operators))


def _renamed(operator: Operator, name: str, new: str) -> Operator:
    """``operator`` with value ``name`` called ``new``, where it is made and where it is read."""

    def argument(given: Argument) -> Argument:
        if isinstance(given, Ref):
            return Ref(new) if given.name == name else given
        return [argument(item) for item in given] if isinstance(given, list) else given

    if name not in operator.outputs and name not in operator.inputs:
        return operator
    return replace(
        operator,
        args=tuple(argument(given) for given in operator.args),
        kwargs={key: argument(given) for key, given in operator.kwargs.items()},
        outputs=tuple(new if output == name else output for output in operator.outputs),
    )
