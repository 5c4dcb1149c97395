"""Split a graph over chips by its batch (``batch``) or by its weights (``weight``).

``batch``: each chip has its slice of every input along the first dimension, and all parameters. ``weight``: rows of the
weights of linear layers and embeddings are divided among the chips; operators between them are split
according to their operands.

Every chip computes operators without a rule whole. The first chip computes for all what may happen only once, such as
random numbers or the update of a buffer.
"""

from collections.abc import Sequence
from typing import Final

import torch

from rdukit.errors import InvalidArgument
from rdukit.pef.kernel import Ref
from rdukit_compiler.chips.operands import Operands, argument_of
from rdukit_compiler.chips.rules import split_operator
from rdukit_compiler.chips.splitter import SplitGraph
from rdukit_compiler.chips.views import chunk_groups
from rdukit_compiler.ir import ModelGraph, Operator, ValueKind
from rdukit_compiler.operators.naming import callable_of
from rdukit_compiler.operators.supported import is_guard, runs_on_host
from rdukit_compiler.passes.assign_precision import Precision

BATCH: Final = "batch"
WEIGHT: Final = "weight"


def split_over_chips(graph: ModelGraph, how: str, chips: int, precision: Precision) -> ModelGraph:
    """Return the graph over ``chips`` chips, two or more; ``how`` is ``batch`` or ``weight``.

    ``precision``: the dtype in which operators read the device's tensors.

    Raises:
        InvalidArgument: the number of chips divides neither the batch nor, for ``weight``, any weight; the message has
            the sizes.
    """
    writing = SplitGraph(graph, chips, precision)
    groups = {} if how == BATCH else _divisible(graph, chips)
    if how == BATCH:
        _split_inputs(writing)
    elif not groups:
        raise InvalidArgument(
            f"--tensor-parallel weight cannot split graph {graph.name!r} over {chips} chips: no linear layer or "
            f"embedding has rows that {chips} divides; choose another --n-chips, or --tensor-parallel batch"
        )
    given, once = Operands(writing, groups), _find_single(graph)
    for operator in graph.operators:
        if operator.name in once:
            _compute_once(given, operator)
        elif not split_operator(given, operator):
            _compute_everywhere(given, operator)
    return writing.finish()


def _split_inputs(writing: SplitGraph) -> None:
    inputs = [value for value in writing.source.of_kind(ValueKind.INPUT) if value.shape]
    chips = len(writing.chips)
    batch = inputs[0].shape[0] if inputs else 0
    if not batch or batch % chips:
        legal = [n for n in range(2, 9) if batch and batch % n == 0]
        raise InvalidArgument(
            f"--tensor-parallel batch cannot split a batch of {batch} over {chips} chips; expected a batch that "
            f"{chips} divides" + (f", or --n-chips of {', '.join(map(str, legal))}" if legal else "")
        )
    rows = batch // chips
    for value in inputs:
        if value.shape[0] == batch:
            pieces = [writing.add_piece(value.name, 0, chip, chip * rows, rows) for chip in writing.chips]
            writing.place(value.name, pieces, 0)


def _divisible(graph: ModelGraph, chips: int) -> dict[str, int]:
    """Return the parameters whose rows are divided, with the number of blocks of rows that are divided separately.

    All readers of such a parameter are linear layers and lookups. If a layer's features are cut into equal parts
    afterwards, such as queries, keys and values, each part is divided.
    """
    consumers = graph.consumers()
    found: dict[str, int] = {}
    layers: list[tuple[str, ...]] = []
    for value in graph.of_kind(ValueKind.PARAMETER):
        readers = consumers[value.name]
        if not value.shape or not readers:
            continue
        wanted = {_groups_for(graph, value.name, reader, consumers) for reader in readers}
        groups = wanted.pop() if len(wanted) == 1 else min(wanted)
        if groups and value.shape[0] % (groups * chips) == 0:
            found[value.name] = groups
    for operator in graph.operators:
        if operator.op_type == "linear":
            layers.append(tuple(a.name for a in operator.args[1:3] if isinstance(a, Ref)))
    while broken := [layer for layer in layers if len({found.get(n, 0) for n in layer}) > 1]:
        for name in broken[0]:
            found.pop(name, None)
    return found


def _groups_for(
    graph: ModelGraph, parameter: str, reader: Operator, consumers: "dict[str, tuple[Operator, ...]]"
) -> int:  # fmt: skip
    """Return the number of blocks of rows in which ``reader`` allows a parameter to be divided; 0 if it allows none."""
    place = next((i for i, a in enumerate(reader.args) if isinstance(a, Ref) and a.name == parameter), -1)
    if reader.op_type == "embedding":
        return int(place == 0 and not any(reader.args[3:]) and not reader.kwargs)
    if reader.op_type != "linear" or place not in {1, 2}:
        return 0
    made = reader.outputs[0]
    readers = consumers[made]
    groups = chunk_groups(readers[0], graph.values[made].shape) if len(readers) == 1 else 0
    return groups if groups and made not in graph.outputs else 1


def _find_single(graph: ModelGraph) -> frozenset[str]:
    """Return the operators that may only run once: random ones, those on the host, and those at updated buffers."""
    updated = {*graph.updates, *graph.updates.values()}
    return frozenset(
        operator.name
        for operator in graph.operators
        if is_guard(operator) or runs_on_host(operator) or _is_random(operator)
        or not updated.isdisjoint((*operator.inputs, *operator.outputs))
    )  # fmt: skip


def _is_random(operator: Operator) -> bool:
    """Return whether an operator draws random numbers; those of other libraries count as random."""
    if not operator.op.startswith("aten."):
        return True
    if operator.op_type == "scaled_dot_product_attention":
        dropout = argument_of(operator, 4, "dropout_p", 0.0)
        return dropout != 0.0
    return torch.Tag.nondeterministic_seeded in getattr(callable_of(operator.op), "tags", ())


def _compute_once(given: Operands, operator: Operator) -> None:
    writing = given.graph
    shapes = [writing.shape(name) for name in operator.outputs]
    kwargs = {key: given.whole(value, 0) for key, value in operator.kwargs.items()}
    made = writing.add_copy(
        operator, 0, [given.whole(a, 0) for a in operator.args], shapes, kwargs, is_original=True
    )  # fmt: skip
    for name in made:
        writing.place(name, [name] * len(writing.chips), owner=0)


def _compute_everywhere(given: Operands, operator: Operator) -> None:
    writing = given.graph
    shapes = [writing.shape(name) for name in operator.outputs]
    split = [name for name in operator.inputs if name in writing.dim_of]
    if split:
        writing.replicated[operator.name] = _why(writing, operator, split)
    made = [
        writing.add_copy(
            operator, chip, [given.whole(a, chip) for a in operator.args], shapes,
            {key: given.whole(value, chip) for key, value in operator.kwargs.items()}, is_original=not chip,
        )
        for chip in writing.chips
    ]  # fmt: skip
    for position, name in enumerate(operator.outputs):
        writing.place(name, [outputs[position] for outputs in made])


def _why(writing: SplitGraph, operator: Operator, split: Sequence[str]) -> str:
    shapes = ", ".join("x".join(map(str, writing.shape(name))) or "scalar" for name in split)
    return f"{operator.op_type} of {shapes} has no dimension that {len(writing.chips)} chips can divide"
