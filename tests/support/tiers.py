"""Which cases are long by rule: of those that differ only in the compile's mode, all but one; of a long table of
conformance all but a third, another one each day.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from zlib import crc32

import pytest

#: Parameter whose values are modes of a compile.
PARAMETER: Final = "mode"
MODES: Final = frozenset({"o0", "o1", "o3"})
#: Where tables are long, and from how many short cases of one function on.
TABLES: Final = "tests/conformance/"
TABLE_CASES: Final = 6


def choose_short(name: str, modes: Sequence[str]) -> str:
    """Return the mode in which a case is short: always the same of one case, and all modes about equally often.

    Args:
        name: the case, without its mode.
    """
    return sorted(modes)[crc32(name.encode()) % len(modes)]


def mark_further_modes(items: Iterable[pytest.Item]) -> None:
    """Mark as long the cases that repeat another one in a second or third mode."""
    alike: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        mode = getattr(getattr(item, "callspec", None), "params", {}).get(PARAMETER)
        if mode in MODES:
            alike[re.sub(rf"\b{mode}\b", "", item.nodeid, count=1)][mode].append(item)
    for name, by_mode in alike.items():
        short = choose_short(name, list(by_mode))
        for mode, cases in by_mode.items():
            if mode != short:
                for case in cases:
                    case.add_marker(pytest.mark.long)


def mark_other_days(items: Iterable[pytest.Item], day: int | None = None) -> None:
    """Mark as long two thirds of the short cases of each long table of conformance.

    Args:
        day: which third stays; None: today's, so that all cases run within three days.
    """
    number = datetime.now(UTC).toordinal() if day is None else day
    tables: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.nodeid.startswith(TABLES) and item.get_closest_marker("long") is None:
            tables[item.nodeid.partition("[")[0]].append(item)
    for cases in tables.values():
        if len(cases) >= TABLE_CASES:
            for position, case in enumerate(cases):
                if (position + number) % 3:
                    case.add_marker(pytest.mark.long)


def first_short(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the values of a parametrised case with the mark ``long`` on all but the first ones.

    Args:
        values: of one parameter, or tuples of several.
    """
    return [value if number < count else _long(value) for number, value in enumerate(values)]


def others_long(values: Iterable[Any], short: Container[Any]) -> list[Any]:
    """Return the values with the mark ``long`` on all that are not in ``short``, as ``first_short``."""
    return [value if value in short else _long(value) for value in values]


def every_third_short(values: Iterable[Any]) -> list[Any]:
    """Return the values with the mark ``long`` on two of three, as ``first_short``."""
    return [_long(value) if number % 3 else value for number, value in enumerate(values)]


def _long(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
