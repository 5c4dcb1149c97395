"""Whether values have the types that their dataclasses declare: a PEF comes from anywhere."""

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from rdukit.errors import PefCorrupt

#: Longest text and largest whole number: names and sentences, bytes and cycles.
_MOST_TEXT = 100_000
_MOST_NUMBER = 2**63


def check_types(value: Any, where: str) -> None:
    """Check every field of a dataclass; those inside it are only looked at for what they are.

    Args:
        where: what the value is, for the message.
    Raises:
        PefCorrupt: a field has another type than declared; names the field, the value and the type.
    """
    kind: type = type(value)
    for name, is_legal, declared in _fields_of(kind):
        found = getattr(value, name)
        if not is_legal(found):
            shown = ascii(found) if isinstance(found, str | int | float | None) else f"a {type(found).__name__}"
            raise PefCorrupt(f"{where}: {name} is {shown[:80]}; legal: {_shown(declared)}; compile again")


@cache
def _fields_of(kind: type) -> tuple[tuple[str, Callable[[Any], bool], Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field.name, _checker(hints[field.name]), hints[field.name]) for field in fields(kind))


def _checker(declared: Any) -> Callable[[Any], bool]:
    origin, arguments = get_origin(declared), get_args(declared)
    if declared is Any:
        return lambda value: True
    if origin in (Union, types.UnionType):
        options = [_checker(option) for option in arguments]
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        item = _checker(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin is not None and issubclass(origin, Mapping):
        key, item = _checker(arguments[0]), _checker(arguments[1])
        return lambda value: isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))
    if declared is int:
        return lambda value: type(value) is int and abs(value) < _MOST_NUMBER
    if declared is float:
        return lambda value: type(value) in (int, float) and math.isfinite(value) and abs(value) < _MOST_NUMBER
    if declared is str:
        return lambda value: isinstance(value, str) and len(value) < _MOST_TEXT
    return lambda value: isinstance(value, declared)


def _shown(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) and get_origin(declared) is None else str(declared)
