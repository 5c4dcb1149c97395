"""JSON schemas as pydantic, zod and people write them, in the terms that llguidance keeps exactly. Pure.

Annotations are dropped; schemas that llguidance enforces inexactly are rewritten, or refused with an alternative.
Source: JSON Schema 2020-12: ``format`` is an annotation, unknown formats and keywords are, too.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote, unquote

from rdukit_serving.text.forms.bounds import UnkeptBounds, find_rounded, narrow_bounds
from rdukit_serving.text.forms.exclusive import MAX_SCHEMAS, SchemaWork, exclusive_options, find_discriminator
from rdukit_serving.text.forms.formats import FORMAT_PATTERNS, KEPT_FORMATS, NAME_PATTERNS
from rdukit_serving.text.forms.patterns import UnkeptPattern, plain_patterns

#: Keywords whose value is a schema, a list of them, and a mapping to them.
_ONE: Final = ("items", "additionalProperties", "additionalItems")
_LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS: Final = ("properties", "$defs", "definitions")
#: Keywords that cannot be enforced, and alternatives.
_UNKEPT: Final = {
    "not": "name the values with enum, pattern or anyOf",
    "uniqueItems": "leave it out, and remove duplicates from the answer's list",
    "contains": "name all items by prefixItems and items",
    "minContains": "name all items by prefixItems and items",
    "maxContains": "name all items by prefixItems and items",
    "if": "write anyOf with a schema for each case",
    "then": "write anyOf with a schema for each case",
    "else": "write anyOf with a schema for each case",
    "dependentRequired": "write anyOf with a schema for each case",
    "dependentSchemas": "write anyOf with a schema for each case",
    "dependencies": "write anyOf with a schema for each case",
    "unevaluatedProperties": "write additionalProperties in each schema",
    "unevaluatedItems": "write items in each schema",
    "propertyNames": "write patternProperties with additionalProperties: false",
    "$dynamicRef": "write $ref to a schema in $defs",
    "$recursiveRef": "write $ref to a schema in $defs",
}  # fmt: skip
#: Keywords that are enforced or refused; all others are annotations, and llguidance refuses some in recursive schemas.
_KEYWORDS: Final = frozenset({
    "type", "enum", "const", "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "required", "minProperties", "maxProperties", "patternProperties", "minItems",
    "maxItems", "uniqueItems", "$ref", *_ONE, *_LISTS, *_MAPS, *_UNKEPT,
})  # fmt: skip
_BESIDE_REF: Final = _KEYWORDS - {"$ref"}
_BEYOND_OBJECTS: Final = _KEYWORDS - {"type", "required", *_MAPS}
#: Deepest nesting, and most arrangements of a set's items.
_MAX_DEPTH: Final = 200
_MAX_SETS: Final = 2000


class UnkeptSchema(ValueError):
    """JSON schema that cannot be enforced during generation; the message has the place and an alternative."""


def plain_schema(schema: Any, shared: SchemaWork | None = None) -> Any:
    """Return a schema of the same texts, or of fewer, that llguidance enforces exactly.

    ``shared``: work that is left for its request; without it the schema is a request's only one.

    Raises:
        UnkeptSchema: a keyword, an expression or a number cannot be enforced.
    """
    rewriter = _Rewriter(schema, shared or SchemaWork())
    found = rewriter.rewrite(schema, "", 0)
    if found is False:
        raise UnkeptSchema("it allows no value; write the type of the values")
    for (definitions, name), properties in rewriter.required.items():
        one = found[definitions][name]
        one["required"] = sorted({*one.get("required", ()), *properties})
    return {} if found is True else found


class _Rewriter:
    def __init__(self, root: Any, shared: SchemaWork) -> None:
        self._root, self._shared = root, shared
        #: Names on the way to each reference's target, and targets that do not lead back to themselves.
        self._found: dict[str, list[str] | None] = {}
        self._ended: set[tuple[str, ...]] = set()
        #: Properties that schemas in ``$defs`` must also require, by the names on the way to them.
        self.required: dict[tuple[str, str], set[str]] = {}

    def rewrite(self, schema: Any, place: str, depth: int) -> Any:
        if not isinstance(schema, dict):
            return schema
        if depth > _MAX_DEPTH:
            raise UnkeptSchema(f"it is nested more than {_MAX_DEPTH} deep; write $defs and $ref")
        self._shared.schemas -= 1
        if self._shared.schemas < 0:
            raise UnkeptSchema(
                f"the request has more than {MAX_SCHEMAS} schemas, counting those of propertyNames and of "
                "unevaluatedProperties as often as they apply; write fewer"
            )
        found = {key: value for key, value in schema.items() if key in _KEYWORDS}
        if found.get("not") in ({}, True):  # as zod says that there is no value
            return False
        for step in (
            self._drafts,
            self._unevaluated,
            self._formats,
            self._patterns,
            self._names,
            self._sets,
            self._listed,
        ):
            step(found, place)
        self._refuse_unkept(found, place)
        self._nested(found, place, depth)
        if "oneOf" in found:
            self._one_of(found, place)
        try:
            return narrow_bounds(found)
        except UnkeptBounds as cause:
            raise UnkeptSchema(f"{_at(place)}: {cause}") from cause

    def _nested(self, found: dict[str, Any], place: str, depth: int) -> None:
        for key in _ONE:
            if key in found:
                value = found[key]
                found[key] = (
                    [self.rewrite(each, f"{place}/{key}/{at}", depth + 1) for at, each in enumerate(value)]
                    if isinstance(value, list)
                    else self.rewrite(value, f"{place}/{key}", depth + 1)
                )
        for key in _LISTS:
            if isinstance(found.get(key), list):
                found[key] = [
                    self.rewrite(each, f"{place}/{key}/{at}", depth + 1) for at, each in enumerate(found[key])
                ]
        for key in _MAPS:
            if isinstance(found.get(key), dict):
                found[key] = {
                    name: self.rewrite(each, f"{place}/{key}/{name}", depth + 1) for name, each in found[key].items()
                }
        if isinstance(found.get("patternProperties"), dict):
            by_pattern = {}
            for pattern, each in found["patternProperties"].items():
                several = _kept(plain_patterns, pattern, f"{place}/patternProperties")
                if len(several) != 1:
                    raise UnkeptSchema(f"{_at(place)}: patternProperties looks ahead; write it without look-around")
                by_pattern[several[0]] = self.rewrite(each, f"{place}/patternProperties/{pattern}", depth + 1)
            found["patternProperties"] = by_pattern

    def _formats(self, found: dict[str, Any], place: str) -> None:
        name = found.get("format")
        if not isinstance(name, str):
            return
        kinds = found.get("type", "string")
        if name in FORMAT_PATTERNS and (kinds == "string" or (isinstance(kinds, list) and "string" in kinds)):
            del found["format"]
            found["allOf"] = [*found.get("allOf", ()), {"type": kinds, "pattern": FORMAT_PATTERNS[name]}]
        elif name not in KEPT_FORMATS:
            del found["format"]

    def _patterns(self, found: dict[str, Any], place: str) -> None:
        if not isinstance(found.get("pattern"), str):
            return
        first, *more = _kept(plain_patterns, found["pattern"], place)
        found["pattern"] = first
        if more:
            # An expression constrains only texts.
            kind = {} if "type" not in found else {"type": found["type"]}
            found["allOf"] = [*found.get("allOf", ()), *({**kind, "pattern": each} for each in more)]

    def _names(self, found: dict[str, Any], place: str) -> None:
        """Rewrite ``propertyNames`` of an object that names no properties itself: a dict with typed keys."""
        names = self._resolved(found.get("propertyNames"))
        if not isinstance(names, dict):
            return
        names = {key: value for key, value in names.items() if key in _KEYWORDS}
        known = names.pop("format", None)
        if names.get("type", "string") != "string":
            return
        names.pop("type", None)
        pattern = NAME_PATTERNS.get(known) if isinstance(known, str) else None
        if pattern is None and not names:
            del found["propertyNames"]
            return
        if found.get("properties") or found.get("patternProperties"):
            return
        values = found.get("additionalProperties", True)
        listed = [names["const"]] if "const" in names else names.get("enum")
        if isinstance(listed, list) and not names.keys() - {"enum", "const"}:
            found["properties"] = {name: values for name in listed if isinstance(name, str)}
        else:
            pattern = names.pop("pattern", None) or pattern
            least, most = names.pop("minLength", None), names.pop("maxLength", None)
            if names or (pattern is not None and (least or most is not None)):
                return
            pattern = pattern or f"^[\\s\\S]{{{least or 0},{'' if most is None else most}}}$"
            found["patternProperties"] = {pattern: values}
        found["additionalProperties"] = False
        del found["propertyNames"]

    def _sets(self, found: dict[str, Any], place: str) -> None:
        """Rewrite ``uniqueItems`` where all arrangements of the items can be listed."""
        if "uniqueItems" not in found:
            return
        if found["uniqueItems"] is not True or found.get("maxItems", math.inf) in (0, 1):
            del found["uniqueItems"]
            return
        items = self._resolved(found.get("items"))
        if not isinstance(items, dict) or found.get("prefixItems"):
            return
        values = [items["const"]] if "const" in items else items.get("enum")
        if values is None and items.get("type") in {"boolean", "null"}:
            values = [False, True] if items["type"] == "boolean" else [None]
        if not isinstance(values, list) or items.keys() & _KEYWORDS - {"type", "enum", "const"}:
            return
        least, most = found.get("minItems", 0), min(found.get("maxItems", len(values)), len(values))
        if not all(isinstance(each, int) and each >= 0 for each in (least, most)):
            return
        count, places = _count_sets(len(values), least, most)
        self._shared.characters -= len(json.dumps(values)) * places // max(1, len(values))
        if count > _MAX_SETS or self._shared.characters < 0:
            return
        for key in ("uniqueItems", "items", "minItems", "maxItems", "type"):
            found.pop(key, None)
        found["enum"] = [
            list(each) for size in range(least, most + 1) for each in itertools.permutations(values, size)
        ]  # fmt: skip

    def _listed(self, found: dict[str, Any], place: str) -> None:
        """Refuse integers of lists that would be rounded."""
        for key in ("const", "enum"):
            if key in found and (number := find_rounded(found[key])) is not None:
                raise UnkeptSchema(
                    f"{_at(place)}: {key} has {number}, which would be rounded to a double; write it as a string"
                )

    def _drafts(self, found: dict[str, Any], place: str) -> None:
        """Rewrite forms of older drafts: exclusive bounds as booleans, items as a list."""
        for plain, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and plain in found:
                found[exclusive] = found.pop(plain)
        if isinstance(found.get("items"), list):
            found["prefixItems"] = found.pop("items")
            found["items"] = found.pop("additionalItems", True)

    def _unevaluated(self, found: dict[str, Any], place: str) -> None:
        """Rewrite ``unevaluatedProperties`` of an object, or of several objects together, as zod writes these."""
        if "unevaluatedProperties" not in found or found.keys() & {"additionalProperties", "patternProperties"}:
            return
        parts = [{key: value for key, value in found.items() if key not in {"allOf", "unevaluatedProperties"}}]
        parts += map(self._resolved, found.get("allOf", ()))
        if not all(isinstance(each, dict) and not each.keys() & _BEYOND_OBJECTS for each in parts):
            return
        names = [name for each in parts for name in each.get("properties", ())]
        if len(names) != len(set(names)) or any(each.get("type", "object") != "object" for each in parts):
            return
        found["type"], found["additionalProperties"] = "object", found.pop("unevaluatedProperties")
        found["properties"] = {name: each for part in parts for name, each in part.get("properties", {}).items()}
        found["required"] = sorted({name for part in parts for name in part.get("required", ())})
        found.pop("allOf", None)

    def _refuse_unkept(self, found: dict[str, Any], place: str) -> None:
        for key, advice in _UNKEPT.items():
            if key in found:
                raise UnkeptSchema(f"{_at(place)}: {key} cannot be enforced during generation; {advice}")
        if isinstance(target := found.get("$ref"), str):
            if not target.startswith("#"):
                raise UnkeptSchema(f"{_at(place)}: $ref {target[:80]!r} is elsewhere; write the schema into $defs")
            if (parts := self._parts(target)) is None:
                raise UnkeptSchema(
                    f"{_at(place)}: $ref {target[:80]!r} names nothing in the schema; write #/$defs/NAME, and the "
                    "schema into $defs"
                )
            if parts and parts[0] not in _KEYWORDS:
                raise UnkeptSchema(
                    f"{_at(place)}: $ref {target[:80]!r} is outside of $defs; write the schema into $defs"
                )
            if self._leads_back(parts):
                raise UnkeptSchema(f"{_at(place)}: $ref {target[:80]!r} leads back to itself; write a schema there")
            found["$ref"] = "#" + "".join(f"/{_quoted(part)}" for part in self._moved(parts))

    def _one_of(self, found: dict[str, Any], place: str) -> None:
        options = found["oneOf"]
        if not isinstance(options, list):
            return
        apart = exclusive_options(options, self._resolved, self._shared) or self._discriminated(options)
        if apart is None:
            raise UnkeptSchema(
                f"{_at(place)}: a text may match two options of oneOf; write anyOf, or give each option a required "
                "property with its own const"
            )
        del found["oneOf"]
        if "anyOf" in found:
            found["allOf"] = [*found.get("allOf", ()), {"anyOf": apart}]
        else:
            found["anyOf"] = apart

    def _discriminated(self, options: list[Any]) -> list[Any] | None:
        """Return options that require the property that tells them apart, and is optional; None: there is none.

        A schema in ``$defs`` then requires it everywhere.
        """
        name = find_discriminator(options, self._resolved, self._shared)
        if name is None:
            return None
        found = []
        for option in options:
            if "$ref" not in option:
                found.append({**option, "required": sorted({*option.get("required", ()), name})})
                continue
            parts = self._parts(option["$ref"])
            if parts is None or len(parts) != 2 or parts[0] not in {"$defs", "definitions"}:
                return None
            self.required.setdefault((parts[0], parts[1]), set()).add(name)
            found.append(option)
        return found

    def _resolved(self, schema: Any) -> Any:
        """Return the target of a reference, if the schema is nothing else."""
        for _ in range(16):
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
                return schema
            if schema.keys() & _BESIDE_REF or (parts := self._parts(schema["$ref"])) is None:
                return None
            schema = functools.reduce(_child, parts, self._root)
        return None

    def _leads_back(self, parts: list[str]) -> bool:
        """Return whether a target is a reference that leads to the same target again."""
        seen: set[tuple[str, ...]] = set()
        found: list[str] | None = parts
        while found is not None and tuple(found) not in seen and tuple(found) not in self._ended:
            seen.add(tuple(found))
            target = functools.reduce(_child, found, self._root)
            reference = target.get("$ref") if isinstance(target, dict) else None
            found = self._parts(reference) if isinstance(reference, str) else None
        if found is not None and tuple(found) in seen:
            return True
        self._ended |= seen
        return False

    def _moved(self, parts: list[str]) -> Iterator[str]:
        """Yield the names on the way to a target in the rewritten schema."""
        at, is_name = self._root, False
        for part in parts:
            is_list = part == "items" and isinstance(at, dict) and isinstance(at.get("items"), list)
            is_one_of = part == "oneOf" and isinstance(at, dict) and "anyOf" not in at
            yield part if is_name else "prefixItems" if is_list else "anyOf" if is_one_of else part
            at, is_name = _child(at, part), not is_name and part in _MAPS

    def _parts(self, target: str) -> list[str] | None:
        """Return the names on the way to a reference's target, which may be percent-encoded; None: there is none."""
        if target not in self._found:
            self._found[target] = self._find_parts(target)
        return self._found[target]

    def _find_parts(self, target: str) -> list[str] | None:
        if not re.fullmatch(r"#(?:/.*)?", target, re.DOTALL):
            return None
        parts: list[str] = []
        at = self._root
        for part in target.split("/")[1:]:
            spellings = [each.replace("~1", "/").replace("~0", "~") for each in (part, unquote(part))]
            known = next((each for each in spellings if _has_child(at, each)), None)
            if known is None:
                return None
            parts.append(known)
            at = _child(at, known)
        return parts


