"""Graphs that share device memory: what may share a region, and what is converted so that it can.

Source: SDK reference 12.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rdukit.errors import CompileError
from rdukit_compiler.ir import ModelGraph, Value, ValueKind
from rdukit_compiler.passes.join_regions import convert_output

_INTEGERS: Final = frozenset({"int8", "uint8", "int16", "int32", "int64"})


def fit_to_regions(graphs: Iterable[ModelGraph], regions: Mapping[str, str]) -> list[ModelGraph]:
    """The graphs, with integer outputs converted to the integer dtype of the region that they are written to.

    torch's type promotion makes int64 of an int32 and a default constant; a region has one dtype, that of the first
    input in it.

    Raises:
        CompileError: two inputs, or two outputs, of a graph share a region, or tensors of one region differ in dtype.
    """
    cut = list(graphs)
    for graph in cut:
        _check_one_per_region("inputs", graph, [v.name for v in graph.of_kind(ValueKind.INPUT)], regions)
        _check_one_per_region("outputs", graph, graph.outputs, regions)
    held: dict[str, Value] = {}
    for value in (value for graph in cut for value in graph.of_kind(ValueKind.INPUT)):
        held.setdefault(regions.get(value.name, value.name), value)
    for value in (graph.values[name] for graph in cut for name in graph.outputs):
        held.setdefault(regions.get(value.name, value.name), value)
    fitted = [_with_integers_of(graph, regions, held) for graph in cut]
    for graph in fitted:
        for name in (*(v.name for v in graph.of_kind(ValueKind.INPUT)), *graph.outputs):
            region = regions.get(name, name)
            first, dtype = held[region], graph.values[name].dtype
            if first.dtype != dtype:
                raise CompileError(
                    f"{first.name!r} and {name!r} share region {region!r}, but are {first.dtype} and {dtype}; tensors "
                    "of one region must have one dtype"
                )
    return fitted


def _check_one_per_region(what: str, graph: ModelGraph, names: Iterable[str], regions: Mapping[str, str]) -> None:
    owner: dict[str, str] = {}
    for name in names:
        region = regions.get(name, name)
        if owner.setdefault(region, name) != name:
            raise CompileError(
                f"graph {graph.name!r}: {what} {owner[region]!r} and {name!r} share region {region!r}; only an input "
                "and an output of one graph, or tensors of different graphs, may share one"
            )


def _with_integers_of(graph: ModelGraph, regions: Mapping[str, str], held: Mapping[str, Value]) -> ModelGraph:
    for name in graph.outputs:
        value, wanted = graph.values[name], held[regions.get(name, name)].dtype
        if value.dtype != wanted and {value.dtype, wanted} <= _INTEGERS:
            graph = convert_output(graph, name, wanted)
    return graph
