"""JSON schemas that pydantic, zod and people write: each text keeps its schema, or a refusal says what to write."""

import datetime
import enum
import functools
import ipaddress
import json
import random
import re
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema
import numpy as np
import pytest
from pydantic import AnyUrl, Base64Bytes, BaseModel, Field, Json, SecretStr, TypeAdapter
from pydantic.types import UUID4, PastDate
from typing_extensions import TypedDict

from rdukit.errors import InvalidArgument
from rdukit_serving.text.constraints import FormKind, TextForm, kept_schema
from rdukit_serving.text.form_values import ObjectFormat, PlainFormat, StructuredOutputs, form_of
from rdukit_serving.text.forms.exclusive import MAX_COMPARED, exclusive_options
from rdukit_serving.text.forms.patterns import UnkeptPattern, plain_patterns
from rdukit_serving.text.tool_calls import forced_call, format_of
from support import shows
from support.formed_texts import END, constraints, make_text

pytestmark = shows("inference", "text-models", "structured-output")


class Color(enum.Enum):
    RED, GREEN = "red", "green"


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Options(TypedDict, total=False):
    name: str
    level: Literal[1, 2]


class Node(BaseModel):
    value: int
    children: "list[Node]" = []
    parent: "Node | None" = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=0, le=9)]


class Dog(BaseModel):
    kind: Literal["dog", "hound"]
    name: Annotated[str, Field(max_length=9)]


class Zoo(BaseModel, extra="forbid"):
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]]


#: Types of fields whose schemas pydantic writes.
TYPES: list[Any] = [
    int, float, bool, str, None, Any, Decimal, Annotated[Decimal, Field(max_digits=5, decimal_places=2)], bytes, Path,
    SecretStr, uuid.UUID, UUID4, AnyUrl, Base64Bytes, Json[int], Json, PastDate, datetime.date, datetime.datetime,
    datetime.time, datetime.timedelta, ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network,
    ipaddress.IPv4Interface, Color, Point, Options, Node, Cat, Zoo, list[int], set[bool], set[Color], frozenset[Color],
    tuple[int, str], tuple[int, ...], dict[str, int], dict[Color, int], dict[Literal["a", "b"], bool],
    dict[uuid.UUID, int], dict[Annotated[str, Field(pattern="^[a-z]+$")], int],
    dict[Annotated[str, Field(min_length=1, max_length=3)], int], dict[int, str], int | None, int | str | None,
    Literal["a", 1, True, None], Literal["<|end|>", "a<think>b"], Annotated[int, Field(multiple_of=7, gt=0, lt=100)],
    Annotated[float, Field(ge=-1, le=1)], Annotated[str, Field(min_length=2, max_length=4)],
    Annotated[str, Field(pattern=r"^\d{3}-\w+$")], Annotated[list[int], Field(min_length=2, max_length=3)],
    Annotated[int, Field(ge=0, le=2**63 - 1)], Annotated[int, Field(ge=-(2**63), lt=2**63)],
    Annotated[int, Field(ge=2**53 + 1, le=2**53 + 3)], Annotated[dict[str, int], Field(min_length=1, max_length=2)],
    Cat | Dog, list[Cat | None], Annotated[Cat | Dog, Field(discriminator="kind")],
]  # fmt: skip