def _has_child(schema: Any, name: str) -> bool:
    if isinstance(schema, list):
        return name.isascii() and name.isdigit() and len(name) < 9 and int(name) < len(schema)
    return isinstance(schema, dict) and name in schema


def _child(schema: Any, name: str) -> Any:
    return schema[int(name)] if isinstance(schema, list) else schema[name]


def _quoted(name: str) -> str:
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~$")


def _count_sets(values: int, least: int, most: int) -> tuple[int, int]:
    """Return the numbers of arrangements of ``least`` to ``most`` values, and of their items.

    Beyond ``_MAX_SETS`` the first is any larger number.
    """
    found, places, arrangements = 0, 0, 1
    for size in range(most + 1):
        if arrangements > _MAX_SETS:
            return arrangements, 0
        if size >= least:
            found, places = found + arrangements, places + arrangements * size
        arrangements *= values - size
    return found, places


def _at(place: str) -> str:
    return f"the schema at {place}" if place else "the schema"


def _kept(rewrite: Callable[[str], list[str]], pattern: str, place: str) -> list[str]:
    try:
        return rewrite(pattern)
    except UnkeptPattern as cause:
        raise UnkeptSchema(f"{_at(place)}: {cause}") from cause


def schema_text(schema: Any, shared: SchemaWork | None = None) -> str:
    """Return a schema as JSON text for llguidance; ``shared`` as in ``plain_schema``.

    Raises:
        UnkeptSchema: as ``plain_schema``; or it is not a JSON schema.
    """
    try:
        return json.dumps(plain_schema(schema, shared), ensure_ascii=False)
    except UnkeptSchema:
        raise
    except RecursionError as cause:
        raise UnkeptSchema("it is nested too deeply; write $defs and $ref") from cause
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as cause:
        words = "a keyword has a value of the wrong kind"
        raise UnkeptSchema(
            f"it is not a JSON schema: {words} ({cause}); expected values that JSON Schema allows"
        ) from cause
