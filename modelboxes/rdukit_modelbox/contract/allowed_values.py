"""Allowed values of a parameter: as data, in words, as JSON schema, and checked. Pure.

A limit is a number or the name of another parameter: ``maximum: context_length`` is ``x <= context_length``.
"""

import math
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, StringConstraints, model_validator

ParameterValue = bool | int | float | str
Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Limit = Annotated[float, Strict()] | Word
#: Values by parameter name; missing ones are unknown and limit nothing.
Values = Mapping[str, ParameterValue]

_UNKNOWN: Final[Values] = {}


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


class AllowedValues(BaseModel):
    """Limits on a value, all of which hold. A limit is a number or another parameter's name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enum: tuple[bool | int | float | str, ...] | None = Field(
        default=None, min_length=1, description="List of all legal values."
    )
    minimum: Limit | None = Field(default=None, description="x >= this.")
    maximum: Limit | None = Field(default=None, description="x <= this.")
    above: Limit | None = Field(default=None, description="x > this.")
    below: Limit | None = Field(default=None, description="x < this.")
    multiple_of: Limit | None = Field(default=None, alias="multipleOf", description="Divisor of all legal values.")
    pattern: Annotated[str, AfterValidator(_compiles)] | None = Field(
        default=None, description="Regular expression searched in the text; anchor it with ^ and $."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> "AllowedValues":
        if self.minimum is not None and self.above is not None:
            raise ValueError("give minimum (inclusive) or above (exclusive), not both")
        if self.maximum is not None and self.below is not None:
            raise ValueError("give maximum (inclusive) or below (exclusive), not both")
        if isinstance(self.multiple_of, float) and not 0 < self.multiple_of < math.inf:
            raise ValueError(f"multipleOf {_short(self.multiple_of)} is not valid; expected above 0")
        low = self.minimum if self.minimum is not None else self.above
        high = self.maximum if self.maximum is not None else self.below
        if isinstance(low, float) and isinstance(high, float):
            is_open = self.above is not None or self.below is not None
            if low > high or (low == high and is_open):
                raise ValueError(f"no value is between {_short(low)} and {_short(high)}")
        return self

    def limits(self) -> dict[str, Limit]:
        """Return the given limits, by their keys in the file."""
        found = {
            "minimum": self.minimum, "maximum": self.maximum, "above": self.above, "below": self.below,
            "multipleOf": self.multiple_of,
        }  # fmt: skip
        return {key: limit for key, limit in found.items() if limit is not None}

    def named_limits(self) -> dict[str, str]:
        """Return the limits that name other parameters, by their keys in the file."""
        return {key: limit for key, limit in self.limits().items() if isinstance(limit, str)}


def find_misused_limit(kind: ParameterType, legal: AllowedValues) -> str | None:
    """Return why ``legal`` cannot limit values of ``kind``; None if it can."""
    if legal.enum is not None and (wrong := [v for v in legal.enum if normalise(kind, v) is None]):
        return f"legal.enum: {wrong[0]!r} is not of type {kind}"
    if legal.pattern is not None and kind is not ParameterType.STRING:
        return f"legal.pattern is for type string, not {kind}"
    if legal.limits() and kind not in {ParameterType.INT, ParameterType.FLOAT}:
        return f"legal.{next(iter(legal.limits()))} is for types int and float, not {kind}"
    return None


def format_allowed(kind: ParameterType, legal: AllowedValues, values: Values = _UNKNOWN) -> str:
    """Return the legal values as text: ``one of 16, 32``, ``0 < x <= 1``, ``x <= context_length (2048)``, ``matches
    ^[a-z]+$``, or ``any int``.
    """
    if kind is ParameterType.BOOL and legal.enum is None:
        return "true or false"
    parts = ["one of " + ", ".join(_word(v) for v in legal.enum)] if legal.enum is not None else []
    if legal.pattern is not None:
        parts.append(f"matches {legal.pattern}")
    low = f"{_limit(legal.minimum, values)} <= " if legal.minimum is not None else ""
    low = f"{_limit(legal.above, values)} < " if legal.above is not None else low
    high = f" <= {_limit(legal.maximum, values)}" if legal.maximum is not None else ""
    high = f" < {_limit(legal.below, values)}" if legal.below is not None else high
    if low or high:
        parts.append(f"{low}x{high}")
    if legal.multiple_of is not None:
        parts.append(f"a multiple of {_limit(legal.multiple_of, values)}")
    return ", ".join(parts) or f"any {kind}"


def normalise(kind: ParameterType, value: object) -> ParameterValue | None:
    """Return ``value`` as ``kind``, or ``None`` if it has another type.

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
        case ParameterType.FLOAT, int() if abs(value) < 1 << 1023:
            return float(value)
        case ParameterType.FLOAT, float() if math.isfinite(value):
            return value
    return None


