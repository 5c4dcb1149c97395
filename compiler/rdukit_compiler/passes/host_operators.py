"""Refuses operators that the device lacks, or runs them on the host in separate sections.

Source: compiler reference 6.2 (the error names operator, module and the nearest function, and offers an opt-in).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rdukit.errors import UnsupportedOperator
from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.operators.custom_gradients import backward_operators
from rdukit_compiler.operators.supported import HOST_LABEL, is_guard, is_supported, nearest_supported, runs_on_host
from rdukit_compiler.patterns.match import Match

#: Heuristic name of a host section, which uses no tiles.
HOST: Final = "host"
#: Prefix of the reason of a section that checks assumptions about data.
LOOKS_AT_DATA: Final = "forward looks at data"


def choose_host_operators(graph: ModelGraph, host_fallback: bool) -> ModelGraph:
    """Mark every unsupported operator, and every guard of a condition, to run on the host.

    A marked operator loses its other labels, so that no fusion rule or directive places it.

    Args:
        host_fallback: whether the user has opted in.
    Raises:
        UnsupportedOperator: the graph has unsupported operators and the user has not opted in; the message names all.
    """
    guards = {operator.name for operator in graph.operators if is_guard(operator)}
    found = [operator for operator in graph.operators if not is_supported(operator)]
    if not found and not guards:
        return graph
    if found and not host_fallback:
        lacking = [o for operator in found for o in (*backward_operators(operator), operator) if not is_supported(o)]
        raise UnsupportedOperator(_refusal(lacking), operators=[operator.name for operator in found])
    names = {operator.name for operator in found} | guards
    return replace(
        graph,
        operators=tuple(
            replace(o, labels={HOST_LABEL: "" if is_guard(o) else nearest_supported(o)}) if o.name in names else o
            for o in graph.operators
        ),
    )


def _refusal(found: list[Operator]) -> str:
    first, *others = found
    more = f" ({len(others)} more: {', '.join(_where(o) for o in others[:4])})" if others else ""
    return (
        f"operator {_where(first)} is not supported on the RDU{more}; nearest supported: {nearest_supported(first)}. "
        "To run unsupported operators on the host instead, each in a section of its own, compile with --host-fallback "
        "or set RDUKIT_HOST_FALLBACK=1"
    )


def _where(operator: Operator) -> str:
    name = operator.op if not operator.op.startswith("aten.") else operator.op_type
    return f"{name!r} in module {operator.module or 'forward'!r}"


def split_around_host(graph: ModelGraph) -> list[tuple[Operator, ...]]:
    """Group all operators so that the groups can run in order.

    Each host operator is a group; the others are in as few groups as possible. A graph without host operators is one
    group.
    """
    made_by = {name: operator.name for operator in graph.operators for name in operator.outputs}
    # A host operator is at an odd stage, after its producers; a device operator is at an even one.
    stage: dict[str, int] = {}
    for operator in graph.operators:
        before = max((stage[made_by[name]] for name in operator.inputs if name in made_by), default=0)
        if runs_on_host(operator):
            stage[operator.name] = before + 2 - (before + 1) % 2
        else:
            stage[operator.name] = before + before % 2
    groups: list[tuple[Operator, ...]] = []
    for number in sorted(set(stage.values())):
        members = tuple(operator for operator in graph.operators if stage[operator.name] == number)
        groups.extend([(o,) for o in members] if number % 2 else [members])
    return groups


def without_host(graph: ModelGraph, matches: Sequence[Match]) -> tuple[Match, ...]:
    """Return the ``matches`` without a host operator: host operators always have separate sections."""
    hosted = {operator.name for operator in graph.operators if runs_on_host(operator)}
    return tuple(match for match in matches if hosted.isdisjoint(match.operators))


def host_reason(operators: Sequence[Operator]) -> str | None:
    """Return why a group runs on the host, for people; None if it does not."""
    found = next((operator for operator in operators if runs_on_host(operator)), None)
    if found is None:
        return None
    if is_guard(found):
        return (
            f"{LOOKS_AT_DATA} ({found.args[1]}): compiled for finite numbers and checks that pass, or on request for "
            "the example's values; a run with other data is refused"
        )
    return (
        f"operator {found.op_type} in module {found.module or 'forward'} is not supported on the RDU and runs on the "
        f"host; nearest supported: {found.labels[HOST_LABEL]}"
    )
