"""Placement of a plan's sections on RDUs by the memory that they need, in the order of forward. Source: ours."""

from collections.abc import Sequence
from dataclasses import dataclass

from rdukit.errors import OutOfDeviceMemory
from rdukit.hardware import ChipSpec
from rdukit.pef.memory import plan_memory
from rdukit.pef.model import Graph, Pef, Section, SectionType, SymbolKind
from rdukit.units import format_bytes


@dataclass(frozen=True, slots=True)
class Stage:
    """Content of an RDU: names of forward's first and last section, bytes of parameters, and all bytes."""

    rdu: int
    first: str
    last: str
    sections: int
    parameter_bytes: int
    memory_bytes: int
    #: Projected seconds of its forward.
    forward_s: float


def place_over_rdus(pef: Pef, graph: Graph, chip: ChipSpec) -> tuple[Stage, ...]:
    """Return the fewest RDUs that hold a graph: each takes forward's sections in order until its memory is full.

    The first section that reads a parameter also needs its gradient and optimizer state. Activations are spread
    evenly. Pure.

    Raises:
        OutOfDeviceMemory: a single section needs more memory than an RDU has.
    """
    plan = plan_memory(pef, graph)
    left = {n: s.bytes for n, s in pef.symbols.items() if s.kind is SymbolKind.PARAMETER}
    growth = plan.persistent_bytes / max(sum(left.values()), 1)
    forward = [s for number in graph.schedule if (s := pef.sections[number]).type is SectionType.FWD]
    parts = [(s, sum(left.pop(name, 0) for name in s.inputs)) for s in forward]
    section, most = max(parts, key=lambda part: part[1])
    if most * growth > chip.ddr_bytes:
        raise OutOfDeviceMemory(
            f"section {section.name} takes {format_bytes(int(most * growth))} of memory; an RDU of {chip.name} has "
            f"{format_bytes(chip.ddr_bytes)}; plan for another chip, or with smaller sizes"
        )
    passing = plan.device_peak_bytes - plan.persistent_bytes
    for rdus in range(1, len(parts) + 1):
        stages = _fill(parts, growth, passing // rdus, chip.ddr_bytes)
        if len(stages) <= rdus:
            return stages
    raise OutOfDeviceMemory(
        f"activations take {format_bytes(passing)} of memory, too much for {len(parts)} RDUs: choose a smaller batch"
    )


def _fill(parts: Sequence[tuple[Section, int]], growth: float, passing: int, memory: int) -> tuple[Stage, ...]:
    """Return forward over RDUs that each keep ``passing`` bytes for activations."""
    groups: list[list[tuple[Section, int]]] = [[]]
    own = 0
    for section, parameters in parts:
        if groups[-1] and (own + parameters) * growth + passing > memory:
            groups.append([])
            own = 0
        groups[-1].append((section, parameters))
        own += parameters
    return tuple(_stage(rdu, group, growth, passing) for rdu, group in enumerate(groups))


def _stage(rdu: int, group: Sequence[tuple[Section, int]], growth: float, passing: int) -> Stage:
    own = sum(parameters for _, parameters in group)
    return Stage(
        rdu, group[0][0].name, group[-1][0].name, len(group), own, int(own * growth) + passing,
        sum(section.cost.seconds for section, _ in group),
    )  # fmt: skip
