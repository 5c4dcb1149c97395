"""Messages for malformed requests (pure): the key, its value, and the values that its JSON schema accepts.

pydantic's errors give the place; the text comes from the schema, so it is the same for every route.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from rdukit.errors import InvalidArgument, suggest
from rdukit.units import plain

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

#: Largest number of keys described in an answer; further ones are counted.
MAX_SAID: Final = 20
#: Longest place of a key, in characters.
MAX_WHERE: Final = 400
#: Longest repeated value, in characters.
_SHOWN: Final = 80
_BODY: Final = "the body"


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of a request: the first ``MAX_SAID`` keys (``where``) and their sentences (``problem``), and the
    number of the others.
    """

    said: list[dict[str, str]]
    others: int = 0


def refusal_of(faults: Faults, /, **detail: object) -> InvalidArgument:
    """Return the error with all sentences of ``faults``; ``detail`` is for machines."""
    words = "; ".join(one["problem"] for one in faults.said)
    more = f"; and {faults.others} more" if faults.others else ""
    return InvalidArgument(f"the request is not valid: {words}{more}", **detail)


def find_malformed(
    errors: Sequence[Mapping[str, Any]], body: object, places: Mapping[str, Schema], definitions: Mapping[str, Schema],
    total: int = 0,
) -> Faults:  # fmt: skip
    """Return a sentence for each of the first ``MAX_SAID`` keys that pydantic refuses.

    Args:
        errors: pydantic's; each place begins with ``body``, ``query``, ``path`` or the like.
        places: the schema of each of these; without one, messages are less precise.
        definitions: schemas by the last part of references.
        total: number of all errors, if ``errors`` are only the first.
    """
    found: dict[tuple[str, Path], list[Mapping[str, Any]]] = {}
    for error in errors:
        source, *rest = error["loc"] or ("body",)
        path = _path_in(body, rest, error["type"]) if source == "body" else tuple(rest)
        found.setdefault((str(source), path), []).append({**error, "is_whole": len(path) == len(rest)})
    said = [
        {
            "where": ".".join(map(str, (source, *path)))[:MAX_WHERE],
            "problem": _describe(these, path, places.get(source, {}), definitions),
        }
        for (source, path), these in islice(found.items(), MAX_SAID)
    ]
    return Faults(said, (total if total > len(errors) else len(found)) - len(said))


