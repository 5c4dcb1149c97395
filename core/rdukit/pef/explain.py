"""Explanations of sections: which rule or heuristic decided, what they occupy, and what bounds their time. Pure.

All values come from the compile's record. Times are the cost model's, never measured.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from rdukit.cli.tables import Table
from rdukit.collectives.projection import default_machine, project_reduce, rank_tiles, reduce_sections
from rdukit.collectives.topology import make_machine
from rdukit.errors import InvalidArgument, NotFound
from rdukit.hardware import find_chip
from rdukit.pef.model import Pef, Section
from rdukit.pef.units import KERNEL_CHECK
from rdukit.units import format_bytes, format_count, format_seconds

#: Term of the projected time → its name. The time is the longest term plus the launch.
BOUNDS: Final = {
    "compute_s": "compute", "memory_s": "device memory", "peer_s": "links to other RDUs", "host_s": "host link (IO)",
}  # fmt: skip


def find_sections(pef: Pef, section: str | None, operator: str | None) -> list[Section]:
    """Find sections by id or name, or by a part of an operator's name; all sections if neither is given.

    Raises:
        NotFound: there is none; the message has similar names.
    """
    found = list(pef.sections)
    if section is not None:
        found = [s for s in found if section in {str(s.id), s.name}]
        if not found:
            raise NotFound(
                f"the PEF has no section {section!r}; expected 0 to {len(pef.sections) - 1}, or a name such as "
                f"{', '.join(s.name for s in pef.sections[:4])}"
            )
    if operator is not None:
        exact = [s for s in found if operator in s.operators]
        found = exact or [s for s in found if any(operator in name for name in s.operators)]
        if not found:
            names = [name for s in pef.sections for name in s.operators]
            raise NotFound(f"no section has an operator {operator!r}; expected a name such as {', '.join(names[:4])}")
    return found


def find_bound(section: Section) -> str:
    """Return the bound of the section's projected time: compute, device memory, a link, or its launch."""
    terms = {name: getattr(section.cost, name) for name in BOUNDS}
    longest = max(terms, key=lambda name: terms[name])
    if terms[longest] < section.cost.launch_s:
        return "launch"
    return BOUNDS[longest] if terms[longest] else "not recorded"


def explain_section(pef: Pef, section: Section) -> dict[str, Any]:
    """Return all facts about a section's placement, ready for JSON. Bytes, seconds, units."""
    chip = find_chip(pef.arch)
    used, cost = section.resources, section.cost
    pmus = used.tiles * chip.pmus_per_tile
    return {
        "id": section.id,
        "name": section.name,
        "type": section.type.value,
        "graph": section.graph,
        **({"chips": list(pef.chips.sections[section.id])} if pef.chips is not None else {}),
        "operators": list(section.operators),
        "decided_by": {"rule": section.rule, "heuristic": section.heuristic, "mode": pef.mode},
        "why": section.why,
        "decisions": dict(section.decisions),
        "kernel_check": pef.metadata.get(KERNEL_CHECK, {}).get(section.kernel),
        "resources": {
            "tiles": {"used": used.tiles, "available": pef.num_tiles},
            "pcus": {"used": used.pcus, "available": used.tiles * chip.pcus_per_tile},
            "pmus": {"used": used.pmus, "available": pmus},
            "sram_bytes": {"used": used.sram_bytes, "available": pmus * chip.pmu_bytes},
        },
        "projected": {
            "seconds": cost.seconds,
            "cycles": cost.cycles,
            "bound": find_bound(section),
            "terms_s": {**{BOUNDS[name]: getattr(cost, name) for name in BOUNDS}, "launch": cost.launch_s},
            "flops": cost.flops,
            "bytes_in": cost.bytes_in,
            "bytes_out": cost.bytes_out,
            "bytes_weights": cost.bytes_weights,
        },
    }


def explain_reduce(pef: Pef, ranks: int | None, topology: str | None) -> dict[str, Any]:
    """Return the projected reduce among ``ranks`` ranks under the key ``reduce``; empty if ``ranks`` is None.

    Raises:
        InvalidArgument: a topology without ranks, ranks that do not fit it, or a PEF without a reduce.
    """
    if ranks is None:
        if topology is not None:
            raise InvalidArgument("--topology has no effect without --ranks; give both")
        return {}
    chip = find_chip(pef.arch)
    tiles = rank_tiles(chip, pef.num_tiles)
    machine = make_machine(topology, tiles) if topology else default_machine(chip, tiles, ranks)
    found = project_reduce(reduce_sections(pef), machine, ranks)
    return {
        "reduce": {
            "ranks": ranks,
            "topology": machine.name,
            "figures": machine.figures,
            "bytes": found.plan.size,
            "algorithm": found.algorithm,
            "why": found.plan.why,
            "projected": {
                "seconds": found.seconds,
                "links_s": found.plan.terms.seconds,
                "memory_s": found.memory_s,
                "launch_s": found.launch_s,
            },
        }
    }


