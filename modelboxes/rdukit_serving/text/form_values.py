"""Fields of requests for a text of a form: ``response_format``, and ``structured_outputs`` for other kinds.

Source: OpenAI's API reference, "Structured outputs"; ``structured_outputs`` is vLLM's.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rdukit.errors import InvalidArgument
from rdukit_serving.text.chat_messages import RequestPart
from rdukit_serving.text.constraints import FormKind, TextForm, kept_schema


class PlainFormat(RequestPart):
    """Any text."""

    type: Literal["text"]


class ObjectFormat(RequestPart):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaOfFormat(RequestPart):
    """JSON schema with a name, which says nothing to the model."""

    name: str
    description: str | None = None
    #: The schema is enforced either way: a keyword that cannot be enforced is refused.
    strict: bool | None = None
    content: Annotated[dict[str, Any], Field(alias="schema")]


class SchemaFormat(RequestPart):
    """JSON text that a schema describes."""

    type: Literal["json_schema"]
    json_schema: SchemaOfFormat


def schema_format(name: str, schema: dict[str, Any]) -> SchemaFormat:
    """Return the format that another API describes by a schema."""
    values = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
    return SchemaFormat.model_validate(values)


ResponseFormat = Annotated[PlainFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class StructuredOutputs(RequestPart):
    """Form of a text, of one of several kinds."""

    json_: Annotated[dict[str, Any] | None, Field(alias="json")] = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if len(self.model_fields_set) != 1 or None in (getattr(self, name) for name in self.model_fields_set):
            raise ValueError("expected exactly one of json, regex, choice, grammar")
        return self


def form_of(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None, guided: Mapping[str, Any] | None = None
) -> TextForm | None:  # fmt: skip
    """Return the form that a text must have; None: any text.

    ``guided``: values of vLLM's ``guided_json`` and so on, by their kinds.

    Raises:
        InvalidArgument: it is too long or cannot be kept, or there are two.
    """
    named = {kind: value for kind, value in (guided or {}).items() if value is not None}
    is_formed = isinstance(response_format, ObjectFormat | SchemaFormat)
    if len(named) + (outputs is not None) + is_formed > 1:
        field = f"guided_{next(iter(named))}" if named else "structured_outputs"
        raise InvalidArgument(f"{field}: a text has one form; leave the others out", field=field)
    match response_format:
        case ObjectFormat():
            return TextForm(FormKind.JSON, '{"type": "object"}')
        case SchemaFormat(json_schema=schema):
            return TextForm(FormKind.JSON, kept_schema(schema.content, "response_format"))
    field = "structured_outputs"
    for kind, value in named.items():
        field = f"guided_{kind}"
        try:
            given = json.loads(value) if kind == "json" and isinstance(value, str) else value
            outputs = StructuredOutputs.model_validate({kind: given})
        except (ValueError, RecursionError) as cause:
            raise InvalidArgument(f"{field}: it is not a form of kind {kind}", field=field) from cause
    if outputs is None:
        return None
    if outputs.json_ is not None:
        return TextForm(FormKind.JSON, kept_schema(outputs.json_, field), field)
    if outputs.regex is not None:
        return TextForm(FormKind.REGEX, outputs.regex, field)
    if outputs.choice is not None:
        return TextForm(FormKind.GRAMMAR, "start: " + " | ".join(_written(each) for each in outputs.choice), field)
    return TextForm(FormKind.GRAMMAR, outputs.grammar or "", field)


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
