"""``rdukit box install|installed|uninstall``: a tenant's own boxes on the platform."""

from pathlib import Path

import click

from rdukit.command_options import JSON_OPTION


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@JSON_OPTION
def install(folder: Path, as_json: bool) -> None:
    """Install the box in FOLDER on the platform. Jobs may name it then; other content makes a new version.

    Example: rdukit box install mine
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        made = client.install_box(folder.parent if folder.is_file() and folder.name == "modelbox.yaml" else folder)
    if as_json:
        show.print_json(made)
        return
    said = "installed" if made["is_new"] else "nothing new: this content is already"
    click.echo(f"{said} {made['box']}; submit: rdukit job submit --box {made['name']} --verb …")


@click.command()
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", default=None, help="next_cursor of the page before.")
@JSON_OPTION
def installed(limit: int, cursor: str | None, as_json: bool) -> None:
    """List your own boxes on the platform. Every version is a line, newest first.

    Example: rdukit box installed
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        page = client.get("/v1/boxes", limit=limit, cursor=cursor)
    if as_json:
        show.print_json(page)
        return
    rows = [
        (one["box"], one["image"] or one["artifact"], show.ago(one["installed_at"]),
         one["digest"].removeprefix("sha256:")[:12], one["title"])
        for one in page["boxes"]
    ]  # fmt: skip
    show.print_table(("BOX", "FROM", "AGE", "SHA256", "TITLE"), rows)
    if page["next_cursor"]:
        click.echo(f"more with: --cursor {page['next_cursor']}", err=True)


@click.command()
@click.argument("box", metavar="NAME[:VERSION]")
@JSON_OPTION
def uninstall(box: str, as_json: bool) -> None:
    """Take a version of a box of yours away, or all of them. Refused while jobs take it.

    Example: rdukit box uninstall mine:1
    """
    from urllib.parse import quote

    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        gone = client.delete(f"/v1/boxes/{quote(box, safe='')}")
    if as_json:
        show.print_json(gone)
    else:
        click.echo(f"uninstalled {', '.join(gone['boxes'])}")
