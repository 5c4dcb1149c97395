"""``rdukit box list|describe|validate|new|inspect|schema|convert|check-bundle``: commands that start no box."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import BOX_TOKEN_OPTION, JSON_OPTION, given_token, parse_name_values
from rdukit.cli.tables import print_table
from rdukit.errors import Conflict, InvalidArgument, NotFound, PefError
from rdukit.files.atomic import write_atomic
from rdukit.strict_json import read_json
from rdukit.units import format_bytes, plain
from rdukit_modelbox.cli.show import print_description
from rdukit_modelbox.contract.box import (
    FILE_NAME,
    FOLDER_BOXES,
    Box,
    box_names,
    find_box_file,
    load_box,
    read_document,
    refusal_of,
)
from rdukit_modelbox.contract.cards import card_of
from rdukit_modelbox.contract.describe import SCHEMA_FILE
from rdukit_modelbox.contract.describe import describe as describe_box
from rdukit_modelbox.contract.metrics import find_undeclared, words_for_undeclared
from rdukit_modelbox.contract.new_box import new_box_files
from rdukit_modelbox.contract.parts import Verb
from rdukit_modelbox.recipes.recipe import RECIPES_FILE, load_recipes

#: Name of an installed box, a ``modelbox.yaml``, or its folder.
BOX_ARGUMENT: Final = click.argument("box_name", metavar="BOX")


@click.command("list")
@JSON_OPTION
def list_boxes(as_json: bool) -> None:
    """List the boxes that come with rdukit. Your own on a platform: rdukit box installed.

    Example: rdukit box list

    Example: rdukit box list --json
    """
    boxes = [load_box(find_box_file(name)) for name in sorted([*box_names(), *box_names(FOLDER_BOXES)])]
    if as_json:
        click.echo(json.dumps([_with_card(b) for b in boxes], indent=2))
        return
    rows = [(b.name, b.model, b.mode, b.target, ",".join(b.verbs), b.title) for b in boxes]
    print_table(("NAME", "MODEL", "MODE", "TARGET", "VERBS", "TITLE"), rows)


def _with_card(box: Box) -> dict[str, object]:
    """Return a box's description, its recipes if any, and the model card if it comes with rdukit."""
    description, card = describe_box(box), card_of(box)
    if (box.folder / RECIPES_FILE).is_file():
        description["recipes"] = {
            str(kind): one.model_dump(mode="json", exclude_unset=True)
            for kind, one in load_recipes(str(box.folder)).items()
        }
    return description if card is None else {**description, "card": card}


@click.command()
@BOX_ARGUMENT
@click.option("--yaml", "as_yaml", is_flag=True, help="Print modelbox.yaml with its task's content expanded.")
@JSON_OPTION
def describe(box_name: str, as_yaml: bool, as_json: bool) -> None:
    """Show a box's verbs, parameters and their legal values.

    BOX is a name, a modelbox.yaml, or its folder.

    Example: rdukit box describe ffn

    Example: rdukit box describe mine/modelbox.yaml --yaml
    """
    file = find_box_file(box_name)
    description = _with_card(load_box(file))
    if as_yaml:
        import yaml

        value = read_document(file).to_yaml_value()
        click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120), nl=False)
    elif as_json:
        click.echo(json.dumps(description, indent=2))
    else:
        print_description(description)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--import-module", is_flag=True, help="Also import the box's own module and build its model entry.")
@click.option(
    "--reported",
    multiple=True,
    metavar="VERB=FILE",
    help="Also check that the box declares all metrics of this JSON file (a run's result or report.json); repeat for "
    "more.",
)
@JSON_OPTION
def validate(file: Path, import_module: bool, reported: Sequence[str], as_json: bool) -> None:
    """Check a modelbox.yaml. It prints each mistake with its line, and then exits with 2.

    FILE is a modelbox.yaml or its folder. A box also logs metrics of a run that it does not declare.

    Example: rdukit box validate my/modelbox.yaml

    Example: rdukit box validate my/modelbox.yaml --import-module
    """
    path = file / FILE_NAME if file.is_dir() else file
    found = load_box(path)
    from rdukit_modelbox.contract.models import find_model_problems

    faults = list(find_model_problems(found, import_module=import_module))
    if faults:
        raise refusal_of(path, faults)
    for verb, report in parse_name_values("--reported", reported).items():
        _check_reported(found, verb, Path(report))
    answer = {"valid": True, "name": found.name, "file": str(path)}
    click.echo(json.dumps(answer) if as_json else f"{path} is a valid ModelBox: {found.name}")


def _check_reported(box: Box, verb: str, report: Path) -> None:
    if verb not in box.verbs:
        raise InvalidArgument(
            f"--reported {verb}={report}: the box has no verb {verb!r}; expected {', '.join(box.verbs)}"
        )
    try:
        figures = read_json(report.read_bytes())
    except FileNotFoundError as cause:
        raise NotFound(f"--reported {verb}={report}: the file does not exist") from cause
    except (OSError, ValueError) as cause:
        raise InvalidArgument(f"--reported {verb}={report} is not readable JSON: {cause}") from cause
    if not isinstance(figures, dict):
        raise InvalidArgument(f"--reported {verb}={report}: expected a JSON object of metrics by name")
    if undeclared := find_undeclared(box, Verb(verb), figures):
        raise InvalidArgument(words_for_undeclared(box, Verb(verb), undeclared), undeclared=undeclared)


