"""Bounds of numbers in JSON schemas, narrowed to those that llguidance enforces exactly. Pure.

llguidance's numbers are doubles, and its expressions of ranges fail for very large and very small bounds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

#: Integers up to the first are doubles; the second is the largest double of 63 bits.
EXACT: Final = 2**53
_MOST: Final = 2**63 - 2**10
#: Largest and smallest bounds of numbers that llguidance enforces.
_LARGEST: Final = 9.0e18
_SMALLEST: Final = 1e-20
_ENDLESS: Final = (math.inf, -math.inf)
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


class UnkeptBounds(ValueError):
    """Bounds that cannot be enforced; the message says what to write."""


def narrow_bounds(found: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose numbers have bounds that llguidance enforces: the same values, or fewer.

    Raises:
        UnkeptBounds: no value within the bounds can be written exactly.
    """
    kinds = found.get("type")
    if kinds == "integer":
        return _narrow_integers(found)
    if isinstance(kinds, list) and "integer" in kinds and "number" not in kinds:
        return _narrow_integers(found)
    return _narrow_numbers(found) if kinds is None or kinds == "number" or "number" in kinds else found


def find_rounded(value: Any) -> int | None:
    """Return an integer within a value that no double equals; None if there is none."""
    if isinstance(value, int):
        return None if abs(value) <= EXACT or (value.bit_length() < 1024 and int(float(value)) == value) else value
    inner: Sequence[Any] = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := find_rounded(each)) is not None), None)


def _narrow_integers(found: dict[str, Any]) -> dict[str, Any]:
    """Narrow bounds of integers beyond 2^53 to the nearest inner doubles of at most 63 bits."""
    least = _bound(found, "minimum", "exclusiveMinimum", math.ceil, 1)
    most = _bound(found, "maximum", "exclusiveMaximum", math.floor, -1)
    if all(each is None or abs(each) <= EXACT for each in (least, most)):
        return found
    inner = {"minimum": _inner(least, 1), "maximum": _inner(most, -1)}
    ends = {"minimum": -_MOST, "maximum": _MOST}
    bounds = {key: ends[key] if value is None else value for key, value in inner.items()}
    if bounds["minimum"] > bounds["maximum"] or max(map(abs, bounds.values())) > _MOST:
        raise UnkeptBounds(
            f"no integer from {least} to {most} is exact as a double; write a string with a pattern, or an enum of "
            "strings"
        )
    return {**{key: value for key, value in found.items() if key not in _BOUNDS}, **bounds}


def _narrow_numbers(found: dict[str, Any]) -> dict[str, Any]:
    """Replace bounds beyond ``_LARGEST`` by it, and those nearer to 0 than ``_SMALLEST`` by the next inner one."""
    inner = dict(found)
    for key in _BOUNDS:
        value = found.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        sign = -1 if "aximum" in key else 1  # of the direction in which a bound is narrowed
        if abs(value) > _LARGEST:
            if value * sign > 0:
                raise UnkeptBounds(f"{key} {value!s:.40} is beyond {_LARGEST:g}; write a string with a pattern")
            inner[key] = -sign * _LARGEST
        elif 0 < abs(value) < _SMALLEST:
            inner[key] = sign * _SMALLEST if value * sign > 0 else 0
        elif isinstance(value, int):
            inner[key] = _inner(value, sign)
    return inner


def _bound(
    found: Mapping[str, Any], plain: str, exclusive: str, rounded: Callable[[float], int], step: int
) -> int | None:  # fmt: skip
    """Return the integer bound of two keywords; None without them. Source: draft 4 has booleans."""
    values: list[int] = []
    for key in (plain, exclusive):
        value = found.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value in _ENDLESS:
            continue
        bound = rounded(value)
        values.append(bound + step if key == exclusive and bound == value else bound)
    if not values:
        return None
    return max(values) if step > 0 else min(values)


def _inner(bound: int | None, step: int) -> int | None:
    """Return the nearest bound inside that is a double of at most 63 bits."""
    if bound is None or abs(bound) <= EXACT:
        return bound
    if abs(bound) > _MOST:
        return -step * _MOST if bound * step < 0 else bound
    near = int(float(bound))
    return near if (near - bound) * step >= 0 else int(math.nextafter(float(bound), step * math.inf))
