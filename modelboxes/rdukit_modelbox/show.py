"""How the command line shows boxes to people."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from rdukit.cli.tables import print_table
from rdukit.units import format_bytes


def print_description(told: Mapping[str, Any]) -> None:
    """A box's ``Description``, as a YAML or a running box gives it."""
    click.echo(f"{told['name']}: {told['title']}\n{told['description']}")
    origin = f"module {told['module']}" if told.get("module") else f"model {told['model']}"
    click.echo(f"{origin}, compiler {told['compiler_version']}, mode {told['mode']}, target {told['target']}")
    resources = dict(told.get("resources") or {})
    if "memory" in resources:
        resources["memory"] = format_bytes(int(resources["memory"]))
    for title, values in (("resources", resources), ("labels", told.get("labels")), ("serving", told.get("serving"))):
        if values:
            click.echo(f"{title}: " + ", ".join(f"{key} {plain(value)}" for key, value in values.items()))
    for title in ("licence", "model_card"):
        if told.get(title):
            click.echo(f"{title.replace('_', ' ')}: {told[title]}")
    for verb in told["verbs"]:
        inputs = [_slot(slot) for slot in verb["inputs"]]
        outputs = [_slot(slot) for slot in verb["outputs"]]
        click.echo(f"\n{verb['name']}: {', '.join(inputs) or 'nothing'} -> {', '.join(outputs) or 'nothing'}")
        if verb["parameters"]:
            rows = [(p["name"], p["type"], _value(p), p["legal"], p["help"]) for p in verb["parameters"]]
            print_table(("PARAMETER", "TYPE", "DEFAULT", "LEGAL", "HELP"), rows)


def plain(value: object) -> str:
    """A JSON value on one line, for people: six digits are enough of a number."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e15 and value != round(value) else str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {plain(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(plain(inner) for inner in value) + "]"
    return str(value)


def _slot(slot: Mapping[str, Any]) -> str:
    words = str(slot["name"]) + ("" if slot["required"] else "?")
    more = [f"at {slot['mount']}"] if slot.get("mount") else []
    more += [f"from {' '.join(slot['schemes'])}"] if slot.get("schemes") else []
    return f"{words} ({', '.join(more)})" if more else words


def _value(parameter: Mapping[str, Any]) -> str:
    return plain(parameter["default"]) + (f" {parameter['unit']}" if parameter.get("unit") else "")
