"""Checks of a caller's parameters, completed by defaults to all values of a verb (pure)."""

from collections.abc import Mapping

from rdukit.errors import IllegalValue, InvalidArgument, UnknownParameter
from rdukit_modelbox.contract.allowed_values import ParameterValue, Values, find_objection, format_allowed, normalise
from rdukit_modelbox.contract.box import Box, BoxParameter, Verb
from rdukit_modelbox.contract.parameter import format_condition, holds
from rdukit_modelbox.contract.validation import in_order


def check_parameters(box: Box, verb: Verb, given: Mapping[str, object]) -> dict[str, ParameterValue]:
    """Return every parameter of ``verb``: the given value, or the box's default for the other values.

    Raises:
        UnknownParameter: a name that this verb lacks; the message lists its parameters. IllegalValue: an illegal value;
            the message lists the legal ones, which may depend on other values.
    """
    if verb not in box.verbs:
        raise InvalidArgument(f"box {box.name} has no verb {verb}; expected {', '.join(box.verbs)}")
    parameters = {p.name: p for p in box.parameters_of(verb)}
    for name in given:
        if name not in parameters:
            raise UnknownParameter(
                f"{box.name} {verb} has no parameter {name!r}; expected {', '.join(parameters) or 'none'}",
                parameter=name,
                legal=list(parameters),
            )
    values: dict[str, ParameterValue] = {}
    for parameter in in_order(tuple(parameters.values())):
        values[parameter.name] = _value_of(f"{box.name} {verb}", parameter, given, values)
    return {name: values[name] for name in parameters}


def _value_of(where: str, parameter: BoxParameter, given: Mapping[str, object], values: Values) -> ParameterValue:
    """Return the value while the parameters that this one depends on have ``values``."""
    default = parameter.default_for(values)
    is_given = parameter.name in given
    value = given.get(parameter.name, default)
    normal = normalise(parameter.type, value)
    if not holds(parameter.when, values):
        if is_given and normal != default:
            now = ", ".join(f"{name} is {values[name]}" for name in parameter.when)
            words = f"valid only when {format_condition(parameter.when)}; {now}: leave it out"
            raise _refusal(where, parameter, value, f"{value!r} is not valid; {words}", words)
        value, normal = default, normalise(parameter.type, default)
    else:
        legal = parameter.legal_for(values)
        objection = find_objection(parameter.type, legal, value, values)
        if objection is not None:
            case = parameter.case_for(values)
            words = f" (since {format_condition(case.when)})" if case is not None else ""
            words += "" if is_given else "; this is the default value, so pass another one"
            allowed = list(legal.enum) if legal.enum else format_allowed(parameter.type, legal, values)
            raise _refusal(where, parameter, value, objection + words, allowed)
    assert normal is not None
    return normal


def _refusal(where: str, parameter: BoxParameter, value: object, words: str, legal: object) -> IllegalValue:
    return IllegalValue(
        f"{where}: parameter {parameter.name!r}: {words}",
        parameter=parameter.name,
        value=value if isinstance(value, (bool, int, float, str)) else repr(value),
        legal=legal,
    )
