"""Reports of a profile: tables for people, and the trace that Perfetto and Chrome's ``about:tracing`` show. Pure.

Headings of tables distinguish figures measured here and projected ones. A trace has tracks of events, each with its
clock.

Source: ours; the trace is the Trace Event Format's JSON object form, complete events (``X``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rdukit.cli.tables import Table
from rdukit.units import format_bytes, format_count, format_seconds
from rdukit_runtime.engine.machine_limits import MachineLimits
from rdukit_runtime.profile.operators import OperatorRow
from rdukit_runtime.profile.pef import Profile, SectionRow, exceeds_gemm_limit, group_rows

MAX_OPERATORS: Final = 20
_COLUMNS: Final = (
    "id", "type", "section", "kernel", "calls", "host time", "share", "emulated time", "flop", "bytes", "GFLOP/s",
    "GB/s", "dtype", "of limit", "bound by",
)  # fmt: skip


def profile_tables(profile: Profile, shows_all: bool) -> list[Table]:
    """Machine, sections, totals. Sections of one kernel share a row unless ``shows_all``."""
    rows = profile.rows if shows_all else group_rows(profile.rows)
    return [machine_table(profile.limits), sections_table(profile, rows), totals_table(profile)]


def machine_table(limits: MachineLimits) -> Table:
    """Return the limits for comparison with sections."""
    gemm = ", ".join(f"{dtype} {_three(speed)}" for dtype, speed in limits.gemm.items())
    rows = (
        ("processor", f"{limits.processor}, {limits.threads} thread{'s' * (limits.threads != 1)}"),
        ("memory", f"read {_three(limits.read_gb_s)}, copy {_three(limits.copy_gb_s)} GB/s"),
        ("GEMM", f"{gemm} GFLOP/s"),
        ("operator call", format_seconds(limits.operator_s)),
    )
    title = "Limits of this machine (measured)"
    if limits.is_disturbed:
        title += f", perhaps too low, because other programs used {limits.others_share:.0%} of the processors"
    return Table(title, ("", ""), rows)


def sections_table(profile: Profile, rows: Sequence[SectionRow]) -> Table:
    """Return one line per row, figures of one step, and the time of a step outside its sections."""
    lines = [
        (
            str(row.first.id), row.first.type.value, row.name, row.form, str(row.sections),
            format_seconds(row.measured_s), _percent(profile.share(row)), format_seconds(row.projected_s),
            format_count(row.flops), format_bytes(row.bytes), _three(row.gflop_s), _three(row.gb_s), row.dtype,
            _percent(row.limit_share), row.bound.value,
        )
        for row in rows
    ]  # fmt: skip
    outside = profile.outside_s / profile.measured_s if profile.measured_s else 0.0
    blank = [""] * len(_COLUMNS)
    blank[2], blank[5], blank[6] = "(outside sections)", format_seconds(profile.outside_s), _percent(outside)
    title = (
        f"Sections of {profile.pef}, one step: host time and speeds are measured here (median of {profile.runs} runs); "
        f"the cost model for {profile.arch} projects emulated time, flop and bytes"
    )
    text = frozenset({"type", "section", "kernel", "dtype", "bound by"})
    return Table(title, _COLUMNS, (*lines, tuple(blank)), frozenset(_COLUMNS) - text)


def totals_table(profile: Profile) -> Table:
    """Return the times of one step, by both clocks."""
    flops = sum(row.flops for row in profile.rows)
    moved = sum(row.bytes for row in profile.rows)
    limit_s = sum(row.limit_s for row in profile.rows)
    host_s = profile.measured_s
    rows = [
        ("host time (measured)", format_seconds(host_s)),
        ("emulated time (projected)", f"{format_seconds(profile.projected_s)} on {profile.arch}"),
        ("work (cost model)", f"{format_count(flops)} flop, {format_bytes(moved)}"),
        ("speed (measured)", f"{_three(flops / host_s / 1e9)} GFLOP/s, {_three(moved / host_s / 1e9)} GB/s"),
        ("all sections at their limit", f"{format_seconds(limit_s)}, {_percent(limit_s / host_s)} of the host time"),
    ]
    if any(row.is_beyond for row in profile.rows):
        reason = "the data were in the processor's caches, or fewer bytes moved than the cost model counts"
        rows.append(("above 100 % of limit", reason))
    if exceeds_gemm_limit(profile.rows):
        advice = "the GEMM limit was measured while the machine was busy: measure again with --measure-limits"
        rows.append(("limits are too low", advice))
    return Table("Totals of one step", ("", ""), tuple(rows))


def operators_table(rows: Sequence[OperatorRow], most: int = MAX_OPERATORS) -> Table:
    """Return the longest of them."""
    columns = ("section", "operator", "operands", "calls", "host time", "share")
    lines = tuple(
        (row.section, row.operator, row.shapes, f"{row.calls:g}", format_seconds(row.host_s), _percent(row.share))
        for row in rows[:most]
    )
    count = f"{len(lines)} of {len(rows)}, the longest first"
    title = f"Operators of one step, as generated ATen code, timed one by one (measured): {count}"
    return Table(title, columns, lines, frozenset({"calls", "host time", "share"}))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _three(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


HOST_TRACK: Final = "host sections (measured)"
RDU_TRACK: Final = "RDU sections (projected)"
#: A track is a thread of a process; the two clocks are two processes, so that they are not mixed up.
_HOST_PROCESS: Final = "host: measured on this machine"
_RDU_PROCESS: Final = "emulated RDU: projected by the cost model, on its own clock"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """An event of ``duration_s`` from ``start_s`` on its track's clock; ``values`` are shown with it."""

    name: str
    category: str
    start_s: float
    duration_s: float
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceTrack:
    """Events in order; each begins after the end of the previous one."""

    process: str
    name: str
    events: tuple[TraceEvent, ...]


