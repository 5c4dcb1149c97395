"""A loss curve as the numbers of an SVG picture (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 220
LEFT: Final = 46
RIGHT: Final = 24
TOP: Final = 12
BOTTOM: Final = 26
#: More points than this are averaged: finer than a pixel says nothing.
MAX_POINTS: Final = 320


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis, in picture units."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """``line`` and ``area`` are SVG paths; ``last`` is where the newest point lies."""

    line: str
    area: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    last: tuple[float, float]
    first_value: float
    last_value: float


def draw_curve(points: Sequence[tuple[float, float]]) -> Curve | None:
    """Return the picture of (step, loss) points in order of steps; ``None`` with fewer than two finite ones.

    Steps that come again, after a resume, replace the earlier value.
    """
    by_step = {step: loss for step, loss in points if isfinite(step) and isfinite(loss)}
    ordered = sorted(by_step.items())
    if len(ordered) < 2:
        return None
    shown = _thin_out(ordered)
    steps, losses = [p[0] for p in shown], [p[1] for p in shown]
    y_ticks = nice_ticks(min(0.0, *losses) if max(losses) > 3 * min(losses) else min(losses), max(losses), 4)
    x_ticks = nice_ticks(steps[0], steps[-1], 6)
    low, high = min(y_ticks[0], *losses), max(y_ticks[-1], *losses)

    def place(step: float, loss: float) -> tuple[float, float]:
        x = LEFT + (step - steps[0]) / (steps[-1] - steps[0]) * (WIDTH - LEFT - RIGHT)
        y = TOP + (high - loss) / ((high - low) or 1.0) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    places = [place(*point) for point in shown]
    line = "M" + "L".join(f"{x},{y}" for x, y in places)
    floor_y = HEIGHT - BOTTOM
    return Curve(
        line=line,
        area=f"{line}L{places[-1][0]},{floor_y}L{places[0][0]},{floor_y}Z",
        x_ticks=tuple(Tick(place(t, low)[0], f"{t:g}") for t in x_ticks if steps[0] <= t <= steps[-1]),
        y_ticks=tuple(Tick(place(steps[0], t)[1], f"{t:g}") for t in y_ticks if low <= t <= high),
        last=places[-1],
        first_value=ordered[0][1],
        last_value=ordered[-1][1],
    )


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Choose about ``count`` round numbers that span ``low`` to ``high``."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    magnitude: float = 10.0 ** floor(log10(raw))
    step = next(m * magnitude for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * magnitude >= raw * 0.999)
    first = floor(low / step)
    ticks = [round((first + i) * step, 12) for i in range(count + 3)]
    return [t for i, t in enumerate(ticks) if i == 0 or ticks[i - 1] < high]


def _thin_out(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= MAX_POINTS:
        return list(points)
    size = len(points) / MAX_POINTS
    groups = [points[int(i * size) : int((i + 1) * size)] for i in range(MAX_POINTS)]
    middle = [(g[len(g) // 2][0], sum(p[1] for p in g) / len(g)) for g in groups]
    return [points[0], *middle[1:-1], points[-1]]
