"""Plans of a loaded PEF: sections in order, bound to slots, with their needs and their cost. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import zip_longest
from math import ceil
from typing import NamedTuple

import torch

from rdukit.errors import InvalidArgument, SectionFailed
from rdukit.hardware import find_chip
from rdukit.pef.chips import chip_traffic, projected_run, step_traffic
from rdukit.pef.memory import PERSISTENT, freed_after, replaced_by
from rdukit.pef.model import Graph, Pef, Section, SectionType
from rdukit_runtime.engine.portable import Kernel


@dataclass(slots=True)
class Counters:
    """Counters of runs. Emulated figures come from the cost model's projections, host figures from this machine's
    clock.
    """

    runs: int = 0
    sections: int = 0
    emulated_cycles: int = 0
    emulated_seconds: float = 0.0
    flops: int = 0
    bytes: int = 0
    host_seconds: float = 0.0
    #: Bytes from chip to chip: those that each chip received and sent.
    link_bytes: int = 0
    received: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    section_runs: dict[int, int] = field(default_factory=dict)


class PlanCost(NamedTuple):
    """The cost of one run of a plan by the cost model, added up over its sections."""

    cycles: int
    seconds: float
    flops: int
    ddr_read: int
    ddr_written: int
    #: Bytes that each chip gets from others over links, and that it sends them; empty on one chip.
    received: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()


class RegionStore(NamedTuple):
    """An output that lives on in a region which it shares: copied there from its slot when the run has ended."""

    name: str
    slot: int
    home: torch.Tensor


class ExecutionPlan(NamedTuple):
    """Steps in order, and the tensors that must be there before: (section type, name, slot)."""

    steps: tuple["PlanStep", ...]
    needs: tuple[tuple[str, str, int], ...]
    cost: PlanCost
    #: Empty in programs without shared regions.
    stores: tuple[RegionStore, ...] = ()
    #: Slots that the steps refill. They are emptied before the first step, so that gradients never exist twice.
    replaced: tuple[int, ...] = ()
    #: Slots of gradients with places of their own (see ``gradient_exchange``) that the steps fill; and those that hold
    #: nothing of use afterwards.
    placed: tuple[int, ...] = ()
    released: tuple[int, ...] = ()


class PlanStep(NamedTuple):
    """A section bound to slots.

    ``written`` are (position, slot) of outputs with memory of their own, such as a buffer. ``taken`` are inputs that
    are not read later: their slots are emptied before, so that the kernel may free them. ``freed`` are slots that
    nothing reads after it, those among them.
    """

    section: Section
    kernel: Kernel
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    written: tuple[tuple[int, int], ...]
    freed: tuple[int, ...]
    taken: tuple[int, ...] = ()


def section_failed(section: Section, reason: object) -> SectionFailed:
    """Return the error for a section whose kernel failed, with torch's message."""
    words = str(reason).strip().splitlines()
    text = (words[0] if words else "") or type(reason).__name__
    if "not implemented for 'BFloat16'" in text:
        text += "; torch has no bf16 form of it: compile with --precision f32"
    called = ", ".join(dict.fromkeys(section.operators[:8])) + (", …" if len(section.operators) > 8 else "")
    return SectionFailed(
        f"section {section.name!r} failed: {text}. It computes {called}; check that indices are within their tables "
        "and values within these operators' ranges", section=section.name,
    )  # fmt: skip


def choose_sections(
    pef: Pef, graph: Graph, types: Iterable[str] | None = None, ids: Iterable[int] | None = None
) -> tuple[int, ...]:
    """Return section ids to run, in schedule order.

    Raises:
        InvalidArgument: an unknown type or id; the message lists the legal ones.
    """
    present = {pef.sections[i].type for i in graph.schedule}
    if ids is not None:
        chosen = set(ids)
        if unknown := chosen - set(graph.schedule):
            raise InvalidArgument(
                f"graph {graph.name!r} has no section {min(unknown)}; expected {list(graph.schedule)}"
            )
        return tuple(i for i in graph.schedule if i in chosen)
    if types is None:
        return graph.schedule
    wanted: set[SectionType] = set()
    for word in types:
        try:
            wanted.add(SectionType(word.lower().lstrip("$")))
        except ValueError:
            legal = [kind.value for kind in SectionType if kind in present]
            raise InvalidArgument(f"section type {word!r} does not exist; this graph has {legal}") from None
    if missing := (wanted - present) & {SectionType.FWD, SectionType.BCKWD, SectionType.OPT}:
        legal = [kind.value for kind in SectionType if kind in present]
        raise InvalidArgument(
            f"graph {graph.name!r} has no section of type {min(missing).value!r}, it has {legal}; compile it with "
            "an optimizer to train"
        )
    return tuple(i for i in graph.schedule if pef.sections[i].type in wanted)


