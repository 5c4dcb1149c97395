"""The form that begins a sweep: fields from the box's description, and the visitor's values (pure).

The field ``try.NAME`` has a parameter's values to try; the fields of a single job (``run_form``) have the common values
of all trials. The rest are ``algorithm``, ``objective``, ``goal`` and others, ``stop.…`` for early stopping.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from rdukit.errors import RdukitError
from rdukit_platform.catalog.model import BoxVerb, VerbParameter
from rdukit_platform.console.run_form import MAX_TEXT, Field, Option, read_value, read_whole, show_given, text_of
from rdukit_platform.sweeps.decide import DEFAULT_TRIALS
from rdukit_platform.sweeps.model import MAX_PARALLEL, MAX_TRIALS, Algorithm, Goal

#: Words that may follow LOW:HIGH, with their meaning.
_WORDS: Final = {"log": "log", "int": "integer"}
_BY_BOX: Final = Option("", "as the box declares")
#: Short description of each algorithm.
_WAYS: Final = {
    Algorithm.GRID: "grid: every combination",
    Algorithm.RANDOM: "random: drawn",
    Algorithm.OPTUNA: "optuna: chosen by earlier results",
}
#: Places in the body of a request, and their fields.
_FIELDS: Final = {
    "objective.metric": "objective", "objective.goal": "goal", "early_stopping.metric": "stop.metric",
    "early_stopping.goal": "stop.goal", "early_stopping.min_steps": "stop.min_steps",
    "early_stopping.min_trials": "stop.min_trials", "job.run_limit_s": "run_limit",
}  # fmt: skip
#: Fields of whole numbers: the least and the most that is legal.
_WHOLE: Final = {
    "max_trials": (1, MAX_TRIALS), "max_parallel": (1, MAX_PARALLEL), "seed": (0, (1 << 31) - 1),
    "stop.min_steps": (0, (1 << 31) - 1), "stop.min_trials": (1, MAX_TRIALS),
}  # fmt: skip


def read_space(verb: BoxVerb, given: Mapping[str, str]) -> tuple[dict[str, dict[str, object]], dict[str, str]]:
    """Parse the values to try of each parameter. Returns them, and errors by field."""
    space: dict[str, dict[str, object]] = {}
    errors: dict[str, str] = {}
    for parameter in verb.parameters:
        key = f"try.{parameter.name}"
        text = given.get(key, "").strip()
        if not text:
            continue
        try:
            space[parameter.name] = read_tried(parameter, text)
        except ValueError as wrong:
            errors[key] = f"{wrong}; expected {parameter.legal or parameter.type}, as V,V or LOW:HIGH"
    return space, errors


def read_tried(parameter: VerbParameter, text: str) -> dict[str, object]:
    """Read ``V,V`` or, of a number, ``LOW:HIGH[:log][:int]``; ``[…]`` is a list of values in JSON.

    Raises:
        ValueError: the text has another form, or a value has another type than the parameter.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters, more than {MAX_TEXT}")
    if text.startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"{show_given(text)} is no JSON") from None
        return {"values": values}
    if parameter.type in {"int", "float"} and ":" in text:
        low, high, *words = (part.strip() for part in text.split(":"))
        if strange := [word for word in words if word not in _WORDS]:
            raise ValueError(f"{show_given(strange[0])} after LOW:HIGH is neither log nor int")
        if not (low and high):
            raise ValueError(f"{show_given(text)} has no upper end; give both ends")
        ends = {"low": read_value(parameter, low), "high": read_value(parameter, high)}
        is_whole = parameter.type == "int" or "int" in words
        return {**ends, "log": "log" in words, "integer": is_whole}
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{show_given(text)} has an empty value between commas")
    if parameter.type == "bool" and (strange := [part for part in parts if part not in {"true", "false"}]):
        raise ValueError(f"{show_given(strange[0])} is neither true nor false")
    return {"values": [read_value(parameter, part) for part in parts]}


