"""Errors for malformed requests: they name each field and its legal values, from pydantic's errors (pure)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel

from rdukit.errors import MalformedRequest
from rdukit_modelbox.operations.values import REMOVED_FIELDS
from rdukit_modelbox.rest.schemas import ARTIFACT, PATH, ROWS, VERB, ArtifactBody, RowsBody, VerbBody
from rdukit_serving.strict_yaml.schema_errors import suggest

_NOT_JSON: Final = "the header content-type is {given}; expected application/json"
_NO_BODY: Final = "the body is missing; expected a JSON object, such as {}"

Location = Sequence[int | str]


def malformed_request(errors: Sequence[Any], content_type: str) -> MalformedRequest:
    """Return the error for a malformed request. ``errors``: as FastAPI gives them; ``content_type``: the request's
    header, empty if it has none.
    """
    faults = [{"at": _place(e["loc"]), "message": _words(e, content_type)} for e in errors[:20]]
    words = "; ".join(f"{fault['at']}: {fault['message']}" for fault in faults)[:4000]
    field = faults[0]["at"] if faults else "body"
    return MalformedRequest(f"the request is malformed: {words}", field=field, faults=faults)


def _place(location: Location) -> str:
    """Return the field's own name, without ``body`` or ``query`` before it."""
    parts = _fields(location)
    if location and location[0] == "body" and parts and isinstance(parts[0], int):
        parts = []  # the place of a JSON error
    return ".".join(map(str, parts)) or str(location[0] if location else "body")


def _words(error: Mapping[str, Any], content_type: str) -> str:
    location: Location = error["loc"]
    if not location or location[0] != "body":
        return str(error["msg"])
    if error["type"] == "json_invalid":
        return f"not JSON: {error.get('ctx', {}).get('error', error['msg'])} at character {location[-1]}"
    if not _fields(location) and error["type"] == "missing":
        return _NO_BODY
    if not _fields(location) and error["type"] in {"model_attributes_type", "model_type", "dict_type"}:
        is_json = content_type.partition(";")[0].strip().lower().endswith("json")
        return "it is not a JSON object" if is_json else _NOT_JSON.format(given=repr(content_type[:80]))
    if error["type"] == "extra_forbidden":
        if instead := REMOVED_FIELDS.get(".".join(map(str, _fields(location)))):
            return f"removed after 0.1.0: {instead}"
        return f"unknown field; {suggest(str(location[-1]), _legal(location))}"
    return str(error["msg"])


def _legal(location: Location) -> list[str]:
    """Return the names of the legal fields next to an unknown one."""
    around = _fields(location)[:-1]
    body: type[BaseModel] = RowsBody if ROWS in location else VerbBody
    if around[:1] == ["inputs"]:
        body = ArtifactBody
    return list(body.model_fields)


def _fields(location: Location) -> list[int | str]:
    """Return the location without the names of the tried forms of a value, which no field has."""
    return [part for part in location[1:] if part not in {ROWS, VERB, ARTIFACT, PATH}]