def find_graph(pef: Pef, name: str | None) -> Graph:
    """Return the graph called ``name``; without a name, the only one, evaluation graphs apart.

    Raises:
        InvalidArgument: no such graph, or several and no name.
    """
    graphs = pef.graphs
    if name is None and len(main := pef.main_graphs()) == 1:
        return main[0]
    if name is None or name not in graphs:
        asked = "no graph_name was given" if name is None else f"there is no graph {name!r}"
        raise InvalidArgument(f"{asked}; the PEF's graphs are {', '.join(graphs)}")
    return graphs[name]


def make_plan(
    pef: Pef,
    graph: Graph,
    sections: Sequence[int],
    kernels: Mapping[str, Kernel],
    slots: Mapping[str, int],
    made_slots: Mapping[str, int],
    find_home: Callable[[str], torch.Tensor | None],
    placed: Set[int] = frozenset(),
) -> ExecutionPlan:
    """Bind sections to slots, and find the dead slots after each.

    ``rdukit.pef.memory`` determines the slots that are freed, and emptied before the run.

    Args:
        kernels: kernels by digest. slots: slot of each symbol.
        made_slots: slot of each input that a graph makes.
        find_home: returns the storage of an output that outlives the run.
            placed: slots of gradients with permanent places of their own, where ``reduce`` works.
    """
    freed = freed_after(pef, graph)
    slot_of = dict(slots)
    for number in graph.schedule:
        slot_of.update({n: made_slots[n] for n in pef.sections[number].outputs if n in made_slots})
    steps: list[PlanStep] = []
    stores: list[RegionStore] = []
    for chosen in sections:
        section = pef.sections[chosen]
        gone = [name for name in freed[chosen] if slot_of[name] not in placed]
        is_kept = section.type is SectionType.REDUCE
        steps.append(
            PlanStep(
                section,
                kernels[section.kernel],
                tuple(slot_of[name] for name in section.inputs),
                tuple(slot_of[name] for name in section.outputs),
                tuple(
                    (index, slot_of[name])
                    for index, name in enumerate(section.outputs)
                    if (pef.symbols[name].kind in PERSISTENT and name not in made_slots)
                    or (slot_of[name] in placed and not is_kept)
                ),
                tuple(slot_of[name] for name in gone),
                tuple(slot_of[name] for name in gone if name not in section.outputs),
            )
        )
        for name in section.outputs:
            if (home := find_home(name)) is not None:
                stores.append(RegionStore(name, slot_of[name], home))
    replaced = tuple(slot_of[name] for name in replaced_by(pef, graph, sections))
    filled = {slot for step in steps for _, slot in step.written} & placed
    released = {slot_of[name] for chosen in sections for name in freed[chosen]} & placed
    return ExecutionPlan(
        tuple(steps), _needs(pef, steps, made_slots), _cost_of(pef, steps), tuple(stores), replaced, tuple(filled),
        tuple(released),
    )  # fmt: skip


def _needs(pef: Pef, steps: Sequence[PlanStep], made_slots: Mapping[str, int]) -> tuple[tuple[str, str, int], ...]:
    """List the tensors that the steps read and neither compute themselves nor find in persistent memory."""
    needs: list[tuple[str, str, int]] = []
    made: set[int] = set()
    for step in steps:
        for name, slot in zip(step.section.inputs, step.inputs, strict=True):
            made_here = slot == made_slots.get(name)
            if slot not in made and (made_here or pef.symbols[name].kind not in PERSISTENT):
                needs.append((step.section.type.value, name, slot))
        made.update(step.outputs)
    return tuple(needs)


def _cost_of(pef: Pef, steps: Sequence[PlanStep]) -> PlanCost:
    sections = [step.section for step in steps]
    costs = [section.cost for section in sections]
    seconds, cycles = projected_run(pef, sections), sum(cost.cycles for cost in costs)
    received, sent = chip_traffic(pef, step_traffic(pef, [section.id for section in sections]))
    return PlanCost(
        cycles if pef.chips is None else ceil(seconds * find_chip(pef.arch).clock_hz),
        seconds,
        sum(cost.flops for cost in costs),
        sum(cost.bytes_in + cost.bytes_weights for cost in costs),
        sum(cost.bytes_out for cost in costs),
        received,
        sent,
    )


def count_plans(ran: Iterable[tuple[ExecutionPlan, int, float]]) -> Counters:
    """Sum up the runs so far: plans with their numbers of runs, and the host seconds."""
    total = Counters()
    for plan, count, host_seconds in ran:
        total.runs += count
        total.sections += count * len(plan.steps)
        total.emulated_cycles += count * plan.cost.cycles
        total.emulated_seconds += count * plan.cost.seconds
        total.flops += count * plan.cost.flops
        total.bytes += count * (plan.cost.ddr_read + plan.cost.ddr_written)
        total.host_seconds += host_seconds
        total.link_bytes += count * sum(plan.cost.sent)
        total.received = _added(total.received, plan.cost.received, count)
        total.sent = _added(total.sent, plan.cost.sent, count)
        for step in plan.steps:
            total.section_runs[step.section.id] = total.section_runs.get(step.section.id, 0) + count
    return total


def _added(total: Sequence[int], more: Sequence[int], count: int) -> list[int]:
    return [a + count * b for a, b in zip_longest(total, more, fillvalue=0)]
