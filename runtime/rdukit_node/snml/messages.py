"""Rows of the node daemon's answers to messages, by the names of their fields. Pure.

A row may have fields that a message lacks and the other way round, so that daemon and interface can grow apart for a
while. Whatever a row holds, the message is legal: numbers are cut to the field's range, objects become JSON.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

_LARGEST: Final = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}
_SIGNED: Final = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})


def as_text(value: object) -> str:
    """Text for a string field: null is empty, an object is JSON, and no lone surrogate gets through."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text.encode(errors="replace").decode()


def as_count(value: object, bits: int = 64) -> int:
    """A whole number from 0 for an unsigned field; whatever is no number is 0."""
    largest: int = 2**bits - 1
    return min(_whole(value, least=0), largest)


def from_row(message: type[M], row: Mapping[str, Any], **renamed: str) -> M:
    """A message with the fields of ``row``; ``renamed`` says which row's field goes into a field of another name.

    Nested messages are not filled, except that a list of texts goes into a repeated text field.
    """
    built: M = message()
    fill(built, row, **renamed)
    return built


def fill(message: Message, row: Mapping[str, Any], **renamed: str) -> None:
    """``from_row`` into a message that exists; fields that the row lacks keep their values."""
    for field in message.DESCRIPTOR.fields:
        value = row.get(renamed.get(field.name, field.name))
        if value is None or field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            continue
        if field.is_repeated:
            if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                items = value if isinstance(value, list | tuple) else str(value).split()
                getattr(message, field.name)[:] = [as_text(item) for item in items]
            continue
        setattr(message, field.name, _scalar(field, value))


def _scalar(field: FieldDescriptor, value: object) -> str | bool | int | float:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return as_text(value)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return bool(value)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        named = field.enum_type.values_by_name.get(str(value))
        return 0 if named is None else int(named.number)
    if kind in _LARGEST:
        least = -_LARGEST[kind] - 1 if kind in _SIGNED else 0
        return min(_whole(value, least), _LARGEST[kind])
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _whole(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not math.isfinite(value):
        return 0
    return max(least, int(value))
