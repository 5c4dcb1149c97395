"""Checks of a job's parameters and inputs against what its verb allows (pure).

A box describes each parameter by a JSON schema. Three further keys hold dependencies on other parameters: ``x-when``
(they must have these values), ``x-cases`` (another schema for these values) and ``x-limits`` (a limit is another
parameter's value). A parameter without a schema is left to the box, which refuses invalid values.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from rdukit.errors import IllegalValue, InvalidArgument, UnknownParameter, suggest
from rdukit_platform.catalog.model import BoxDescription, BoxVerb, VerbParameter

#: Keys that describe the parameter, not its values.
_NOT_OF_VALUES: Final = frozenset({"default", "description", "when"})


def check_parameters(box: BoxDescription, verb: BoxVerb, parameters: Mapping[str, object]) -> None:
    """Refuse unknown parameters, and illegal values.

    Raises:
        UnknownParameter: the message lists the verb's parameters.
        IllegalValue: a value is not valid; the message has the expected ones.
    """
    known = {parameter.name: parameter for parameter in verb.parameters}
    values = {name: parameter.default for name, parameter in known.items()} | dict(parameters)
    check_names(box, verb, parameters)
    for name, value in parameters.items():
        parameter = known[name]
        if not is_legal(parameter, value, values):
            wanted = parameter.legal or parameter.type
            if isinstance(value, float) and parameter.schema.get("type") == "integer":
                wanted = f"a whole number, {wanted}"
            raise IllegalValue(
                f"parameter {name!r} of {verb.name} of box {box.name!r} is {_shortened(value)}; expected {wanted}",
                parameter=name,
                legal=wanted,
            )


def check_names(box: BoxDescription, verb: BoxVerb, names: Iterable[str]) -> None:
    """Refuse names of unknown parameters.

    Raises:
        UnknownParameter: the message has the nearest one, and all that are legal.
    """
    legal = sorted(parameter.name for parameter in verb.parameters)
    for name in names:
        if name not in legal:
            raise UnknownParameter(
                f"{verb.name} of box {box.name!r} has no parameter {name!r}; expected {', '.join(legal) or 'none'}."
                f"{suggest(name, legal)}",
                parameter=name,
                legal=legal,
            )


def is_legal(parameter: VerbParameter, value: object, values: Mapping[str, object]) -> bool:
    """Return whether ``value`` is legal while the verb's parameters have ``values``.

    Raises:
        InvalidArgument: the box's schema is invalid.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return False
    schema = parameter.schema
    if not _holds(schema.get("x-when") or {}, values):
        return value == parameter.default
    for case in schema.get("x-cases") or []:
        if _holds(case.get("when") or {}, values):
            schema = case
            break
    try:
        validator = Draft202012Validator(plain_schema(schema, values))
        validator.check_schema(validator.schema)
        return bool(validator.is_valid(value))
    except SchemaError as cause:
        message = f"the schema of parameter {parameter.name!r} is not valid: {cause.message}"
        raise InvalidArgument(f"a ModelBox's description is not valid: {message}") from cause


def plain_schema(schema: Mapping[str, Any], values: Mapping[str, object]) -> dict[str, object]:
    """Convert ``schema`` for standard validators: limits by other parameters become those parameters' values.

    Fractional steps are left to the box, because in binary 0.3 is not a multiple of 0.1.
    """
    limits = {key: values[name] for key, name in (schema.get("x-limits") or {}).items() if _is_number(values.get(name))}
    plain = {key: limit for key, limit in schema.items() if key not in _NOT_OF_VALUES and not key.startswith("x-")}
    plain |= limits
    if not float(plain.get("multipleOf", 1)).is_integer() or plain.get("multipleOf") == 0:
        del plain["multipleOf"]
    return plain


def check_inputs(box: BoxDescription, verb: BoxVerb, inputs: Mapping[str, str], kinds: Mapping[str, str]) -> None:
    """Refuse an unknown slot, a missing required one, or an artifact of another kind.

    Args:
        kinds: slot to the kind of its artifact: ``file`` or ``folder``.
    Raises:
        InvalidArgument: an input is not valid; the message has the expected one.
    """
    where = f"{verb.name} of box {box.name!r}"
    slots = {slot.name: slot for slot in verb.inputs}
    for name in inputs:
        if name not in slots:
            raise UnknownParameter(
                f"{where} has no input {name!r}; expected {', '.join(sorted(slots)) or 'none'}.{suggest(name, slots)}",
                legal=sorted(slots),
            )
        if {slots[name].kind, kinds[name]} == {"file", "folder"}:
            raise IllegalValue(
                f"input {name!r} of {where} is a {kinds[name]}, {inputs[name]}; expected a {slots[name].kind}"
            )
    missing = [slot.name for slot in verb.inputs if slot.is_required and slot.name not in inputs]
    if missing:
        raise InvalidArgument(f"{where} lacks the inputs {', '.join(missing)}; give each an artifact", missing=missing)


def check_metric(box: BoxDescription, verb: BoxVerb, name: str, what: str, *, in_progress: bool = False) -> None:
    """Refuse a metric that the verb does not declare; one without declared metrics may report any.

    Args:
        what: use of the metric, such as "objective". in_progress: it must be reported while the verb runs.
    Raises:
        IllegalValue: the message has the nearest one, and all that are legal.
    """
    legal = [metric.name for metric in verb.metrics if not in_progress or metric.reported != "result"]
    if name in legal or not verb.metrics:
        return
    when = " while it runs" if in_progress else ""
    raise IllegalValue(
        f"{what}: {verb.name} of box {box.name!r} reports no metric {name[:64]!r}{when}.{suggest(name[:64], legal)} "
        f"Legal: {', '.join(legal) or 'none'}",
        metric=name[:64],
        legal=legal,
    )


def _holds(when: Mapping[str, Any], values: Mapping[str, object]) -> bool:
    return all(values.get(name) in legal for name, legal in when.items())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
