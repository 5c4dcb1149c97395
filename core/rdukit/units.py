"""Quantities for people: bytes, seconds and counts with a unit, three significant figures."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

#: Units of long durations: seconds of the larger and the smaller unit, and their names.
_LONG: Final = ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s"))


def format_bytes(count: int) -> str:
    """Format ``1536`` as ``1.5 KiB``; whole bytes below 1 KiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{count} B" if unit == "B" else f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"


def elapsed_s(began: float, ended: float) -> float:
    """Return the seconds between two times of the wall clock; 0 if the clock was set back in between."""
    return max(ended - began, 0.0)


def format_seconds(seconds: float) -> str:
    """Format ``0.00012`` as ``120 us``; from a minute ``2 min 5 s``, an hour ``1 h 2 min``, a day ``1 d 2 h``.

    A smaller unit is left out if its count is 0: ``15 min``.
    """
    if seconds < 0:
        return f"-{format_seconds(-seconds)}"
    for large, small, large_unit, small_unit in _LONG:
        if seconds >= large:
            whole, rest = divmod(int(seconds // small), large // small)
            return f"{whole} {large_unit} {rest} {small_unit}" if rest else f"{whole} {large_unit}"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{_three_figures(seconds / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{_three_figures(seconds / 1e-9)} ns"


def format_date(at: float) -> str:
    """Format a time of the wall clock as ``2026-11-30 08:00:00``, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_count(count: float) -> str:
    """Format ``1234567`` as ``1.23 M``; whole numbers below 10,000 stay as they are."""
    if abs(count) < 10_000:
        return f"{count:.0f}" if float(count).is_integer() else _three_figures(count)
    for factor, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= factor:
            return f"{_three_figures(count / factor)} {unit}"
    raise AssertionError(count)


def _three_figures(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plain(value: object) -> str:
    """Format a JSON value on one line for people, fractions with at most six significant digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e15 and value != round(value) else str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {plain(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(plain(inner) for inner in value) + "]"
    return str(value)
