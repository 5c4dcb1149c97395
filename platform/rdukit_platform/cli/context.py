"""``rdukit context``: platforms on other machines by names, as kubectl and docker have them."""

from pathlib import Path

import click

from rdukit.cli.commands import JSON_OPTION, ExtensibleGroup


@click.group(cls=ExtensibleGroup)
def context() -> None:
    """Name platforms on other machines, and choose which one commands call.

    Example: rdukit context add lab --url https://rdukit.example.org --token-file ~/.rdukit-lab-token --use
    """


@context.command()
@click.argument("name")
@click.option("--url", required=True, help="The gateway, such as https://rdukit.example.org.")
@click.option("--token-file", type=click.Path(path_type=Path), default=None, help="File with the token to send there.")
@click.option("--use", "is_used", is_flag=True, help="Choose it, too.")
def add(name: str, url: str, token_file: Path | None, is_used: bool) -> None:
    """Add a context. The token stays in its file; without one a command needs --token or RDUKIT_TOKEN.

    Example: rdukit context add lab --url https://rdukit.example.org --token-file ~/.rdukit-lab-token
    """
    from rdukit_platform.client.contexts import GatewayContext, read_contexts, write_contexts
    from rdukit_platform.settings import current_home

    home = current_home()
    file = None if token_file is None else token_file.expanduser().absolute()
    made = GatewayContext(name, url.rstrip("/"), file)
    if file is not None:
        made.read_token()  # one that cannot be read is told now
    contexts = read_contexts(home).added(made)
    write_contexts(home, contexts.chosen(name) if is_used else contexts)
    click.echo(f"added {name}{', which is used from now on' if is_used else ''}", err=True)


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Choose the context that commands call from now on; default is the platform of the settings or this home.

    Example: rdukit context use lab
    """
    from rdukit_platform.client.contexts import read_contexts, write_contexts
    from rdukit_platform.settings import current_home

    home = current_home()
    write_contexts(home, read_contexts(home).chosen(name))
    click.echo(f"{name} is used from now on", err=True)


@context.command("list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List contexts; a star marks the one that commands call.

    Example: rdukit context list
    """
    from rdukit.cli.commands import given_context
    from rdukit.settings import resolve
    from rdukit_platform.cli import show
    from rdukit_platform.client.contexts import DEFAULT, read_contexts
    from rdukit_platform.settings import GATEWAY_URL, current_home

    home = current_home()
    contexts = read_contexts(home)
    current = given_context() or contexts.current
    rows: list[tuple[str, str | None, str]] = [(DEFAULT, resolve(GATEWAY_URL) or None, str(home.token_file))]
    rows += [(each.name, each.url, str(each.token_file or "")) for each in contexts.contexts.values()]
    if as_json:
        names = ("name", "url", "token_file", "is_used")
        show.print_json([dict(zip(names, (*row, row[0] == current), strict=True)) for row in rows])
        return
    shown = [("*" * (row[0] == current), row[0], row[1] or "the platform of this home folder", row[2]) for row in rows]
    show.print_table(("", "NAME", "GATEWAY", "TOKEN FILE"), shown)


@context.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove a context; its token's file stays.

    Example: rdukit context remove lab
    """
    from rdukit_platform.client.contexts import read_contexts, write_contexts
    from rdukit_platform.settings import current_home

    home = current_home()
    write_contexts(home, read_contexts(home).removed(name))
    click.echo(f"removed {name}", err=True)
