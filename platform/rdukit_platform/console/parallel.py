"""Trials of a sweep as the numbers of an SVG picture: an axis for each parameter and one for the objective (pure)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 260
SIDE: Final = 70
TOP: Final = 34
BOTTOM: Final = 18
#: Colours from the best trials to the worst: classes of the style sheet.
SHADES: Final = 4
#: Parameters that get an axis.
MAX_AXES: Final = 6
#: Values of an axis that are written at it.
MAX_LABELS: Final = 7


@dataclass(frozen=True, slots=True)
class TrialLabel:
    """A value written at an axis."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class TrialAxis:
    """An upright line for a parameter, or for the objective."""

    x: float
    name: str
    labels: tuple[TrialLabel, ...]


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A trial's way across the axes; ``shade`` is 0 for the best quarter."""

    number: int
    path: str
    shade: int


@dataclass(frozen=True, slots=True)
class Parallel:
    """The complete picture; the best trials are drawn last, on top."""

    axes: tuple[TrialAxis, ...]
    lines: tuple[TrialLine, ...]


def draw_parallel(
    trials: Sequence[tuple[int, Mapping[str, object], float]], objective: str, *, is_more_better: bool
) -> Parallel | None:
    """Return the picture of trials, each a number, its parameters and its value; ``None`` with fewer than two.

    Numbers that span more than two decades, all above 0, lie by their logarithm; words lie one above the other.
    """
    if len(trials) < 2:
        return None
    names = list(dict.fromkeys(name for _, parameters, _ in trials for name in parameters))[:MAX_AXES]
    columns = [(name, [parameters.get(name) for _, parameters, _ in trials]) for name in names]
    columns.append((objective, [value for _, _, value in trials]))
    axes, heights = [], []
    for place, (name, values) in enumerate(columns):
        x = round(SIDE + place * (WIDTH - 2 * SIDE) / (len(columns) - 1), 1)
        found = _place(values)
        heights.append([found[_key(value)] for value in values])
        axes.append(TrialAxis(x, name, _labels({_text(value): found[_key(value)] for value in values})))
    order = sorted(range(len(trials)), key=lambda i: trials[i][2], reverse=is_more_better)
    lines = []
    for rank, i in enumerate(order):
        path = "M" + "L".join(f"{axis.x},{column[i]}" for axis, column in zip(axes, heights, strict=True))
        lines.append(TrialLine(trials[i][0], path, min(SHADES - 1, rank * SHADES // len(order))))
    return Parallel(tuple(axes), tuple(reversed(lines)))


def _place(values: Sequence[object]) -> dict[str, float]:
    """Return the height of each value by its key."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    room = HEIGHT - TOP - BOTTOM
    if len(numbers) < len(values):
        keys = list(dict.fromkeys(_key(value) for value in values))
        return {key: round(TOP + room * (i + 0.5) / len(keys), 1) for i, key in enumerate(keys)}
    is_log = min(numbers) > 0 and max(numbers) / min(numbers) >= 100
    scaled = [math.log(number) if is_log else number for number in numbers]
    low, span = min(scaled), max(scaled) - min(scaled)
    share = [(one - low) / span if span else 0.5 for one in scaled]
    return {_key(value): round(TOP + room * (1 - part), 1) for value, part in zip(values, share, strict=True)}


def _labels(heights: Mapping[str, float]) -> tuple[TrialLabel, ...]:
    """Choose the labels that do not lie on each other, the ends first."""
    ordered = sorted(heights.items(), key=lambda one: one[1])
    wanted = [ordered[0], ordered[-1], *ordered[1:-1]]
    gap = (HEIGHT - TOP - BOTTOM) / MAX_LABELS
    kept: list[tuple[str, float]] = []
    for text, y in wanted:
        if all(abs(y - other) >= gap for _, other in kept):
            kept.append((text, y))
    return tuple(TrialLabel(y, text) for text, y in sorted(kept, key=lambda one: one[1]))


def _key(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 12 else f"{text[:11]}…"
