"""``rdukit zoo``: list, show, create and plan models."""

import json
from importlib import import_module
from pathlib import Path

import click

from rdukit.cli.commands import ExtensibleGroup
from rdukit.cli.tables import Table, print_table, print_tables
from rdukit.errors import InvalidArgument
from rdukit_zoo.pictures import load_pictures
from rdukit_zoo.planning.cli import plan_model
from rdukit_zoo.registry import MODULES, SPEECH_TO_TEXT, TEXT_TO_TEXT, ModelEntry, get_model, model_names
from rdukit_zoo.skeleton.new_model import FAMILIES, write_new_model


@click.group(cls=ExtensibleGroup)
def zoo() -> None:
    """List models, print their programs' paths, and plan published sizes.

    Example: rdukit zoo list

    Example: rdukit zoo list --json
    """


zoo.add_command(plan_model)


@zoo.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def list_models(as_json: bool) -> None:
    """List the models and how to run them.

    Example: rdukit zoo list

    Example: rdukit zoo list --json
    """
    entries = [get_model(name) for name in model_names()]
    if as_json:
        click.echo(json.dumps([_describe(entry) for entry in entries], sort_keys=True))
        return
    rows = [(e.name, e.task, len(e.variants), e.title) for e in entries]
    print_table(("NAME", "TASK", "VARIANTS", "TITLE"), rows)


@zoo.command("show")
@click.argument("name", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show_model(name: str, as_json: bool) -> None:
    """Show one model: what it is, where it comes from, and the path of its program.

    Example: rdukit zoo show logreg

    Example: rdukit zoo show llama --json
    """
    entry = get_model(name)
    described = _describe(entry)
    if as_json:
        click.echo(json.dumps(described, sort_keys=True))
        return
    sizes = " ".join(f"{key}={value}" for key, value in entry.sizes.items())
    shown = described | {"sizes": sizes, "run": _command_of(entry)}
    del shown["variants"], shown["pictures"]
    tables = [Table("", ("", ""), tuple((key, str(value)) for key, value in shown.items()))]
    pictures = {box: picture for box, picture in load_pictures().items() if picture.model == entry.name}
    rows = tuple((box, str(picture.file), picture.alt) for box, picture in pictures.items())
    tables.append(Table("pictures", ("BOX", "FILE", "SHOWS"), rows))
    if entry.variants:
        rows = tuple(
            (key, f"{variant.parameters:,}", " ".join(f"{size}={value}" for size, value in variant.sizes.items()))
            for key, variant in entry.variants.items()
        )
        tables.append(Table("variants", ("VARIANT", "PARAMETERS", "SIZES"), rows))
    print_tables(tables)


@zoo.command("new")
@click.argument("name")
@click.option("--title", help="Title in a few words  [default: its name].")
@click.option("--family", type=click.Choice(FAMILIES), default="science", show_default=True, help="Folder of the zoo.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def new_model(name: str, title: str | None, family: str, as_json: bool) -> None:
    """Begin a model of the zoo, in a checkout of rdukit.

    Writes a small regression that works, its box with recipes, and the lines that name it. Change them, then measure:
    scripts/zoo_model.py NAME. For a model outside of rdukit, use rdukit box new NAME --module.

    Example: rdukit zoo new turbines --title "Power of wind turbines"

    Example: rdukit zoo new turbines --title "Power of wind turbines" --family science
    """
    tree = Path(__file__).resolve().parents[2]
    if not (tree / "scripts" / "zoo_model.py").exists():
        raise InvalidArgument(
            "zoo models are written in a checkout of rdukit, but this rdukit is installed. For your own model: rdukit "
            f"box new {name} --module"
        )
    written = write_new_model(tree, name, title or name.replace("_", " ").capitalize(), family)
    if as_json:
        click.echo(json.dumps(written))
        return
    for path in written:
        click.echo(path)
    click.echo(f"\nNext: change the model, then scripts/zoo_model.py {name}, which measures it and writes its pages.")


def _command_of(entry: ModelEntry) -> str:
    """Return the command that runs the model: as a program if the model's file is one, otherwise as a box.

    Encoder-decoders have no box.
    """
    if entry.task in {TEXT_TO_TEXT, SPEECH_TO_TEXT}:
        return "rdukit serve FOLDER"
    module = import_module(f"rdukit_zoo.{MODULES[entry.name]}")
    return f"python -m {module.__name__}" if hasattr(module, "main") else f"rdukit box run {entry.name}"


def _describe(entry: ModelEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "title": entry.title,
        "task": entry.task,
        "sizes": dict(entry.sizes),
        "licence": entry.licence,
        "source": entry.source,
        "variants": {
            name: {"parameters": variant.parameters, "sizes": dict(variant.sizes)}
            for name, variant in entry.variants.items()
        },
        "pictures": {
            box: {"file": str(picture.file), "caption": picture.caption}
            for box, picture in load_pictures().items()
            if picture.model == entry.name
        },
        "program": str(import_module(f"rdukit_zoo.{MODULES[entry.name]}").__file__),
    }
