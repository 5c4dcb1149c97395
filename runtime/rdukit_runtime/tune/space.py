"""The space that ``rdukit tune`` searches: options of a program, and values to try. Pure.

Source: ours; names of options are those of SambaFlow programs.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

import yaml

from rdukit.errors import InvalidArgument

#: Value of an option. True: the flag alone; False: no flag; None: the option is left out.
Value = str | int | float | bool | None
Point = Mapping[str, Value]

#: Most points of a space: each is compiled once.
MOST_POINTS: Final = 256
#: Modes that are tried by default.
_MODES: Final = ("o0", "o1", "o3")
_ALIASES: Final[Mapping[str, str]] = {"b": "batch-size", "mb": "microbatch-size", "n": "num-iterations"}
#: Options that name files of a compile, which the search chooses itself.
_OWN: Final = frozenset({"pef", "p", "pef-name", "output-folder", "yaml-config"})


def option_name(text: str) -> str:
    """Return an option's long name without dashes at its beginning.

    Raises:
        InvalidArgument: the option has one letter without a known long name, or the search sets it itself.
    """
    name = text.lstrip("-").replace("_", "-")
    name = _ALIASES.get(name, name)
    if name in _OWN:
        raise InvalidArgument(f"--{name} cannot be searched, because the search chooses files itself")
    if len(name) < 2:
        raise InvalidArgument(f"option {text!r} has no known long name; expected a name such as optim-level")
    return name


def read_try(text: str) -> tuple[str, tuple[Value, ...]]:
    """Read ``NAME=VALUE,VALUE``; an empty value leaves the option out.

    Raises:
        InvalidArgument: the text has another form.
    """
    name, equals, values = text.partition("=")
    if not equals or not name.strip("- "):
        raise InvalidArgument(f"--try {text!r} cannot be read; expected NAME=VALUE,VALUE, such as batch-size=32,64")
    return option_name(name.strip()), tuple(_typed(value.strip()) for value in values.split(","))


def _typed(text: str) -> Value:
    if not text:
        return None
    if text in {"true", "false"}:
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text


def default_space(batch: str) -> dict[str, tuple[Value, ...]]:
    """Return the default space: all modes, and batches once, twice and four times as large.

    Args:
        batch: the program's batch size; empty: unknown, and not searched.
    """
    space: dict[str, tuple[Value, ...]] = {"optim-level": _MODES}
    if batch.isdigit() and int(batch) > 0:
        space["batch-size"] = tuple(int(batch) * factor for factor in (1, 2, 4))
    return space


def list_points(space: Mapping[str, Sequence[Value]]) -> list[Point]:
    """Return all combinations, the last option varying fastest.

    Raises:
        InvalidArgument: there are too many points, or an option has no value or a repeated one.
    """
    for name, values in space.items():
        if not values or len({json.dumps(value) for value in values}) < len(values):
            raise InvalidArgument(f"option {name!r} has the values {list(values)}; expected one or more, each once")
    count = math.prod(len(values) for values in space.values())
    if count > MOST_POINTS:
        raise InvalidArgument(f"the space has {count} points; expected at most {MOST_POINTS}: try fewer values")
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]


def option_words(point: Point) -> list[str]:
    """Return a point as words of a command line."""
    words: list[str] = []
    for name, value in point.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return words


def point_key(point: Point) -> str:
    """Return a point as text, the same for the same options in any order."""
    return json.dumps(dict(sorted(point.items())))


def outcome_text(point: Point, comments: Sequence[str]) -> str:
    """Return the file that ``--yaml-config`` takes: the options of a point, below comments."""
    values = {name.replace("-", "_"): value for name, value in point.items() if value is not None}
    lines = [f"# {' '.join(line.split())}\n" for line in comments]
    return "".join(lines) + yaml.safe_dump(values, sort_keys=True)