def find_objection(kind: ParameterType, legal: AllowedValues, value: object, values: Values = _UNKNOWN) -> str | None:
    """Return why ``value`` is illegal, with the legal values, or ``None``. ``values``: those named by limits."""
    given = normalise(kind, value)
    if given is None:
        return f"{value!r} is not of type {kind}; expected {format_allowed(kind, legal, values)}"
    is_legal = (
        (legal.enum is None or given in legal.enum)
        and (legal.pattern is None or (isinstance(given, str) and re.search(legal.pattern, given) is not None))
        and (isinstance(given, (str, bool)) or _is_within(legal, given, values))
    )
    return None if is_legal else f"{value!r} is not valid; expected {format_allowed(kind, legal, values)}"


def allowed_as_schema(kind: ParameterType, legal: AllowedValues) -> dict[str, object]:
    """Return a JSON-schema fragment; limits by other parameters are under ``x-limits``."""
    types = {"int": "integer", "float": "number", "string": "string", "bool": "boolean"}
    schema: dict[str, object] = {"type": types[kind]}
    if legal.enum is not None:
        schema["enum"] = list(legal.enum)
    if legal.pattern is not None:
        schema["pattern"] = legal.pattern
    keys = {"above": "exclusiveMinimum", "below": "exclusiveMaximum"}
    for key, limit in legal.limits().items():
        if isinstance(limit, float):
            schema[keys.get(key, key)] = int(limit) if limit.is_integer() and abs(limit) < 1e15 else limit
    if named := legal.named_limits():
        schema["x-limits"] = {keys.get(key, key): name for key, name in named.items()}
    return schema


def format_values(values: Iterable[ParameterValue]) -> str:
    """Return values as text: ``one of 16, 32``, or the only value."""
    words = [_word(value) for value in values]
    return words[0] if len(words) == 1 else "one of " + ", ".join(words)


def _is_within(legal: AllowedValues, given: float, values: Values) -> bool:
    def of(limit: Limit | None) -> float | None:
        value = values.get(limit) if isinstance(limit, str) else limit
        return value if isinstance(value, (int, float)) else None

    minimum, above, maximum, below = of(legal.minimum), of(legal.above), of(legal.maximum), of(legal.below)
    step = of(legal.multiple_of)
    return (
        (minimum is None or given >= minimum)
        and (above is None or given > above)
        and (maximum is None or given <= maximum)
        and (below is None or given < below)
        and (step is None or is_multiple(given, step))
    )


def is_multiple(given: float, step: float) -> bool:
    """Return whether ``given`` is a whole multiple of ``step``.

    Exact for whole numbers; otherwise within one part in 10^9 of a step, since 0.3 is not an exact multiple of 0.1 in
    binary.
    """
    if step == 0:
        return given == 0
    if float(step).is_integer() and float(given).is_integer():
        return int(given) % int(step) == 0
    quotient = given / step
    return math.isfinite(quotient) and abs(quotient - round(quotient)) <= 1e-9 * max(1.0, abs(quotient))


def _limit(limit: Limit | None, values: Values) -> str:
    if isinstance(limit, str):
        return f"{limit} ({_word(values[limit])})" if limit in values else limit
    return _short(limit)


def _word(value: ParameterValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _short(number: float | None) -> str:
    if number is None:
        return ""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:g}"
