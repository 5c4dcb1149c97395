"""Files of a timeline: a trace for Perfetto and Chrome, and a flame graph for speedscope. Pure.

The trace has two processes a rank, one for each clock: the host's calls and sections as measured, and the emulated
chip's sections as the cost model projects them. Memory is drawn as counters. Neither file exceeds its limit: later
events are left out, and the file has their number.

Source: ours; Trace Event Format (JSON object form), speedscope's file format 0.0.1 (evented profiles).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import PurePath
from typing import Any, Final

from rdukit.telemetry.model import Span
from rdukit_runtime.profile.recording import ProcessRecording, TimedCall
from rdukit_runtime.profile.reports import TraceEvent, TraceTrack, trace_document
from rdukit_runtime.profile.step import BreakdownRow
from rdukit_runtime.profile.timeline import Line

#: Names of calls on the timeline, by row and the function that was called; others have their row's name.
_CALLED: Final[Mapping[tuple[BreakdownRow, str], str]] = {
    (BreakdownRow.SAMBA, "run"): "session.run",
    (BreakdownRow.PYTHON_TO_C, "run"): "runtime.run",
    (BreakdownRow.RUN_SETUP, "choose_sections"): "choose sections",
    (BreakdownRow.RUN_SETUP, "_plan"): "bind sections to memory",
    (BreakdownRow.ARGINS, "resolve_scalars"): "resolve scalars",
    (BreakdownRow.ARGINS, "_hold"): "write scalars",
    (BreakdownRow.XFER, "write_all"): "host to device",
    (BreakdownRow.XFER, "seed"): "host to device",
    (BreakdownRow.XFER, "read"): "device to host",
    (BreakdownRow.XFER, "gradient"): "device to host",
    (BreakdownRow.CONV_FUNC, "read"): "device to host, converted",
    (BreakdownRow.CONV_FUNC, "gradient"): "device to host, converted",
    (BreakdownRow.CONV_FUNC, "to"): "convert",
}
_SPEEDSCOPE: Final = "https://www.speedscope.app/file-format-schema.json"


def trace_text(recordings: Sequence[ProcessRecording], spans: Sequence[Span], began_ns: int, limit: int) -> str:
    """Return the trace, at most ``limit`` bytes long; its time 0 is ``began_ns``."""
    tracks: list[TraceTrack] = []
    for each in recordings:
        host, chip = _process_names(each)
        tracks.append(TraceTrack(host, "program", tuple(_host_events(each, began_ns))))
        tracks.append(TraceTrack(chip, "sections", tuple(_chip_events(each))))
    if spans:
        tracks.append(TraceTrack("compile, trace and load: measured on this machine", "spans", _spans(spans, began_ns)))
    document = trace_document(tracks, {})
    document["traceEvents"] += [event for each in recordings for event in _counters(each, document, began_ns)]
    return _limited(document, limit)


def _process_names(recording: ProcessRecording) -> tuple[str, str]:
    """Return a process's names on the trace: with the host's clock, and with the emulated chip's."""
    one = f"rank {recording.rank}, pid {recording.pid}"
    return (
        f"host, {one}: measured on this machine",
        f"emulated RDU, {one}: projected by the cost model, on its own clock",
    )


def call_name(call: TimedCall, graph: str) -> str:
    """Return a call's name on the timeline; a run of sections is called by its graph."""
    if call.row is BreakdownRow.RUN_HW and graph:
        return f"graph {graph}"
    return _CALLED.get((call.row, call.name), call.row.value.lower())


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a process's timeline; ``line``: its line of Python, if it is one."""

    name: str
    category: str
    begin_ns: int
    end_ns: int
    values: Mapping[str, Any] = field(default_factory=dict)
    line: Line | None = None


def bars_of(recording: ProcessRecording) -> Iterator[Bar]:
    """Yield the bars of a process, outer ones before inner ones: lines of Python, call, sections, their kernels.

    A run's sections follow one another; the unrecorded time between them is drawn after the last one.
    """
    calls = recording.calls
    pending: list[Bar] = []  # sections of the run that is open
    for number, call in enumerate(calls):
        while pending and pending[0].begin_ns < call.begin_ns:
            yield pending.pop(0)
        for line in reversed(call.stack or ()):
            yield Bar(line_text(line), "python", call.begin_ns, call.end_ns, line=line)
        yield Bar(call_name(call, _graph_of(recording, call)), call.row.value, call.begin_ns, call.end_ns)
        if call.sections:
            pending += _section_bars(recording, call, _computing_from(calls, number))
    yield from pending


def _computing_from(calls: Sequence[TimedCall], number: int) -> int:
    """Return when a run's first section began at the earliest: after the calls inside the run, which come first."""
    run = calls[number]
    start = run.begin_ns
    for inner in calls[number + 1 :]:
        if inner.begin_ns >= run.end_ns:
            break
        start = max(start, inner.end_ns)
    return max(min(start, run.end_ns - sum(taken for _, taken in run.sections)), run.begin_ns)


def _section_bars(recording: ProcessRecording, run: TimedCall, start_ns: int) -> Iterator[Bar]:
    for number, taken in run.sections:
        section = recording.pefs[run.pef]["sections"][number]
        end_ns = min(start_ns + taken, run.end_ns)
        kernel = f"{section['form']} kernel {section['kernel'][:12]}"
        yield Bar(section["name"], section["type"], start_ns, end_ns, {"section": number, "kernel": kernel})
        yield Bar(kernel, _KERNEL, start_ns, end_ns)
        start_ns = end_ns


