"""The trace that Perfetto and Chrome's ``about:tracing`` show: tracks of events, each with its clock. Pure.

Source: ours; the format is the Trace Event Format's JSON object form, complete events (``X``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rdukit_runtime.profile.pef import Profile

HOST_TRACK: Final = "host sections (measured)"
RDU_TRACK: Final = "RDU sections (projected)"
#: A track is a thread of a process; the two clocks are two processes, so that none reads them as one.
_HOST_PROCESS: Final = "host: measured on this machine"
_RDU_PROCESS: Final = "emulated RDU: projected by the cost model, on its own clock"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took ``duration_s`` from ``start_s`` on its track's clock; ``values`` are shown beside it."""

    name: str
    category: str
    start_s: float
    duration_s: float
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Track:
    """Events in order, none before the end of the one before it."""

    process: str
    name: str
    events: tuple[Event, ...]


def trace_profile(profile: Profile) -> dict[str, Any]:
    """The last run: its sections on the host's track, one after the other, and on the emulated chip's.

    Time between two sections is not recorded: on the host's track each begins where the one before it ended.
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
        [Track(_HOST_PROCESS, HOST_TRACK, host), Track(_RDU_PROCESS, RDU_TRACK, rdu)],
        {"pef": profile.pef, "arch": profile.arch, "mode": profile.mode},
    )


def lay_out(
    names: Sequence[tuple[str, str]], durations_s: Sequence[float], values: Sequence[dict[str, Any]]
) -> tuple[Event, ...]:
    """Events (name, category) that follow one another without a gap, the first at 0."""
    events = []
    start_s = 0.0
    for (name, category), duration_s, shown in zip(names, durations_s, values, strict=True):
        events.append(Event(name, category, start_s, duration_s, shown))
        start_s += duration_s
    return tuple(events)


def trace_document(tracks: Sequence[Track], about: dict[str, Any]) -> dict[str, Any]:
    """The JSON document; times in it are microseconds, to the nanosecond."""
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
