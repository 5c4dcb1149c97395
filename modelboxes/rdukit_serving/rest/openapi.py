"""The routes of the Open Inference Protocol as OpenAPI has them; the application that answers them has no framework.

Source: Open Inference Protocol v2, "HTTP/REST"; Triton's extensions for statistics, configuration and the repository.
"""

from collections.abc import Mapping
from typing import Any, Final

from rdukit_serving.checks import INPUT_PARAMETERS, OUTPUT_PARAMETERS, REQUEST_PARAMETERS
from rdukit_serving.signature import DATATYPES

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_ANY: Final[Schema] = {"type": "object"}


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    """Describe an object without other fields."""
    value = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**value, "required": list(required)} if required else value


def _parameters(legal: Mapping[str, str]) -> Schema:
    found = {name: {"type": "boolean"} if "true" in words else {"type": "integer"} for name, words in legal.items()}
    return {"type": "object", "properties": found, "description": "Others are refused unless their value means unused."}


_INPUT: Final = _object(
    ("name", "shape", "datatype"), name=_TEXT, shape={"type": "array", "items": {"type": "integer"}},
    datatype={"type": "string", "enum": list(DATATYPES)},
    data={"type": "array", "description": "Flat or nested; or binary data behind the JSON."},
    parameters=_parameters(INPUT_PARAMETERS),
)  # fmt: skip
_REQUEST: Final = _object(
    ("inputs",), id=_TEXT, inputs={"type": "array", "items": _INPUT},
    outputs={"type": "array", "items": _object(("name",), name=_TEXT, parameters=_parameters(OUTPUT_PARAMETERS))},
    parameters=_parameters(REQUEST_PARAMETERS),
)  # fmt: skip
_ROWS: Final = _object(
    ("rows",), rows={"type": "array", "items": _ANY, "description": "Values by column name; null for unknown values."}
)
_PICTURES: Final = _object(("images",), images={"type": "array", "items": _TEXT, "description": "In base64."})
_ERROR: Final = _object(("error",), error=_TEXT)
_LOAD: Final = _object(
    (), parameters=_object((), pef=_TEXT, checkpoint=_TEXT, version=_TEXT, keep_others={"type": "boolean"})
)
_UNLOAD: Final = _object((), parameters=_object((), version=_TEXT, unload_dependents={"type": "boolean"}))


def inference_paths() -> dict[str, Any]:
    """Return ``paths`` of an OpenAPI document."""
    paths: dict[str, Any] = {
        "/v2": {"get": _operation("Name, version and extensions.", _ANY)},
        "/v2/health/live": {"get": _operation("The process answers.", _ANY)},
        "/v2/health/ready": {"get": _operation("Checks that an inference passes through the device.", _ANY)},
        "/v2/models/stats": {"get": _operation("Counts and durations of all versions.", _ANY)},
        "/v2/repository/index": {
            "post": _operation(
                "Versions and their states.", {"type": "array", "items": _ANY},
                _object((), ready={"type": "boolean"}), is_required=False,
            )
        },
        "/v2/repository/models/{model}/load": {
            "post": _operation("Load, probe, switch, drain.", None, _LOAD, ("model",), is_required=False)
        },
        "/v2/repository/models/{model}/unload": {
            "post": _operation("Drain and unload.", None, _UNLOAD, ("model",), is_required=False)
        },
    }  # fmt: skip
    for base, names in (
        ("/v2/models/{model}", ("model",)),
        ("/v2/models/{model}/versions/{version}", ("model", "version")),
    ):
        paths[base] = {"get": _operation("Inputs and outputs.", _ANY, None, names)}
        paths[f"{base}/ready"] = {"get": _operation("Checks that an inference passes its device.", _ANY, None, names)}
        paths[f"{base}/config"] = {"get": _operation("Configuration in Triton's terms.", _ANY, None, names)}
        paths[f"{base}/stats"] = {"get": _operation("Counts and durations.", _ANY, None, names)}
        paths[f"{base}/images"] = {"post": _operation("Labels for pictures.", _ANY, _PICTURES, names)}
        paths[f"{base}/rows"] = {"post": _operation("Labels for rows of a table.", _ANY, _ROWS, names)}
        paths[f"{base}/infer"] = {"post": _operation("One inference.", _ANY, _REQUEST, names)}
    return paths


def _operation(
    words: str, answer: Schema | None, body: Schema | None = None, names: tuple[str, ...] = (), is_required: bool = True
) -> dict[str, Any]:
    refused = {"description": "{error: text}", "content": {"application/json": {"schema": _ERROR}}}
    described: dict[str, Any] = {"description": words}
    if answer is not None:
        described["content"] = {"application/json": {"schema": answer}}
    value: dict[str, Any] = {
        "tags": ["inference"], "summary": words, "responses": {"200": described, "4XX": refused, "5XX": refused},
    }  # fmt: skip
    if names:
        value["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if body is not None:
        value["requestBody"] = {"required": is_required, "content": {"application/json": {"schema": body}}}
    return value
