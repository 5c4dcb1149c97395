"""``rdukit zoo``: which models there are."""

import json
import sys
from importlib import import_module
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rdukit_zoo.registry import ModelEntry, get_model, model_names


@click.group()
def zoo() -> None:
    """List models and print their programs' paths.

    Example: rdukit zoo list
    """


@zoo.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def list_models(as_json: bool) -> None:
    """List the models: name, title, task, sizes with their defaults, licence, program."""
    entries = [get_model(name) for name in model_names()]
    if as_json:
        click.echo(json.dumps([_describe(entry) for entry in entries], sort_keys=True))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("NAME", "TITLE", "TASK", "SIZES", "LICENCE", "PROGRAM"):
        table.add_column(column)
    for entry in entries:
        sizes = " ".join(f"{key}={value}" for key, value in entry.sizes.items())
        table.add_row(entry.name, entry.title, entry.task, sizes, entry.licence, _command_of(entry))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


@zoo.command("show")
@click.option("--model", "name", required=True, help="Name of the model.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show_model(name: str, as_json: bool) -> None:
    """Show one model: what it is, where it comes from, and the path of its program.

    Example: rdukit zoo show --model logreg
    """
    described = _describe(get_model(name))
    if as_json:
        click.echo(json.dumps(described, sort_keys=True))
        return
    for key, value in described.items():
        click.echo(f"{key:8} {value}")


def _command_of(entry: ModelEntry) -> str:
    """How to run it: as a program where the model's file is one, else as a box."""
    module = import_module(f"rdukit_zoo.{entry.name}")
    return f"python -m rdukit_zoo.{entry.name}" if hasattr(module, "main") else f"rdukit box run --box {entry.name}"


def _describe(entry: ModelEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "title": entry.title,
        "task": entry.task,
        "sizes": dict(entry.sizes),
        "licence": entry.licence,
        "source": entry.source,
        "program": str(Path(__file__).with_name(f"{entry.name}.py")),
    }
