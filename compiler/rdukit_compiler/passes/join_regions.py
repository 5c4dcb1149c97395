"""Give tensors that share a region of device memory one dtype, because they are the same bytes.

One graph may write a region in f32, because the program converts, while another reads it in bf16. The region gets the
widest dtype: graphs that read bf16 round, and graphs that write bf16 convert. This also holds for a buffer that one
graph updates in f32 and another only reads, and for a parameter that one graph needs unrounded. Tensors of one name in
two graphs are one tensor.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rdukit.errors import CompileError
from rdukit.pef.kernel import Ref, Special, rename_references
from rdukit.pef.model import ITEM_BYTES, Dtype
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.naming import dtype_name
from rdukit_compiler.passes.assign_precision import Precision

_FLOATS: Final = frozenset({"bfloat16", "float32"})


def join_regions(
    graphs: Sequence[ModelGraph], regions: Mapping[str, str], precision: Precision
) -> list[ModelGraph]:  # fmt: skip
    """Give each region one dtype in ``graphs``, which have device dtypes. ``regions``: tensor → its region if shared.

    ``precision``: with bf16, sections round when they read; with f32, an added operator rounds the graph's bf16 values.

    Raises:
        CompileError: tensors of one region have different dtypes, other than bf16 and f32.
    """
    graphs = _join_state(graphs)
    if not regions and len(graphs) == 1:
        return graphs
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
        _held_in(graph, {v.name: widest[regions.get(v.name, v.name)].dtype for v in _ends(graph)}, precision)
        for graph in graphs
    ]


def _join_state(graphs: Sequence[ModelGraph]) -> list[ModelGraph]:
    """Give each buffer and parameter one dtype: f32 if it has that in any graph."""
    kinds = (ValueKind.BUFFER, ValueKind.PARAMETER)
    wide = {value.name for graph in graphs for value in graph.of_kind(*kinds) if value.dtype == "float32"}
    found: list[ModelGraph] = []
    for graph in graphs:
        for value in graph.of_kind(*kinds):
            if value.name not in wide or value.dtype != "bfloat16":
                continue
            if value.kind is ValueKind.BUFFER:
                graph = _rounded_where_read(graph, value)
            else:  # sections round it when they read it
                graph = replace(graph, values={**graph.values, value.name: replace(value, dtype="float32")})
        found.append(graph)
    return found


def _rounded_where_read(graph: ModelGraph, held: Value) -> ModelGraph:
    """Hold a bf16 buffer or input in f32, and round it to bf16 before anything reads it."""
    read = f"{held.name}__{held.dtype}"
    arguments = (Ref(held.name), Special("dtype", held.dtype))
    first = Operator(f"{held.name}__to", "aten.to.dtype", "to", arguments, {}, (read,))
    rounded = Value(read, ValueKind.OPERATOR, held.dtype, held.shape)
    values = {**graph.values, held.name: replace(held, dtype="float32"), read: rounded}
    operators = (first, *(_renamed(operator, held.name, read) for operator in graph.operators))
    return replace(graph, values=values, operators=operators)


def _ends(graph: ModelGraph) -> Iterator[Value]:
    """Yield the values that may lie in regions: inputs and outputs."""
    yield from graph.of_kind(ValueKind.INPUT)
    yield from (graph.values[name] for name in graph.outputs)


def convert_output(graph: ModelGraph, name: str, dtype: Dtype) -> ModelGraph:
    """Convert an operator's value to ``dtype`` under its own name; operators still read the unconverted value."""
    value = graph.values[name]
    source = f"{name}__{value.dtype}"
    operators: list[Operator] = []
    for operator in graph.operators:
        operators.append(_renamed(operator, name, source))
        if name in operator.outputs:
            arguments = (Ref(source), Special("dtype", dtype))
            operators.append(Operator(f"{name}__to", "aten.to.dtype", "to", arguments, {}, (name,), operator.module))
    values = {**graph.values, source: replace(value, name=source), name: replace(value, dtype=dtype)}
    return replace(graph, values=values, operators=tuple(operators))


def _held_in(graph: ModelGraph, dtypes: Mapping[str, Dtype], precision: Precision) -> ModelGraph:
    for name, dtype in dtypes.items():
        value = graph.values[name]
        if value.dtype == dtype:
            continue
        if value.kind is ValueKind.OPERATOR:
            graph = convert_output(graph, name, dtype)
        elif dtype_name(precision.compute_dtype(wide := replace(value, dtype=dtype))) == value.dtype:
            graph = replace(graph, values={**graph.values, name: wide})
        else:
            graph = _rounded_where_read(graph, value)
    return graph


def _renamed(operator: Operator, name: str, new: str) -> Operator:
    """Rename value ``name`` to ``new`` in ``operator``, among its inputs and outputs."""
    names = {name: new}
    if name not in operator.outputs and name not in operator.inputs:
        return operator
    return replace(
        operator,
        args=tuple(rename_references(argument, names) for argument in operator.args),
        kwargs={key: rename_references(argument, names) for key, argument in operator.kwargs.items()},
        outputs=tuple(names.get(output, output) for output in operator.outputs),
    )
