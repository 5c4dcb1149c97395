"""Records of a profiled program's processes, and the account of their time. Pure.

Each process wrote its sums (``step``) and its calls (``timeline``). Spans of compiles, traces and loads come from the
file that ``telemetry.span_file`` names.

Source: ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.telemetry.model import Span
from rdukit_runtime.profile.step import Breakdown, BreakdownRow
from rdukit_runtime.profile.timeline import CALL_FIELDS, SCHEMA, Line

#: The span of a loaded PEF, which lasts as long as the program's runs and says nothing about a phase.
_DEVICE_SPAN: Final = "device"
#: Factor over the others' median above which a rank's time, without its reduce, is reported.
STRAGGLES: Final = 1.10


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A timed call. ``stack``: the program's lines that led to it, innermost first; None for a call inside another."""

    row: BreakdownRow
    name: str
    begin_ns: int
    end_ns: int
    stack: tuple[Line, ...] | None
    pef: int
    #: (section, ns) in order, of a run.
    sections: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ProcessRecording:
    """The recording of one process. Times are ns of ``CLOCK_MONOTONIC``."""

    pid: int
    rank: int
    started_ns: int
    ended_ns: int
    #: By their begin, an outer call before its inner ones.
    calls: tuple[TimedCall, ...]
    pefs: tuple[Mapping[str, Any], ...]
    #: (time, bytes of the process's resident memory).
    memory: tuple[tuple[int, int], ...]
    #: Calls that were not kept; by (PEF, section) the runs and ns of their sections.
    dropped: int
    dropped_sections: Mapping[tuple[int, int], tuple[int, int]]
    breakdown: Breakdown

    @property
    def wall_ns(self) -> int:
        """The life of the process."""
        return self.ended_ns - self.started_ns

    def section_times(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return (PEF, section) → runs and ns of all its runs, including those that were not kept."""
        found = dict(self.dropped_sections)
        for call in self.calls:
            for section, taken in call.sections:
                runs, total = found.get((call.pef, section), (0, 0))
                found[call.pef, section] = runs + 1, total + taken
        return found


@dataclass(frozen=True, slots=True)
class AccountRow:
    """A share of a process's time: ``part`` is host or section."""

    part: str
    name: str
    nanoseconds: int
    runs: int = 0


def read_recording(value: Mapping[str, Any], breakdown: Breakdown) -> ProcessRecording:
    """Rebuild a recording from the plain values that a process wrote.

    Raises:
        InvalidArgument: a field is missing, or another version wrote it.
    """
    try:
        if value["schema"] != SCHEMA:
            raise InvalidArgument(f"the timeline has schema {value['schema']!r}; expected {SCHEMA}: profile again")
        return ProcessRecording(
            pid=value["pid"], rank=value["rank"], started_ns=value["started_ns"], ended_ns=value["ended_ns"],
            calls=tuple(sorted(_calls_in(value), key=lambda call: (call.begin_ns, -call.end_ns))),
            pefs=tuple(value["pefs"]), memory=tuple(_groups(value["memory"], 2)), dropped=value["dropped"],
            dropped_sections={(pef, number): (runs, ns) for pef, number, runs, ns in value["dropped_sections"]},
            breakdown=breakdown,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError) as cause:
        raise InvalidArgument(f"this file is not a timeline: {cause!r}; profile again") from cause


def _calls_in(value: Mapping[str, Any]) -> Iterator[TimedCall]:
    rows = [BreakdownRow(name) for name in value["rows"]]
    stacks = [tuple((str(file), int(line), str(function)) for file, line, function in s) for s in value["stacks"]]
    pairs = list(zip(*value["sections"], strict=True))
    for row, name, begin, end, stack, pef, first, count in _groups(value["calls"], CALL_FIELDS):
        yield TimedCall(
            rows[row], value["names"][name], begin, end, None if stack < 0 else stacks[stack], pef,
            tuple(pairs[first : first + count]),
        )  # fmt: skip


def _groups(flat: Sequence[int], size: int) -> Iterator[Any]:
    return zip(*[iter(flat)] * size, strict=True)


def monotonic_spans(spans: Sequence[Span], offset_ns: int) -> list[Span]:
    """Return spans on the clock of the recordings, without that of the loaded PEF.

    Args:
        offset_ns: the time since 1970, less ``CLOCK_MONOTONIC``.
    """
    return [
        Span(s.name, s.context, s.parent_id, s.kind, s.start_ns - offset_ns, s.end_ns - offset_ns, s.attributes,
             s.links, s.error)
        for s in spans
        if s.name != _DEVICE_SPAN
    ]  # fmt: skip


def account(recording: ProcessRecording, spans: Sequence[Span] = ()) -> list[AccountRow]:
    """Return the account of a process's life: rows of host and sections that add up to ``wall_ns``.

    Args:
        spans: of this process alone, by which the time before the first run is split.
    """
    sums = recording.breakdown.nanoseconds
    sections = _sections_by_name(recording)
    inside = sum(row.nanoseconds for row in sections)
    first = recording.calls[0].begin_ns if recording.calls else recording.ended_ns
    before = first - recording.started_ns
    rows = [AccountRow("host", name, ns) for name, ns in _phases(spans, first).items()]
    rows.append(AccountRow("host", "before the first run: the rest", before - sum(row.nanoseconds for row in rows)))
    rows += [
        AccountRow("host", "Python: program and session", sums[BreakdownRow.SAMBA]),
        AccountRow("host", "handing runs over", sums[BreakdownRow.PYTHON_TO_C]),
        AccountRow("host", "run set-up", sums[BreakdownRow.RUN_SETUP]),
        AccountRow("host", "run-time scalars", sums[BreakdownRow.ARGINS]),
        AccountRow("host", "transfers", sums[BreakdownRow.XFER]),
        AccountRow("host", "conversions", sums[BreakdownRow.CONV_FUNC]),
        AccountRow("host", "engine, around sections", sums[BreakdownRow.RUN_HW] - inside),
        AccountRow("host", "after the last run", recording.wall_ns - before - sums[BreakdownRow.TOTAL]),
    ]
    return [*rows, *sections]


def _last_end(spans: Sequence[Span]) -> int:
    """Return when the last span ended; 0 without spans."""
    return max((span.end_ns for span in spans), default=0)


def _phases(spans: Sequence[Span], until_ns: int) -> dict[str, int]:
    """Return the outermost spans that ended before ``until_ns``, by name."""
    found: dict[str, int] = {}
    for span in spans:
        if not span.parent_id and span.end_ns <= until_ns:
            found[span.name] = found.get(span.name, 0) + span.end_ns - span.start_ns
    return found


def _sections_by_name(recording: ProcessRecording) -> list[AccountRow]:
    rows = []
    for (pef, number), (runs, taken) in sorted(recording.section_times().items()):
        rows.append(AccountRow("section", recording.pefs[pef]["sections"][number]["name"], taken, runs))
    return rows


def find_straggler(recordings: Sequence[ProcessRecording]) -> tuple[int, float] | None:
    """Return the rank that the others wait for, and its time as a multiple of their median; None: no rank stands out.

    A rank's time is that of a run without its ``reduce`` sections, in which it waits for others.
    """
    if len(recordings) < 2:
        return None
    own = sorted((_own_ns(recording), recording.rank) for recording in recordings)
    others, (slowest_ns, rank) = median(taken for taken, _ in own[:-1]), own[-1]
    ratio = slowest_ns / others if others else 1.0
    return (rank, ratio) if ratio > STRAGGLES else None


def _own_ns(recording: ProcessRecording) -> float:
    waited = sum(
        taken
        for (pef, number), (_, taken) in recording.section_times().items()
        if recording.pefs[pef]["sections"][number]["type"] == "reduce"
    )
    return (recording.breakdown.nanoseconds[BreakdownRow.TOTAL] - waited) / max(recording.breakdown.runs, 1)


def summary_to_dict(
    command: str, status: int, wall_ns: int, recordings: Sequence[ProcessRecording], spans: Sequence[Span]
) -> dict[str, Any]:
    """Return the summary as plain values. Times are ns of this machine, except ``emulated_ns``, which is projected."""
    alone = len(recordings) == 1
    straggler = find_straggler(recordings)
    return {
        "schema": SCHEMA,
        "command": command,
        "exit_status": status,
        "wall_ns": wall_ns,
        "spans": [{"name": name, "ns": taken} for name, taken in _phases(spans, _last_end(spans)).items()],
        "straggler": None if straggler is None else {"rank": straggler[0], "times_the_others": straggler[1]},
        "processes": [
            {
                "pid": each.pid,
                "rank": each.rank,
                "wall_ns": each.wall_ns,
                "runs": each.breakdown.runs,
                "calls_kept": len(each.calls),
                "calls_not_kept": each.dropped,
                "account": [
                    {"part": row.part, "name": row.name, "ns": row.nanoseconds}
                    for row in account(each, spans if alone else ())
                ],
                "sections": [
                    _section_to_dict(each.pefs[pef], number, runs, taken)
                    for (pef, number), (runs, taken) in sorted(each.section_times().items())
                ],
            }
            for each in recordings
        ],
    }  # fmt: skip


def _section_to_dict(pef: Mapping[str, Any], number: int, runs: int, taken_ns: int) -> dict[str, Any]:
    section = pef["sections"][number]
    shown = {key: section[key] for key in _SHOWN}
    return {
        **shown,
        "pef": pef["name"],
        "runs": runs,
        "host_ns": taken_ns,
        "emulated_ns": runs * section["emulated_ns"],
    }


#: Fields of a section in the summary.
_SHOWN: Final = ("id", "name", "type", "graph", "kernel", "form", "flops", "bytes")
