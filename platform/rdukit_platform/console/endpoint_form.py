"""The forms of endpoints: their fields, the visitor's values, and the field of an error (pure)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from pydantic import ValidationError

from rdukit.errors import RdukitError
from rdukit_platform.console.run_form import MAX_TEXT, Field, Option, read_time, read_whole
from rdukit_platform.endpoints.schemas import IDLE_S, MAX_REPLICAS, RevisionRequest

Asked = TypeVar("Asked", bound=RevisionRequest)

MAX_TILES: Final = 1024
#: Fields of the served model; those of the first line are copied unchanged into the request's body.
NAMED: Final = ("expert", "box", "pef", "checkpoint", "bundle")
SERVED: Final = (*NAMED, "tiles")
SIZE: Final = ("replicas", "idle")
#: Fields with another name in the request's body.
_BODY: Final = {"idle": "idle_s"}
_FIELDS: Final = {name: field for field, name in _BODY.items()}
_EXPERT_PEF: Final = "Empty: the expert's own PEF. Chats need a PEF compiled with purpose serve."
_HELP: Final = {
    "name": ("Name by which callers address it.", "up to 63 of a-z, 0-9, '.', '_' and '-'"),
    "expert": ("The endpoint serves its own checkpoint and PEF, unless you choose others.", ""),
    "box": ("Box with a PEF, instead of an expert.", ""),
    "pef": (_EXPERT_PEF, ""),
    "checkpoint": ("Empty: the expert's own checkpoint. A PEF without parameters needs none.", ""),
    "bundle": ("Several experts behind one name, instead of the choices above.", ""),
    "tiles": ("Tiles of each replica. Empty: as the PEF was compiled.", f"1 to {MAX_TILES}"),
    "replicas": ("Number of boxes that answer calls.", f"0 to {MAX_REPLICAS}"),
    "idle": (
        "Idle time after which replicas end until the next call. 0: never.",
        f"0, or {IDLE_S[0]:.0f}s to {IDLE_S[1] / 86400:.0f}d",
    ),
    "canary": ("Percentage of calls for the new revision. Empty: all calls, moved replica by replica.", "1 to 99"),
}  # fmt: skip


def _read_idle(text: str) -> float | None:
    seconds = read_time(text)
    if seconds and not IDLE_S[0] <= seconds <= IDLE_S[1]:
        raise ValueError(f"{text!r} is not valid; expected {_HELP['idle'][1]}")
    return seconds


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "tiles": lambda text: read_whole(text, 1, MAX_TILES),
    "replicas": lambda text: read_whole(text, 0, MAX_REPLICAS),
    "canary": lambda text: read_whole(text, 1, 99),
    "idle": _read_idle,
}


def read_form(given: Mapping[str, str], fields: Sequence[str]) -> tuple[dict[str, object], dict[str, str]]:
    """Read a form's fields: the request's body with the given fields, and errors by field."""
    body: dict[str, object] = {}
    errors: dict[str, str] = {}
    for field in fields:
        text = given.get(field, "").strip()[:MAX_TEXT]
        try:
            value = _READERS[field](text) if field in _READERS else text or None
        except ValueError as wrong:
            errors[field] = str(wrong)
            continue
        if value is not None:
            body[_BODY.get(field, field)] = value
    return body, errors


def check_form(
    given: Mapping[str, str], fields: Sequence[str], request: type[Asked]
) -> tuple[Asked | None, dict[str, str]]:
    """Read fields of a form as a request; ``None`` and errors by field if a field is wrong."""
    body, errors = read_form(given, fields)
    try:
        asked = request.model_validate(body)
    except ValidationError as error:
        return None, place_error(error, given) | errors
    return (None if errors else asked), errors


def place_error(error: RdukitError | ValidationError, given: Mapping[str, str]) -> dict[str, str]:
    """Return the errors by field; the empty text is the key of errors without a field.

    An error without a field belongs to the field with the error's value.
    """
    if isinstance(error, ValidationError):
        found = {}
        for one in error.errors():
            name = str(one["loc"][0]) if one["loc"] else ""
            field = _FIELDS.get(name, name)
            legal = _HELP.get(field, ("", ""))[1]
            found[field if field in _HELP else ""] = f"{one['msg']}; expected {legal}" if legal else one["msg"]
        return found
    named = error.detail.get("field")
    if isinstance(named, str) and (field := _FIELDS.get(named, named)) in _HELP:
        return {field: error.message}
    for field in ("pef", "checkpoint", "bundle", "expert", "box", "name"):
        value = given.get(field, "").strip()
        if value and re.search(rf"(?<![\w.:-]){re.escape(value)}(?![\w.-])", error.message):
            return {field: error.message}
    return {"": error.message}


def view_fields(
    fields: Sequence[str],
    given: Mapping[str, str],
    errors: Mapping[str, str],
    options: Mapping[str, Sequence[Option]] | None = None,
    required: Sequence[str] = (),
) -> tuple[Field, ...]:
    """Return fields with the given texts and their errors.

    Args:
        options: choices of the lists, by field; a field without a list is a text or a number.
    """
    return tuple(_view(field, given, errors, options or {}, required) for field in fields)


def _view(
    field: str,
    given: Mapping[str, str],
    errors: Mapping[str, str],
    options: Mapping[str, Sequence[Option]],
    required: Sequence[str],
) -> Field:
    words, legal = _HELP[field]
    value = given.get(field, "")
    attributes: dict[str, str] = {}
    choices: tuple[Option, ...] = ()
    if field in options:
        widget, choices = "select", (Option("", "none"), *options[field])
        if value not in {option.value for option in choices}:
            choices = (*choices, Option(value, value[:200], "as given"))
    elif field in {"tiles", "replicas", "canary"}:
        widget = "number"
        low, _, high = legal.partition(" to ")
        attributes = {"min": low, "max": high, "step": "1"}
    else:
        widget, attributes = "text", {"maxlength": "63"}
    return Field(
        field, field, widget, value, words, legal, "", errors.get(field, ""), choices, attributes,
        is_required=field in required,
    )  # fmt: skip
