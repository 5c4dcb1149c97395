"""Sections of operators that run on the host, and how the device's operators are grouped around them."""

from collections.abc import Sequence
from typing import Final

from rdukit_compiler.ir import ModelGraph, Operator
from rdukit_compiler.passes.choose_host_operators import HOST_LABEL, is_guard, runs_on_host
from rdukit_compiler.patterns.match import Match

#: What stands for a heuristic in a host section: nothing is placed on tiles.
HOST: Final = "host"
#: How the reason of a section begins that checks what was supposed of data.
LOOKS_AT_DATA: Final = "forward looks at data"


def split_around_host(graph: ModelGraph) -> list[tuple[Operator, ...]]:
    """All operators in groups that can be run one after the other: each host operator alone, the others in as few
    groups as that allows. A graph without host operators is one group.
    """
    made_by = {name: operator.name for operator in graph.operators for name in operator.outputs}
    # A host operator is at an odd stage, after all that it reads; a device operator at an even one.
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
    """Those of ``matches`` that no host operator is in: it has a section of its own, whatever a rule says."""
    hosted = {operator.name for operator in graph.operators if runs_on_host(operator)}
    return tuple(match for match in matches if hosted.isdisjoint(match.operators))


def host_reason(operators: Sequence[Operator]) -> str | None:
    """Why a group runs on the host, for people; None if it does not."""
    found = next((operator for operator in operators if runs_on_host(operator)), None)
    if found is None:
        return None
    if is_guard(found):
        return (
            f"{LOOKS_AT_DATA} ({found.args[1]}): compiled for finite numbers and checks that hold, or the example's "
            "values where that was asked for; a run in which it is otherwise is refused"
        )
    return (
        f"operator {found.op_type} in module {found.module or 'forward'} is not supported on the RDU and runs on the "
        f"host; nearest supported: {found.labels[HOST_LABEL]}"
    )
