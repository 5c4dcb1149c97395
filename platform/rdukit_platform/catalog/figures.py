"""Figures of a job's result (pure): choice, text and comparison."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rdukit.strict_json import find_number
from rdukit.units import format_bytes, format_count, format_seconds

#: Figures of time and cost, not of quality.
_EFFORT: Final = frozenset({"steps", "epochs", "samples", "parameters", "trained_parameters", "resumed_from_step"})
_EFFORT_ENDS: Final = ("seconds", "_s", "cycles", "bytes", "_steps", "_samples")
#: Words in the names of figures of which less is better.
_LESS: Final = frozenset({"loss", "perplexity", "error", "mae", "mse", "rmse"})
_RATE: Final = "_per_s"


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure of two experts; ``None``: this expert lacks it. ``change``: second minus first, for numbers."""

    name: str
    a: object
    b: object
    change: float | None


def figures_of(result: Mapping[str, object] | None) -> dict[str, object]:
    """Return the figures of a result: numbers and texts, without nested values."""
    return {name: value for name, value in (result or {}).items() if isinstance(value, int | float | str)}


def headline(figures: Mapping[str, object], most: int = 3) -> list[str]:
    """Return the names of at most ``most`` quality figures, in their order."""
    return [
        name
        for name, value in figures.items()
        if find_number(value) is not None
        and not is_effort(name) and not is_projected(name)
    ][:most]  # fmt: skip


def compare_figures(a: Mapping[str, object], b: Mapping[str, object]) -> list[Difference]:
    """Return the figures of two results: those of the first in its order, then those that only the second has."""
    found = []
    for name in dict.fromkeys([*a, *b]):
        one, other = find_number(a.get(name)), find_number(b.get(name))
        change = math.nan if one is None or other is None else other - one
        found.append(Difference(name, a.get(name), b.get(name), change if math.isfinite(change) else None))
    return found


def is_effort(name: str) -> bool:
    """Return whether a figure of this name is about time or cost, not quality."""
    return name in _EFFORT or (name.endswith(_EFFORT_ENDS) and not is_projected(name))


def is_lower_better(name: str) -> bool:
    """Return whether less of a figure is better, judged by its name: a loss, an error, a time."""
    words = set(name.lower().split("_"))
    return bool(words & _LESS) or (is_effort(name) and not name.endswith("_per_s")) or is_projected(name)


def is_projected(name: str) -> bool:
    """Return whether a figure of this name is the cost model's, not a measurement."""
    return name.startswith(("emulated", "projected"))


def figure_text(name: str, value: object) -> str:
    """Return a value with the unit in its name."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    if name.endswith(_RATE):
        return f"{_separated(value)} {name.removesuffix(_RATE)}/s"
    if name.endswith(("seconds", "_s")):
        return format_seconds(float(value))
    if name.endswith("bytes"):
        return format_bytes(int(value))
    if name.endswith("accuracy"):
        return f"{100 * value:.1f} %"
    return _separated(value) if abs(value) >= 10_000 or float(value).is_integer() else f"{value:.4g}"


def figure_words(name: str, value: object) -> str:
    """Return a figure in words: ``perplexity 5.64``, ``955,000 samples/s``."""
    text = figure_text(name, value)
    return text if name.endswith(_RATE) and find_number(value) is not None else f"{name.replace('_', ' ')} {text}"


def _separated(value: float) -> str:
    """Return a number with commas at its thousands, and its significant digits."""
    if abs(value) >= 1e7:
        return format_count(value)
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.4g}"