def trace_profile(profile: Profile) -> dict[str, Any]:
    """Return the last run: its sections on the host's track, one after the other, and on the emulated chip's.

    Time between two sections is not recorded: on the host's track each begins at the end of the previous one.
    """
    sections = [profile.sections[number] for number, _ in profile.last_run]
    values = [
        {
            "section": s.id,
            "graph": s.graph,
            "kernel": s.kernel[:12],
            "rule": s.rule,
            "flops": s.cost.flops,
            "bytes": s.cost.bytes_in + s.cost.bytes_weights + s.cost.bytes_out,
            "operators": " ".join(s.operators),
        }
        for s in sections
    ]
    names = [(s.name, s.type.value) for s in sections]
    host = lay_out(names, [seconds for _, seconds in profile.last_run], values)
    rdu = lay_out(names, [s.cost.seconds for s in sections], values)
    return trace_document(
        [TraceTrack(_HOST_PROCESS, HOST_TRACK, host), TraceTrack(_RDU_PROCESS, RDU_TRACK, rdu)],
        {"pef": profile.pef, "arch": profile.arch, "mode": profile.mode},
    )


def lay_out(
    names: Sequence[tuple[str, str]], durations_s: Sequence[float], values: Sequence[dict[str, Any]]
) -> tuple[TraceEvent, ...]:
    """Return events (name, category) that follow one another without a gap, the first at 0."""
    events = []
    start_s = 0.0
    for (name, category), duration_s, shown in zip(names, durations_s, values, strict=True):
        events.append(TraceEvent(name, category, start_s, duration_s, shown))
        start_s += duration_s
    return tuple(events)


def trace_document(tracks: Sequence[TraceTrack], about: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON document; times in it are microseconds, to the nanosecond."""
    processes = {name: number for number, name in enumerate(dict.fromkeys(t.process for t in tracks), 1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}
        for name, number in processes.items()
    ]
    for thread, track in enumerate(tracks, 1):
        place = {"pid": processes[track.process], "tid": thread}
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": track.name}})
        for event in track.events:
            start, end = _nanoseconds(event.start_s), _nanoseconds(event.start_s + event.duration_s)
            events.append(
                {
                    "ph": "X", "name": event.name, "cat": event.category, **place, "ts": start / 1000,
                    "dur": (end - start) / 1000, "args": event.values,
                }
            )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