#: Schemas that zod, older drafts and people write.
WRITTEN: list[Any] = [
    {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]},
    {"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z"
     r"0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"},
    {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d).{4,8}$"},
    {"type": "string", "pattern": r"^(?=.{1,9}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,6}[a-zA-Z0-9])?$"},
    {"type": "string", "pattern": r"^(?!admin$|root)[a-z]{1,6}$"},
    {"type": "string", "pattern": r"^$|^(?:[0-9a-z]{4})+$"},
    {"type": "string", "pattern": r"^(?!.*<)[\s\S]{1,5}$"}, {"type": "string", "pattern": r"^(?!.*-$)[a-z-]{1,5}$"},
    {"type": "string", "pattern": "b+"}, {"type": "string", "pattern": r"^[^\d\s]+$"}, {"pattern": "^a"},
    {"type": "string", "format": "no-such-format"}, {"type": "string", "format": "json-string", "maxLength": 5},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 6}, {"type": "integer", "minimum": 4, "maximum": 9}]},
    {"oneOf": [{"type": "string"}, {"type": "null"}]}, {"oneOf": [{"const": 1}, {"enum": ["a", 2]}]},
    {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
               {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]}, {"oneOf": [{"type": "string"}, {"minLength": 3}]},
    {"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740995},
    {"type": "integer", "exclusiveMinimum": 2**62}, {"type": "integer", "maximum": 2**70, "minimum": 2**60},
    {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, {"type": "integer", "minimum": 2**70},
    {"enum": [2**53 + 2, -(2**60)]}, {"enum": [2**53 + 1]}, {"const": 2**80 + 1}, {"const": {"a": [2**53 + 1]}},
    {"enum": [f"value number {number}" for number in range(2000)]}, {"enum": [*range(2000)]},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": False, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, {"type": "array", "contains": {"const": 1}},
    {"not": {}}, {"not": {"type": "null"}}, {"type": "array", "items": {"not": {}}}, {}, True,
    {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {"type": "string"}},
     "additionalProperties": False},
    {"type": "object", "patternProperties": {r"^(?=a)\w+$": {}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"enum": ["a"]}, "properties": {"a": {}}},
    {"type": "object", "propertyNames": {"format": "date"}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "dependentRequired": {"a": ["b"]}}, {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"type": "object", "unevaluatedProperties": False}, {"$ref": "https://example.com/schema"},
    {"type": ["string", "null"], "maxLength": 3, "nullable": True, "x-order": 3, "examples": ["a"]},
    {"type": "string", "contentMediaType": "application/json", "contentSchema": {"type": "integer"}},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}]},
    {"type": "string", "minLength": 5, "maxLength": 2}, {"type": "string", "pattern": r"\bx"},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 3}, {"const": "<|end|>"}, {"const": "<think>"},
    {"type": "string", "pattern": r"^(?<!a)b$"}, {"type": "string", "pattern": r"^(?!(a|b)+)c$"},
]  # fmt: skip


def generated(seed: int) -> Any:
    """A schema of random parts, nested at most three deep."""
    draw = random.Random(seed)

    def part(depth: int) -> Any:
        kinds = ["integer", "string", "number", "boolean", "enum", "const", "null"]
        kinds += ["object", "array", "anyOf", "oneOf", "dict", "tuple", "ref"] * (depth > 0)
        match draw.choice(kinds):
            case "integer":
                least = draw.choice([0, -5, 2**53 + draw.randrange(9), -(2**60) - 1])
                return {"type": "integer", "minimum": least, "maximum": least + draw.choice([0, 3, 5000, 2**61])}
            case "string":
                length = {"minLength": draw.randrange(3), "maxLength": draw.randrange(3, 9)}
                words = draw.choice([{"pattern": r"^\w*[.]?\d+$"}, {"format": "uuid5"}, {"format": "date"}, length])
                return {"type": "string", "title": "T", **words}
            case "number":
                return {"type": "number", "exclusiveMinimum": draw.randrange(-9, 9), "default": None}
            case "enum":
                return {"enum": draw.sample(["a", "é", '"', "\\", 1, 2.5, None, False, "<|end|>", "<think>"], 3)}
            case "const":
                return {"const": draw.choice(["x", 3, ["a", {"b": None}], {"c": True}])}
            case "object":
                names = draw.sample(["a", "b c", "ü", 'q"', "<think>"], draw.randrange(1, 4))
                return {
                    "type": "object", "properties": {name: part(depth - 1) for name in names},
                    "required": draw.sample(names, draw.randrange(len(names) + 1)),
                    "additionalProperties": draw.choice([False, {"type": "boolean"}]),
                }  # fmt: skip
            case "array":
                return {"type": "array", "items": part(depth - 1), "minItems": draw.randrange(3), "maxItems": 3}
            case "anyOf" | "oneOf" as key:
                return {key: [part(depth - 1) for _ in range(draw.randrange(1, 4))]}
            case "dict":
                return {"type": "object", "additionalProperties": part(depth - 1), "maxProperties": 2}
            case "tuple":
                return {"type": "array", "prefixItems": [part(depth - 1)] * 2, "items": False, "minItems": 2}
            case "ref":
                return {"$ref": "#/$defs/Part"}
            case kind:
                return {"type": kind}

    return {"$defs": {"Part": part(0)}, "type": "object", "properties": {"a": part(3)}, "required": ["a"]}


