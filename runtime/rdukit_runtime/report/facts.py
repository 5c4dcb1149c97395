"""Facts that the page of a profile judges: the program's time by row, and each section next to its limits. Pure.

All times are ns of this machine, summed over the program's runs, unless a name says otherwise.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdukit.pef.model import SectionType
from rdukit_runtime.engine.machine_limits import MachineLimits
from rdukit_runtime.profile.pef import Bound, SectionWork, limits_of
from rdukit_runtime.profile.recording import ProcessRecording
from rdukit_runtime.profile.step import Breakdown, BreakdownRow
from rdukit_runtime.profile.timeline import Line


@dataclass(frozen=True, slots=True)
class SectionFacts:
    """A section's runs. ``limit_ns``: least possible time on the machine; None: the PEF cannot be read.

    ``weight_share``: share of weights in its bytes; their time does not grow with the batch.
    """

    pef: int
    id: int
    name: str
    type: str
    graph: str
    form: str
    kernel: str
    rule: str
    runs: int
    host_ns: int
    emulated_ns: int
    flops: int
    bytes: int
    operators: int
    dtype: str = ""
    bound: Bound | None = None
    limit_ns: int | None = None
    weight_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The facts of one process."""

    breakdown: Breakdown
    wall_ns: int
    sections: tuple[SectionFacts, ...]
    #: Compile, trace and load, and their times.
    phases: Mapping[str, int]
    #: Reading outputs.
    reads_ns: int
    #: The program's own Python, outside all calls of the session; the rest of the row ``SAMBA`` is the session's.
    program_ns: int
    limits: MachineLimits | None
    batch: int | None
    mode: str
    precision: str
    #: The line of Python that most time was spent in calls of.
    line: Line | None
    #: Transfers and conversions.
    copies: int = 0

    @property
    def calm_limits(self) -> MachineLimits | None:
        """The machine's limits, for advice; None if other programs may have lowered them."""
        return None if self.limits is None or self.limits.is_disturbed else self.limits

    @property
    def total_ns(self) -> int:
        """Time from the first run to the end of the last."""
        return self.breakdown.nanoseconds[BreakdownRow.TOTAL]

    @property
    def sections_ns(self) -> int:
        """Time of all sections."""
        return sum(section.host_ns for section in self.sections)

    @property
    def host_percent(self) -> float:
        """Percentage of the time outside the sections, from the first run to the last."""
        return 100.0 * max(self.total_ns - self.sections_ns, 0) / self.total_ns if self.total_ns else 0.0

    @property
    def memory_percent(self) -> float:
        """Percentage of the sections' time that is in sections bound by memory."""
        bound = sum(section.host_ns for section in self.sections if section.bound is Bound.MEMORY)
        return 100.0 * bound / self.sections_ns if self.sections_ns else 0.0

    @property
    def longest(self) -> SectionFacts | None:
        """The section that takes longest; None if none ran."""
        return max(self.sections, key=lambda section: section.host_ns, default=None)

    @property
    def longest_percent(self) -> float:
        """Percentage of the sections' time that the longest takes."""
        longest = self.longest
        return 100.0 * longest.host_ns / self.sections_ns if longest and self.sections_ns else 0.0


def section_facts(
    recording: ProcessRecording, works: Mapping[int, Mapping[int, SectionWork]], limits: MachineLimits | None
) -> tuple[SectionFacts, ...]:
    """Return the sections that ran, the longest first.

    Args:
        works: PEF → section → its work, of the PEFs that could be read.
    """
    found = []
    for (pef, number), (runs, taken) in recording.section_times().items():
        section = recording.pefs[pef]["sections"][number]
        work = works.get(pef, {}).get(number)
        bound, limit_ns = None, None
        if work is not None and limits is not None:
            _, limit_s, bound = limits_of(work, limits)
            limit_ns = round(limit_s * 1e9 * runs)
        found.append(
            SectionFacts(
                pef, number, section["name"], section["type"], section["graph"], section["form"], section["kernel"],
                section["rule"] or "", runs, taken, runs * section["emulated_ns"], runs * section["flops"],
                runs * section["bytes"], work.operators if work else len(section["operators"]),
                work.dtype if work else "", bound, limit_ns, _weight_share(work),
            )
        )  # fmt: skip
    return tuple(sorted(found, key=lambda each: -each.host_ns))


def _weight_share(work: SectionWork | None) -> float:
    if work is None or work.section.type is not SectionType.FWD:  # gradients of weights are written, and grow in others
        return 0.0
    cost = work.section.cost
    moved = cost.bytes_in + cost.bytes_weights + cost.bytes_out
    return cost.bytes_weights / moved if moved else 0.0


def line_times(recording: ProcessRecording) -> list[tuple[Line, int, int]]:
    """Return the program's lines that calls were made from, with their calls and ns, the longest first.

    A call counts for the innermost line of the program.
    """
    sums: dict[Line, tuple[int, int]] = {}
    for call in recording.calls:
        if call.stack:
            calls, taken = sums.get(call.stack[0], (0, 0))
            sums[call.stack[0]] = (calls + 1, taken + call.end_ns - call.begin_ns)
    return sorted(((line, *total) for line, total in sums.items()), key=lambda row: -row[2])


def reading_ns(recording: ProcessRecording) -> int:
    """Return the time of reading outputs and gradients, without their conversion."""
    return sum(
        call.end_ns - call.begin_ns
        for call in recording.calls
        if call.row is BreakdownRow.XFER and call.name in {"read", "gradient"}
    )


def count_copies(recording: ProcessRecording) -> int:
    """Return the number of transfers and conversions."""
    return sum(call.row in {BreakdownRow.XFER, BreakdownRow.CONV_FUNC} for call in recording.calls)


def program_python_ns(recording: ProcessRecording) -> int:
    """Return the time outside all recorded calls, from the first run to the last; at most the row ``SAMBA``."""
    sums = recording.breakdown.nanoseconds
    called = sum(call.end_ns - call.begin_ns for call in recording.calls if call.stack is not None)
    return min(max(sums[BreakdownRow.TOTAL] - called, 0), sums[BreakdownRow.SAMBA])


def option_of(pefs: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return an option from the first PEF's metadata."""
    return str(pefs[0].get(name, "")) if pefs else ""