def read_search(given: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the search: algorithm, objective, numbers and early stopping, as in a sweep's request."""
    numbers: dict[str, int] = {}
    errors: dict[str, str] = {}
    for key, (lowest, highest) in _WHOLE.items():
        try:
            number = read_whole(given.get(key, ""), lowest, highest)
        except ValueError as wrong:
            errors[key] = str(wrong)
            continue
        if number is not None:
            numbers[key] = number
    found: dict[str, Any] = {
        "algorithm": given.get("algorithm") or "grid",
        "objective": _metric(given, "objective", "goal"),
    }
    found |= {key: number for key, number in numbers.items() if "." not in key}
    if given.get("stop.metric"):
        found["early_stopping"] = _metric(given, "stop.metric", "stop.goal")
        found["early_stopping"] |= {
            key.removeprefix("stop."): number for key, number in numbers.items() if key.startswith("stop.")
        }
    return found, errors


def view_space(verb: BoxVerb, given: Mapping[str, str], errors: Mapping[str, str]) -> tuple[Field, ...]:
    """Return a field for the values to try of each parameter."""
    fields = []
    for parameter in verb.parameters:
        key = f"try.{parameter.name}"
        value, legal = given.get(key, ""), parameter.legal or parameter.type
        fields.append(
            Field(key, parameter.name, "text", value, parameter.help, legal, text_of(parameter.default),
                  errors.get(key, ""), attributes={"maxlength": str(MAX_TEXT)}, is_changed=bool(value.strip()))
        )  # fmt: skip
    return tuple(fields)


def view_search(
    verb: BoxVerb, given: Mapping[str, str], errors: Mapping[str, str], algorithms: Sequence[Algorithm]
) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """Return the fields of the search, and those of early stopping.

    Args:
        algorithms: those whose libraries are installed.
    """
    goals = (_BY_BOX, *(Option(str(goal), str(goal)) for goal in Goal))
    ways = tuple(Option(str(one), _WAYS[one]) for one in algorithms)
    search = (
        _chosen("algorithm", "method", given, errors, ways, "Algorithm that chooses the next trial's values."),
        _named("objective", "objective", given, errors, [one.name for one in verb.metrics], "What is compared."),
        _chosen("goal", "better is", given, errors, goals, "Whether higher or lower values are better."),
        _number("max_trials", "trials", given, errors, f"Empty: the whole grid, else {DEFAULT_TRIALS}."),
        _number("max_parallel", "at once", given, errors, "Concurrent trials. Empty: 2."),
        _number("seed", "seed", given, errors, "Seed of drawn values. Empty: 0."),
    )
    told = [one.name for one in verb.metrics if one.reported != "result"]
    never = [Option("", "never")] if verb.metrics else []
    hint = "Metric by which trials worse than the median are stopped." + ("" if never else " Nothing: never.")
    stop = (
        _named("stop.metric", "by metric", given, errors, told, hint, never),
        _chosen("stop.goal", "better is", given, errors, goals, "Whether higher or lower values are better."),
        _number("stop.min_steps", "from step", given, errors, "First step at which trials may be stopped. Empty: 0."),
        _number("stop.min_trials", "after trials", given, errors, "Successful trials before any is stopped. Empty: 3."),
    )  # fmt: skip
    return search, stop


def place_sweep_error(error: RdukitError | ValidationError, tried: Sequence[str]) -> dict[str, str]:
    """Return an error of a sweep by field; the empty text is the key of errors without a field.

    Args:
        tried: the parameters of the space.
    """
    if isinstance(error, ValidationError):
        return dict(_place_one(one["loc"], one["msg"]) for one in error.errors())
    parameter = error.detail.get("parameter")
    if isinstance(parameter, str):
        return {f"{'try' if parameter in tried else 'set'}.{parameter}": error.message}
    for start, key in (("tiles is ", "tiles"), ("priority is ", "priority"), ("objective", "objective"),
                       ("early_stopping", "stop.metric"), ("the algorithm ", "algorithm")):  # fmt: skip
        if error.message.startswith(start):
            return {key: error.message}
    for name in tried:
        if error.message.startswith(f"parameter {name!r} "):
            return {f"try.{name}": error.message}
    return {"": error.message}


def _place_one(place: Sequence[int | str], message: str) -> tuple[str, str]:
    """Return the field that a part of a sweep's request stands for, and the message."""
    words = [str(part) for part in place]
    if words[0] == "space" and len(words) > 1:
        return f"try.{words[1]}", message
    if words[:2] in (["job", "parameters"], ["job", "inputs"]) and len(words) > 2:
        return f"{'set' if words[1] == 'parameters' else 'input'}.{words[2]}", message
    path = ".".join(words[:2])
    if words[0] in {"algorithm", "name", *_WHOLE}:
        return words[0], message
    key = _FIELDS.get(path) or (words[1] if words[0] == "job" and len(words) > 1 else "")
    return key, message


def _metric(given: Mapping[str, str], metric: str, goal: str) -> dict[str, str]:
    found = {"metric": given.get(metric, "").strip(), "goal": given.get(goal, "")}
    return {key: text for key, text in found.items() if text or key == "metric"}


def _chosen(
    key: str, label: str, given: Mapping[str, str], errors: Mapping[str, str], options: Sequence[Option], help_: str
) -> Field:
    value = given.get(key, "")
    if value not in {option.value for option in options}:
        options = [*options, Option(value, value or "choose one")]
    return Field(key, label, "select", value, help_, error=errors.get(key, ""), options=tuple(options))


def _named(
    key: str,
    label: str,
    given: Mapping[str, str],
    errors: Mapping[str, str],
    metrics: Sequence[str],
    help_: str,
    before: Sequence[Option] = (),
) -> Field:
    """Return the field of a metric: a list of the box's metrics, or a text if it declares none."""
    if not metrics and not before:
        return Field(key, label, "text", given.get(key, ""), help_, error=errors.get(key, ""))
    return _chosen(key, label, given, errors, [*before, *(Option(name, name) for name in metrics)], help_)


def _number(key: str, label: str, given: Mapping[str, str], errors: Mapping[str, str], help_: str) -> Field:
    lowest, highest = _WHOLE[key]
    limits = {"min": str(lowest), "max": str(highest), "step": "1"}
    value = given.get(key, "")
    return Field(
        key, label, "number", value, help_, f"{lowest} to {highest}", "", errors.get(key, ""), (), limits,
        is_changed=bool(value),
    )  # fmt: skip