def field_of(schema: Any) -> Any:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}


def schemas() -> list[Any]:
    typed = [TypeAdapter(each).json_schema(mode=mode) for each in TYPES for mode in ("validation", "serialization")]
    return [*typed, *(field_of(each) for each in WRITTEN), *(generated(seed) for seed in range(60))]


SCHEMAS = schemas()


def test_there_are_enough_schemas() -> None:
    assert len(SCHEMAS) > 200


@pytest.mark.parametrize("tenth", range(10))
def test_each_text_keeps_its_schema_or_a_refusal_says_what_to_write(tenth: int) -> None:
    whole = refused = 0
    for schema in SCHEMAS[tenth::10]:
        refusal, texts = "", list[str | None]()
        try:
            texts = [make_text(TextForm(FormKind.JSON, kept_schema(schema, "f")), seed) for seed in range(4)]
        except InvalidArgument as error:
            refusal = error.message
            refused += 1
        advice = ("write ", "leave it out", "name ", "Unsatisfiable", "not supported yet")
        assert not refusal or any(each in refusal for each in advice), (schema, refusal)
        for text in texts:
            if text is not None:
                whole += 1
                jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert whole > 3 * refused


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"oneOf": [{"type": "string"}, {"minLength": 3}]}, "may match two options of oneOf; write anyOf"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "remove duplicates"),
        ({"enum": [2**53 + 1]}, "9007199254740993, which would be rounded to a double; write it as a string"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 1}, "write a string with a pattern"),
        ({"type": "string", "pattern": "a(?=b)"}, "looks ahead or behind with '(?=b)'"),
        ({"if": {}}, "the schema at /properties/a: if cannot be enforced during generation; write anyOf"),
        ({"$ref": "https://example.com/x"}, "write the schema into $defs"),
        (functools.reduce(lambda inner, _: {"items": inner}, range(300), {}), "more than 200 deep; write $defs"),
    ],
)
def test_a_refusal_says_where_and_what_to_write(schema: Any, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kept_schema(field_of(schema), "response_format")
    assert words in caught.value.message and caught.value.detail["field"] == "response_format"


def test_sixty_tools_of_ten_fields_are_called() -> None:
    kinds = [int, str, bool, Decimal, UUID4, Color, list[str], dict[str, float], int | None, datetime.date]
    fields = {f"field_{at}": TypeAdapter(kind).json_schema() for at, kind in enumerate(kinds)}
    schema = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    tools = [(f"tool_{number}", schema) for number in range(60)]
    text = make_text(forced_call(format_of("<tool_call>"), tools), 3, most=5000)
    assert text is not None
    call = json.loads(text)
    assert call["name"] in dict(tools)
    jsonschema.validate(call["arguments"], schema)


def test_a_literal_that_reads_like_a_special_token_is_spelled_and_a_grammar_may_name_the_token() -> None:
    for written in ('start: "<|end|>"', r'start: "a\"<|end|>"'):
        assert make_text(TextForm(FormKind.GRAMMAR, written), 1) in {"<|end|>", 'a"<|end|>'}
    forms, tokens = constraints()
    constraint = forms.find(TextForm(FormKind.GRAMMAR, 'start: "a" <|end|> "b"'))
    constraint.take(tokens.index(b"a"))
    assert constraint.legal_tokens(np.zeros(len(tokens), np.float32)).tolist() == [END]


@pytest.mark.parametrize(
    ("pattern", "legal", "other"),
    [
        (r"^(?!^[-+.]*$)[+-]?\d*\.?\d*$", ["1", "-.5"], ["", "+.", "x"]),
        (r"^(?!\.)(?!.*\.\.)[a.]+$", ["a.a", "a."], [".a", "a..a"]),
        (r"^(?!ab|ba)[abc]+$", ["aa", "cab"], ["ab", "bac"]),
        (r"^(?!ab$)[ab]+$", ["a", "aba", "b"], ["ab"]),
        (r"^(?!.*ab)[abc]*$", ["", "ba", "aac", "acb"], ["ab", "cabc", "aab"]),
        (r"^(?!.*b$)[ab]*$", ["", "a", "ba"], ["b", "ab"]),
        (r"^(?=.*\d)(?=[^x]*$).{2,}$", ["1a"], ["aa", "1x", "1"]),
        (r"^a$|^b|c", ["a", "bx", "xcx"], ["ax", "xb"]),
        (r"[\]a&~-]$", ["]", "x&", "~"], ["b"]),
    ],
)
def test_expressions_without_look_around_match_the_same_texts(pattern: str, legal: list[str], other: list[str]) -> None:
    kept = [re.compile(each) for each in plain_patterns(pattern)]
    assert all("(?=" not in each.pattern and "(?!" not in each.pattern for each in kept)
    for text in [*legal, *other]:
        assert all(each.search(text) for each in kept) == (text in legal) == bool(re.search(pattern, text)), text


@pytest.mark.parametrize(
    "pattern", ["(?<=a)b", "a(?!b)", "^(?!(a|b)+)c$", "^(?=a", "[a", "^" + "(?=^" * 99 + "a" + ")" * 99]
)
def test_an_expression_that_cannot_be_kept_is_refused(pattern: str) -> None:
    with pytest.raises(UnkeptPattern):
        plain_patterns(pattern)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "object", "required": 5}, {"type": "object"}]},
        {"pattern": "^(?=a)b", "allOf": 5},
        {"type": "array", "uniqueItems": True, "maxItems": "a", "items": {"enum": [1, 2]}},
        {"type": "array", "uniqueItems": True, "minItems": -1, "items": {"enum": [1, 2]}},
        {"type": "array", "uniqueItems": True, "items": {"enum": list(range(100_000))}},
        {"description": "a" * 1_000_001},
    ],
)
def test_a_schema_that_is_none_or_too_large_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"response_format: .*(expected|legal|leave it out)"):
        kept_schema(schema, "response_format")


