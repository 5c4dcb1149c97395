"""Whether a job's parameters are legal for its verb (pure).

``legal`` of a parameter is in words; the forms that ModelBoxes write are read here: ``one of 16, 32``,
``0 < x <= 1`` with either side or both, ``true or false``, ``matches REGEX``. A text in another form is left to the
box, which refuses what it does not take.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from rdukit.errors import IllegalValue, InvalidArgument, UnknownParameter
from rdukit_platform.catalog.model import Box, Parameter, Verb

_NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE: Final = re.compile(
    rf"^(?:(?P<low>{_NUMBER})\s*(?P<low_op><=?)\s*)?x\s*(?:(?P<high_op><=?)\s*(?P<high>{_NUMBER}))?$"
)
_TYPES: Final = {
    # JSON does not tell 1 from 1.0, so a whole float is an int.
    "int": (int, float),
    "float": (int, float),
    "bool": (bool,),
    "string": (str,),
}
_WHOLE: Final = frozenset({"int"})


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
    kind = parameter.type.lower()
    types = _TYPES.get(kind)
    if types is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        return False
    if isinstance(value, float) and (not math.isfinite(value) or (kind in _WHOLE and not value.is_integer())):
        return False
    text = parameter.legal.strip()
    if text.startswith("one of "):
        return any(_is_same(choice.strip(), value) for choice in text.removeprefix("one of ").split(","))
    if text == "true or false":
        return isinstance(value, bool)
    if text.startswith("matches "):
        return isinstance(value, str) and re.search(text.removeprefix("matches "), value) is not None
    found = _RANGE.match(text)
    if found and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _is_within(found, float(value))
    return True


def check_inputs(box: Box, verb: Verb, inputs: Mapping[str, str], kinds: Mapping[str, str]) -> None:
    """Refuse an unknown slot, a missing required one, or an artifact of another kind.

    Args:
        kinds: slot to the kind of what is given there: ``file`` or ``folder``.
    Raises:
        InvalidArgument: the message says what would be legal.
    """
    where = f"{verb.name} of box {box.name!r}"
    slots = {slot.name: slot for slot in verb.inputs}
    for name in inputs:
        if name not in slots:
            raise UnknownParameter(f"{where} has no input {name!r}; legal: {sorted(slots)}", legal=sorted(slots))
        if {slots[name].kind, kinds[name]} == {"file", "folder"}:
            raise IllegalValue(
                f"input {name!r} of {where} takes a {slots[name].kind}; {inputs[name]} is a {kinds[name]}"
            )
    missing = [slot.name for slot in verb.inputs if slot.is_required and slot.name not in inputs]
    if missing:
        raise InvalidArgument(f"{where} needs the inputs {missing}, which are not given", missing=missing)


def _is_same(choice: str, value: object) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(choice) == float(value)
        except ValueError:
            return False
    return choice == str(value)


def _is_within(limits: re.Match[str], value: float) -> bool:
    low, high = limits["low"], limits["high"]
    if low is not None and not (value > float(low) if limits["low_op"] == "<" else value >= float(low)):
        return False
    return high is None or (value < float(high) if limits["high_op"] == "<" else value <= float(high))
