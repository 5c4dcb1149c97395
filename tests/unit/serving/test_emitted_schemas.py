"""Schemas as pydantic, zod's ``toJSONSchema`` and zod-to-json-schema write them, of types that people use."""

import datetime
import enum
import json
from decimal import Decimal
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, Union

import jsonschema
import pytest
from annotated_types import Len, MultipleOf
from pydantic import BaseModel, ConfigDict, Field, RootModel, StringConstraints, TypeAdapter, constr
from pydantic.types import AwareDatetime, NonNegativeFloat, PositiveInt, StrictBool, StrictStr
from typing_extensions import TypeAliasType

from rdukit.errors import InvalidArgument
from rdukit_serving.text.constraints import FormKind, TextForm, kept_schema
from support import shows
from support.formed_texts import constraints, make_text

pytestmark = shows("structured-output")

Item = TypeVar("Item")


class Level(enum.IntEnum):
    LOW, HIGH = 1, 5


class Unit(enum.StrEnum):
    KILOGRAM, POUND = "kg", "lb"


class Money(BaseModel):
    amount: Annotated[Decimal, Field(max_digits=6, decimal_places=2, ge=0)]
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = "EUR"


class Page(BaseModel, Generic[Item]):
    items: list[Item]
    next: str | None = None
    total: PositiveInt


class Circle(BaseModel):
    shape: Literal["circle"] = "circle"
    radius: NonNegativeFloat


class Square(BaseModel):
    shape: Literal["square"] = "square"
    side: Annotated[float, Field(gt=0, le=10)]


class Group(BaseModel):
    shape: Literal["group", "set"]
    members: "list[Annotated[Circle | Square | Group, Field(discriminator='shape')]]" = Field(max_length=3)


class Tree(RootModel[dict[str, "Tree"]]):
    root: dict[str, "Tree"]


class Expression(BaseModel):
    operator: Literal["+", "-", "*"]
    left: Union[float, "Expression"]
    right: Union[float, "Expression"]


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid", title="Person of a register")
    name: Annotated[str, Field(min_length=1, max_length=12, description="Full name", examples=["Ada"])]
    born: datetime.date | None = None
    seen: datetime.datetime | None = None
    tags: set[Literal["a", "b", "c"]] = set()
    address: "Address | None" = None


class Address(BaseModel):
    street: str = Field(alias="streetAndNumber", max_length=9)
    code: constr(pattern=r"^\d{5}(-\d{4})?$") = "00000"  # type: ignore[valid-type]


class Odd(BaseModel):
    field_1: int = Field(alias="a/b~c")
    field_2: bool = Field(alias='say "yes" \\ ü', default=True)
    field_3: None = Field(alias="", default=None)


class Ticket(BaseModel):
    id: Annotated[int, Field(ge=1, le=2**31 - 1)]
    priority: Level
    unit: Unit = Unit.POUND
    weight: Annotated[float, MultipleOf(0.5), Field(ge=0, le=20)]
    path: tuple[Literal["root"], int, str | None] = ("root", 0, None)
    extra: dict[str, int | list[str]] = Field(default_factory=dict, max_length=2)
    flags: tuple[StrictBool, ...] = ()


Json: Final = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | float | bool | None")

