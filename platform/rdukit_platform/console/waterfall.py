"""A job's trace as lines with bars, for its page (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.units import elapsed_s, format_seconds
from rdukit_platform.jobs.trace import TraceSpan, depths

#: Width of the picture that a bar lies in, and its least width.
WIDTH: Final = 200.0
LEAST: Final = 1.5
#: Lines that a page shows; ``rdukit job trace`` has all.
MAX_LINES: Final = 60


@dataclass(frozen=True, slots=True)
class SpanLine:
    """A span: how deep it lies, and its bar in units of the picture."""

    name: str
    depth: int
    service: str
    error: str
    start: str
    took: str
    emulated: str
    left: float
    width: float


def span_lines(spans: Sequence[TraceSpan], now: float) -> list[SpanLine]:
    """Return a trace's first spans as lines; open spans last until ``now``."""
    first = min(span.start for span in spans)
    whole = max(max(now if span.end is None else span.end for span in spans) - first, 1e-9)
    lines = []
    for span, depth in zip(spans[:MAX_LINES], depths(spans), strict=False):
        seconds = elapsed_s(span.start, now if span.end is None else span.end)
        emulated = span.attributes.get("rdukit.emulated.seconds")
        width = min(max(seconds / whole * WIDTH, LEAST), WIDTH)
        lines.append(
            SpanLine(
                span.name, min(depth, 8), span.service, span.error, format_seconds(round(span.start - first, 6)),
                format_seconds(seconds), format_seconds(emulated) if isinstance(emulated, float) else "",
                round(min((span.start - first) / whole * WIDTH, WIDTH - width), 2), round(width, 2),
            )
        )  # fmt: skip
    return lines
