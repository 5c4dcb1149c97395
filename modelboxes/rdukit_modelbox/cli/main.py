"""``rdukit box``: describe, run and call ModelBoxes. Server and torch are imported only where needed.

Other parts add commands through the entry-point group ``rdukit.box.commands``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import ExtensibleGroup
from rdukit.errors import InvalidArgument
from rdukit.settings import home_folder
from rdukit_modelbox.cli.contract import COMMANDS
from rdukit_modelbox.cli.fork_server import serve_boxes
from rdukit_modelbox.cli.image import IMAGE_COMMANDS
from rdukit_modelbox.cli.operations import OPERATION_COMMANDS
from rdukit_modelbox.cli.recipe import recipe
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_serving.models.prepare_folder import (
    BUILDS_KERNELS,
    PreparedModel,
    all_to_build,
    context_option,
    is_hub_folder,
    precision_option,
    prepare_folder,
)

PORT: Final = click.IntRange(0, 65535)


@click.group(cls=ExtensibleGroup, extended_by="rdukit.box.commands")
def box() -> None:
    """Describe, run and call ModelBoxes.

    Example: rdukit box describe logreg

    Example: rdukit box describe mine/modelbox.yaml --yaml
    """


for command in (*COMMANDS, *OPERATION_COMMANDS, *IMAGE_COMMANDS, recipe):
    box.add_command(command)


@box.command()
@click.argument("box_name", metavar="[BOX]", required=False)
@click.option("--rest-port", type=PORT, default=9000, show_default=True, help="REST port; 0: any free port.")
@click.option("--grpc-port", type=PORT, default=9001, show_default=True, help="gRPC port; 0: any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@click.option(
    "--socket-folder",
    type=click.Path(path_type=Path),
    help="Private folder for sockets rest.sock and grpc.sock, used instead of ports.",
)
@click.option("--state", type=click.Path(path_type=Path), help="Folder for outputs and logs [default: in the home].")
@click.option(
    "--mount", "mounts", multiple=True, type=click.Path(path_type=Path), help="Folder whose files requests may name."
)
@click.option("--pef", help="PEF to serve: a path or URI.")
@click.option("--checkpoint", help="Parameters of the PEF: a path, URI, or Hugging Face folder.")
@click.option("--draft-pef", help="PEF of a draft model for speculative decoding: a path or URI.")
@click.option(
    "--draft-checkpoint", help="Parameters of the draft model; for a Hugging Face folder the box compiles the PEF."
)
@context_option
@precision_option
@click.option(
    "--name", "model_name", help="Name of the model in requests [default: the box's, or a folder's model_type]."
)
@click.option("--announce", type=click.Path(path_type=Path), help="File for the addresses, written when ready.")
@click.option("--parent", type=int, help="Id of the process with which the box ends [default: its parent]; 0: none.")
def run(
    box_name: str | None,
    rest_port: int,
    grpc_port: int,
    host: str,
    socket_folder: Path | None,
    state: Path | None,
    mounts: Sequence[Path],
    pef: str | None,
    checkpoint: str | None,
    draft_pef: str | None,
    draft_checkpoint: str | None,
    context: int | None,
    precision: str,
    model_name: str | None,
    announce: Path | None,
    parent: int | None,
) -> None:
    """Serve a box over REST and gRPC. SIGTERM, Ctrl-C or the end of the parent process stops it.

    BOX is a name, a modelbox.yaml, or its folder. A Hugging Face folder as the checkpoint may replace BOX and the PEF,
    as in "rdukit box run --checkpoint ~/models/gpt2"; the model is compiled at the first start.

    Example: rdukit box run logreg --state /tmp/logreg

    Example: rdukit box run --checkpoint ~/models/my-llama --rest-port 9000
    """
    prepared: list[PreparedModel] = []
    if checkpoint is not None and is_hub_folder(Path(checkpoint)):
        made = prepare_folder(checkpoint, context, precision)
        prepared += [] if pef else [made]
        if not (box_name or made.box):
            raise InvalidArgument(f"models such as {made.name} have no box; serve it with rdukit serve {checkpoint}")
        model_name = model_name or ("" if box_name else made.name)
        box_name, pef, checkpoint = box_name or made.box, pef or str(made.best_pef), made.checkpoint
    if draft_checkpoint is not None and is_hub_folder(Path(draft_checkpoint)):
        made = prepare_folder(draft_checkpoint, context, precision)
        prepared += [] if draft_pef else [made]
        draft_pef, draft_checkpoint = draft_pef or str(made.best_pef), made.checkpoint
    if box_name is None:
        raise click.UsageError("Missing argument 'BOX'; only a Hugging Face folder as --checkpoint determines the box.")
    from rdukit_modelbox.server.serve import BoxOptions, serve_box
    from rdukit_serving.server import ServerOptions

    file = find_box_file(box_name)
    name = model_name or load_box(file).name
    folder = state or home_folder() / "boxes" / name

    def tell(rest: str, grpc: str, kernels: str) -> None:
        if announce is None:
            if kernels:
                click.echo(f"kernels: {kernels}", err=True)
            if all_to_build(*prepared):
                click.echo(BUILDS_KERNELS, err=True)
            click.echo(f"serving {name}: REST {rest}, gRPC {grpc or 'off'}, state {folder}; Ctrl-C stops it", err=True)

    server = ServerOptions(host, rest_port, grpc_port, socket_folder, announce, parent, tell)
    options = BoxOptions(
        file, folder, mounts, pef, checkpoint, draft_pef, draft_checkpoint, model_name or "", all_to_build(*prepared)
    )
    serve_box(options, server)


@box.command("fork-server", hidden=True)
@click.argument("descriptor", type=int)
def fork_server(descriptor: int) -> None:
    """Fork boxes for the process that has the other end of the socket DESCRIPTOR; not for people.

    Example: rdukit box fork-server 5
    """
    serve_boxes(descriptor, box)
