"""``rdukit box list|describe|validate|new|inspect|schema|convert``: what looks at boxes and starts none."""

import json
from pathlib import Path
from typing import Final

import click

from rdukit.command_options import JSON_OPTION
from rdukit.errors import Conflict, InvalidArgument
from rdukit.files import write_atomic
from rdukit.tables import print_table
from rdukit.units import format_bytes
from rdukit_modelbox.box import FILE_NAME, box_names, find_box_file, load_box, refusal_of
from rdukit_modelbox.contract.new_box import new_box_files
from rdukit_modelbox.contract.schema import SCHEMA_FILE
from rdukit_modelbox.describe import describe as describe_box
from rdukit_modelbox.show import plain, print_description

BOX_OPTION: Final = click.option(
    "--box", "box_name", required=True, help="Name of an installed box, or a modelbox.yaml."
)


@click.command("list")
@JSON_OPTION
def list_boxes(as_json: bool) -> None:
    """List the boxes that come with rdukit. Your own on a platform: rdukit box installed.

    Example: rdukit box list
    """
    boxes = [load_box(find_box_file(name)) for name in box_names()]
    if as_json:
        click.echo(json.dumps([describe_box(b) for b in boxes], indent=2))
        return
    rows = [(b.name, b.model, b.mode, b.target, ",".join(b.verbs), b.title) for b in boxes]
    print_table(("NAME", "MODEL", "MODE", "TARGET", "VERBS", "TITLE"), rows)


@click.command()
@BOX_OPTION
@JSON_OPTION
def describe(box_name: str, as_json: bool) -> None:
    """Show a box's verbs, parameters and their legal values.

    Example: rdukit box describe --box ffn
    """
    told = describe_box(load_box(find_box_file(box_name)))
    if as_json:
        click.echo(json.dumps(told, indent=2))
    else:
        print_description(told)


@click.command()
@click.option(
    "--file", "file", required=True, type=click.Path(path_type=Path), help="The modelbox.yaml to check, or its folder."
)
@click.option("--import-module", is_flag=True, help="Also import the box's own module and build its entry.")
@JSON_OPTION
def validate(file: Path, import_module: bool, as_json: bool) -> None:
    """Check a modelbox.yaml. Every fault is told with its line; the exit status is 2 then.

    Example: rdukit box validate --file my/modelbox.yaml
    """
    path = file / FILE_NAME if file.is_dir() else file
    found = load_box(path)
    from rdukit_modelbox.contract.model_faults import find_model_faults

    faults = list(find_model_faults(found, import_module=import_module))
    if faults:
        raise refusal_of(path, faults)
    told = {"valid": True, "name": found.name, "file": str(path)}
    click.echo(json.dumps(told) if as_json else f"{path} is a valid ModelBox: {found.name}")


@click.command()
@click.option("--name", required=True, help="Name of the new box.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder to write it to [default: its name].")
@click.option("--like", default="logreg", show_default=True, help="Installed box whose parameters to start from.")
@click.option("--module", "has_module", is_flag=True, help="With a model of its own: writes model.py too.")
@JSON_OPTION
def new(name: str, folder: Path | None, like: str, has_module: bool, as_json: bool) -> None:
    """Begin a new box. Writes a commented modelbox.yaml that validates, and its JSON schema for editors.

    Example: rdukit box new --name mine --module
    """
    target = folder or Path(name)
    template = find_box_file(like)
    if has_module and not load_box(template).sizes.keys() <= {"num_features", "num_classes"}:
        raise InvalidArgument(f"--module starts from a box that classifies, such as logreg, not from {like}")
    files = new_box_files(name, template.read_text(encoding="utf-8"), has_module)
    taken = [file for file in files if (target / file).exists()]
    if taken:
        raise Conflict(f"{target / taken[0]} is there already; pass another --folder")
    for file, data in files.items():
        write_atomic(target / file, data)
    try:
        load_box(target / FILE_NAME)
    except InvalidArgument as error:
        for file in files:
            (target / file).unlink()
        raise InvalidArgument(f"no box can be called {name!r}: {error.message}", **error.detail) from error
    if as_json:
        click.echo(json.dumps({"name": name, "folder": str(target), "files": sorted(files)}))
    else:
        click.echo(f"wrote {', '.join(sorted(files))} to {target}; serve it: rdukit box run --box {target}")


@click.command()
@click.option("--url", help="REST address of a running box.")
@click.option("--box", "box_name", help="Name of an installed box, a modelbox.yaml, or a folder with one.")
@click.option("--image", type=click.Path(path_type=Path), help="Folder with an OCI layout.")
@click.option("--tag", "--reference", "reference", help="Which of the layout's images [default: its only box].")
@JSON_OPTION
def inspect(url: str | None, box_name: str | None, image: Path | None, reference: str | None, as_json: bool) -> None:
    """Show a box, wherever it is. It may be running, in a folder, or an image in an OCI layout.

    Example: rdukit box inspect --url http://127.0.0.1:9000
    """
    from rdukit_modelbox.inspect_box import inspect_file, inspect_image, inspect_running

    if sum(option is not None for option in (url, box_name, image)) != 1:
        raise InvalidArgument("inspect needs exactly one of --url, --box and --image")
    if url is not None:
        told = inspect_running(url)
    elif box_name is not None:
        told = inspect_file(box_name)
    else:
        assert image is not None
        told = inspect_image(image, reference)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    rows = [(key, format_bytes(value) if key == "bytes" else plain(value)) for key, value in told.items()]
    hidden = {"description", "labels", "yaml"}
    print_table(("WHAT", "VALUE"), [row for row in rows if row[0] not in hidden])
    if told["kind"] == "image":
        click.echo()
        print_table(("LABEL", "VALUE"), list(told["labels"].items()))
    else:
        click.echo()
        print_description(told["description"])


@click.command()
@click.option("--file", "file", required=True, type=click.Path(path_type=Path), help="A checkpoint that torch saved.")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The .safetensors file to write.")
@JSON_OPTION
def convert(file: Path, output: Path, as_json: bool) -> None:
    """Turn a pickled checkpoint into safetensors. Nothing that is in the .pt file is run.

    Example: rdukit box convert --file model.pt --output model.safetensors
    """
    from rdukit_modelbox.artifacts.convert_checkpoint import convert_checkpoint

    shapes = convert_checkpoint(file, output)
    if as_json:
        click.echo(json.dumps({"file": str(output), "tensors": {name: list(shape) for name, shape in shapes.items()}}))
    else:
        click.echo(f"wrote {len(shapes)} tensors to {output}")


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="File to write it to [default: stdout].")
def schema(output: Path | None) -> None:
    """Print the JSON schema of modelbox.yaml. Editors and checkers take it.

    Example: rdukit box schema --output modelbox.schema.json
    """
    if output is None:
        click.echo(SCHEMA_FILE.read_text(encoding="utf-8"), nl=False)
    else:
        write_atomic(output, SCHEMA_FILE.read_bytes())


COMMANDS: Final = (list_boxes, describe, validate, new, inspect, schema, convert)
