"""Explain a PEF: fusions and cuts with their reasons, occupied resources, and the cost model's projection. Pure.

``describe_pef`` gives plain containers for JSON, ``pef_tables`` the same as text tables for people. Cycles and seconds
here are projections for the emulated chip, never measurements, and are labelled so.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any, Final

from rdukit.cli.tables import Table
from rdukit.hardware import find_chip
from rdukit.pef.chips import projected_run
from rdukit.pef.file import FORMAT_VERSION, LoadedPef
from rdukit.pef.kernel import KernelGraph
from rdukit.pef.memory import MemoryPlan, lease_bytes, plan_memory
from rdukit.pef.model import Pef, Section, SectionType, SymbolKind
from rdukit.units import format_bytes, format_count, format_seconds

#: Operators of a section that the tables name; ``rdukit pef explain`` names all.
_SHOWN: Final = 12
#: Metadata values of options that were not given.
_EMPTY: Final = frozenset({"", "None", "null", "False", "false", "{}", "[]"})


def describe_pef(loaded: LoadedPef) -> dict[str, Any]:
    """Return the content of ``pef_tables``, unrounded, ready for JSON."""
    pef = loaded.pef
    return {
        "path": str(loaded.path),
        "name": pef.name,
        "mode": pef.mode,
        "arch": pef.arch,
        "num_tiles": pef.num_tiles,
        "precision": pef.precision,
        "inference": pef.inference,
        "compiler_version": pef.compiler_version,
        "torch_version": pef.torch_version,
        "cpu_capability": pef.cpu_capability,
        "format": list(FORMAT_VERSION),
        "projected": {"cycles": projected_cycles(pef), "seconds": projected_seconds(pef), "flops": total_flops(pef)},
        "region_bytes": pef.region_bytes,
        "graphs": {name: asdict(graph) for name, graph in pef.graphs.items()},
        "sections": [_section_dict(section, loaded) for section in pef.sections],
        "kernels": [
            {
                "digest": digest,
                "form": kernel_form(loaded, digest),
                "operators": len(kernel.nodes),
                "native_bytes": len(loaded.natives.get(digest, b"")),
                "sections": [s.id for s in pef.sections if s.kernel == digest],
            }
            for digest, kernel in sorted(loaded.kernels.items())
        ],
        "symbols": [asdict(symbol) | {"bytes": symbol.bytes} for symbol in pef.symbols.values()],
        "hyperparameters": dict(pef.hyperparameters),
        "metadata": dict(pef.metadata),
        "signature": dict(pef.signature),
    }


def pef_tables(loaded: LoadedPef) -> list[Table]:
    """Return all tables, except that of single symbols: header, sections, cuts, memory, kernels, scalars, metadata."""
    tables = [
        header_table(loaded),
        sections_table(loaded),
        cuts_table(loaded.pef),
        memory_table(loaded.pef),
        kernels_table(loaded),
    ]
    if loaded.pef.hyperparameters:
        rows = tuple((name, f"{value:g}") for name, value in loaded.pef.hyperparameters.items())
        tables.append(Table("Hyperparameters (compiled-in values)", ("name", "value"), rows))
    if loaded.pef.metadata:
        tables.append(metadata_table(loaded.pef))
    return tables


def metadata_table(pef: Pef) -> Table:
    """Return the program's metadata without empty values."""
    texts = {name: _short_json(value) for name, value in sorted(pef.metadata.items())}
    rows = tuple((name, text) for name, text in texts.items() if text not in _EMPTY)
    left_out = len(texts) - len(rows)
    title = f"Metadata ({left_out} empty ones omitted; --json prints all)" if left_out else "Metadata"
    return Table(title, ("name", "value"), rows)


