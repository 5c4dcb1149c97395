"""Pictures of an endpoint's latency and load over the last two hours (pure)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.units import format_seconds
from rdukit_platform.console.curve import Curve, Curves, Point, draw_curve, draw_curves
from rdukit_platform.endpoints.history import Minute, percentile

#: Percentiles that are drawn, with their names.
PERCENTILES: Final = ((0.5, "median"), (0.95, "95th percentile"))
_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class LatencyLine:
    """A percentile over all shown calls, as text with its unit."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """Latency and load of an endpoint, with pictures by minutes before now."""

    minutes: int
    calls: int
    failures: int
    #: Unit of the latencies in the picture: ``ms`` or ``s``.
    unit: str
    lines: tuple[LatencyLine, ...]
    #: ``None``: fewer than two minutes have answered calls.
    latency: Curves | None
    #: Mean number of calls in progress: over all minutes, and in the busiest one.
    mean: float
    most: float
    in_progress: Curve | None


def view_load(rows: Sequence[Minute], now_minute: int) -> EndpointLoad | None:
    """Draw the rows of ``CallHistory.read``; ``None``: the endpoint was never called.

    Args:
        now_minute: present minute since the epoch, the pictures' place 0.
    """
    if not rows:
        return None
    totals = sum((row.bins for row in rows), Counter[int]())
    lines = tuple(
        LatencyLine(name, format_seconds(value))
        for part, name in PERCENTILES
        if (value := percentile(totals.items(), part)) is not None
    )
    series = [_points(rows, part, now_minute) for part, _ in PERCENTILES]
    is_long = any(value >= 1.0 for points in series for _, value in points)
    scaled = [[(at, value if is_long else value * _MS) for at, value in points] for points in series]
    loads = [(float(row.number - now_minute), row.in_progress) for row in rows]
    means = [value for _, value in loads]
    return EndpointLoad(
        len(rows), sum(row.calls for row in rows), sum(row.failures for row in rows), "s" if is_long else "ms", lines,
        draw_curves(scaled), sum(means) / len(means), max(means), draw_curve(loads),
    )  # fmt: skip


def _points(rows: Sequence[Minute], part: float, now_minute: int) -> list[Point]:
    found = ((row.number - now_minute, percentile(row.bins.items(), part)) for row in rows)
    return [(float(at), value) for at, value in found if value is not None]
