"""A named parameter: type, default, legal values, and how these depend on other parameters."""

from collections.abc import Iterator, Mapping

from pydantic import Field, model_validator

from rdukit_modelbox.contract.allowed_values import (
    AllowedValues,
    ParameterType,
    ParameterValue,
    Values,
    Word,
    allowed_as_schema,
    find_misused_limit,
    find_objection,
    format_allowed,
    format_values,
)
from rdukit_modelbox.contract.parts import Flag, Sentence, Verb
from rdukit_serving.strict_yaml.schema_errors import StrictModel

#: Condition on other parameters: each named one must have one of the values.
When = Mapping[Word, tuple[bool | int | float | str, ...]]


class ParameterCase(StrictModel):
    """Other legal values (and another default) while other parameters have certain values."""

    when: When = Field(min_length=1, description="Condition: names of other parameters with their values.")
    legal: AllowedValues = Field(description="Legal values under this condition, instead of the parameter's own.")
    default: bool | int | float | str | None = Field(
        default=None, description="Default under this condition; if absent, the parameter's own."
    )


class BoxParameter(StrictModel):
    """A named parameter: its type, default, legal values and the verbs that take it."""

    name: Word
    type: ParameterType
    default: bool | int | float | str
    legal: AllowedValues = Field(default=AllowedValues(), description="Legal values; if absent, any value of the type.")
    verbs: tuple[Verb, ...] = Field(min_length=1, description="Verbs that accept the parameter.")
    help: Sentence
    unit: str | None = Field(default=None, min_length=1, max_length=40, description="Unit: s, images.")
    #: The value is also a size of the model: it is passed to the model's builder under the same name.
    size: Flag = Field(
        default=False,
        description="Whether the model's builder gets it; only for compile, or for preprocess and compile.",
    )
    when: When = Field(
        default_factory=dict, description="Condition: values of other parameters under which this one may be given."
    )
    cases: tuple[ParameterCase, ...] = Field(
        default=(), description="Cases with other legal values; the first one whose condition holds applies."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> "BoxParameter":
        for legal in (self.legal, *(case.legal for case in self.cases)):
            misuse = find_misused_limit(self.type, legal)
            if misuse is not None:
                raise ValueError(f"parameter {self.name!r}: {misuse}")
        objection = find_objection(self.type, self.legal, self.default)
        if objection is not None:
            raise ValueError(f"default of parameter {self.name!r}: {objection}")
        for number, case in enumerate(self.cases):
            default = self.default if case.default is None else case.default
            objection = find_objection(self.type, case.legal, default)
            if objection is not None:
                words = f"default of parameter {self.name!r} in case {number}: {objection}"
                raise ValueError(words + ("; give the case a default" if case.default is None else ""))
        if self.size and self.verbs not in {(Verb.COMPILE,), (Verb.PREPROCESS, Verb.COMPILE)}:
            raise ValueError(
                f"parameter {self.name!r} is a size of the model; its verbs must be [compile] or [preprocess, compile]"
            )
        return self

    def case_for(self, values: Values) -> ParameterCase | None:
        """Return the first case that holds for the other parameters' ``values``."""
        return next((case for case in self.cases if holds(case.when, values)), None)

    def legal_for(self, values: Values) -> AllowedValues:
        """Return the legal values while the others have ``values``."""
        case = self.case_for(values)
        return self.legal if case is None else case.legal

    def default_for(self, values: Values) -> ParameterValue:
        """Return the default while the others have ``values``."""
        case = self.case_for(values)
        return self.default if case is None or case.default is None else case.default

    def dependences(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield each place in this parameter that names another, with that name."""
        for name in self.when:
            yield ("when", name), name
        for key, name in self.legal.named_limits().items():
            yield ("legal", key), name
        for number, case in enumerate(self.cases):
            for name in case.when:
                yield ("cases", number, "when", name), name
            for key, name in case.legal.named_limits().items():
                yield ("cases", number, "legal", key), name

    def legal_words(self) -> str:
        """Describe all legal values: ``1 <= x; when target is sn10: one of 1, 2; only when mode is o1``."""
        parts = [format_allowed(self.type, self.legal)]
        parts += [f"when {format_condition(case.when)}: {format_allowed(self.type, case.legal)}" for case in self.cases]
        if self.when:
            parts.append(f"only when {format_condition(self.when)}")
        return "; ".join(parts)

    def schema_fragment(self) -> dict[str, object]:
        """Return a JSON schema of its values: the default, with ``x-cases`` and ``x-when`` if there are any."""
        fragment = {**allowed_as_schema(self.type, self.legal), "default": self.default, "description": self.help}
        if self.unit is not None:
            fragment["x-unit"] = self.unit
        if self.when:
            fragment["x-when"] = {name: list(values) for name, values in self.when.items()}
        if self.cases:
            fragment["x-cases"] = [
                {
                    "when": {name: list(values) for name, values in case.when.items()},
                    **allowed_as_schema(self.type, case.legal),
                    "default": self.default if case.default is None else case.default,
                }
                for case in self.cases
            ]
        return fragment


def holds(when: When, values: Values) -> bool:
    """Return whether all named parameters have one of the given values."""
    return all(name in values and values[name] in legal for name, legal in when.items())


def format_condition(when: When) -> str:
    """Return a condition as text: ``mode is one of o1, o3 and target is sn30``."""
    return " and ".join(f"{name} is {format_values(values)}" for name, values in when.items())
