"""The form that runs a verb of a box: fields from the box's description, and the visitor's values (pure).

Names of the fields are ``set.NAME`` for parameters and ``input.SLOT`` for artifacts; a pipeline's form prefixes the
verb and a dot.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from rdukit.errors import RdukitError
from rdukit.strict_json import find_number
from rdukit.units import format_seconds
from rdukit_platform.catalog.check import is_legal
from rdukit_platform.catalog.figures import figure_words
from rdukit_platform.catalog.model import BoxVerb, VerbParameter
from rdukit_platform.jobs.choices import JobChoice
from rdukit_platform.jobs.fields import CHOICES
from rdukit_platform.jobs.schemas import LABEL_KEY

#: Numbers of such lengths are read; longer ones are refused before they cost time.
_INTEGER: Final = re.compile(r"[+-]?\d{1,19}")
_TIME: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)")
_SECONDS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: A key of a label whose own pattern the request's model checks.
_ANY_KEY: Final = re.compile(r"\S+")
#: Kind of a job's plain field to the widget that shows it.
_WIDGETS: Final = {"int": "number", "float": "number", "bool": "checkbox", "text": "text", "labels": "lines"}
#: Longest text that the form accepts.
MAX_TEXT: Final = 4000


@dataclass(frozen=True, slots=True)
class Option:
    """An entry of a list to choose from."""

    value: str
    label: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """A field as the page shows it. ``widget`` is ``select``, ``checkbox``, ``number``, ``text`` or ``lines``."""

    key: str
    label: str
    widget: str
    value: str
    help: str = ""
    legal: str = ""
    default: str = ""
    error: str = ""
    options: tuple[Option, ...] = ()
    attributes: Mapping[str, str] | None = None
    is_required: bool = False
    #: Whether the value is another than the default.
    is_changed: bool = False

    @property
    def id(self) -> str:
        """Return the field's id in the page."""
        return self.key.replace(".", "-")

    def grouped(self) -> list[tuple[str, list[Option]]]:
        """Return the options by their groups, in order."""
        groups: dict[str, list[Option]] = {}
        for option in self.options:
            groups.setdefault(option.group, []).append(option)
        return list(groups.items())


@dataclass(frozen=True, slots=True)
class VerbForm:
    """The fields of one verb."""

    verb: str
    inputs: tuple[Field, ...]
    parameters: tuple[Field, ...]

    @property
    def errors(self) -> int:
        """Return the number of fields with an error."""
        return sum(bool(field.error) for field in (*self.inputs, *self.parameters))


def text_of(value: object) -> str:
    """Return a value as a field shows it."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def given_parameters(verb: BoxVerb, parameters: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return the texts of a verb's parameter fields: those of ``parameters``, else the defaults.

    Values that the verb does not know any more are left out.
    """
    given = {}
    for parameter in verb.parameters:
        value = parameters.get(parameter.name, parameter.default)
        if parameter.type == "bool":
            if value is True:
                given[f"{prefix}set.{parameter.name}"] = "true"
        else:
            given[f"{prefix}set.{parameter.name}"] = text_of(value)
    return given


def read_parameters(
    verb: BoxVerb, given: Mapping[str, str], prefix: str = ""
) -> tuple[dict[str, object], dict[str, str]]:
    """Read a verb's parameters from a form: those that differ from their defaults, and errors by field."""
    values: dict[str, object] = {}
    errors: dict[str, str] = {}
    for parameter in verb.parameters:
        key = f"{prefix}set.{parameter.name}"
        try:
            values[parameter.name] = read_value(parameter, given.get(key))
        except ValueError as wrong:
            errors[key] = f"{wrong}; expected {parameter.legal or parameter.type}"
    all_values = {parameter.name: parameter.default for parameter in verb.parameters} | values
    for parameter in verb.parameters:
        key = f"{prefix}set.{parameter.name}"
        if key in errors or values[parameter.name] == parameter.default:
            continue
        try:
            if not is_legal(parameter, values[parameter.name], all_values):
                errors[key] = (
                    f"{show_given(values[parameter.name])} is not valid; expected {parameter.legal or 'see its box'}"
                )
        except RdukitError as error:
            errors[key] = error.message
    known = {parameter.name: parameter for parameter in verb.parameters}
    changed = {
        name: value
        for name, value in values.items()
        if type(value) is not type(known[name].default) or value != known[name].default
    }
    return changed, errors


def read_inputs(verb: BoxVerb, given: Mapping[str, str], prefix: str = "") -> tuple[dict[str, str], dict[str, str]]:
    """Read a verb's inputs from a form: slot to artifact, and missing ones by field."""
    found = {slot.name: given.get(f"{prefix}input.{slot.name}", "").strip() for slot in verb.inputs}
    errors = {
        f"{prefix}input.{slot.name}": f"{verb.name} needs one: choose an artifact"
        for slot in verb.inputs
        if slot.is_required and not found[slot.name]
    }
    return {name: text for name, text in found.items() if text}, errors


