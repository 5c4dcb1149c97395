"""Groups from the program: ``with op_fusion(...)`` around calls in forward.

Blocks marked ``user_annotated`` become groups before the fusion rules, which do not change them. Other blocks are
suggestions: rules apply first, and the operators of a block that they leave become its groups.

A group holds the operators that were traced inside one block, which has an id, so each layer has its own groups.
Separate parts of a block, as ``reuse_last_id`` creates them, become one group unless a path leaves and re-enters it.
Operators without an id (graphs from elsewhere) form groups of consecutive operators, distinguished by the numbers in
their module paths. Source: compiler reference 5.6; ids of blocks are ours.
"""

import ast
from collections.abc import Collection, Sequence

from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.patterns.match import Match
from rdukit_compiler.patterns.syntax import Scalar
from rdukit_compiler.patterns.topology import OperatorGroups, Topology


def labelled_groups(graph: ModelGraph, *, annotated: bool, taken: Collection[str] = ()) -> tuple[Match, ...]:
    """Return the blocks of ``graph`` as matches, in graph order; disjoint, and each convex.

    Args:
        annotated: True returns only blocks marked ``user_annotated``, False only the others.
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
    return tuple(_match(operators) for operators in _joined(graph, runs))


def _joined(graph: ModelGraph, runs: Sequence[tuple[tuple[str, ...], list[Operator]]]) -> list[list[Operator]]:
    """Join runs of one block id, where the graph of groups allows it."""
    first: dict[tuple[str, ...], list[Operator]] = {}
    if len({key for key, _ in runs}) == len(runs):
        return [operators for _, operators in runs]
    topology = Topology(graph)
    groups = OperatorGroups(topology)
    for _, operators in runs:
        groups.join(topology.position[operator.name] for operator in operators)
    found: list[list[Operator]] = []
    for key, operators in runs:
        known = first.get(key) if key[0] else None
        ends = [topology.position[part[0].name] for part in (known, operators) if part]
        if known is not None and groups.may_join(ends):
            groups.join(ends)
            known.extend(operators)
        else:
            first[key] = operators
            found.append(operators)
    return found


def _block_of(operator: Operator) -> tuple[str, ...]:
    """Return a key that identifies a block; its first word is the block's id, if it has one."""
    if block := operator.labels.get("op_fusion_id"):
        return (block,)
    numbers = (part for part in operator.module.replace("__", ".").split(".") if part.isdecimal())
    return ("", operator.labels["op_fusion"], operator.labels.get("heuristic", ""), *numbers)


def _match(operators: Sequence[Operator]) -> Match:
    names = tuple(operator.name for operator in operators)
    labels = operators[0].labels
    heuristic, parameters = _read_heuristic(labels.get("heuristic", ""))
    return Match(labels["op_fusion"] or "op_fusion", names, {}, heuristic, parameters, {})


def _read_heuristic(label: str) -> tuple[str | None, dict[str, Scalar]]:
    """Return a heuristic's name, or the mapping of choices (``distribution``, ``tiling``, ``mapping``) for the default
    one.
    """
    if not label.startswith("{"):
        return label or None, {}
    try:
        found = ast.literal_eval(label)
    except (ValueError, SyntaxError):
        return None, {}
    return None, {str(k): v for k, v in found.items() if isinstance(v, bool | int | float | str)}
