"""``rdukit box install|installed|uninstall``: a tenant's own boxes on the platform."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.complete import BOXES


@click.command()
@click.argument("source", metavar="FOLDER|IMAGE")
@JSON_OPTION
@TOKEN_OPTION
def install(source: str, as_json: bool) -> None:
    """Install a box of your own, so that jobs may name it. Changed content becomes its next version.

    An IMAGE must exist in the container engine of job boxes.

    Example: rdukit box install mine

    Example: rdukit box install boxes/fraud:4
    """
    folder = Path(source)
    if folder.name == "modelbox.yaml":
        folder = folder.absolute().parent
    with connect() as client:
        if folder.exists() or source.startswith((".", "/", "~")):
            made = client.install_box(folder)
        else:
            made = client.install_image(source)
    said = "installed" if made["is_new"] else "unchanged: the same content is already"
    show.print_answer(made, as_json, f"{said} {made['box']}; submit: rdukit job submit {made['name']} VERB")


@click.command()
@click.argument("box", metavar="[NAME[:VERSION]]", required=False, shell_complete=BOXES)
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
def installed(box: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List your own boxes on the platform, a line per version, newest first. With NAME: show that box.

    Example: rdukit box installed

    Example: rdukit box installed mine --json
    """
    if box is not None:
        with connect() as client:
            found = client.get(f"/v1/catalog/{quote(box, safe='')}")
        show.print_json(found) if as_json else _print_box(found)
        return
    with connect() as client:
        page = client.get("/v1/boxes", limit=limit, cursor=cursor)
    rows = [
        (one["box"], one["image"] or one["artifact"], show.ago(one["installed_at"]),
         one["digest"].removeprefix("sha256:")[:12], one["title"])
        for one in page["boxes"]
    ]  # fmt: skip
    show.print_page(page, as_json, ("BOX", "FROM", "AGE", "SHA256", "TITLE"), rows)


@click.command()
@click.argument("box", metavar="NAME[:VERSION]", shell_complete=BOXES)
@JSON_OPTION
@TOKEN_OPTION
def uninstall(box: str, as_json: bool) -> None:
    """Uninstall a version of your box, or all of them. Refused while open jobs use it.

    Example: rdukit box uninstall mine:1

    Example: rdukit box uninstall mine
    """
    with connect() as client:
        gone = client.delete(f"/v1/boxes/{quote(box, safe='')}")
    show.print_answer(gone, as_json, f"uninstalled {', '.join(gone['boxes'])}")


def _print_box(box: Mapping[str, Any]) -> None:
    """Print a box's description for people, verb by verb."""
    own = box.get("installed")
    click.echo(f"{own['box'] if own else box['name']}: {box['title']}\n{box.get('description') or ''}".rstrip())
    if own:
        versions = ", ".join(map(str, own["versions"]))
        click.echo(f"installed {show.clock(own['installed_at'])}, sha256 {own['digest']}; versions {versions}")
    for verb in box["verbs"]:
        sides = [
            ", ".join(slot["name"] + "?" * (not slot["required"]) for slot in verb[s]) for s in ("inputs", "outputs")
        ]
        click.echo(f"\n{verb['name']}: {sides[0] or 'nothing'} -> {sides[1] or 'nothing'}")
        rows = [(p["name"], p["type"], p["default"], p["legal"], p["help"]) for p in verb["parameters"]]
        if rows:
            show.print_table(("PARAMETER", "TYPE", "DEFAULT", "LEGAL", "HELP"), rows)
