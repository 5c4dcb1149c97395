"""``rdukit box build`` and ``rdukit box push``: images of boxes, with an engine or without."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from rdukit.cli.commands import JSON_OPTION, Choice
from rdukit.errors import InvalidArgument


@click.command()
@click.argument("box_name", metavar="BOX")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write an OCI layout to this folder without an engine."
)
@click.option("--tag", help="Name of the image [default: in a layout the box's name; else rdukit/box-NAME:latest].")
@click.option(
    "--engine",
    type=Choice(("auto", "docker", "podman", "buildah", "none")),
    default="auto",
    show_default=True,
    help="Engine that builds the image.",
)
@click.option("--base", help="Base: oci:FOLDER[:NAME] or 'installed' without an engine, else an image.")
@JSON_OPTION
def build(box_name: str, output: Path | None, tag: str | None, engine: str, base: str | None, as_json: bool) -> None:
    """Build the image of a box. The image is a thin layer with YAML and code, without PEF and checkpoint.

    BOX is a name, a modelbox.yaml, or its folder.

    Example: rdukit box build logreg -o images

    Example: rdukit box build fraud/modelbox.yaml --tag boxes/fraud:4
    """
    from rdukit_modelbox.image.contents import read_contents

    if output is not None and engine not in {"auto", "none"}:
        raise InvalidArgument(f"--output is only for builds without an engine; with --engine {engine} use --tag")
    if output is None and engine == "none":
        raise InvalidArgument("--engine none needs --output FOLDER for the image")
    if output is not None:
        from rdukit_modelbox.image.build import INSTALLED, build_layout

        built = build_layout(box_name, output, base or INSTALLED, tag)
        click.echo(
            json.dumps(built.as_json())
            if as_json
            else f"oci:{built.layout}:{built.reference} {built.digest}, {built.added_bytes} bytes on its base"
        )
        return
    from rdukit.box.image import DEFAULT_BASE
    from rdukit_modelbox.image.engines import build_with_engine, find_engine

    contents = read_contents(box_name)
    name = tag or f"rdukit/box-{contents.box.name}:latest"
    chosen = find_engine(engine)
    image = build_with_engine(chosen, contents, name, base or DEFAULT_BASE)
    answer = {"box": contents.box.name, "engine": chosen, "tag": name, "image": image}
    click.echo(json.dumps(answer) if as_json else f"{name} {image}, built by {chosen}")


@click.command()
@click.argument("layout", type=click.Path(path_type=Path))
@click.option("--tag", help="Name of the image in the layout [default: its only box].")
@click.argument("to", metavar="TARGET")
@click.option("--plain-http", is_flag=True, help="Use a registry without TLS.")
@JSON_OPTION
def push(layout: Path, tag: str | None, to: str, plain_http: bool, as_json: bool) -> None:
    """Copy an image to a registry or OCI layout. Every digest of the layout is checked first.

    LAYOUT is the folder that build wrote, TARGET docker://HOST[:PORT]/REPOSITORY[:TAG] or oci:FOLDER[:NAME].

    Example: rdukit box push images --tag logreg docker://registry.example:5000/boxes/logreg:1

    Example: rdukit box push images registry.example/boxes/fraud:4 --plain-http
    """
    from rdukit_modelbox.image.push import push_image

    pushed = push_image(layout, tag, to, plain_http)
    click.echo(
        json.dumps(asdict(pushed))
        if as_json
        else f"{pushed.target} {pushed.digest}, {pushed.sent} blobs sent, {pushed.known} already there"
    )


IMAGE_COMMANDS: Final = (build, push)
