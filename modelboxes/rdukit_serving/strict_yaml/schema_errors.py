"""Models of strict files, and diagnostics from pydantic's errors: a line, a key and the legal values. Pure."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema

from rdukit.strict_yaml import Diagnostic, MarkedYaml, Path

Schema = Mapping[str, Any]

#: Expected type for each of pydantic's type errors.
_WANTED: Final = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "string": "text", "tuple": "a list",
    "list": "a list", "mapping": "a mapping", "dict": "a mapping", "model": "a mapping",
}  # fmt: skip


class StrictModel(BaseModel):
    """A mapping in the file: unknown keys are faults, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = r"^[0-9]+(\.[0-9]+)? ?(B|KiB|MiB|GiB|TiB)$"


def parse_bytes(value: object) -> int:
    """Parse ``512MiB`` or a number of bytes.

    Raises:
        ValueError: the text has another form; the message has the expected ones.
    """
    if isinstance(value, str) and re.fullmatch(_SIZE, value):
        number = value.rstrip("BiKMGT").strip()
        value = int(float(number) * _UNITS[value[len(number) :].strip()])
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"{value!r} is not valid; expected a size such as 512MiB or 2GiB, or a number of bytes")
    return value


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _SIZE}, {"type": "integer", "exclusiveMinimum": 0}]}),
]


def diagnostics_of(error: ValidationError, marked: MarkedYaml, schema: Schema) -> list[Diagnostic]:
    """Return one fault for each key that is wrong, in the order of the file."""
    complaints: dict[Path, list[Any]] = {}
    for complaint in error.errors(include_url=False):
        complaints.setdefault(_key_of(complaint, marked.value), []).append(complaint)
    faults = [Diagnostic(marked.mark_of(path), path, _words(path, these, schema)) for path, these in complaints.items()]
    return sorted(faults, key=lambda fault: fault.mark)


def suggest(word: str, legal: Sequence[str]) -> str:
    """``did you mean 'minimum'? expected …``."""
    close = difflib.get_close_matches(word, legal, n=1, cutoff=0.6)
    by_case = [name for name in legal if name.lower() == word.lower().replace("_", "")]
    nearest = by_case[:1] or close
    return (f"did you mean {nearest[0]!r}? " if nearest else "") + f"expected {', '.join(legal) or 'none'}"


def schema_at(path: Path, schema: Schema) -> Schema:
    """Return the part of ``schema`` that describes ``path``; empty when there is none."""
    here: Schema = schema
    for part in path:
        options = [_resolved(option, schema) for option in [here, *here.get("anyOf", ())]]
        found: Schema = {}
        for option in options:
            if isinstance(part, int):
                found = found or option.get("items") or {}
            else:
                extra = next(iter(option.get("patternProperties", {}).values()), option.get("additionalProperties"))
                found = found or option.get("properties", {}).get(part) or (extra if isinstance(extra, dict) else {})
        here = _resolved(found, schema)
    return here


def _resolved(part: Schema, schema: Schema) -> Schema:
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].rsplit("/", 1)[1]]
    return part


def _key_of(complaint: Any, value: object) -> Path:
    """Return the complaint's place in the file, without pydantic's names of a union's members."""
    path: list[str | int] = []
    for part in complaint["loc"]:
        is_there = (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        )
        if not is_there:
            if complaint["type"] == "missing" and part == complaint["loc"][-1]:
                path.append(part)
            break
        path.append(part)
        value = value[part]  # type: ignore[index]
    return tuple(path)


def _words(path: Path, complaints: Sequence[Any], schema: Schema) -> str:
    first = complaints[0]
    kind, value = str(first["type"]), first["input"]
    if len(complaints) > 1:
        wanted = dict.fromkeys(_wanted(complaint) for complaint in complaints)
        return f"{_shown(value)} is not valid; expected {' or '.join(wanted)}"
    if kind == "missing":
        hint = _hint(schema_at(path, schema), schema)
        return f"missing{hint}"
    if kind == "extra_forbidden":
        around = schema_at(path[:-1], schema)
        options = [_resolved(option, schema) for option in [around, *around.get("anyOf", ())]]
        legal = next((list(option["properties"]) for option in options if "properties" in option), [])
        return f"unknown key; {suggest(str(path[-1]), legal)}"
    if kind in {"literal_error", "enum"}:
        return f"{_shown(value)} is not valid; expected {first['ctx']['expected']}"
    if kind == "value_error":
        return str(first["msg"]).removeprefix("Value error, ")
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return f"{_shown(value)} is a {'truth value' if isinstance(value, bool) else 'number'}, not a string; " + (
            f'write "{_shown(value)}"'
        )
    return f"{_shown(value)} is not valid; expected {_wanted(first)}"


def _wanted(complaint: Any) -> str:
    kind, context = str(complaint["type"]), complaint.get("ctx") or {}
    if kind == "string_pattern_mismatch":
        return f"text with the pattern {context['pattern']}"
    if kind == "too_short":
        return f"at least {context['min_length']} of them"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters"
    if kind == "string_too_short":
        return f"at least {context['min_length']} characters"
    if kind == "value_error":
        return str(complaint["msg"]).removeprefix("Value error, ")
    for sign, words in (("greater_than_equal", "at least"), ("greater_than", "above"), ("less_than_equal", "at most")):
        if kind == sign:
            return f"{words} {next(iter(context.values()))}"
    if kind in {"bool_type", "bool_parsing", "int_type", "int_parsing", "int_from_float", "float_type", "float_parsing",
                "string_type", "tuple_type", "list_type", "mapping_type", "dict_type", "model_type",
                "model_attributes_type"}:  # fmt: skip
        return _WANTED[kind.split("_", 1)[0]]
    return str(complaint["msg"]).removeprefix("Input should be ")


def _hint(part: Schema, schema: Schema) -> str:
    """Describe the value that a missing key would hold."""
    items = _resolved(part.get("items") or {}, schema)
    if "const" in part:
        return f"; expected {part['const']}"
    if "enum" in part:
        return "; expected " + ", ".join(str(value) for value in part["enum"])
    if "enum" in items:
        return "; expected a list of " + ", ".join(str(value) for value in items["enum"])
    return f" ({str(part['description']).rstrip('.')})" if part.get("description") else ""


def _shown(value: object) -> str:
    if isinstance(value, (bool, int, float)) or value is None:
        return json.dumps(value)
    text = repr(value) if isinstance(value, str) else "a mapping" if isinstance(value, dict) else "a list"
    return text if len(text) <= 80 else text[:77] + "..."
