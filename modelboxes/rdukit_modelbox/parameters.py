"""Parameters as given by a caller → all values of a verb, checked. Pure."""

from collections.abc import Mapping

from rdukit.errors import IllegalValue, InvalidArgument, UnknownParameter
from rdukit_modelbox.box import Box, Parameter, Verb
from rdukit_modelbox.legal import ParameterValue, find_objection, legal_in_words, normalise


def check_parameters(box: Box, verb: Verb, given: Mapping[str, object]) -> dict[str, ParameterValue]:
    """Every parameter of ``verb``: the given value, or the box's default.

    Raises:
        UnknownParameter: a name that this verb does not have; lists those it has.
        IllegalValue: a value outside its legal values; lists them.
    """
    if verb not in box.verbs:
        raise InvalidArgument(f"box {box.name} has no verb {verb}; legal: {', '.join(box.verbs)}")
    parameters = {p.name: p for p in box.parameters_of(verb)}
    for name in given:
        if name not in parameters:
            raise UnknownParameter(
                f"{box.name} {verb} has no parameter {name!r}; legal: {', '.join(parameters) or 'none'}",
                parameter=name,
                legal=list(parameters),
            )
    return {name: _value_of(box, verb, p, given.get(name, p.default)) for name, p in parameters.items()}


def _value_of(box: Box, verb: Verb, parameter: Parameter, value: object) -> ParameterValue:
    objection = find_objection(parameter.type, parameter.legal, value)
    if objection is not None:
        legal = parameter.legal.enum or legal_in_words(parameter.type, parameter.legal)
        raise IllegalValue(
            f"{box.name} {verb}: parameter {parameter.name!r}: {objection}",
            parameter=parameter.name,
            value=value if isinstance(value, (bool, int, float, str)) else repr(value),
            legal=list(legal) if isinstance(legal, tuple) else legal,
        )
    normal = normalise(parameter.type, value)
    assert normal is not None
    return normal