#: Types whose schemas pydantic writes; it also reads the texts, but for those whose schema allows any text.
PYDANTIC: Final[dict[str, Any]] = {
    "generic model": Page[Money], "generic in generic": Page[Page[int]], "discriminated union": Circle | Square,
    "recursive discriminated union": Group, "recursive root model": Tree, "recursive union": Expression,
    "model with references forward": Person, "names with special characters": Odd, "mixed": Ticket,
    "recursive alias": Json, "list of union of models": Annotated[list[Money | Circle | Person], Len(0, 2)],
    "decimal with bounds": Annotated[Decimal, Field(gt=0, lt=10, max_digits=3, decimal_places=1)],
    "decimal integer": Annotated[Decimal, Field(max_digits=3, decimal_places=0)], "decimal list": list[Decimal],
    "aware datetime": AwareDatetime, "list of datetime": Annotated[list[datetime.datetime], Len(1, 2)],
    "union of dates": datetime.date | datetime.datetime | datetime.time, "duration": datetime.timedelta | None,
    "multiple of float": Annotated[float, Field(multiple_of=0.1, ge=0, le=1)],
    "multiple of decimal fraction": Annotated[float, Field(multiple_of=0.01, gt=-1, lt=1)],
    "unicode length": Annotated[str, Field(min_length=3, max_length=4)], "strict text": StrictStr,
    "literal mixes": Literal["1", 1, "true", True, None, "null", 2, -3], "one literal": Literal[False],
    "union of lists": list[int] | list[str] | list[list[bool]], "dict of lists": dict[str, list[Money]],
    "dict of dict": dict[Unit, dict[str, int]], "tuple of tuples": tuple[tuple[int, bool], tuple[str, ...]],
    "empty tuple": tuple[()], "enum of numbers": Level | Unit, "optional of optional": list[int | None] | None,
    "list of bounded": Annotated[list[Annotated[int, Field(ge=0, lt=10)]], Len(2, 3)],
}  # fmt: skip
_DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
_2020: Final = "https://json-schema.org/draft/2020-12/schema"
_SAFE: Final = 9007199254740991


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    found = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {**found, **more}


_EMAIL: Final = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_TIME: Final = (
    r"^(?:(?:\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)-02-29|\d{4}-(?:(?:0[13578]|1[02])-"
    r"(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|(?:02)-(?:0[1-9]|1\d|2[0-8])))T(?:(?:[01]\d|2[0-3]):"
    r"[0-5]\d(?::[0-5]\d(?:\.\d+)?)?(?:Z))$"
)
_UUID: Final = (
    r"^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    r"|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"
)
_DATE: Final = _TIME.partition("T(?:")[0] + "$"
_CAT: Final = _object({"kind": {"type": "string", "const": "cat"}, "lives": {"type": "integer", "minimum": 0,
                       "maximum": 9}}, "kind", "lives")  # fmt: skip
_DOG: Final = _object({"kind": {"type": "string", "enum": ["dog", "hound"]}, "name": {"type": "string"}}, "kind")

