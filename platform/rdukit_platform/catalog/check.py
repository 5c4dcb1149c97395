"""Whether a job's parameters are legal for its verb (pure).

``legal`` of a parameter is written for people; the forms below are read by this file as well. A text in another form is
left to the box, which refuses what it does not take.

* ``one of 16, 32`` (also ``16 | 32``)
* ``0 < x <= 1``, ``x >= 1``, ``1..64``, ``1 to 64``
* ``true or false``
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from rdukit.errors import IllegalValue, InvalidArgument, UnknownParameter
from rdukit_platform.catalog.model import Box, Parameter, Slot, Verb

_NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE: Final = re.compile(
    rf"^(?:(?P<low>{_NUMBER})\s*(?P<low_op><=?|≤)\s*)?[a-z_]+\s*(?:(?P<high_op><=?|≤)\s*(?P<high>{_NUMBER}))?$"
)
_ONE_SIDE: Final = re.compile(rf"^(?:[a-z_]+\s*)?(?P<op>>=?|<=?|≥|≤)\s*(?P<bound>{_NUMBER})$")
_SPAN: Final = re.compile(
    rf"^(?:an? )?(?:integer |int |number |whole number )?(?:from )?(?P<low>{_NUMBER})\s*(?:\.\.|to|-|–)\s*(?P<high>{_NUMBER})$"
)
_TYPES: Final = {
    "int": (int,),
    "integer": (int,),
    "float": (int, float),
    "number": (int, float),
    "double": (int, float),
    "bool": (bool,),
    "boolean": (bool,),
    "str": (str,),
    "string": (str,),
    "text": (str,),
}


def check_parameters(box: Box, verb: Verb, parameters: Mapping[str, object]) -> None:
    """Refuse a parameter that the verb does not have, or a value that is not legal.

    Raises:
        UnknownParameter: the message lists the verb's parameters.
        IllegalValue: the message says what would be legal.
    """
    known = {parameter.name: parameter for parameter in verb.parameters}
    for name, value in parameters.items():
        parameter = known.get(name)
        if parameter is None:
            raise UnknownParameter(
                f"{verb.name} of box {box.name!r} has no parameter {name!r}; legal: {sorted(known)}",
                parameter=name,
                legal=sorted(known),
            )
        if not is_legal(parameter, value):
            wanted = parameter.legal or parameter.type
            raise IllegalValue(
                f"parameter {name!r} of {verb.name} of box {box.name!r} is {value!r}; legal: {wanted}",
                parameter=name,
                legal=wanted,
            )


def is_legal(parameter: Parameter, value: object) -> bool:
    """Whether ``value`` has the parameter's type and is among its legal values, as far as those can be read."""
    types = _TYPES.get(parameter.type.lower())
    if types is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        return False
    text = parameter.legal.strip()
    choices = _choices(text)
    if choices is not None:
        return any(type(value) is not bool and value == choice or str(value) == str(choice) for choice in choices)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _is_within(text.lower(), float(value))
    return True


def check_inputs(box: Box, verb: Verb, inputs: Mapping[str, str], kinds: Mapping[str, str | None]) -> None:
    """Refuse an unknown slot, a missing required one, or an artifact of another kind.

    Args:
        kinds: slot to the kind of the artifact there; ``None`` where it is not known.
    Raises:
        InvalidArgument: the message says what would be legal.
    """
    where = f"{verb.name} of box {box.name!r}"
    slots = {slot.name: slot for slot in verb.inputs}
    for name in inputs:
        if name not in slots:
            raise UnknownParameter(f"{where} has no input {name!r}; legal: {sorted(slots)}", legal=sorted(slots))
        kind = kinds.get(name)
        if not _fits(slots[name], kind):
            raise IllegalValue(f"input {name!r} of {where} takes a {slots[name].kind}; {inputs[name]} is a {kind}")
    missing = [slot.name for slot in verb.inputs if slot.is_required and slot.name not in inputs]
    if missing:
        raise InvalidArgument(f"{where} needs the inputs {missing}, which are not given", missing=missing)


def _fits(slot: Slot, kind: str | None) -> bool:
    generic = {"", "file", "folder"}
    return kind is None or kind in generic or slot.kind in generic or kind == slot.kind


def _choices(text: str) -> Sequence[object] | None:
    if text.lower() in {"true or false", "true, false", "bool", "boolean"}:
        return [True, False, "true", "false"]
    if text.lower().startswith("one of"):
        body = text[len("one of") :].lstrip(" :")
        parts = re.split(r"\s*(?:,|\||\bor\b)\s*", body.strip("[]{}() ."))
    elif re.fullmatch(r"[^|<>=]+(\|[^|<>=]+)+", text):
        parts = [part.strip() for part in text.split("|")]
    else:
        return None
    return [_literal(part) for part in parts if part]


def _literal(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip("'\"")


def _is_within(text: str, value: float) -> bool:
    if found := _RANGE.match(text):
        low, high = found["low"], found["high"]
        if low is not None and not (value > float(low) if found["low_op"] == "<" else value >= float(low)):
            return False
        return high is None or (value < float(high) if found["high_op"] == "<" else value <= float(high))
    if found := _ONE_SIDE.match(text):
        bound, op = float(found["bound"]), found["op"]
        return {">": value > bound, "<": value < bound}.get(op, value >= bound if op in {">=", "≥"} else value <= bound)
    if found := _SPAN.match(text):
        return float(found["low"]) <= value <= float(found["high"])
    return True
