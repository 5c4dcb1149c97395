"""Cut a graph over several chips into sections, each with operators of one chip.

Operators that wait for the same transfers form a phase, and each chip's part of a phase is cut as a separate graph.
Sections of different chips in one phase are independent, so the chips run them at the same time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from rdukit_compiler.chips.splitter import HOST_CHIP
from rdukit_compiler.ir import ModelGraph, Operator, ValueKind
from rdukit_compiler.passes.cut_sections import CutOptions, SectionPlan, cut_sections
from rdukit_compiler.patterns.topology import Topology

#: Heuristic name of a section that joins an output for the program on the host.
OUTPUT: Final = "output"


def cut_over_chips(graph: ModelGraph, options: CutOptions) -> tuple[SectionPlan, ...]:
    """Cut ``graph`` into section plans; a graph on one chip as ``cut_sections`` does.

    Raises:
        DoesNotFit, CompileError: as ``cut_sections``.
    """
    if graph.chips == 1:
        return cut_sections(graph, options)
    phases = _find_phases(graph)
    groups: dict[tuple[int, int], list[Operator]] = {}
    for operator in graph.operators:
        groups.setdefault((phases[operator.name], operator.chip), []).append(operator)
    plans: list[SectionPlan] = []
    names: set[str] = set()
    for (_, chip), operators in sorted(groups.items()):
        for plan in _cut_one(graph, operators, chip, options):
            name, number = plan.name, 0
            while name in names:
                number += 1
                name = f"{plan.name}_{number}"
            names.add(name)
            plans.append(replace(plan, name=name))
    return tuple(plans)


def _find_phases(graph: ModelGraph) -> dict[str, int]:
    """Return the length of the longest chain of transfers before each operator."""
    topology, phases = Topology(graph), [0] * len(graph.operators)
    for index, operator in enumerate(graph.operators):
        phases[index] = max(
            (phases[p] + (graph.operators[p].chip != operator.chip) for p in topology.producers[index]), default=0
        )
    return {operator.name: phases[index] for index, operator in enumerate(graph.operators)}


def _cut_one(
    graph: ModelGraph, operators: Sequence[Operator], chip: int, options: CutOptions
) -> Iterable[SectionPlan]:  # fmt: skip
    if chip == HOST_CHIP:
        names = tuple(operator.name for operator in operators)
        why = "the program reads complete outputs, so the host joins the chips' parts"
        return [SectionPlan("outputs", names, None, OUTPUT, {}, why, {})]
    return [
        replace(plan, why=f"on chip {chip}: {plan.why}") for plan in cut_sections(_part(graph, operators), options)
    ]  # fmt: skip


def _part(graph: ModelGraph, operators: Sequence[Operator]) -> ModelGraph:
    """Return the graph of some operators: other operators' results are its inputs, and results that others read are its
    outputs.
    """
    made = {name for operator in operators for name in operator.outputs}
    inside = {operator.name for operator in operators}
    read = {name for operator in operators for name in operator.inputs}
    values = {
        name: value if name in made or value.kind is not ValueKind.OPERATOR else replace(value, kind=ValueKind.INPUT)
        for name, value in graph.values.items()
        if name in made or name in read
    }
    later = {name for operator in graph.operators if operator.name not in inside for name in operator.inputs}
    leaving = later | {*graph.outputs, *graph.updates.values()}
    return replace(
        graph, values=values, operators=tuple(operators), outputs=tuple(name for name in made if name in leaving),
        updates={buffer: value for buffer, value in graph.updates.items() if value in made and buffer in values},
        chips=1, pieces={},
    )  # fmt: skip