#: Schemas of zod.
ZOD: Final[dict[str, Any]] = {
    "v4 email": {"$schema": _2020, "type": "string", "format": "email", "pattern": _EMAIL},
    "v4 uuid": {"$schema": _2020, "type": "string", "format": "uuid", "pattern": _UUID},
    "v4 datetime": {"$schema": _2020, "type": "string", "format": "date-time", "pattern": _TIME},
    "v4 date": {"$schema": _2020, "type": "string", "format": "date", "pattern": _DATE},
    "v4 safe integer": {"type": "integer", "minimum": -_SAFE, "maximum": _SAFE},
    "v4 positive integer": {"type": "integer", "exclusiveMinimum": 0, "maximum": _SAFE},
    "v4 int32": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "v4 float32": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
    "v4 discriminated union": {"oneOf": [_CAT, _DOG]},
    "v3 discriminated union": {"$schema": _DRAFT_7, "anyOf": [_CAT, _DOG]},
    "v4 nullable": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]},
    "v3 nullable": {"type": ["string", "null"], "minLength": 1},
    "openapi nullable": {"type": "string", "nullable": True},
    "v4 tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
    "v4 tuple with rest": {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "integer"}},
    "v3 tuple": {"$schema": _DRAFT_7, "type": "array", "minItems": 2, "maxItems": 2,
                 "items": [{"type": "string"}, {"type": "number"}]},
    "v3 tuple with rest": {"$schema": _DRAFT_7, "type": "array", "minItems": 1, "items": [{"type": "null"}],
                           "additionalItems": {"type": "boolean"}},
    "v4 record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
    "v4 record of enum": {"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
                          "additionalProperties": {"type": "number"}, "required": ["a", "b"]},
    "v4 record of pattern": {"type": "object", "propertyNames": {"type": "string", "pattern": "^x-[a-z]+$"},
                             "additionalProperties": {}},
    "v4 loose record": {"type": "object", "patternProperties": {"^x-": {"type": "boolean"}},
                        "additionalProperties": False},
    "v3 map": {"type": "array", "maxItems": 125, "items": {"type": "array", "items": [{"type": "string"},
               {"type": "boolean"}], "minItems": 2, "maxItems": 2}},
    "v3 set": {"type": "array", "uniqueItems": True, "items": {"type": "string", "enum": ["a", "b", "c"]}},
    "v3 native enum": {"type": ["string", "number"], "enum": ["a", 1, "b", 2]},
    "v4 literals": {"type": "string", "enum": ["tuna", "trout", "ß", "\u2028"]}, "v4 null literal": {"type": "null"},
    "v4 bigint as text": {"type": "string", "pattern": r"^-?\d+$"},
    "v4 never in object": _object({"a": {"not": {}}, "b": {"type": "boolean"}}, "b"),
    "v4 intersection": {"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                                  {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}]},
    "v3 intersection": {"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
                                  {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}],
                        "unevaluatedProperties": False},
    "v4 recursive": {"$schema": _2020, **_object({"name": {"type": "string"}, "children": {"type": "array",
                     "items": {"$ref": "#"}}}, "name", "children")},
    "v4 mutual recursion": {"$ref": "#/$defs/__schema0", "$defs": {
        "__schema0": _object({"posts": {"type": "array", "items": {"$ref": "#/$defs/__schema1"}}}, "posts"),
        "__schema1": _object({"author": {"anyOf": [{"$ref": "#/$defs/__schema0"}, {"type": "null"}]}}, "author")}},
    "v3 relative reference": _object({"a": _object({"x": {"type": "integer"}}, "x"),
                                      "b": {"$ref": "#/properties/a"}}, "a", "b"),
    "v3 definitions": {"$ref": "#/definitions/Main",
                       "definitions": {"Main": _object({"on": {"type": "boolean"}}, "on")}},
    "annotations in recursion": {"$ref": "#/$defs/N", "$defs": {"N": _object({"n": {"anyOf": [{"$ref": "#/$defs/N"},
        {"type": "null"}], "deprecated": True, "x-order": 1, "discriminator": {}}}, "n")}},
    "a name that is not encoded": {"$ref": "#/$defs/My Type [1]", "$defs": {"My Type [1]": {"type": "boolean"}}},
    "v3 reference into a tuple": {"$schema": _DRAFT_7, **_object({"a": {"type": "array", "items": [{"type": "boolean"}],
        "minItems": 1, "additionalItems": False}, "b": {"$ref": "#/properties/a/items/0"}}, "a", "b")},
    "names of definitions": {"$ref": "#/$defs/Page%5BMoney%5D%20~1~0%C3%BC", "$defs": {
        "Page[Money] /~ü": _object({"q": {"type": "boolean"}}, "q")}},
    "v4 multiple of": {"type": "number", "multipleOf": 0.05, "minimum": 0, "maximum": 2},
    "v4 multiple of three": {"type": "integer", "multipleOf": 3, "minimum": -_SAFE, "maximum": _SAFE},
    "v4 length of emoji": {"type": "string", "minLength": 2, "maxLength": 2},
    "v4 template literal": {"type": "string", "pattern": r"^[a-z]{1,3}_(\d+|true)$"},
    "v4 starts and ends": {"type": "string", "allOf": [{"pattern": "^ab.*"}, {"pattern": ".*yz$"}], "maxLength": 9},
    "v4 includes": {"type": "string", "pattern": "b.c", "maxLength": 8}, "v4 json": {},
    "v4 base64": {"type": "string", "format": "base64", "contentEncoding": "base64",
                  "pattern": r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"},
    "v4 ipv4": {"type": "string", "format": "ipv4", "pattern": r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|"
                r"[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$"},
    "v4 cuid2": {"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"},
    "v3 url": {"$schema": _DRAFT_7, "type": "string", "format": "uri"},
    "v4 default and readonly": {"default": "x", "type": "string",
               "readOnly": True, "maxLength": 3}, "v4 metadata": {"id": "Name", "title": "N", "type": "boolean"},
    "v4 strict and loose": _object({"a": _object({}), "b": {"type": "object", "properties": {}}}, "a", "b"),
    "v4 catchall": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}}, "required": ["a"],
                    "additionalProperties": {"type": "boolean"}},
    "any of arrays": {"anyOf": [{"type": "array", "items": {"type": "string"}, "maxItems": 2},
                                {"type": "array", "items": {"type": "integer"}, "minItems": 1}]},
    "one of arrays": {"oneOf": [{"type": "array", "items": {"type": "string"}, "minItems": 1},
                                {"type": "array", "items": {"type": "integer"}, "minItems": 1}]},
}  # fmt: skip