def read_labels(text: str) -> dict[str, str]:
    """Read labels, ``KEY=VALUE`` on a line each.

    Raises:
        ValueError: a line is not that.
    """
    return read_pairs(text, LABEL_KEY)


def read_pairs(text: str, keys: re.Pattern[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` on a line each.

    Raises:
        ValueError: a line is not that, or its key does not match ``keys``.
    """
    pairs = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, sign, value = (part.strip() for part in line.partition("="))
        if not sign or not keys.fullmatch(key):
            raise ValueError(
                f"{show_given(line)} is not a label; expected KEY=VALUE, one per line, such as project=genes"
            )
        pairs[key] = value
    return pairs


def read_choice(choice: JobChoice, text: str) -> object:
    """Read a plain field of a job's request; ``None``: nothing was given.

    Raises:
        ValueError: the text is not of the field's kind, or a number is outside its limits.
    """
    text = text.strip()
    if choice.kind == "bool":
        return text == "true" or None
    if choice.kind == "labels":
        return read_pairs(text, _ANY_KEY) or None
    if not text or choice.kind == "text":
        return text or None
    if choice.kind == "float":
        return _read_float(text)
    return read_whole(text, int(choice.lowest or 0), int(choice.highest or 0))


def view_choice(choice: JobChoice, value: str, error: str) -> Field:
    """Return the form's field for a plain field of a job's request."""
    number = {"min": choice.lowest, "max": choice.highest, "step": 1 if choice.kind == "int" else "any"}
    limits = number if choice.kind in {"int", "float"} else {"maxlength": choice.highest}
    return Field(
        choice.name, choice.label, _WIDGETS[choice.kind], value, choice.help, choice.legal,
        "" if choice.kind in {"bool", "labels"} else text_of(choice.default), error,
        attributes={name: str(limit) for name, limit in limits.items() if limit is not None}, is_changed=bool(value),
    )  # fmt: skip


def read_whole(text: str, lowest: int, highest: int) -> int | None:
    """Read a whole number within limits, or nothing.

    Raises:
        ValueError: the text is neither empty nor such a number.
    """
    text = text.strip()
    if text and not (_INTEGER.fullmatch(text) and lowest <= int(text) <= highest):
        raise ValueError(f"{show_given(text)} is not valid; expected {lowest} to {highest}, or an empty field")
    return int(text) if text else None


def read_time(text: str) -> float | None:
    """Read a length of time in seconds, or nothing.

    Raises:
        ValueError: the text is neither empty nor a time.
    """
    found = _TIME.fullmatch(text.strip())
    if text.strip() and found is None:
        raise ValueError(
            f"{show_given(text)} is not a duration; expected seconds, or a value such as 90s, 15m or 2h, "
            "or an empty field"
        )
    return float(found[1]) * _SECONDS[found[2]] if found else None


def view_verb(
    verb: BoxVerb,
    given: Mapping[str, str],
    errors: Mapping[str, str],
    options: Mapping[str, Sequence[Option]],
    prefix: str = "",
) -> VerbForm:
    """Return a verb's fields with the given texts and their errors.

    Args:
        options: the artifacts of each slot.
    """
    inputs = []
    for slot in verb.inputs:
        key = f"{prefix}input.{slot.name}"
        value = given.get(key, "")
        choices = [Option("", "choose one" if slot.is_required else "none"), *options.get(slot.name, ())]
        if value not in {option.value for option in choices}:
            choices.append(Option(value, value, "as given"))
        hint = f"A {slot.kind}." if slot.kind in {"file", "folder"} else ""
        inputs.append(
            Field(
                key,
                slot.name,
                "select",
                value,
                hint,
                error=errors.get(key, ""),
                options=tuple(choices),
                is_required=slot.is_required,
            )
        )
    parameters = tuple(_view_parameter(one, given, errors, prefix) for one in verb.parameters)
    return VerbForm(verb.name, tuple(inputs), parameters)


def submit_command(
    box: str, verb: str, parameters: Mapping[str, object], inputs: Mapping[str, str], queue: Mapping[str, object]
) -> str:
    """Write the shell command that submits the same job.

    Args:
        queue: further keys of the job's request.
    """
    words = ["rdukit job submit", quote(box), quote(verb)]
    words += [f"--input {quote(f'{slot}={artifact}')}" for slot, artifact in inputs.items()]
    words += [f"--set {quote(f'{name}={text_of(value)}')}" for name, value in parameters.items()]
    for choice in CHOICES:
        words += choice.arguments(queue.get(choice.name))
    for key, option in (("name", "--name"), ("run_limit_s", "--run-limit")):
        if queue.get(key) is not None:
            value = queue[key]
            words.append(f"{option} {quote(f'{value:.15g}' if isinstance(value, float) else str(value))}")
    labels = queue.get("labels")
    if isinstance(labels, Mapping):
        words += [f"--label {quote(f'{key}={value}')}" for key, value in labels.items()]
    return " ".join(words)


def _view_parameter(
    parameter: VerbParameter, given: Mapping[str, str], errors: Mapping[str, str], prefix: str
) -> Field:
    key = f"{prefix}set.{parameter.name}"
    default, schema = text_of(parameter.default), parameter.schema
    value = given.get(key, "")
    options: list[Option] = []
    attributes: dict[str, str] = {}
    if parameter.type == "bool":
        widget, value = "checkbox", "true" if value == "true" else ""
        is_changed = (value == "true") is not (parameter.default is True)
    else:
        is_changed = value != default
        if schema.get("enum") and "x-cases" not in schema:
            widget = "select"
            options = [Option(text_of(one), text_of(one) or "(empty)") for one in schema["enum"]]
            if value not in {option.value for option in options}:
                options.append(Option(value, value or "(empty)"))
        elif parameter.type in {"int", "float"}:
            widget = "number"
            attributes = {"step": "1" if parameter.type == "int" else "any"}
            for limit, attribute in (("minimum", "min"), ("exclusiveMinimum", "min"), ("maximum", "max"),
                                     ("exclusiveMaximum", "max")):  # fmt: skip
                if isinstance(schema.get(limit), int | float):
                    attributes[attribute] = text_of(schema[limit])
        else:
            widget = "lines" if _takes_lines(parameter) else "text"
    return Field(
        key, parameter.name, widget, value, parameter.help, parameter.legal, default, errors.get(key, ""),
        tuple(options), attributes, is_changed=is_changed,
    )  # fmt: skip


def _takes_lines(parameter: VerbParameter) -> bool:
    """Return whether a text of several lines is valid; a field of one line would lose it."""
    if parameter.type != "string" or "pattern" not in parameter.schema:
        return False
    try:
        return is_legal(parameter, "a\nb", {})
    except RdukitError:
        return False


def read_value(parameter: VerbParameter, text: str | None) -> object:
    """Read one value of a parameter; an absent text means its default.

    Raises:
        ValueError: the text has another type.
    """
    if parameter.type == "bool":
        return text == "true"
    if text is None:
        return parameter.default
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters, more than {MAX_TEXT}")
    for one in parameter.schema.get("enum") or ():
        if text_of(one) == text:
            return one
    stripped = text.strip()
    if parameter.type == "int":
        if not stripped:
            return parameter.default
        if not _INTEGER.fullmatch(stripped):
            raise ValueError(f"{show_given(stripped)} is not a whole number")
        return int(stripped)
    if parameter.type == "float":
        return parameter.default if not stripped else _read_float(stripped)
    if parameter.type == "string":
        return text.replace("\r\n", "\n")  # a browser ends the lines of a form so
    try:
        return json.loads(stripped) if stripped else parameter.default
    except (ValueError, RecursionError):
        raise ValueError(f"{show_given(stripped)} is no JSON") from None


def _read_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or len(text) > 64:
        raise ValueError(f"{show_given(text)} is no number")
    return value


def show_given(value: object) -> str:
    """Return a value for a message, at most 80 characters of it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """A recipe of a box's description in words; a ``reason`` means that there is none of its kind."""

    kind: str
    start: str
    before: str
    reached: str
    took: str
    reason: str


def view_recipes(raw: Mapping[str, object]) -> tuple[RecipeRow, ...]:
    """Return the recipes of a box's description ``raw``; other content of a tenant's box is ignored (pure)."""
    recipes = raw.get("recipes")
    if not isinstance(recipes, Mapping):
        return ()
    return tuple(
        RecipeRow(
            str(kind), str(one.get("checkpoint") or "–"), _figure_words(one.get("before")),
            _figure_words(one.get("reached")), _took(one.get("seconds")), str(one.get("unavailable") or ""),
        )
        for kind, one in recipes.items()
        if isinstance(one, Mapping)
    )  # fmt: skip


def _took(seconds: object) -> str:
    number = find_number(seconds)
    return "–" if number is None or not math.isfinite(number) else format_seconds(number)


def _figure_words(figures: object) -> str:
    if not isinstance(figures, Mapping) or not figures:
        return "–"
    return ", ".join(figure_words(str(name), value) for name, value in figures.items())
