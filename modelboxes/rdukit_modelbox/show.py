"""How the command line shows boxes to people."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rdukit.units import format_bytes


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns on stdout."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    # Into a pipe a table is as wide as it needs to be: nothing is cut for who reads it there.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


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
            click.echo(f"{title}: " + ", ".join(f"{key} {_plain(value)}" for key, value in values.items()))
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


def _slot(slot: Mapping[str, Any]) -> str:
    words = str(slot["name"]) + ("" if slot["required"] else "?")
    more = [f"at {slot['mount']}"] if slot.get("mount") else []
    more += [f"from {' '.join(slot['schemes'])}"] if slot.get("schemes") else []
    return f"{words} ({', '.join(more)})" if more else words


def _value(parameter: Mapping[str, Any]) -> str:
    return _plain(parameter["default"]) + (f" {parameter['unit']}" if parameter.get("unit") else "")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_plain(inner) for inner in value) + "]"
    return str(value)
