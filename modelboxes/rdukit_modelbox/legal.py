"""What a parameter's value may be: as data, in words, and checked. Pure."""

import math
import re
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

ParameterValue = bool | int | float | str


class ParameterType(StrEnum):
    """Types of parameter values."""

    INT = "int"
    FLOAT = "float"
    STRING = "string"
    BOOL = "bool"


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as cause:
        raise ValueError(f"{pattern!r} is not a regular expression: {cause}") from cause
    return pattern


class Legal(BaseModel):
    """Limits on a value: all that are given hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    enum: tuple[bool | int | float | str, ...] | None = Field(default=None, min_length=1)
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    pattern: Annotated[str, AfterValidator(_compiles)] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> "Legal":
        if self.minimum is not None and self.above is not None:
            raise ValueError("give minimum (inclusive) or above (exclusive), not both")
        if self.maximum is not None and self.below is not None:
            raise ValueError("give maximum (inclusive) or below (exclusive), not both")
        return self


def legal_in_words(kind: ParameterType, legal: Legal) -> str:
    """``one of 16, 32``, ``0 < x <= 1``, ``matches ^[a-z]+$``, ``true or false``, or ``any int``."""
    if legal.enum is not None:
        return "one of " + ", ".join(str(v) for v in legal.enum)
    if kind is ParameterType.BOOL:
        return "true or false"
    if legal.pattern is not None:
        return f"matches {legal.pattern}"
    low = f"{_short(legal.minimum)} <= " if legal.minimum is not None else ""
    low = f"{_short(legal.above)} < " if legal.above is not None else low
    high = f" <= {_short(legal.maximum)}" if legal.maximum is not None else ""
    high = f" < {_short(legal.below)}" if legal.below is not None else high
    return f"{low}x{high}" if low or high else f"any {kind}"


def normalise(kind: ParameterType, value: object) -> ParameterValue | None:
    """``value`` as ``kind``, or None if it is of another type.

    Wires lose the difference of 1 and 1.0 (protobuf has only doubles), so a whole float is an int and any int a float.
    """
    match kind, value:
        case ParameterType.BOOL, bool():
            return value
        case ParameterType.STRING, str():
            return value
        case ((ParameterType.INT | ParameterType.FLOAT), bool()):
            return None
        case ParameterType.INT, int():
            return value
        case ParameterType.INT, float() if value.is_integer():
            return int(value)
        case ParameterType.FLOAT, (int() | float()) if math.isfinite(value):
            return float(value)
    return None


def find_objection(kind: ParameterType, legal: Legal, value: object) -> str | None:
    """Why ``value`` is not legal, with what would be; None if it is legal."""
    given = normalise(kind, value)
    words = legal_in_words(kind, legal)
    if given is None:
        return f"{value!r} is not of type {kind}; legal: {words}"
    if legal.enum is not None and given not in legal.enum:
        return f"{value!r} is not legal; legal: {words}"
    if legal.pattern is not None and not (isinstance(given, str) and re.search(legal.pattern, given)):
        return f"{value!r} is not legal; legal: {words}"
    if not isinstance(given, str) and (
        (legal.minimum is not None and given < legal.minimum)
        or (legal.above is not None and given <= legal.above)
        or (legal.maximum is not None and given > legal.maximum)
        or (legal.below is not None and given >= legal.below)
    ):
        return f"{value!r} is not legal; legal: {words}"
    return None


def _short(number: float | None) -> str:
    if number is None:
        return ""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:g}"
