"""A pipeline over sections: each chip has consecutive operators of the graph, with their parameters.

The cut minimizes the memory of the fullest chip, and then the bytes that pass between chips. Memory is that of the
parameters, counted at each operator that reads them, in proportion their gradients and optimizer states, and of the
operators' results, which backward needs.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_compiler.ir import ModelGraph, Operator, ValueKind
from rdukit_compiler.operators.vocabulary import is_loss, is_trivial

#: Copies of a parameter that a chip holds while it trains: the value, its gradient and two states.
_COPIES: Final = 4


def assign_stages(graph: ModelGraph, chips: int) -> ModelGraph:
    """Return the graph with a chip for each operator, ascending along the graph.

    Raises:
        InvalidArgument: the graph has fewer operators that compute than chips.
    """
    working = sum(not is_trivial(operator) for operator in graph.operators)
    if working < chips:
        raise InvalidArgument(
            f"graph {graph.name!r} has {working} computing operators, too few for a pipeline over {chips} chips; take "
            f"--n-chips {max(working, 1)} or fewer, or --tensor-parallel"
        )
    weights = _weights(graph)
    ends = cut_evenly(weights, _passing(graph), chips, [not is_trivial(operator) for operator in graph.operators])
    chip, operators = 0, []
    for position, operator in enumerate(graph.operators):
        while position >= ends[chip]:
            chip += 1
        operators.append(replace(operator, chip=chip))
    return replace(graph, operators=tuple(operators), chips=chips)


def _weights(graph: ModelGraph) -> list[int]:
    """Return the bytes that each operator needs on its chip; for its backward, a loss keeps as much as it reads."""

    def weigh(operator: Operator) -> int:
        read = [graph.values[name] for name in operator.inputs]
        held = [value for value in read if value.kind is not ValueKind.OPERATOR]
        made = 0 if is_trivial(operator) else sum(graph.values[name].bytes for name in operator.outputs)
        kept = sum(value.bytes for value in read) if is_loss(operator) else 0
        return made + kept + sum(value.bytes * (_COPIES if value.requires_grad else 1) for value in held)

    return [weigh(operator) for operator in graph.operators]


def _passing(graph: ModelGraph) -> list[int]:
    """Return the bytes of values that are computed before each position and read at or after it."""
    last: dict[str, int] = {}
    for position, operator in enumerate(graph.operators):
        last.update(dict.fromkeys(operator.inputs, position))
    passing = [0] * (len(graph.operators) + 1)
    for position, operator in enumerate(graph.operators):
        for name in operator.outputs:
            for between in range(position + 1, last.get(name, position) + 1):
                passing[between] += graph.values[name].bytes
    return passing


def cut_evenly(
    weights: Sequence[int], passing: Sequence[int], count: int, works: Sequence[bool] | None = None
) -> tuple[int, ...]:  # fmt: skip
    """Return the ends of ``count`` runs of positions whose heaviest is as light as possible; ties pass the fewest
    bytes.

    Args:
        passing: bytes that a cut before each position, and after the last, costs.
        works: positions of which each run must have at least one; None: all.
    """
    total, size = [0, *accumulate(weights)], len(weights)
    working = [0, *accumulate(map(int, works if works is not None else [True] * size))]
    #: End → (heaviest run, bytes passed on, ends) of the best cut of the positions before it.
    best: dict[int, tuple[int, int, tuple[int, ...]]] = {0: (0, 0, ())}
    for run in range(count):
        last = run == count - 1
        found: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        for end in [size] if last else [end for end in range(1, size) if works is None or works[end - 1]]:
            options = [
                (max(heaviest, total[end] - total[begin]), moved + (0 if last else passing[end]), (*ends, end))
                for begin, (heaviest, moved, ends) in best.items()
                if begin < end and working[end] > working[begin]
            ]
            if options:
                found[end] = min(options)
        best = found
    return best[size][2]
