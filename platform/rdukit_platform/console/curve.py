"""Curves of metrics, of one run or of several on the same axes, as the numbers of an SVG picture (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Final

from rdukit.units import format_count
from rdukit_platform.catalog.figures import figure_text
from rdukit_platform.jobs.metrics import series_of

WIDTH: Final = 720
HEIGHT: Final = 220
LEFT: Final = 46
RIGHT: Final = 24
TOP: Final = 12
BOTTOM: Final = 26
#: More points than this are averaged: finer than a pixel says nothing.
MAX_POINTS: Final = 320

#: Largest number of a run's metrics that are drawn.
MAX_METRICS: Final = 12
#: The metric that comes first, and metrics that are not drawn.
LOSS: Final = "loss"
_NOT_DRAWN: Final = frozenset({"eta_s"})
#: Numbers from here on are written with a unit at an axis.
_LONG: Final = 10_000

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis, in picture units."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """``line`` and ``area`` are SVG paths; ``last`` is the place of the newest point."""

    line: str
    area: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    last: tuple[float, float]
    first_value: float
    last_value: float


@dataclass(frozen=True, slots=True)
class CurveLine:
    """Line of a picture with several: its SVG path (empty without points), and the place of its newest point."""

    path: str
    last: tuple[float, float]
    last_value: float | None


@dataclass(frozen=True, slots=True)
class Curves:
    """Several lines on the same axes."""

    lines: tuple[CurveLine, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def draw_curve(points: Sequence[Point]) -> Curve | None:
    """Return the picture of (step, loss) points, ordered by step; ``None`` with fewer than two finite ones.

    Steps that come again, after a resume, replace the earlier value.
    """
    ordered = _order(points)
    if len(ordered) < 2:
        return None
    shown = _thin_out(ordered)
    axes = _choose_axes(shown)
    places = [axes.place(*point) for point in shown]
    line = _path(places)
    floor_y = HEIGHT - BOTTOM
    return Curve(
        line=line,
        area=f"{line}L{places[-1][0]},{floor_y}L{places[0][0]},{floor_y}Z",
        x_ticks=axes.x_ticks,
        y_ticks=axes.y_ticks,
        last=places[-1],
        first_value=ordered[0][1],
        last_value=ordered[-1][1],
    )


def draw_metrics(events: Sequence[Mapping[str, object]]) -> list[tuple[str, Curve]]:
    """Return the pictures of all metrics with two steps or more in a run's progress events, the loss first."""
    series = series_of(events)
    curves = ((name, draw_curve(series[name])) for name in metric_names(series))
    return [(name, curve) for name, curve in curves if curve is not None][:MAX_METRICS]


def metric_names(known: Iterable[str]) -> list[str]:
    """Return the names of metrics that are worth a picture, the loss first and the others by their names."""
    return sorted((name for name in known if name not in _NOT_DRAWN), key=lambda name: (name != LOSS, name))


def metric_title(name: str) -> str:
    """Return the title of a metric's picture."""
    return "Training loss" if name == LOSS else name.removesuffix("_s").replace("_", " ").capitalize()


def metric_text(name: str, value: float) -> str:
    """Return a metric's value with its unit; a training's ``throughput`` is in samples a second."""
    return figure_text("samples_per_s" if name == "throughput" else name, value)


def draw_curves(series: Sequence[Sequence[Point]]) -> Curves | None:
    """Return the picture of several runs' (step, loss) points on the same axes; ``None``: no run has two steps.

    If a run repeats steps, the later values replace the earlier ones.
    """
    ordered = [_order(points) for points in series]
    if not any(len(points) > 1 for points in ordered):
        return None
    shown = [_thin_out(points) for points in ordered]
    axes = _choose_axes([point for points in shown for point in points])
    lines = []
    for points in shown:
        places = [axes.place(*point) for point in points]
        lines.append(
            CurveLine(_path(places), places[-1], points[-1][1]) if places else CurveLine("", (0.0, 0.0), None)
        )  # fmt: skip
    return Curves(tuple(lines), axes.x_ticks, axes.y_ticks)


@dataclass(frozen=True, slots=True)
class _Axes:
    """Scales of the picture: where steps and losses lie in it."""

    first: float
    last: float
    low: float
    high: float

    def place(self, step: float, loss: float) -> Point:
        x = LEFT + (step - self.first) / ((self.last - self.first) or 1.0) * (WIDTH - LEFT - RIGHT)
        y = TOP + (self.high - loss) / ((self.high - self.low) or 1.0) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    @property
    def x_ticks(self) -> tuple[Tick, ...]:
        ticks = nice_ticks(self.first, self.last, 6)
        return tuple(Tick(self.place(t, self.low)[0], _label(t)) for t in ticks if self.first <= t <= self.last)

    @property
    def y_ticks(self) -> tuple[Tick, ...]:
        ticks = nice_ticks(self.low, self.high, 4)
        return tuple(Tick(self.place(self.first, t)[1], _label(t)) for t in ticks if self.low <= t <= self.high)


def _label(tick: float) -> str:
    """Write a number so that it fits at an axis."""
    return format_count(tick) if abs(tick) >= _LONG else f"{tick:g}"


def _choose_axes(points: Sequence[Point]) -> _Axes:
    steps, losses = [p[0] for p in points], [p[1] for p in points]
    ticks = nice_ticks(min(0.0, *losses) if max(losses) > 3 * min(losses) else min(losses), max(losses), 4)
    return _Axes(min(steps), max(steps), min(ticks[0], *losses), max(ticks[-1], *losses))


def _order(points: Sequence[Point]) -> list[Point]:
    return sorted({step: loss for step, loss in points if isfinite(step) and isfinite(loss)}.items())


def _path(places: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x},{y}" for x, y in places)


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
