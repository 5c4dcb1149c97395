"""Pictures of a profiled process: its life, its median run, its memory. Complete SVG documents. Pure.

Times are of the host's clock, in ns; coordinates are pixels, y downwards.

Source: ours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from rdukit.files.svg import svg_document, svg_text
from rdukit.telemetry.model import Span
from rdukit.units import format_bytes, format_seconds
from rdukit_runtime.profile.recording import ProcessRecording, TimedCall
from rdukit_runtime.profile.step import BreakdownRow

WIDTH: Final = 960
_LEFT: Final = 96
_RIGHT: Final = 20
_LANE: Final = 34
_BAR: Final = 22
_CHARACTER: Final = 7.3
#: Bars closer together than this are drawn as one.
_MERGED: Final = 0.5
#: Sections narrower than this have no bar of their own.
_NARROW: Final = 1.5
_MOST_SPAN_LANES: Final = 3
#: Points of a curve.
_MOST_POINTS: Final = 600

_LIGHT: Final = """\
  .bar { stroke: #ffffff; stroke-width: 0.4; } .curve { fill: none; stroke: #1f6feb; stroke-width: 1.6; }
  .span { fill: #8c959f; } .call { fill: #bc6a0a; } .fwd { fill: #1f6feb; } .bckwd { fill: #bc6a0a; }
  .opt, .gradnorm, .reduce { fill: #1a7f37; } .run { fill: #1f6feb; } .on { fill: #ffffff; }
"""
_DARK: Final = """\
    .bar { stroke: #0d1117; } .curve { stroke: #58a6ff; } .span { fill: #9198a1; } .call { fill: #e0a04d; }
    .fwd, .run { fill: #58a6ff; } .bckwd { fill: #e0a04d; } .opt, .gradnorm, .reduce { fill: #56d364; }
    .on { fill: #0d1117; }
"""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Time from ``begin_ns`` to ``end_ns`` over the picture's width."""

    begin_ns: int
    end_ns: int

    def pixel(self, at_ns: int) -> float:
        """Return the pixel of a time; times outside the range are drawn at the edge."""
        share = (at_ns - self.begin_ns) / max(self.end_ns - self.begin_ns, 1)
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(share, 0.0), 1.0)


def draw_life(recordings: Sequence[ProcessRecording], spans: Sequence[Span]) -> str:
    """Return the timeline of the program's life: phases, and for each process its calls and its sections.

    All processes share one clock. Touching bars are drawn as one.
    """
    scale = _Scale(min(r.started_ns for r in recordings), max(r.ended_ns for r in recordings))
    lanes: list[tuple[str, list[tuple[int, int]], str]] = []
    for name in list(dict.fromkeys(span.name for span in spans if not span.parent_id))[:_MOST_SPAN_LANES]:
        lanes.append((name, [(s.start_ns, s.end_ns) for s in spans if s.name == name and not s.parent_id], "span"))
    for recording in recordings:
        ending = f" {recording.rank}" if len(recordings) > 1 else ""
        calls = [(c.begin_ns, c.end_ns) for c in recording.calls if c.stack is not None]
        lanes.append((f"calls{ending}", calls, "call"))
        runs = [(c.begin_ns, c.end_ns) for c in recording.calls if c.row is BreakdownRow.RUN_HW]
        lanes.append((f"device{ending}", runs, "run"))
    parts: list[str] = []
    for number, (name, pieces, style) in enumerate(lanes):
        y = 30 + number * _LANE
        parts.append(svg_text(_LEFT - 8, y + 15, "right", name[:13]))
        parts += _bars(pieces, scale, y, style)
    height = 30 + len(lanes) * _LANE + 24
    parts += _axis(scale, height)
    return svg_document(parts, WIDTH, height, "The program's life", _LIGHT, _DARK)


def _bars(pieces: Iterable[tuple[int, int]], scale: _Scale, y: float, style: str) -> Iterator[str]:
    left = right = None
    for begin, end in sorted(pieces):
        x1, x2 = scale.pixel(begin), scale.pixel(end)
        if right is not None and x1 - right < _MERGED:
            right = max(right, x2)
            continue
        if left is not None and right is not None:
            yield _bar(left, right, y, style)
        left, right = x1, x2
    if left is not None and right is not None:
        yield _bar(left, right, y, style)


def _bar(left: float, right: float, y: float, style: str) -> str:
    width = max(right - left, 0.6)
    return f'<rect class="bar {style}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}"/>'


def _axis(scale: _Scale, height: float) -> Iterator[str]:
    for part in range(5):
        at = scale.begin_ns + (scale.end_ns - scale.begin_ns) * part // 4
        x = scale.pixel(at)
        yield f'<line class="grid" x1="{x:.1f}" y1="24" x2="{x:.1f}" y2="{height - 22:.1f}"/>'
        words = format_seconds((at - scale.begin_ns) / 1e9)
        anchor = "right" if part == 4 else "middle" if part else ""
        yield svg_text(x, height - 6, f"dim {anchor}".strip(), words)


def find_median_run(recording: ProcessRecording) -> TimedCall | None:
    """Return the run of sections whose duration is the median; None if no run was kept."""
    runs = sorted((c for c in recording.calls if c.sections), key=lambda call: call.end_ns - call.begin_ns)
    return runs[len(runs) // 2] if runs else None


def draw_run(recording: ProcessRecording, run: TimedCall) -> str:
    """Return the sections of a run, one after the other, with their names where these fit.

    Touching narrow sections of one type are drawn as one bar.
    """
    taken = list(accumulate((ns for _, ns in run.sections), initial=0))
    scale = _Scale(0, max(run.end_ns - run.begin_ns, taken[-1]))
    parts: list[str] = []
    narrow: dict[str, list[tuple[int, int]]] = {}
    for (number, _), begin, end in zip(run.sections, taken, taken[1:], strict=False):
        section = recording.pefs[run.pef]["sections"][number]
        x1, x2 = scale.pixel(begin), scale.pixel(end)
        if x2 - x1 < _NARROW:
            narrow.setdefault(section["type"], []).append((begin, end))
            continue
        parts.append(_bar(x1, x2, 30, section["type"]))
        if len(section["name"]) * _CHARACTER < x2 - x1:
            parts.append(svg_text(x1 + 3, 45, "on", section["name"]))
    for kind, pieces in narrow.items():
        parts += _bars(pieces, scale, 30, kind)
    parts.append(svg_text(_LEFT - 8, 45, "right", "sections"))
    height = 30 + _LANE + 24
    return svg_document([*parts, *_axis(scale, height)], WIDTH, height, "Sections of a run", _LIGHT, _DARK)


def draw_memory(recording: ProcessRecording) -> str:
    """Return the process's resident memory over time; each drawn point is the most of its piece of time."""
    size = max(len(recording.memory) // _MOST_POINTS, 1)
    pieces = [recording.memory[n : n + size] for n in range(0, len(recording.memory), size)]
    points = [max(piece, key=lambda point: point[1]) for piece in pieces]
    most = max(size for _, size in points)
    scale, height = _Scale(recording.started_ns, recording.ended_ns), 190
    bottom, top = height - 30, 30

    def y(size: int) -> float:
        return bottom - (bottom - top) * size / max(most, 1)

    parts = []
    for share in (0.0, 0.5, 1.0):
        at = y(round(most * share))
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{WIDTH - _RIGHT}" y2="{at:.1f}"/>')
        parts.append(svg_text(_LEFT - 8, at + 4, "right dim", format_bytes(round(most * share))))
    path = " ".join(f"{scale.pixel(at):.1f},{y(size):.1f}" for at, size in points)
    parts.append(f'<polyline class="curve" points="{path}"/>')
    return svg_document([*parts, *_axis(scale, height)], WIDTH, height, "Resident memory", _LIGHT, _DARK)
