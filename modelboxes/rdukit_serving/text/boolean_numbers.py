"""Booleans in a request where its fields have numbers, which pydantic reads as 1 and 0. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def find_boolean(kind: type[BaseModel], value: object) -> tuple[str, bool] | None:
    """Return place and value of the first boolean where only a number is meant; None: there is none.

    ``value``: a JSON value that ``kind`` accepts.
    """
    return _find([kind], value, "")


def _find(kinds: Iterable[Any], value: object, place: str) -> tuple[str, bool] | None:
    options = list(_options(kinds))
    if isinstance(value, bool):
        is_meant = any(each in (bool, Any, object) or get_origin(each) is Literal for each in options)
        return (place, value) if not is_meant and (int in options or float in options) else None
    items: Iterable[tuple[str, object, Sequence[Any]]] = ()
    if isinstance(value, list):
        items_of = [get_args(each)[0] for each in options if get_origin(each) is list]
        items = ((str(number), each, items_of) for number, each in enumerate(value))
    elif isinstance(value, dict):
        items = ((name, each, _kinds_at(options, name)) for name, each in value.items())
    for name, each, within in items:
        if within and isinstance(each, bool | list | dict):
            found = _find(within, each, f"{place}.{name}" if place else name)
            if found is not None:
                return found
    return None


def _options(kinds: Iterable[Any]) -> Iterator[Any]:
    """Yield the kinds that unions and annotations allow."""
    for kind in kinds:
        origin = get_origin(kind)
        if origin is Annotated:
            yield from _options(get_args(kind)[:1])
        elif origin in (Union, UnionType):
            yield from _options(get_args(kind))
        else:
            yield kind


def _kinds_at(options: Sequence[Any], name: str) -> list[Any]:
    """Return the kinds of a key's value in objects."""
    found: list[Any] = [get_args(each)[1] for each in options if get_origin(each) is dict]
    for each in options:
        if isinstance(each, type) and issubclass(each, BaseModel):
            fields = each.model_fields.items()
            found += [field.annotation for own, field in fields if name == (field.alias or own)]
    return found
