"""The calmer half of a program's runs: what advice and trials are based on. Pure.

On a busy machine other programs interrupt some runs for much longer than the runs take. Ten consecutive runs form a
group, so that work at every tenth run is included; groups slower than the median are left out.

Source: ours.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from rdukit_runtime.profile.recording import ProcessRecording, TimedCall
from rdukit_runtime.profile.step import Breakdown, BreakdownRow
from rdukit_runtime.report.facts import ProgramFacts

#: Runs of a group, and the groups from which on some are left out.
GROUP: Final = 10
LEAST_GROUPS: Final = 4


def run_groups(recording: ProcessRecording) -> list[tuple[int, int]]:
    """Return begin and end in ns of groups of runs, each with the host's work up to the next run.

    The first run is in no group: it also loads libraries and binds memory. Empty if the recording has too few runs.
    """
    begins = [call.begin_ns for call in recording.calls if call.row is BreakdownRow.SAMBA][1:]
    borders = begins[::GROUP]
    return list(pairwise(borders))


def calm_part(recording: ProcessRecording) -> ProcessRecording:
    """Return a recording of only the calmer half of the groups; all of it if there are fewer than four groups."""
    groups = run_groups(recording)
    if len(groups) < LEAST_GROUPS:
        return recording
    kept = sorted(sorted(groups, key=lambda group: group[1] - group[0])[: (len(groups) + 1) // 2])
    begins = [begin for begin, _ in kept]
    calls = []
    for call in recording.calls:
        place = bisect_right(begins, call.begin_ns) - 1
        if place >= 0 and call.begin_ns < kept[place][1]:
            calls.append(call)
    own = _own_times(calls)
    total = sum(end - begin for begin, end in kept)
    rows = {row: own.get(row, 0) for row in BreakdownRow}
    rest = sum(rows[row] for row in BreakdownRow if row not in {BreakdownRow.TOTAL, BreakdownRow.SAMBA})
    rows |= {BreakdownRow.TOTAL: total, BreakdownRow.SAMBA: max(total - rest, 0)}
    breakdown = Breakdown(rows, len(kept) * GROUP, 1)
    return replace(recording, calls=tuple(calls), breakdown=breakdown, dropped=0, dropped_sections={})


def _own_times(calls: list[TimedCall]) -> dict[BreakdownRow, int]:
    """Return ns by row, each call without the calls inside it."""
    sums: dict[BreakdownRow, int] = {}
    around: list[TimedCall] = []
    for call in calls:
        taken = call.end_ns - call.begin_ns
        while around and around[-1].end_ns <= call.begin_ns:
            around.pop()
        if around:
            sums[around[-1].row] = sums.get(around[-1].row, 0) - taken
        sums[call.row] = sums.get(call.row, 0) + taken
        around.append(call)
    return sums


def at_calm_pace(facts: ProgramFacts, calm: ProgramFacts) -> ProgramFacts:
    """Return the facts of all runs at the pace of the calm ones.

    Args:
        calm: facts of ``calm_part``: breakdown, sections, copies, and times of reading and of the program's Python.
    """
    scale = facts.breakdown.runs / max(calm.breakdown.runs, 1)
    rows: Mapping[BreakdownRow, int] = {row: round(taken * scale) for row, taken in calm.breakdown.nanoseconds.items()}
    sections = tuple(
        replace(
            each, runs=round(each.runs * scale), host_ns=round(each.host_ns * scale),
            limit_ns=None if each.limit_ns is None else round(each.limit_ns * scale),
        )
        for each in calm.sections
    )  # fmt: skip
    return replace(
        facts, breakdown=Breakdown(rows, facts.breakdown.runs, 1), sections=sections,
        reads_ns=round(calm.reads_ns * scale), program_ns=round(calm.program_ns * scale),
        copies=round(calm.copies * scale),
    )  # fmt: skip
