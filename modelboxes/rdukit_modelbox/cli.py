"""``rdukit box``: look at ModelBoxes, run one, call one. The server and torch are imported only by what needs them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from rdukit.errors import InvalidArgument
from rdukit.settings import home_folder
from rdukit_modelbox.box import Box, Verb, box_names, check_compiler_version, find_box_file, load_box
from rdukit_modelbox.describe import describe as describe_box

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
BOX_OPTION = click.option("--box", "box_name", required=True, help="Name of an installed box, or a modelbox.yaml.")


@click.group()
def box() -> None:
    """Describe, run and call ModelBoxes.

    Example: rdukit box describe --box logreg
    """


@box.command("list")
@JSON_OPTION
def list_boxes(as_json: bool) -> None:
    """List the installed boxes.

    Example: rdukit box list
    """
    boxes = [load_box(find_box_file(name)) for name in box_names()]
    if as_json:
        click.echo(json.dumps([describe_box(b) for b in boxes], indent=2))
        return
    rows = [("NAME", "MODEL", "MODE", "TARGET", "VERBS", "TITLE")]
    rows += [(b.name, b.model, b.mode, b.target, ",".join(b.verbs), b.title) for b in boxes]
    _print_table(rows)


@box.command()
@BOX_OPTION
@JSON_OPTION
def describe(box_name: str, as_json: bool) -> None:
    """Show a box's verbs, parameters and their legal values.

    Example: rdukit box describe --box ffn
    """
    found = load_box(find_box_file(box_name))
    if as_json:
        click.echo(json.dumps(describe_box(found), indent=2))
        return
    _print_box(found)


@box.command()
@click.option("--file", "file", required=True, type=click.Path(path_type=Path), help="The modelbox.yaml to check.")
@JSON_OPTION
def validate(file: Path, as_json: bool) -> None:
    """Check a modelbox.yaml; exit status 2 and every fault if it is wrong.

    Example: rdukit box validate --file my/modelbox.yaml
    """
    found = load_box(file / "modelbox.yaml" if file.is_dir() else file)
    check_compiler_version(found)
    from rdukit_zoo.registry import get_model, model_names

    if found.model not in model_names():
        raise InvalidArgument(f"{file}: model: {found.model!r} is not in the zoo; legal: {', '.join(model_names())}")
    sizes = {*found.sizes, *(p.name for p in found.parameters if p.size)}
    legal = get_model(found.model).sizes
    if not sizes <= set(legal):
        raise InvalidArgument(
            f"{file}: sizes {sorted(sizes - set(legal))} are not sizes of {found.model}; legal: {sorted(legal)}"
        )
    click.echo(
        json.dumps({"valid": True, "name": found.name}) if as_json else f"{file} is a valid ModelBox: {found.name}"
    )


@box.command()
@BOX_OPTION
@click.option("--rest-port", default=9000, show_default=True, help="REST port; 0 takes a free one.")
@click.option("--grpc-port", default=9001, show_default=True, help="gRPC port; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--state", type=click.Path(path_type=Path), help="Folder for outputs and logs [default: in the home].")
@click.option(
    "--mount", "mounts", multiple=True, type=click.Path(path_type=Path), help="Folder that requests may name."
)
@click.option("--announce", type=click.Path(path_type=Path), help="File to write the addresses to when ready.")
@click.option("--parent", type=int, help="Process to end with [default: the one that starts this]; 0: none.")
def run(
    box_name: str,
    rest_port: int,
    grpc_port: int,
    host: str,
    state: Path | None,
    mounts: Sequence[Path],
    announce: Path | None,
    parent: int | None,
) -> None:
    """Serve a box over REST and gRPC until SIGTERM, Ctrl-C or the end of the parent process.

    Example: rdukit box run --box logreg --state /tmp/logreg
    """
    from rdukit_modelbox.serve import ServeOptions, serve

    file = find_box_file(box_name)
    folder = state or home_folder() / "boxes" / load_box(file).name
    if announce is None:
        click.echo(f"serving {box_name} on {host}, REST {rest_port}, gRPC {grpc_port}, state {folder}", err=True)
    serve(ServeOptions(file, folder, mounts, host, rest_port, grpc_port, announce, parent))


@box.command()
@click.option("--url", default="http://127.0.0.1:9000", show_default=True, help="REST address of the box.")
@click.option("--verb", required=True, type=click.Choice([str(v) for v in Verb]), help="What to do.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter; repeat for more.")
@click.option("--input", "inputs", multiple=True, metavar="SLOT=PATH", help="An input artifact; repeat for more.")
@click.option("--output", default="", help="Folder for the outputs [default: in the box's state folder].")
@click.option("--key", default=None, help="Idempotency key.")
@JSON_OPTION
def call(
    url: str,
    verb: str,
    settings: Sequence[str],
    inputs: Sequence[str],
    output: str,
    key: str | None,
    as_json: bool,
) -> None:
    """Ask a running box for a verb and follow it to its end; Ctrl-C cancels it.

    Example: rdukit box call --verb train --set epochs=2 --input pef=/tmp/logreg/logreg.pef --input dataset=/tmp/data
    """
    from rdukit_modelbox.call import call_verb

    parameters = {name: _value(text) for name, text in _pairs("--set", settings).items()}
    sys.exit(call_verb(url, verb, parameters, _pairs("--input", inputs), output, key, as_json))


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidArgument(f"{option} {text!r} is not legal; legal: NAME=VALUE")
        pairs[name] = value
    return pairs


def _value(text: str) -> object:
    """A number or truth value if it reads as one, else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text


def _print_box(found: Box) -> None:
    value = describe_box(found)
    click.echo(f"{found.name}: {found.title}\n{found.description}")
    click.echo(f"model {found.model}, compiler {found.compiler_version}, mode {found.mode}, target {found.target}")
    verbs = value["verbs"]
    assert isinstance(verbs, list)
    for verb in verbs:
        inputs = [slot["name"] + ("" if slot["required"] else "?") for slot in verb["inputs"]]
        outputs = [slot["name"] for slot in verb["outputs"]]
        click.echo(f"\n{verb['name']}: {', '.join(inputs) or 'nothing'} -> {', '.join(outputs)}")
        rows = [("  PARAMETER", "TYPE", "DEFAULT", "LEGAL", "HELP")]
        rows += [(f"  {p['name']}", p["type"], str(p["default"]), p["legal"], p["help"]) for p in verb["parameters"]]
        _print_table(rows)


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
