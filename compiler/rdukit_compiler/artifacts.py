"""What lies beside a PEF: the mapper's log, resources and utilization by section, and a list of it all. Pure.

Names are the vendor's (compiler reference 1.7, SDK reference 21); contents are ours, since those are not public.
All figures are projections for the emulated chip.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rdukit.hardware import ChipSpec
from rdukit.pef.model import Section


def artifact_files(name: str, sections: Sequence[Section], chip: ChipSpec) -> dict[str, bytes]:
    """Paths relative to the PEF's folder → contents, for the PEF called ``name``."""
    found = {
        f"{name}.mac.log": mapper_log(sections, chip),
        "mac_gen/mac_resources.json": resources_json(sections, chip),
        **{f"{name}.s{s.id}.utilization_report.txt": utilization_report(s, chip) for s in sections},
    }
    listed = sorted([*found, f"{name}.pef", f"{name}.samba.log", f"{name}.configs", f"{name}.sections.txt"])
    found[f"{name}_artifacts_list.txt"] = "".join(path + "\n" for path in listed)
    return {path: text.encode() for path, text in found.items()}


def mapper_log(sections: Sequence[Section], chip: ChipSpec) -> str:
    """One line a decision: what each section holds, who decided, what it takes, and that its partition compiled."""
    lines = ["[info    ]: Legalizing node resources..."]
    for s in sections:
        used = s.resources
        lines.append(
            f"[info    ]: section {s.id} {s.name} type={s.type} rule={s.rule or '-'} heuristic={s.heuristic} "
            f"pcus={used.pcus}/{used.tiles * chip.pcus_per_tile} pmus={used.pmus}/{used.tiles * chip.pmus_per_tile} "
            f"projected={s.cost.seconds:.3e} s: {s.why}"
        )
    lines += [f"[info    ]: Compilation succeeded for partition_{s.id}_0_" for s in sections]
    return "".join(line + "\n" for line in (*lines, "[info    ]: Mac Compilation succeeded."))


def resources_json(sections: Iterable[Section], chip: ChipSpec) -> str:
    """Resources and projected cost of every section."""
    rows = [
        {
            "section_id": s.id, "name": s.name, "type": s.type.value, "operators": list(s.operators), "rule": s.rule,
            "heuristic": s.heuristic, "resources": asdict(s.resources), "projected": asdict(s.cost),
        }
        for s in sections
    ]  # fmt: skip
    tile = {"pcus": chip.pcus_per_tile, "pmus": chip.pmus_per_tile, "pmu_bytes": chip.pmu_bytes}
    return json.dumps({"arch": chip.name, "tile": tile, "sections": rows}, indent=1) + "\n"


def utilization_report(section: Section, chip: ChipSpec) -> str:
    """Units of one section, used and available, with percentages."""
    used = section.resources
    rows = (
        ("tiles", used.tiles, chip.tiles),
        ("PCU", used.pcus, used.tiles * chip.pcus_per_tile),
        ("PMU", used.pmus, used.tiles * chip.pmus_per_tile),
        ("SRAM bytes", used.sram_bytes, used.tiles * chip.pmus_per_tile * chip.pmu_bytes),
    )
    lines = [f"partition_{section.id}_0_  section {section.name}  {section.type}  {chip.name}  (projected)"]
    lines.append(f"{'unit':<12}{'used':>14}{'available':>14}{'utilization':>13}")
    lines += [f"{unit:<12}{taken:>14}{have:>14}{100 * taken / max(have, 1):>12.1f}%" for unit, taken, have in rows]
    return "".join(line + "\n" for line in lines)
