"""What was measured of a run, as plain values."""

from collections.abc import Sequence
from typing import Any

from rdukit.pef.model import Pef


def runtime_profile(pef: Pef, measured: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Totals per section of ``measured``: (section id, host seconds) of each time that a section ran."""
    host: dict[int, float] = {}
    runs: dict[int, int] = {}
    for section, seconds in measured:
        host[section] = host.get(section, 0.0) + seconds
        runs[section] = runs.get(section, 0) + 1
    sections = [
        {
            "id": number,
            "name": pef.sections[number].name,
            "type": pef.sections[number].type.value,
            "runs": runs[number],
            "emulated_seconds": pef.sections[number].cost.seconds * runs[number],
            "host_seconds": host[number],
        }
        for number in sorted(runs)
    ]
    return {
        "pef": pef.name,
        "arch": pef.arch,
        "sections": sections,
        "emulated_seconds": sum(float(pef.sections[n].cost.seconds) * runs[n] for n in runs),
        "host_seconds": sum(host.values()),
    }