def reduce_table(reduce: dict[str, Any]) -> Table:
    """Return the result of ``explain_reduce`` as a table."""
    projected = reduce["projected"]
    rows = (
        ("gradients", format_bytes(reduce["bytes"])),
        ("algorithm", reduce["algorithm"]),
        ("why", reduce["why"]),
        ("links", format_seconds(projected["links_s"])),
        ("device memory", format_seconds(projected["memory_s"])),
        ("together", f"{format_seconds(projected['seconds'])} with the launch"),
        ("figures", reduce["figures"]),
    )
    return Table(f"Reduce among {reduce['ranks']} ranks on {reduce['topology']} (projected)", ("", ""), rows)


def section_tables(pef: Pef, section: Section) -> list[Table]:
    """Return the explanation of one section as tables."""
    found = explain_section(pef, section)
    decided = found["decided_by"]
    origin = f"rule {decided['rule']}" if decided["rule"] else f"mode {decided['mode']}, no rule"
    rows = [
        ("operators", " ".join(section.operators) or "-"),
        ("decided by", f"{origin}; heuristic {decided['heuristic']}"),
        ("why", section.why),
        *_decision_rows(found["decisions"]),
        *([("native kernel", found["kernel_check"])] if found["kernel_check"] else []),
    ]
    resources = tuple(
        (
            {"pcus": "PCU", "pmus": "PMU", "sram_bytes": "SRAM"}.get(name, name),
            *(format_bytes(n) if "bytes" in name else str(n) for n in (value["used"], value["available"])),
            f"{100 * value['used'] / value['available']:.0f} %" if value["available"] else "-",
        )
        for name, value in found["resources"].items()
    )
    projected = found["projected"]
    bound = projected["bound"]
    times = [
        (name, format_seconds(seconds), "<- bound" if name == bound else "")
        for name, seconds in projected["terms_s"].items()
    ]
    times.append(("together", format_seconds(projected["seconds"]), f"{format_count(projected['cycles'])} cycles"))
    moved = (
        f"{format_bytes(projected['bytes_in'])} read, {format_bytes(projected['bytes_weights'])} of weights, "
        f"{format_bytes(projected['bytes_out'])} written; {format_count(projected['flops'])} flop"
    )
    return [
        Table(f"Section {section.id} {section.name} ({section.type.value}, graph {section.graph})", ("", ""),
              tuple(rows)),
        Table("Resources", ("unit", "used", "available", "part"), resources, frozenset({"used", "available", "part"})),
        Table(f"Projected time ({moved})", ("term", "time", ""), tuple(times), frozenset({"time"})),
    ]  # fmt: skip


def bounds_table(pef: Pef, sections: Sequence[Section]) -> Table:
    """Return a table with a row for each section: the rule or heuristic that decided, and its bound."""
    rows = tuple(
        (
            str(s.id), s.type.value, s.name, s.rule or "-", s.heuristic, find_bound(s), format_seconds(s.cost.seconds),
            s.why,
        )
        for s in sections
    )  # fmt: skip
    columns = ("id", "type", "section", "rule", "heuristic", "bound by", "projected", "why")
    return Table(f"Decisions behind the sections of {pef.name}", columns, rows, frozenset({"id", "projected"}))


def _decision_rows(decisions: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row for each decision; a mapping by operator gives a row for each operator."""
    rows: list[tuple[str, str]] = []
    for key, value in decisions.items():
        name = key.replace("_", " ")
        if isinstance(value, dict):
            for operator, chosen in value.items():
                text = (
                    ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in chosen.items())
                    if isinstance(chosen, dict)
                    else str(chosen)
                )
                rows.append((f"{name} of {operator}", text))
        elif "bytes" in name and isinstance(value, int):
            rows.append((name, format_bytes(value)))
        else:
            rows.append((name, value if isinstance(value, str) else json.dumps(value)))
    return rows
