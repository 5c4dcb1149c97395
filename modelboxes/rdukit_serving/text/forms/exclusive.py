"""Options of ``oneOf``: whether a value can match two, and the same options apart. Pure.

llguidance keeps ``anyOf``. If no value matches two options, both keywords mean the same.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from typing import Any, Final

#: Resolves references of a schema.
Resolve = Callable[[Any], Any]

_KINDS: Final = frozenset({"object", "array", "string", "number", "boolean", "null"})
#: Depth of nested options that are examined.
_MAX_DEPTH: Final = 8
#: Pairs of schemas that are compared for one ``oneOf``: all requests wait meanwhile.
MAX_COMPARED: Final = 5000
#: The same for all ``oneOf`` of a request together: of its tools, and of each one's schema.
MAX_COMPARED_FOR_ALL: Final = 10_000
#: Schemas of a request that are rewritten, each as often as it is written out.
MAX_SCHEMAS: Final = 50_000
#: Places of arrays that are compared.
_MAX_PLACES: Final = 16
#: Ranges of integers whose overlaps are counted.
_MAX_SPANS: Final = 1000


@dataclass(slots=True)
class SchemaWork:
    """Remaining work on all schemas of a request: all requests wait meanwhile.

    ``left``: comparisons for all ``oneOf``; ``lookups``: properties to find discriminators in; ``schemas``: those that
    are rewritten, each as often as it is written out; ``characters``: of arrangements of sets.
    """

    left: int = MAX_COMPARED_FOR_ALL
    lookups: int = 200_000
    schemas: int = MAX_SCHEMAS
    characters: int = 1_000_000


def exclusive_options(options: Sequence[Any], resolve: Resolve, shared: SchemaWork | None = None) -> list[Any] | None:
    """Return options for ``anyOf`` of the values that match exactly one of ``options``.

    The result is None if the options are unknown, or need more than ``MAX_COMPARED`` or the remaining ``shared``
    comparisons. Options with a discriminator need no comparison.
    """
    shared = shared or SchemaWork()
    if find_discriminator(options, resolve, shared, is_required=True) is not None:
        return list(options)
    given = min(MAX_COMPARED, shared.left)
    left = [given]
    are_apart = all(_are_apart(one, other, resolve, left) for one, other in combinations(options, 2))
    shared.left -= given - max(0, left[0])
    if are_apart:
        return list(options)
    spans = [_integer_span(resolve(each)) for each in options]
    if None not in spans and len(spans) <= _MAX_SPANS:
        return _matched_once([span for span in spans if span is not None])
    return None


def find_discriminator(
    options: Sequence[Any], resolve: Resolve, shared: SchemaWork, is_required: bool = False
) -> str | None:  # fmt: skip
    """Return a property of which each option, an object, lists other values; None also without ``lookups`` left.

    ``is_required``: only a property that all options require; otherwise one that all declare.
    """
    found = [resolve(each) for each in options]
    if not found or len({id(each) for each in found}) < len(found):
        return None
    if not all(isinstance(each, dict) for each in found):
        return None
    key = "required" if is_required else "properties"
    shared.lookups -= sum(len(each.get(key, ())) + len(_listed(each) or ()) for each in found)
    if shared.lookups < 0 or not all(_kinds(each) == {"object"} for each in found):
        return None
    names: set[str] = set.intersection(*(set(each.get(key, ())) for each in found))
    return next((name for name in sorted(names) if _tells_apart(name, found, resolve, shared)), None)


def _tells_apart(name: str, options: Sequence[Any], resolve: Resolve, shared: SchemaWork) -> bool:
    """Return whether each option lists other values of a property."""
    seen: set[str] = set()
    for option in options:
        named = resolve(option.get("properties", {}).get(name))
        shared.lookups -= 1 + (len(_listed(named) or ()) if isinstance(named, dict) else 0)
        values = _values(named) if isinstance(named, dict) and shared.lookups >= 0 else None
        if not values or values & seen:
            return False
        seen |= values
    return True


def _are_apart(one: Any, other: Any, resolve: Resolve, left: list[int], depth: int = 0) -> bool:
    """Return whether certainly no value matches both; also false when no comparisons are ``left``."""
    left[0] -= 1
    if left[0] < 0:
        return False
    one, other = resolve(one), resolve(other)
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or depth > _MAX_DEPTH:
        return False
    left[0] -= sum(len(_listed(each) or ()) for each in (one, other)) // 16  # long lists count more
    if left[0] < 0:
        return False
    kinds = _kinds(one) & _kinds(other)
    if not kinds:
        return True
    for key in ("anyOf", "oneOf"):
        for mine, yours in ((one, other), (other, one)):
            if isinstance(mine.get(key), list):
                return all(_are_apart(each, yours, resolve, left, depth + 1) for each in mine[key])
    ours, theirs = _values(one), _values(other)
    if ours is not None and theirs is not None:
        left[0] -= sum(map(len, ours | theirs)) // 5000
        return not ours & theirs
    if kinds == {"array"}:
        return _are_other_arrays(one, other, resolve, left, depth)
    if kinds != {"object"}:
        return False
    both = set(one.get("required", ())) & set(other.get("required", ()))
    mine, yours = one.get("properties", {}), other.get("properties", {})
    return any(
        _are_apart(mine[name], yours[name], resolve, left, depth + 1) for name in both if name in mine and name in yours
    )


def _are_other_arrays(one: Any, other: Any, resolve: Resolve, left: list[int], depth: int) -> bool:
    """Return whether arrays have other lengths, or other values at a place that both have."""
    lengths = [(_length(each, "minItems", 0), _length(each, "maxItems", math.inf)) for each in (one, other)]
    if lengths[0][1] < lengths[1][0] or lengths[1][1] < lengths[0][0]:
        return True
    for place in range(min(int(max(lengths[0][0], lengths[1][0])), _MAX_PLACES)):
        mine, yours = _item(one, place), _item(other, place)
        if _are_apart(mine, yours, resolve, left, depth + 1):
            return True
    return False


def _length(schema: Mapping[str, Any], key: str, usual: float) -> float:
    value = schema.get(key)
    return value if isinstance(value, int) and value >= 0 else usual


def _item(schema: Mapping[str, Any], place: int) -> Any:
    """Return the schema of an array's item."""
    listed = schema.get("prefixItems") or []
    return listed[place] if isinstance(listed, list) and place < len(listed) else schema.get("items", True)


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the kinds of values that may match; integers are numbers."""
    named = schema.get("type")
    values = _listed(schema)
    if values is not None:
        return {_kind(value) for value in values}
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list):
        return set(_KINDS)
    return {"number" if name == "integer" else str(name) for name in named}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    for kinds, name in ((bool, "boolean"), (str, "string"), (int | float, "number"), (list, "array")):
        if isinstance(value, kinds):
            return name
    return "object"


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    values = _listed(schema)
    if values is None:
        return None
    return {json.dumps(int(each) if isinstance(each, float) and each.is_integer() else each, sort_keys=True)
            for each in values}  # fmt: skip


def _integer_span(schema: Any) -> tuple[int, int] | None:
    """Return the least and largest integer of a range; None for another schema."""
    if not isinstance(schema, dict) or schema.get("type") != "integer":
        return None
    if schema.keys() - {"type", "minimum", "maximum", "title", "description"}:
        return None
    least, most = schema.get("minimum"), schema.get("maximum")
    is_known = isinstance(least, int) and isinstance(most, int) and not isinstance(least, bool)
    return (least, most) if is_known and not isinstance(most, bool) else None  # type: ignore[return-value]


def _matched_once(spans: Sequence[tuple[int, int]]) -> list[Any]:
    """Return ranges of the integers that are in one span only."""
    edges: Counter[int] = Counter()
    for least, most in spans:
        if least <= most:
            edges[least] += 1
            edges[most + 1] -= 1
    ends = sorted(edges)
    counts = accumulate(edges[end] for end in ends)
    return [
        {"type": "integer", "minimum": begin, "maximum": end - 1}
        for (begin, end), count in zip(pairwise(ends), counts, strict=False)
        if count == 1
    ] or [False]