def header_table(loaded: LoadedPef) -> Table:
    """Return the table of the PEF's name, target and versions."""
    pef = loaded.pef
    rows = (
        ("name", pef.name),
        ("mode", pef.mode),
        ("target", f"{pef.arch}, {_count(pef.num_tiles, 'tile')}"),
        *([("divided by", f"{pef.chips.how}, over {pef.chips.count} chips")] if pef.chips is not None else []),
        ("precision", pef.precision),
        ("purpose", "inference" if pef.inference else "training"),
        ("graphs", ", ".join(f"{g.name} ({_count(len(g.schedule), 'section')})" for g in pef.graphs.values())),
        ("kernels", f"{len(loaded.kernels)} for {_count(len(pef.sections), 'section')}, {len(loaded.natives)} native"),
        ("device memory", format_bytes(pef.region_bytes)),
        ("projected step", f"{format_seconds(projected_seconds(pef))}, {format_count(projected_cycles(pef))} cycles"),
        ("work per step", f"{format_count(total_flops(pef))} flop"),
        ("compiler", pef.compiler_version),
        ("torch", pef.torch_version),
        ("native code needs", pef.cpu_capability or "nothing (no native kernels)"),
    )
    return Table(f"PEF {loaded.path.name}", ("", ""), rows)


def sections_table(loaded: LoadedPef) -> Table:
    """Return a row for each section: decisions, resources, projected cost."""
    columns = ("id", "type", "section", "operators", "rule", "heuristic", "kernel", "tiles", "PCU", "PMU", "SRAM",
               "flop", "bytes moved", "projected cycles", "projected time")  # fmt: skip
    rows = tuple(
        (
            str(s.id), s.type.value, s.name, str(len(s.operators)), s.rule or "-", s.heuristic,
            kernel_form(loaded, s.kernel), str(s.resources.tiles), str(s.resources.pcus), str(s.resources.pmus),
            format_bytes(s.resources.sram_bytes), format_count(s.cost.flops), format_bytes(moved_bytes(s)),
            format_count(s.cost.cycles), format_seconds(s.cost.seconds),
        )
        for s in scheduled_sections(loaded.pef)
    )  # fmt: skip
    return Table("Sections in schedule order (the cost model projects the figures)", columns, rows,
                 frozenset({"id", *columns[7:], "operators"}))  # fmt: skip


def cuts_table(pef: Pef) -> Table:
    """Return the first operators of each section, and the reason for the cut."""
    rows = tuple((str(s.id), s.name, _first_of(s.operators), s.why) for s in pef.sections)
    return Table("Fusions and cuts", ("id", "section", "operators", "why"), rows, frozenset({"id"}))


def _first_of(operators: Sequence[str]) -> str:
    more = len(operators) - _SHOWN
    return " ".join(operators[:_SHOWN]) + (f" and {more} more" if more > 0 else "") or "-"


def memory_table(pef: Pef) -> Table:
    """Count symbols and bytes by kind. Symbols that share a region are counted once in the total."""
    rows = []
    for kind in SymbolKind:
        symbols = [s for s in pef.symbols.values() if s.kind is kind]
        if symbols:
            own = {s.region for s in symbols}
            rows.append((kind.value, str(len(symbols)), str(len(own)), format_bytes(sum(s.bytes for s in symbols))))
    regions = {s.region for s in pef.symbols.values()}
    rows.append(("all", str(len(pef.symbols)), str(len(regions)), format_bytes(pef.region_bytes)))
    return Table("Device memory", ("kind", "symbols", "regions", "bytes"), tuple(rows),
                 frozenset({"symbols", "regions", "bytes"}))  # fmt: skip


def symbols_table(pef: Pef) -> Table:
    """Return every symbol with its region."""
    rows = tuple(
        (s.name, s.kind.value, s.dtype, "×".join(map(str, s.shape)) or "scalar", s.host_dtype, s.region,
         format_bytes(s.bytes))
        for s in pef.symbols.values()
    )  # fmt: skip
    columns = ("symbol", "kind", "dtype", "shape", "host dtype", "region", "bytes")
    return Table("Symbols", columns, rows, frozenset({"bytes"}))