def schema_at(path: Path, schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return the part of ``schema`` that describes ``path``; empty: there is none."""
    here = schema
    for part in path:
        found: Schema = {}
        for option in _options(here, definitions):
            patterns = iter(option.get("patternProperties", {}).values())
            extra = option.get("additionalProperties")
            beside = next(patterns, extra if isinstance(extra, Mapping) else {})
            inner = option.get("items") if isinstance(part, int) else option.get("properties", {}).get(part, beside)
            found = found or inner or {}
        here = found
    return here


def legal_words(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Describe the values that a schema accepts; empty: unknown."""
    words = [_words_of(option) for option in _options(schema, definitions) if option.get("type") != "null"]
    return ", or ".join(dict.fromkeys(word for word in words if word))


def _path_in(body: object, location: Sequence[str | int], kind: str) -> Path:
    """Return the part of a place that exists in the body, without pydantic's names for members of a union."""
    path: list[str | int] = []
    for number, part in enumerate(location):
        is_key = isinstance(body, Mapping) and part in body
        is_index = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if not (is_key or is_index):
            if kind == "missing" and number == len(location) - 1:
                path.append(part)
            break
        path.append(part)
        body = body[part]  # type: ignore[index]
    return tuple(path)


def _describe(
    errors: Sequence[Mapping[str, Any]], path: Path, schema: Schema, definitions: Mapping[str, Schema]
) -> str:
    # Each member of a union reports errors; an error about the value itself is the most useful.
    error = next((one for one in errors if one["type"] == "value_error"), errors[0])
    kind, where, is_whole = str(error["type"]), _written(path), bool(error["is_whole"])
    if is_whole and kind == "extra_forbidden":
        names = [name for o in _options(schema_at(path[:-1], schema, definitions), definitions) for name in _keys(o)]
        around = f" in {_written(path[:-1])}" if path[:-1] else ""
        near = suggest(str(path[-1]), names)
        legal = f"{', '.join(names) or 'none'}{near and '.' + near}"
        return f"there is no key {str(path[-1])[:_SHOWN]!r}{around}; expected {legal}"
    key_said = _describe_key(error, path)
    if key_said is not None:
        return key_said
    said = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if kind == "json_invalid":
        why, at = error.get("ctx", {}).get("error", said), error["loc"][-1]
        return (
            f"{where} is not JSON: {why}, at character {at}" if isinstance(at, int) else f"{where} is not JSON: {why}"
        )
    if kind == "value_error":
        return f"{where}: {said}"
    legal = legal_words(schema_at(path, schema, definitions), definitions)
    if not is_whole:
        return f"{where} is not valid; expected {legal or said}"
    if kind == "missing":
        return f"{where} is missing" + (f"; expected {legal}" if legal else "")
    return f"{where} is {_shown(error.get('input'))}; expected {legal or said}"


def _describe_key(error: Mapping[str, Any], path: Path) -> str | None:
    """Describe a mapping's invalid key, which pydantic marks by the last part of the place; ``None``: the error is
    another one.
    """
    if not path or tuple(error["loc"][-2:]) != (path[-1], "[key]"):
        return None
    pattern = error.get("ctx", {}).get("pattern")
    legal = f"a key that fits {pattern}" if pattern else str(error["msg"])
    return f"{_written(path[:-1])} has the key {str(path[-1])[:_SHOWN]!r}; expected {legal}"


def _options(schema: Schema, definitions: Mapping[str, Schema]) -> list[Schema]:
    while "$ref" in schema:
        schema = definitions.get(str(schema["$ref"]).rsplit("/", 1)[1], {})
    members = schema.get("anyOf") or schema.get("oneOf")
    return [schema] if not members else [option for one in members for option in _options(one, definitions)]


def _keys(schema: Schema) -> list[str]:
    return sorted(schema.get("properties", {}))


def _words_of(schema: Schema) -> str:
    if "enum" in schema or "const" in schema:
        return " or ".join(plain(value) for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "integer" | "number" as kind:
            return f"a {'whole ' if kind == 'integer' else ''}number{_bounds(schema)}"
        case "string" if schema.get("format") == "date-time":
            return "a time with its zone, such as 2026-11-30T08:00+01:00"
        case "string":
            pattern = schema.get("pattern")
            return f"a text{_sizes(schema, 'Length', 'characters')}{f' that fits {pattern}' if pattern else ''}"
        case "boolean":
            return "true or false"
        case "array":
            return f"a list{_sizes(schema, 'Items', 'entries')}"
        case "object":
            names = _keys(schema)
            return f"the keys {', '.join(names)}" if names else f"a mapping{_sizes(schema, 'Properties', 'entries')}"
        case _:
            return ""


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    words = [
        f"from {_number(low)}" if low is not None else f"above {_number(above)}" if above is not None else "",
        f"to {_number(high)}" if high is not None else f"below {_number(below)}" if below is not None else "",
    ]
    return "".join(f" {word}" for word in words if word)


def _sizes(schema: Schema, noun: str, what: str) -> str:
    low, high = schema.get(f"min{noun}", 0), schema.get(f"max{noun}")
    if high is None:
        return f" of {low} {what} or more" if low else ""
    return f" of {low} to {high} {what}" if low else f" of up to {high} {what}"


def _number(value: float) -> str:
    """Format a limit without an exponent: ``2592000``, not ``2.592e+06``."""
    return str(int(value)) if math.isfinite(value) and float(value).is_integer() else plain(value)


def _written(path: Path) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN]}" for part in path)
    return text.removeprefix(".")[:MAX_WHERE] or _BODY


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        text = (
            f"a mapping of {', '.join(str(key)[:_SHOWN] for key in islice(value, _SHOWN))}"
            if value
            else "an empty mapping"
        )
    elif isinstance(value, str):
        text = repr(value[: _SHOWN + 1])
    elif isinstance(value, list) and len(value) > _SHOWN:
        text = f"a list of {len(value)} entries"
    else:
        text = "null" if value is None else _number(value) if isinstance(value, float) else plain(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
