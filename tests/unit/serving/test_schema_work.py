"""Schemas that would take much time or memory to rewrite are refused soon; rare bounds and formats are kept."""

import json
from typing import Any

import numpy as np
import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.text.constraints import FormKind, TextForm, kept_schema
from rdukit_serving.text.forms.exclusive import MAX_SCHEMAS, SchemaWork, exclusive_options
from rdukit_serving.text.forms.schemas import UnkeptSchema, plain_schema
from support import shows
from support.formed_texts import END, constraints

pytestmark = shows("structured-output")


def _nested_names(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        names = {"enum": [f"n{number}" for number in range(9)]}
        schema = {"type": "object", "propertyNames": names, "additionalProperties": schema}
    return schema


def _doubled(depth: int) -> dict[str, Any]:
    """Return a schema whose references are written out twice at each depth."""
    definitions: dict[str, Any] = {f"A{depth}": {"type": "object"}}
    for number in range(depth):
        part = {"allOf": [{"$ref": f"#/$defs/A{number + 1}"}], "unevaluatedProperties": False}
        definitions[f"A{number}"] = {"type": "object", "properties": {"x": part, "y": part}}
    return {"$ref": "#/$defs/A0", "$defs": definitions}


@pytest.mark.parametrize("schema", [_nested_names(20), _doubled(40)], ids=["names", "references"])
def test_a_schema_that_is_written_out_too_often_is_refused(schema: dict[str, Any]) -> None:
    work = SchemaWork(schemas=500)  # as if the request's other tools had taken the rest
    with pytest.raises(UnkeptSchema, match=f"more than {MAX_SCHEMAS} schemas, counting those of propertyNames"):
        plain_schema(schema, work)
    assert work.schemas == -1


def test_sets_of_long_texts_are_refused() -> None:
    with pytest.raises(UnkeptSchema, match="uniqueItems cannot be enforced"):
        plain_schema({"type": "array", "uniqueItems": True, "items": {"enum": ["a" * 20_000, 1, 2, 3, 4, 5]}})
    work = SchemaWork()
    assert plain_schema({"uniqueItems": True, "items": {"enum": [1, 2]}}, work)["enum"] == [
        [],
        [1],
        [2],
        [1, 2],
        [2, 1],
    ]
    assert work.characters < SchemaWork().characters


def test_options_that_repeat_or_have_long_lists_end_soon() -> None:
    many = {"type": "object", "properties": {f"p{number}": {"const": 1} for number in range(1000)}}
    work = SchemaWork()
    assert exclusive_options([{"$ref": "#"}] * 1000, lambda _: many, work) is None
    assert work.lookups == SchemaWork().lookups
    lists = [{"enum": [*range(4000)]}, {"enum": [*range(4000, 8000)]}]
    assert exclusive_options(lists, lambda each: each, work) == lists
    assert work.left < SchemaWork().left - 500


def test_a_long_chain_of_references_is_followed_once() -> None:
    definitions: dict[str, Any] = {f"A{number}": {"$ref": f"#/$defs/A{number + 1}"} for number in range(2000)}
    schema = {"$ref": "#/$defs/A0", "$defs": {**definitions, "A2000": {"type": "string"}}}
    assert plain_schema(schema)["$defs"]["A2000"] == {"type": "string"}
    definitions["A2000"] = {"$ref": "#/$defs/A7"}
    with pytest.raises(UnkeptSchema, match="leads back to itself"):
        plain_schema({**schema, "$defs": definitions})


def _is_kept(form: TextForm, text: str) -> bool:
    forms, tokens = constraints()
    constraint, logits_V = forms.find(form), np.zeros(len(tokens), np.float32)
    for letter in text.encode():
        token = tokens.index(bytes([letter]))
        if constraint.is_over or token not in constraint.legal_tokens(logits_V):
            return False
        constraint.take(token)
    return constraint.is_over or END in constraint.legal_tokens(logits_V)


@pytest.mark.parametrize(
    ("schema", "legal", "others"),
    [
        ({"type": ["integer", "null"], "minimum": 2**53 + 1}, ["9007199254740994", "null"], ["9007199254740992"]),
        ({"type": "number", "minimum": 2**53 + 1}, ["9007199254740994"], ["9007199254740992", "9007199254740992.0"]),
        ({"minimum": 2**53 + 1}, ["9007199254740994", '"a"'], ["9007199254740992"]),
        ({"type": "number", "maximum": 10**400}, ["5"], []),
        ({"type": ["string", "null"], "format": "date"}, ["null", '"2024-02-29"'], ['"0001-01-01"', '"x"']),
        ({"type": ["string", "null"], "format": "uuid7"}, ["null"], ['"x"']),
    ],
)
def test_bounds_and_formats_of_several_types_are_kept(schema: Any, legal: list[str], others: list[str]) -> None:
    form = TextForm(FormKind.JSON, kept_schema(schema, "response_format"))
    for text in [*legal, *others]:
        assert _is_kept(form, text) == (text in legal), text


def test_a_bound_beyond_doubles_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidArgument, match=r"schema at /properties/x: minimum 1000.* is beyond 9e"):
        kept_schema({"properties": {"x": {"type": "number", "minimum": 10**400}}}, "response_format")
    with pytest.raises(InvalidArgument, match="it is not a JSON schema"):
        kept_schema({"type": "integer", "minimum": json.loads("NaN")}, "response_format")
