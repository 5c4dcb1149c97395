"""JSON schemas as pydantic, zod and people write them, in the terms that llguidance keeps exactly. Pure.

Annotations are dropped; schemas that llguidance enforces inexactly are rewritten, or refused with an alternative.
Source: JSON Schema 2020-12: ``format`` is an annotation, unknown formats and keywords are, too.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rdukit_serving.text.forms.exclusive import Comparisons, exclusive_options
from rdukit_serving.text.forms.patterns import UnkeptPattern, plain_patterns

#: Formats that llguidance keeps.
_KEPT_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
_HEX: Final = "[0-9a-fA-F]"
_UUID: Final = f"{_HEX}{{8}}-{_HEX}{{4}}-%s{_HEX}{{3}}-%s{_HEX}{{3}}-{_HEX}{{12}}"
#: Formats of pydantic that are enforced as expressions.
_FORMAT_PATTERNS: Final = {f"uuid{version}": f"^{_UUID % (version, '[89abAB]')}$" for version in range(1, 9)}
#: Names of a dict's keys by their format.
_NAME_PATTERNS: Final = {
    **_FORMAT_PATTERNS, "uuid": f"^{_UUID % (_HEX, _HEX)}$",
    "date": "^[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])$",
}  # fmt: skip
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
#: Deepest nesting, and most arrangements of a set's items.
_MAX_DEPTH: Final = 200
_MAX_SETS: Final = 2000
#: Integers up to the first are doubles, as llguidance's numbers are; the second is the largest double of 63 bits.
_EXACT: Final = 2**53
_MOST: Final = 2**63 - 2**10


class UnkeptSchema(ValueError):
    """JSON schema that cannot be enforced during generation; the message has the place and an alternative."""


def plain_schema(schema: Any, shared: Comparisons | None = None) -> Any:
    """Return a schema of the same texts, or of fewer, that llguidance enforces exactly.

    ``shared``: comparisons that are left for its request; without it the schema is a request's only one.

    Raises:
        UnkeptSchema: a keyword, an expression or a number cannot be enforced.
    """
    return _Rewriter(schema, shared or Comparisons()).rewrite(schema, "", 0)


class _Rewriter:
    def __init__(self, root: Any, shared: Comparisons) -> None:
        self._root, self._shared = root, shared

    def rewrite(self, schema: Any, place: str, depth: int) -> Any:
        if not isinstance(schema, dict):
            return schema
        if depth > _MAX_DEPTH:
            raise UnkeptSchema(f"it is nested more than {_MAX_DEPTH} deep; write $defs and $ref")
        found = dict(schema)
        if found.get("not") in ({}, True):  # as zod says that there is no value
            return False
        for step in (self._drafts, self._formats, self._patterns, self._names, self._sets, self._listed):
            step(found, place)
        self._refuse_unkept(found, place)
        self._nested(found, place, depth)
        if "oneOf" in found:
            self._one_of(found, place)
        return self._bounds(found, place)

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
        if not isinstance(name, str) or name in _KEPT_FORMATS:
            return
        del found["format"]
        if name in _FORMAT_PATTERNS and found.get("type", "string") == "string":
            found["allOf"] = [*found.get("allOf", ()), {"type": "string", "pattern": _FORMAT_PATTERNS[name]}]

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
        names = {key: value for key, value in names.items() if key not in _ANNOTATIONS}
        known = names.pop("format", None)
        if names.get("type", "string") != "string":
            return
        names.pop("type", None)
        pattern = _NAME_PATTERNS.get(known) if isinstance(known, str) else None
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
        if not isinstance(values, list) or items.keys() - _ANNOTATIONS - {"type", "enum", "const"}:
            return
        least, most = found.get("minItems", 0), min(found.get("maxItems", len(values)), len(values))
        if not all(isinstance(each, int) and each >= 0 for each in (least, most)):
            return
        if _has_many_sets(len(values), least, most):
            return
        for key in ("uniqueItems", "items", "minItems", "maxItems", "type"):
            found.pop(key, None)
        found["enum"] = [
            list(each) for size in range(least, most + 1) for each in itertools.permutations(values, size)
        ]  # fmt: skip

    def _listed(self, found: dict[str, Any], place: str) -> None:
        """Refuse integers of lists that would be rounded."""
        for key in ("const", "enum"):
            if key in found and (number := _find_rounded(found[key])) is not None:
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

    def _refuse_unkept(self, found: dict[str, Any], place: str) -> None:
        for key, advice in _UNKEPT.items():
            if key in found:
                raise UnkeptSchema(f"{_at(place)}: {key} cannot be enforced during generation; {advice}")
        if isinstance(target := found.get("$ref"), str) and not target.startswith("#"):
            raise UnkeptSchema(f"{_at(place)}: $ref {target[:80]!r} is elsewhere; write the schema into $defs")

    def _one_of(self, found: dict[str, Any], place: str) -> None:
        options = found["oneOf"]
        if not isinstance(options, list):
            return
        apart = exclusive_options(options, self._resolved, self._shared)
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

    def _bounds(self, found: dict[str, Any], place: str) -> Any:
        """Narrow bounds of integers beyond 2^53 to the nearest inner doubles of at most 63 bits."""
        if found.get("type") != "integer":
            return found
        least = _bound(found, "minimum", "exclusiveMinimum", math.ceil, 1)
        most = _bound(found, "maximum", "exclusiveMaximum", math.floor, -1)
        if all(each is None or abs(each) <= _EXACT for each in (least, most)):
            return found
        inner = {"minimum": _inner(least, 1), "maximum": _inner(most, -1)}
        ends = {"minimum": -_MOST, "maximum": _MOST}
        bounds = {key: ends[key] if value is None else value for key, value in inner.items()}
        if bounds["minimum"] > bounds["maximum"] or max(map(abs, bounds.values())) > _MOST:
            raise UnkeptSchema(
                f"{_at(place)}: no integer from {least} to {most} is exact as a double; write a string with a "
                "pattern, or an enum of strings"
            )
        return {**{key: value for key, value in found.items() if key not in _BOUNDS}, **bounds}

    def _resolved(self, schema: Any) -> Any:
        """Return the target of a reference, if the schema is nothing else."""
        for _ in range(16):
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
                return schema
            if schema.keys() - {"$ref"} - _ANNOTATIONS:
                return None
            found: Any = self._root
            for part in schema["$ref"].removeprefix("#").split("/")[1:]:
                if not isinstance(found, Mapping):
                    return None
                found = found.get(part.replace("~1", "/").replace("~0", "~"))
            schema = found
        return None


_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
)


def _has_many_sets(values: int, least: int, most: int) -> bool:
    """Return whether ``least`` to ``most`` of the values have more than ``_MAX_SETS`` arrangements."""
    found, arrangements = 0, 1
    for size in range(most + 1):
        found += arrangements if size >= least else 0
        if max(found, arrangements) > _MAX_SETS:
            return True
        arrangements *= values - size
    return False


def _at(place: str) -> str:
    return f"the schema at {place}" if place else "the schema"


def _kept(rewrite: Callable[[str], list[str]], pattern: str, place: str) -> list[str]:
    try:
        return rewrite(pattern)
    except UnkeptPattern as cause:
        raise UnkeptSchema(f"{_at(place)}: {cause}") from cause


def _find_rounded(value: Any) -> int | None:
    """Return an integer within a value that no double equals; None if there is none."""
    if isinstance(value, int):
        return None if abs(value) <= _EXACT or (value.bit_length() < 1024 and int(float(value)) == value) else value
    inner: Sequence[Any] = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := _find_rounded(each)) is not None), None)


def _bound(
    found: Mapping[str, Any], plain: str, exclusive: str, rounded: Callable[[float], int], step: int
) -> int | None:  # fmt: skip
    """Return the integer bound of two keywords; None without them. Source: draft 4 has booleans."""
    values: list[int] = []
    for key in (plain, exclusive):
        value = found.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
            continue
        bound = rounded(value)
        values.append(bound + step if key == exclusive and bound == value else bound)
    if not values:
        return None
    return max(values) if step > 0 else min(values)


def _inner(bound: int | None, step: int) -> int | None:
    """Return the nearest bound inside that is a double of at most 63 bits."""
    if bound is None or abs(bound) <= _EXACT:
        return bound
    if abs(bound) > _MOST:
        return -step * _MOST if bound * step < 0 else bound
    near = int(float(bound))
    return near if (near - bound) * step >= 0 else int(math.nextafter(float(bound), step * math.inf))


def schema_text(schema: Any, shared: Comparisons | None = None) -> str:
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
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        words = "a keyword has a value of the wrong kind"
        raise UnkeptSchema(
            f"it is not a JSON schema: {words} ({cause}); expected values that JSON Schema allows"
        ) from cause
