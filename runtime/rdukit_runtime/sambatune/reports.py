"""Reports of ``sambatune``: rows of sections and stages, the host-device breakdown and what follows from it. Pure.

Names of files and of the columns' subjects are the vendor's. Each time names its clock: ``projected`` figures are the
cost model's for the emulated chip; ``host`` figures are measured on this machine. There are no others: the vendor's
*measured* columns are measured on the chip.

Source: sambatune reference 1.5, compiler reference 10.5 and 10.7; the thresholds of the verdicts are ours.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rdukit.hardware import find_chip
from rdukit.pef.explain import find_bound
from rdukit.pef.model import Pef, Section
from rdukit_runtime.profile.step import Breakdown, BreakdownRow

Row = dict[str, Any]

#: Percent of host time up to which a program is bound by the RDU, and up to which it is moderately host bound.
RDU_BOUND: Final = 5.0
MODERATE: Final = 20.0
_TOP: Final = 3
#: Rows of the breakdown that are the host's, and where to look next.
_NEXT: Final[Mapping[BreakdownRow, str]] = {
    BreakdownRow.SAMBA: "data loading and the loop's Python: open the stack trace, and look between runs",
    BreakdownRow.PYTHON_TO_C: "many short runs: use larger batches, or fewer runs per step",
    BreakdownRow.RUN_SETUP: "sections are selected again in each run: call run with the same sections each time",
    BreakdownRow.XFER: "copies between host and device: read fewer outputs, or less often",
    BreakdownRow.ARGINS: "run-time scalars: pass the same hyperparameters object",
    BreakdownRow.CONV_FUNC: "conversions: give inputs the PEF's dtype",
}


def section_rows(pef: Pef, batch: int | None, host_ns: Mapping[int, tuple[int, int]]) -> list[Row]:
    """Return a row a section.

    Args:
        batch: samples a step, for throughput; None: unknown.
        host_ns: section → runs and ns on this machine; sections that did not run have no host columns.
    """
    chip = find_chip(pef.arch)
    rows = []
    for section in pef.sections:
        cost, used = section.cost, section.resources
        seconds, (runs, taken) = cost.seconds or 1.0, host_ns.get(section.id, (0, 0))
        read, written = cost.bytes_in + cost.bytes_weights, cost.bytes_out
        pcus, pmus = used.tiles * chip.pcus_per_tile, used.tiles * chip.pmus_per_tile
        host_s = taken / runs / 1e9 if runs else None
        rows.append(
            {
                "section_id": section.id,
                "section_name": section.name,
                "chip_id": 0,
                "partition_id": f"{section.id}_0",
                "section_type": section.type.value,
                "projected_throughput_samples_s": batch / seconds if batch else None,
                "projected_latency_cycles": cost.cycles,
                "projected_latency_s": cost.seconds,
                "projected_ddr_read_gb_s": read / seconds / 1e9,
                "projected_ddr_write_gb_s": written / seconds / 1e9,
                "projected_ddr_total_gb_s": (read + written) / seconds / 1e9,
                "pmu_count": used.pmus,
                "pmu_utilization": used.pmus / pmus if pmus else 0.0,
                "pcu_count": used.pcus,
                "pcu_utilization": used.pcus / pcus if pcus else 0.0,
                "bound_by": find_bound(section),
                "host_latency_s": host_s,
                "host_throughput_samples_s": batch / host_s if batch and host_s else None,
            }
        )
    return rows


def stage_rows(stages: Mapping[str, Any], counters: Sequence[str] = ()) -> list[Row]:
    """Return a row per stage: the projected time of each operator in a section's pipeline for a batch.

    The cost model has no buffers, so no row has the stage id -1, and the vendor's related stages are left out.

    Args:
        stages: content of a compile's ``mac_gen/stages.json``.
        counters: chosen ``COUNTERS``; empty: only the latency.
    """
    rows = []
    clock, mac = stages["clock_hz"], 0
    for section in stages["sections"]:
        slowest = max((stage["cycles"] for stage in section["stages"]), default=0)
        for depth, stage in enumerate(section["stages"]):
            share = stage["cycles"] / slowest if slowest else 0.0
            row = {
                "section_id": section["section_id"],
                "mac_id": mac,
                "stage_depth": depth,
                "stage_id": depth,
                "template_names": stage["operator"],
                "projected_latency_cycles": stage["cycles"],
                "projected_latency_s": stage["cycles"] / clock,
                "slowdown_factor": share,
                "stall": 1.0 - share,
                "pcus": stage["pcus"],
            }
            row |= {name: COUNTERS[name](stage, slowest) for name in counters}
            rows.append(row)
            mac += 1
    return rows


#: Counters of instrumented compiles: values of ``--stage-instrumentation``, and read stalls.
COUNTERS: Final[Mapping[str, Any]] = {
    "metapipe_stage_cycles": lambda stage, slowest: stage["cycles"],
    "metapipe_buf_cycles": lambda stage, slowest: stage["memory_cycles"],
    "read_stall_cycles": lambda stage, slowest: slowest - stage["cycles"],
}


def host_share(breakdown: Breakdown) -> float:
    """Return the percentage of the time in which the device does not compute."""
    return 100.0 - breakdown.percentage(BreakdownRow.RUN_HW) if breakdown.nanoseconds[BreakdownRow.TOTAL] else 0.0


def verdict_of(host_percent: float) -> str:
    """Return what bounds the program, by the host's share."""
    if host_percent <= RDU_BOUND:
        return "RDU bound: see the section report"
    if host_percent <= MODERATE:
        return "mildly to moderately Host bound: see the host latency profile"
    return "could be Host bound: see the host latency profile"


