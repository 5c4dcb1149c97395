"""``rdukit box``: look at ModelBoxes, run one, call one. The server and torch are imported only by what needs them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from rdukit.errors import InvalidArgument
from rdukit.settings import home_folder
from rdukit_modelbox.box import Verb, find_box_file, load_box
from rdukit_modelbox.cli_contract import BOX_OPTION, COMMANDS, JSON_OPTION
from rdukit_modelbox.image.cli import IMAGE_COMMANDS


@click.group()
def box() -> None:
    """Describe, run and call ModelBoxes.

    Example: rdukit box describe --box logreg
    """


for command in (*COMMANDS, *IMAGE_COMMANDS):
    box.add_command(command)


@box.command()
@BOX_OPTION
@click.option("--rest-port", default=9000, show_default=True, help="REST port; 0 takes a free one.")
@click.option("--grpc-port", default=9001, show_default=True, help="gRPC port; 0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option("--state", type=click.Path(path_type=Path), help="Folder for outputs and logs [default: in the home].")
@click.option(
    "--mount", "mounts", multiple=True, type=click.Path(path_type=Path), help="Folder that requests may name."
)
@click.option("--pef", type=click.Path(path_type=Path), help="A PEF to serve from the beginning.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="The parameters to serve it with.")
@click.option("--announce", type=click.Path(path_type=Path), help="File to write the addresses to when ready.")
@click.option("--parent", type=int, help="Process to end with [default: the one that starts this]; 0: none.")
def run(
    box_name: str,
    rest_port: int,
    grpc_port: int,
    host: str,
    state: Path | None,
    mounts: Sequence[Path],
    pef: Path | None,
    checkpoint: Path | None,
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
    serve(ServeOptions(file, folder, mounts, host, rest_port, grpc_port, announce, parent, pef, checkpoint))


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
