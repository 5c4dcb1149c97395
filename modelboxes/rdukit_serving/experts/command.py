"""``rdukit bundle``: inspect bundles of experts before they are served."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from rdukit.cli.tables import print_tables

_PATH: Final = click.Path(path_type=Path)


@click.group()
def bundle() -> None:
    """Check bundles of experts, which rdukit serve --bundle serves.

    Example: rdukit bundle check bundle.yaml

    Example: rdukit bundle check bundle.yaml --mount /srv/models
    """


@bundle.command()
@click.argument("file", type=_PATH)
@click.option("--mount", "mounts", multiple=True, type=_PATH, help="Another folder whose files the bundle may name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, in bytes and seconds.")
@click.pass_context
def check(context: click.Context, file: Path, mounts: Sequence[Path], as_json: bool) -> None:
    """Check a bundle and its files, and show which parts fit into memory.

    Sizes are read from the PEFs and checkpoints; nothing is loaded. Exit status 1: something does not fit.

    Example: rdukit bundle check bundle.yaml --json

    Example: rdukit bundle check bundle.yaml --mount /srv/models
    """
    from rdukit_serving.experts.bundle import load_bundle
    from rdukit_serving.experts.legalizer import describe_fit, fit_tables
    from rdukit_serving.experts.sizes import check_checkpoints, find_bundle

    found = find_bundle(load_bundle(file, mounts))
    check_checkpoints(found)
    if as_json:
        click.echo(json.dumps(describe_fit(found.fit), indent=2))
    else:
        print_tables(fit_tables(found.fit))
        for problem in found.fit.problems:
            click.echo(f"\ndoes not fit: {problem}")
    if found.fit.problems:
        context.exit(1)


@bundle.command()
@click.option("-o", "--output", type=_PATH, help="File to write to [default: stdout].")
def schema(output: Path | None) -> None:
    """Print the JSON schema of bundles, for editors.

    Example: rdukit bundle schema -o bundle.schema.json

    Example: rdukit bundle schema
    """
    from rdukit.files.atomic import write_atomic
    from rdukit_serving.experts.bundle import bundle_schema

    text = json.dumps(bundle_schema(), indent=1) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_atomic(output, text.encode())