def insights(pef: Pef, breakdown: Breakdown | None, stages: Sequence[Row]) -> Row:
    """Return the performance insights: ``Overview`` and ``Host`` as measured here, ``RDU`` as projected."""
    found: Row = {"Overview": "no host-device breakdown: the step snprof failed", "Host": []}
    if breakdown is not None:
        host = host_share(breakdown)
        found["Overview"] = {
            "host_percent": round(host, 2),
            "rdu_percent": round(100.0 - host, 2),
            "verdict": verdict_of(host),
            "clock": "measured on this machine, which also emulates the RDU",
        }
        longest = sorted(_NEXT, key=lambda row: -breakdown.nanoseconds[row])[:_TOP]
        found["Host"] = [
            {"process": str(row), "percent": round(breakdown.percentage(row), 2), "next": _NEXT[row]} for row in longest
        ]
    found["RDU"] = _rdu_insights(pef, stages)
    return found


def _rdu_insights(pef: Pef, stages: Sequence[Row]) -> list[Row]:
    step = {number for graph in pef.main_graphs() for number in graph.schedule}
    sections = [section for section in pef.sections if section.id in step]
    total = sum(section.cost.seconds for section in sections) or 1.0
    return [_section_insight(s, total, stages) for s in sorted(sections, key=lambda s: -s.cost.seconds)[:_TOP]]


def _section_insight(section: Section, total_s: float, stages: Sequence[Row]) -> Row:
    cost = section.cost
    moved = (cost.bytes_in + cost.bytes_weights + cost.bytes_out) / (cost.seconds or 1.0) / 1e9
    own = sorted((s for s in stages if s["section_id"] == section.id), key=lambda s: -s["projected_latency_cycles"])
    return {
        "section": (
            f"chip 0, section {section.id} ({section.name}) takes {100 * cost.seconds / total_s:.1f} % of the "
            f"projected step, DDR {moved:.2f} GB/s"
        ),
        "Analysis": f"bound by {find_bound(section)}; {section.why}",
        "Top 3 stages": [
            f"stage {s['stage_id']}: {s['template_names']}, {s['projected_latency_cycles']} cycles (projected)"
            for s in own[:_TOP]
        ],
    }


def unified(sections: Sequence[Row], stages: Sequence[Row], breakdown: Sequence[Row]) -> Row:
    """Return the reports as one document. Those of the vendor's parts that the emulated chip has."""
    return {
        "stage_latency": list(stages),
        "measure_sections": list(sections),
        "host_device_breakdown": list(breakdown),
        "not_available": ["stage_latency_w_stalls of hardware", "pmu_bandwidth", "tlir", "prism_stages"],
    }