#: Category of a kernel's bar. On the trace a kernel is a value of its section.
_KERNEL: Final = "kernel"


def _host_events(recording: ProcessRecording, began_ns: int) -> Iterator[TraceEvent]:
    for bar in bars_of(recording):
        if bar.category != _KERNEL:
            start, taken = (bar.begin_ns - began_ns) / 1e9, (bar.end_ns - bar.begin_ns) / 1e9
            values = {"file": bar.line[0]} if bar.line else dict(bar.values)
            yield TraceEvent(bar.name, bar.category, start, taken, values)


#: Values of a section that the chip's track shows.
_TOLD: Final = ("graph", "rule", "flops", "bytes", "operators")


def _chip_events(recording: ProcessRecording) -> Iterator[TraceEvent]:
    start = 0.0
    for pef, section in _sections_run(recording):
        taken = section["emulated_ns"] / 1e9
        values = {"section": section["id"], "pef": pef["name"], **{key: section[key] for key in _TOLD}}
        yield TraceEvent(section["name"], section["type"], start, taken, values)
        start += taken


def _sections_run(recording: ProcessRecording) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for call in recording.calls:
        for number, _ in call.sections:
            yield recording.pefs[call.pef], recording.pefs[call.pef]["sections"][number]


def _graph_of(recording: ProcessRecording, call: TimedCall) -> str:
    return str(recording.pefs[call.pef]["sections"][call.sections[0][0]]["graph"]) if call.sections else ""


def _spans(spans: Sequence[Span], began_ns: int) -> tuple[TraceEvent, ...]:
    ordered = sorted(spans, key=lambda s: (s.start_ns, -s.end_ns))
    return tuple(
        TraceEvent(s.name, "span", (s.start_ns - began_ns) / 1e9, (s.end_ns - s.start_ns) / 1e9, dict(s.attributes))
        for s in ordered
    )


def _counters(recording: ProcessRecording, document: Mapping[str, Any], began_ns: int) -> Iterator[dict[str, Any]]:
    """Yield the process's memory on the host's clock, and the planned device memory on the chip's."""
    events = [event for event in document["traceEvents"] if event["name"] == "process_name"]
    numbers = {event["args"]["name"]: event["pid"] for event in events}
    host, chip = (numbers[name] for name in _process_names(recording))
    for at, size in recording.memory:
        yield _counter("resident memory", host, (at - began_ns) / 1000, size)
    at_ns = 0
    for size, group in groupby(_sections_run(recording), key=lambda pair: pair[1]["device_bytes"]):
        yield _counter("device memory (planned)", chip, at_ns / 1000, size)
        at_ns += sum(section["emulated_ns"] for _, section in group)


def _counter(name: str, pid: int, at_us: float, size: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at_us, "args": {"bytes": size}}


def _limited(document: Mapping[str, Any], limit: int) -> str:
    """Return the document as text; the last events are left out if it would exceed ``limit`` bytes."""
    ordered = sorted(document["traceEvents"], key=lambda e: e.get("ts", float("-inf")))
    lines, size = [], 300  # what stands around the events
    for event in ordered:
        line = json.dumps(event, separators=(",", ":"))
        size += len(line) + 2
        if size > limit:
            break
        lines.append(line)
    other = json.dumps({"left_out": len(ordered) - len(lines)})
    return '{"displayTimeUnit":"ms","otherData":' + other + ',"traceEvents":[\n' + ",\n".join(lines) + "\n]}\n"


def line_text(line: Line) -> str:
    """Return a line of Python for people, such as ``program.py:42 train``."""
    file, number, function = line
    return f"{PurePath(file).name}:{number} {function}"


def speedscope_text(recordings: Sequence[ProcessRecording], limit: int) -> str:
    """Return a flame graph per process: lines of Python, call, graph, section, kernel; at most ``limit`` bytes long."""
    frames: dict[tuple[str, str, int], int] = {}
    profiles = []
    for each in recordings:
        events, is_whole = _flame_events(each, frames, limit // len(recordings) // _EVENT_BYTES)
        profiles.append(
            {
                "type": "evented",
                "name": f"rank {each.rank}, pid {each.pid}" + ("" if is_whole else ": the beginning"),
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": max((event["at"] for event in events), default=0),
                "events": events,
            }
        )
    named = [{"name": name, "file": file, "line": line} if file else {"name": name} for name, file, line in frames]
    document = {"$schema": _SPEEDSCOPE, "exporter": "rdukit", "shared": {"frames": named}, "profiles": profiles}
    return json.dumps(document, separators=(",", ":"))


#: Bytes of an event in the file, its part of the frames' names included.
_EVENT_BYTES: Final = 70


def _flame_events(
    recording: ProcessRecording, frames: dict[tuple[str, str, int], int], most: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return events of complete outer bars, at most about ``most``, and whether those are all; add to ``frames``."""
    events: list[dict[str, Any]] = []
    open_bars: list[tuple[int, int]] = []

    def close(until_ns: int) -> None:
        while open_bars and open_bars[-1][0] <= until_ns:
            end_ns, frame = open_bars.pop()
            events.append({"type": "C", "frame": frame, "at": end_ns - recording.started_ns})

    for bar in bars_of(recording):
        close(bar.begin_ns)
        if not open_bars and len(events) > most:
            return events, False
        key = (bar.name, bar.line[0], bar.line[1]) if bar.line else (bar.name, "", 0)
        frame = frames.setdefault(key, len(frames))
        events.append({"type": "O", "frame": frame, "at": bar.begin_ns - recording.started_ns})
        open_bars.append((bar.end_ns, frame))
    close(recording.ended_ns)
    return events, True