#: Schemas that cannot be kept, and what their refusals say.
REFUSED: Final[dict[str, tuple[Any, str]]] = {
    "never": ({"not": {}}, "it allows no value; write the type of the values"),
    "dict of numbers' names": (TypeAdapter(dict[Level, int]).json_schema(), "write patternProperties with"),
    "reference to nothing": ({"$ref": "#/$defs/a"}, "names nothing in the schema; write #/$defs/NAME"),
    "reference to itself": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}, "leads back to itself; write"),
    "reference to an anchor": ({"$ref": "#here", "$defs": {"a": {"$anchor": "here"}}}, "write #/$defs/NAME"),
    "reference outside": ({"$ref": "#/components/a", "components": {"a": {}}}, "outside of $defs; write"),
    "number too large": ({"type": "number", "minimum": 1e30}, "minimum 1e+30 is beyond 9e+18; write a string with"),
    "recursion with more": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"n": {
        "$ref": "#/$defs/a", "minProperties": 1}}}}}, "write them into the schema that $ref names"),
    "unevaluated of options": ({"anyOf": [{"type": "object"}], "unevaluatedProperties": False}, "write additional"),
}  # fmt: skip


def _is_multiple(validator: Any, factor: Any, value: Any, schema: Any) -> Any:
    """Compare decimal numbers, as JSON has them: 0.6 / 0.1 is not 6 in doubles."""
    if isinstance(value, int | float) and not isinstance(value, bool) and Decimal(repr(value)) % Decimal(repr(factor)):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {factor}")


def check(schema: Any, text: str) -> None:
    draft = jsonschema.Draft7Validator if _DRAFT_7 in str(schema) else jsonschema.Draft202012Validator
    exact: Any = jsonschema.validators.extend(draft, {"multipleOf": _is_multiple})  # type: ignore[no-untyped-call]
    exact(schema, format_checker=draft.FORMAT_CHECKER).validate(json.loads(text))


def texts_of(schema: Any) -> list[str]:
    form = TextForm(FormKind.JSON, kept_schema(schema, "f"))
    texts = [text for seed in range(8) if (text := make_text(form, seed)) is not None]
    assert len(texts) > 4
    return texts


def test_there_are_enough_schemas() -> None:
    assert len(PYDANTIC) + len(ZOD) + len(REFUSED) > 80


@pytest.mark.parametrize("name", PYDANTIC)
@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_texts_of_types_are_read_by_pydantic(name: str, mode: Literal["validation", "serialization"]) -> None:
    adapter = TypeAdapter(PYDANTIC[name])
    schema = adapter.json_schema(mode=mode)
    for text in texts_of(schema):
        check(schema, text)
        if not name.startswith("decimal"):
            adapter.validate_json(text)


@pytest.mark.parametrize("name", ZOD)
def test_texts_of_zods_schemas_are_valid(name: str) -> None:
    for text in texts_of(ZOD[name]):
        check(ZOD[name], text)


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_kept_is_refused_with_an_alternative(name: str) -> None:
    schema, words = REFUSED[name]
    with pytest.raises(InvalidArgument) as caught:
        constraints()[0].find(TextForm(FormKind.JSON, kept_schema(schema, "response_format")))
    assert words in caught.value.message and caught.value.message.startswith("response_format: ")
