"""Groups that the program asked for: ``with op_fusion(...)`` around calls in forward.

Blocks marked ``user_annotated`` are taken as they are, before the fusion rules, which then leave them alone. Other
blocks are suggestions: rules apply inside first, and what they leave of a block becomes its groups.

A group is a run of operators, one after the other, with the same labels. Blocks that follow each other under one name,
such as one a layer, are told apart by the numbers in their module paths (``layers.0`` and ``layers.1``): so equal
layers get equal sections. Source: compiler reference 5.6; how blocks are told apart is ours.
"""

import ast
from collections.abc import Collection, Sequence

from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.patterns.match import Match
from rdukit_compiler.patterns.syntax import Scalar


def labelled_groups(graph: ModelGraph, *, annotated: bool, taken: Collection[str] = ()) -> tuple[Match, ...]:
    """The blocks of ``graph`` as matches, in graph order; disjoint, and each convex.

    Args:
        annotated: those marked ``user_annotated``, else only those that are not.
        taken: operators that belong to a group already; they end a run.
    """
    runs: list[tuple[tuple[str, ...], list[Operator]]] = []
    before: tuple[str, ...] | None = None
    for operator in graph.operators:
        labels = operator.labels
        wanted = "op_fusion" in labels and (labels.get("user_annotated") == "true") is annotated
        key = _block_of(operator) if wanted and operator.name not in taken else None
        if key is not None and key == before:
            runs[-1][1].append(operator)
        elif key is not None:
            runs.append((key, [operator]))
        before = key
    return tuple(_match(operators) for _, operators in runs)


def _block_of(operator: Operator) -> tuple[str, ...]:
    numbers = (part for part in operator.module.replace("__", ".").split(".") if part.isdecimal())
    return (operator.labels["op_fusion"], operator.labels.get("heuristic", ""), *numbers)


def _match(operators: Sequence[Operator]) -> Match:
    names = tuple(operator.name for operator in operators)
    labels = operators[0].labels
    heuristic, parameters = _read_heuristic(labels.get("heuristic", ""))
    return Match(labels["op_fusion"] or "op_fusion", names, {}, heuristic, parameters, {})


def _read_heuristic(label: str) -> tuple[str | None, dict[str, Scalar]]:
    """A heuristic's name, or the mapping of choices (``distribution``, ``tiling``, ``mapping``) for the default one."""
    if not label.startswith("{"):
        return label or None, {}
    try:
        found = ast.literal_eval(label)
    except (ValueError, SyntaxError):
        return None, {}
    return None, {str(k): v for k, v in found.items() if isinstance(v, bool | int | float | str)}
