"""The memory plan for people and for JSON: a table with a bar a section, and one line before a run. Pure."""

from dataclasses import asdict
from typing import Any, Final

from rdukit.cli.tables import Table
from rdukit.pef.memory_plan import MemoryPlan, lease_bytes, plan_memory
from rdukit.pef.model import Pef
from rdukit.units import format_bytes

#: Characters of the longest bar.
_BAR: Final = 24


def describe_memory(pef: Pef) -> dict[str, Any]:
    """The plan of each graph's whole schedule, in bytes, ready for JSON."""
    return {
        "lease_bytes": lease_bytes(pef),
        "graphs": {name: _describe(plan_memory(pef, graph)) for name, graph in pef.graphs.items()},
    }


def memory_plan_tables(pef: Pef) -> list[Table]:
    """A table a graph: what exists while each section runs and after it, beyond what is persistent."""
    return [_table(pef, plan_memory(pef, graph)) for graph in pef.graphs.values()]


def memory_line(pef: Pef, host_bytes: int | None = None) -> str:
    """One line before a run: persistent, peak and where it is, and what the program's own copies take.

    Args:
        host_bytes: of the parameters, buffers and states that the program holds on the host; None where that is not
            known.
    """
    plans = [plan_memory(pef, graph) for graph in pef.graphs.values()]
    plan = max(plans, key=lambda each: each.peak_bytes)
    moment = plan.peak_moment
    where = f" at section {moment.name}" if moment is not None else ""
    copies = f", host copies {format_bytes(host_bytes)}" if host_bytes is not None else ""
    return (
        f"memory: persistent {format_bytes(plan.persistent_bytes)}, peak {format_bytes(plan.peak_bytes)}{where}{copies}"
    )


def _describe(plan: MemoryPlan) -> dict[str, Any]:
    moment = plan.peak_moment
    return {
        "persistent_bytes": plan.persistent_bytes,
        "peak_bytes": plan.peak_bytes,
        "device_peak_bytes": plan.device_peak_bytes,
        "peak_section": moment.section if moment is not None else None,
        "end_bytes": plan.end_bytes,
        "sections": [asdict(each) | {"peak_bytes": each.peak_bytes} for each in plan.moments],
    }


def _table(pef: Pef, plan: MemoryPlan) -> Table:
    most = max((moment.peak_bytes for moment in plan.moments), default=0)
    rows = tuple(
        (
            str(m.section), m.type.value, m.name, format_bytes(m.during_bytes), format_bytes(m.scratch_bytes),
            format_bytes(m.after_bytes), "#" * _length(m.peak_bytes, most) + (" peak" if m is plan.peak_moment else ""),
        )
        for m in plan.moments
    )  # fmt: skip
    title = (
        f"Memory plan of {plan.graph}: persistent {format_bytes(plan.persistent_bytes)}, peak "
        f"{format_bytes(plan.peak_bytes)} on the host, {format_bytes(plan.device_peak_bytes)} on the device, "
        f"a lease asks for {format_bytes(lease_bytes(pef))}"
    )
    return Table(title, ("id", "type", "section", "during", "scratch", "after", ""), rows,
                 frozenset({"id", "during", "scratch", "after"}))  # fmt: skip


def _length(value: int, most: int) -> int:
    return -(-value * _BAR // most) if most else 0