@click.command()
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder to write the box to [default: its name].")
@click.option("--like", default="logreg", show_default=True, help="Installed box to start from.")
@click.option("--module", "has_module", is_flag=True, help="Write model.py for a model of your own, too.")
@JSON_OPTION
def new(name: str, folder: Path | None, like: str, has_module: bool, as_json: bool) -> None:
    """Create a new box: a commented, valid modelbox.yaml, and its JSON schema for editors.

    Example: rdukit box new mine --module

    Example: rdukit box new forecast --like mlp
    """
    target = folder or Path(name)
    template = find_box_file(like)
    if has_module and not load_box(template).sizes.keys() <= {"num_features", "num_classes"}:
        raise InvalidArgument(f"--module needs a box that classifies, such as logreg, not {like}")
    files = new_box_files(name, template.read_text(encoding="utf-8"), has_module)
    taken = [file for file in files if (target / file).exists()]
    if taken:
        raise Conflict(f"{target / taken[0]} already exists; pass another --folder")
    for file, data in files.items():
        write_atomic(target / file, data)
    try:
        load_box(target / FILE_NAME)
    except InvalidArgument as error:
        for file in files:
            (target / file).unlink()
        raise InvalidArgument(f"{name!r} is not valid as a box name: {error.message}", **error.detail) from error
    if as_json:
        click.echo(json.dumps({"name": name, "folder": str(target), "files": sorted(files)}))
    else:
        click.echo(f"wrote {', '.join(sorted(files))} to {target}; serve it: rdukit box run {target}")


@click.command()
@click.argument("where", metavar="BOX|URL|oci:FOLDER[:TAG]")
@BOX_TOKEN_OPTION
@JSON_OPTION
def inspect(where: str, as_json: bool) -> None:
    """Show a box that is installed, in a folder, running, or an image in an OCI layout.

    Example: rdukit box inspect http://127.0.0.1:9000

    Example: rdukit box inspect logreg
    """
    from rdukit_modelbox.cli.show import inspect_file, inspect_image, inspect_running

    if where.startswith("oci:"):
        folder, _, tag = where.removeprefix("oci:").partition(":")
        description = inspect_image(Path(folder), tag or None)
    elif "://" in where:
        description = inspect_running(where, given_token())
    else:
        description = inspect_file(where)
    if as_json:
        click.echo(json.dumps(description, indent=2))
        return
    rows = [(key, format_bytes(value) if key == "bytes" else plain(value)) for key, value in description.items()]
    hidden = {"description", "labels", "yaml"}
    print_table(("WHAT", "VALUE"), [row for row in rows if row[0] not in hidden])
    if description["kind"] == "image":
        click.echo()
        print_table(("LABEL", "VALUE"), list(description["labels"].items()))
    else:
        click.echo()
        print_description(description["description"])


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The .safetensors file to write.")
@JSON_OPTION
def convert(file: Path, output: Path, as_json: bool) -> None:
    """Convert a pickled checkpoint to safetensors. No code in the .pt file FILE is run.

    Example: rdukit box convert model.pt -o model.safetensors

    Example: rdukit box convert old.ckpt --output new.safetensors
    """
    from rdukit_modelbox.artifacts.convert_checkpoint import convert_checkpoint

    shapes = convert_checkpoint(file, output)
    if as_json:
        click.echo(json.dumps({"file": str(output), "tensors": {name: list(shape) for name, shape in shapes.items()}}))
    else:
        click.echo(f"wrote {len(shapes)} tensors to {output}")


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write it to [default: stdout].")
def schema(output: Path | None) -> None:
    """Print the JSON schema of modelbox.yaml, for editors and checkers.

    Example: rdukit box schema -o modelbox.schema.json

    Example: rdukit box schema
    """
    if output is None:
        click.echo(SCHEMA_FILE.read_text(encoding="utf-8"), nl=False)
    else:
        write_atomic(output, SCHEMA_FILE.read_bytes())


@click.command("check-bundle")
@click.argument("file", type=click.Path(path_type=Path))
@JSON_OPTION
def check_bundle(file: Path, as_json: bool) -> None:
    """Check a bundle whose files are artifacts, as a platform does before it serves one.

    artifact://ID is the file ID next to FILE. Weights are not read; a mismatch with the PEF shows when they are loaded.

    Example: rdukit box check-bundle bundle.yaml
    """
    from rdukit_serving.experts.bundle import load_bundle
    from rdukit_serving.experts.sizes import describe_bundle, find_bundle

    try:
        files = load_bundle(file, is_of_artifacts=True)
        found = find_bundle(files)
        found.require_fit()
    except (NotFound, PefError) as cause:
        raise InvalidArgument(cause.message, **cause.detail) from cause
    summary = describe_bundle(files.bundle, found)
    click.echo(
        json.dumps(summary) if as_json else f"{file} can be served by box {summary['box']}: {', '.join(found.names)}"
    )


COMMANDS: Final = (list_boxes, describe, validate, new, inspect, schema, convert, check_bundle)