def kernels_table(loaded: LoadedPef) -> Table:
    """Return each unique kernel, its form, and the sections that share it."""
    rows = tuple(
        (
            digest[:12],
            kernel_form(loaded, digest),
            str(len(kernel.nodes)),
            format_bytes(len(loaded.natives[digest])) if digest in loaded.natives else "-",
            " ".join(str(s.id) for s in loaded.pef.sections if s.kernel == digest) or "-",
            _operator_counts(kernel),
        )
        for digest, kernel in sorted(loaded.kernels.items(), key=lambda item: _first_section(loaded.pef, item[0]))
    )
    columns = ("kernel", "form", "calls", "library", "sections", "operators")
    return Table("Kernels", columns, rows, frozenset({"calls", "library"}))


def kernel_form(loaded: LoadedPef, digest: str) -> str:
    """Return ``native`` if the PEF has a library for the kernel, else ``portable``: run operator by operator."""
    return "native" if digest in loaded.natives else "portable"


def projected_seconds(pef: Pef) -> float:
    """Return the cost model's time of one step: every graph's schedule once."""
    return projected_run(pef, list(scheduled_sections(pef)))


def projected_cycles(pef: Pef) -> int:
    """Return the cost model's cycles of one step."""
    if pef.chips is not None:
        return ceil(projected_seconds(pef) * find_chip(pef.arch).clock_hz)
    return sum(s.cost.cycles for s in scheduled_sections(pef))


def total_flops(pef: Pef) -> int:
    """Count the floating-point operations of one step."""
    return sum(s.cost.flops for s in scheduled_sections(pef))


def scheduled_sections(pef: Pef, types: Iterable[SectionType] = tuple(SectionType)) -> list[Section]:
    """Return the sections in the order in which a step runs them; evaluation graphs are not included."""
    wanted = set(types)
    ordered = [pef.sections[i] for graph in pef.main_graphs() for i in graph.schedule]
    return [s for s in ordered if s.type in wanted]


def moved_bytes(section: Section) -> int:
    """Return the bytes moved between device memory and chip in one run of the section."""
    return section.cost.bytes_in + section.cost.bytes_out + section.cost.bytes_weights


def _section_dict(section: Section, loaded: LoadedPef) -> dict[str, Any]:
    value = asdict(section)
    value["projected_cost"] = value.pop("cost")
    value["form"] = kernel_form(loaded, section.kernel)
    return value


def _operator_counts(kernel: KernelGraph) -> str:
    counts: dict[str, int] = {}
    for node in kernel.nodes:
        name = node.op.removeprefix("aten.").removesuffix(".default")
        counts[name] = counts.get(name, 0) + 1
    ordered: Sequence[tuple[str, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return " ".join(name if count == 1 else f"{name}×{count}" for name, count in ordered)


def _first_section(pef: Pef, digest: str) -> int:
    return next((s.id for s in pef.sections if s.kernel == digest), len(pef.sections))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _short_json(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


#: Characters of the longest bar.
_BAR: Final = 24


def describe_memory(pef: Pef) -> dict[str, Any]:
    """Return the plan of each graph's whole schedule, in bytes, ready for JSON."""
    return {
        "lease_bytes": lease_bytes(pef),
        "graphs": {name: _describe(plan_memory(pef, graph)) for name, graph in pef.graphs.items()},
    }


def memory_plan_tables(pef: Pef) -> list[Table]:
    """Return a table for each graph: non-persistent memory during and after each section."""
    return [_table(pef, plan_memory(pef, graph)) for graph in pef.graphs.values()]


def memory_line(pef: Pef, host_bytes: int | None = None) -> str:
    """Return the line that precedes a run: persistent memory, the peak and its section, and the program's own copies.

    Args:
        host_bytes: bytes of the parameters, buffers and states that the program holds on the host; None if unknown.
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
        f"{format_bytes(plan.peak_bytes)} on the host, {format_bytes(plan.device_peak_bytes)} on the device; a lease "
        f"requests {format_bytes(lease_bytes(pef))}"
    )
    return Table(title, ("id", "type", "section", "during", "scratch", "after", ""), rows,
                 frozenset({"id", "during", "scratch", "after"}))  # fmt: skip


def _length(value: int, most: int) -> int:
    return -(-value * _BAR // most) if most else 0