def test_options_are_told_apart_by_a_discriminator_and_else_within_a_bound_of_comparisons() -> None:
    asked = []

    def resolve(schema: Any) -> Any:
        asked.append(schema)
        return schema

    cases = [{"type": "object", "required": ["k"], "properties": {"k": {"const": number}}} for number in range(500)]
    assert exclusive_options(cases, resolve) == cases
    assert len(asked) == 2 * len(cases)
    assert exclusive_options([{"const": number} for number in range(500)], resolve) is None
    assert len(asked) < 4 * MAX_COMPARED


def test_the_tools_of_a_request_share_a_bound_of_comparisons() -> None:
    union = {"oneOf": [{"const": number} for number in range(80)]}  # 3,160 pairs
    tools = [(f"tool_{number}", {"properties": {"choice": union}}) for number in range(60)]
    calls = format_of("[TOOL_CALLS]")
    assert forced_call(calls, tools[:3]).text.count('"const"') == 3 * 80
    with pytest.raises(InvalidArgument, match=r"tools\.3\.function\.parameters: .*two options of oneOf; write anyOf"):
        forced_call(calls, tools)


def test_brackets_and_escapes_without_an_end_are_read_once() -> None:
    with pytest.raises(UnkeptPattern, match="class without an end"):
        plain_patterns("[" * 300_000)
    assert plain_patterns(r"\p{" * 2000) == [r"\p{" * 2000]
    assert plain_patterns("^[^]x$") == [r"^[\s\S]x$"]


def test_a_tool_whose_arguments_nothing_fits_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"tools\.0\.function\.parameters: it allows no value; write the type"):
        forced_call(format_of("<tool_call>"), [("never", {"not": {}})])


@pytest.mark.parametrize(
    ("guided", "field"), [({"regex": "a"}, "guided_regex"), ({}, "structured_outputs"), (None, "structured_outputs")]
)
def test_a_text_has_one_form_wherever_it_is_asked_for(guided: dict[str, str] | None, field: str) -> None:
    outputs = None if guided else StructuredOutputs(regex="a")
    with pytest.raises(InvalidArgument, match=f"{field}: a text has one form; leave the others out"):
        form_of(ObjectFormat(type="json_object"), outputs, guided)
    found = form_of(PlainFormat(type="text"), outputs, guided)
    assert found is not None
    assert (found.kind, found.text) == (FormKind.REGEX, "a")
