"""``rdukit context``: named platforms, and the one that commands use."""

from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from rdukit.cli.commands import JSON_OPTION, ExtensibleGroup
from rdukit.errors import InvalidArgument, RdukitError
from rdukit.settings import CONTEXT, parse_token, resolve
from rdukit_platform.cli import show
from rdukit_platform.client.contexts import (
    HOME_CONTEXT,
    GatewayContext,
    own_url,
    read_contexts,
    read_login,
    write_contexts,
)
from rdukit_platform.settings import GATEWAY_URL, current_home


def _complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the names of contexts."""
    try:
        known = read_contexts(current_home()).known
    except RdukitError:
        return []
    shown = {HOME_CONTEXT: "the platform of this home folder", **{name: one.url for name, one in known.items()}}
    return [CompletionItem(name, help=url) for name, url in shown.items() if name.startswith(begun)]


@click.group(cls=ExtensibleGroup)
def context() -> None:
    """Name platforms, and choose the one that commands use.

    Example: rdukit context use lab

    Example: rdukit context use local
    """


@context.command("list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List the named platforms; a star marks the one in use. Tokens are not shown.

    Example: rdukit context list

    Example: rdukit context list --json
    """
    home = current_home()
    contexts, login = read_contexts(home), read_login(home)
    url = (login["url"] if login else "") or own_url(home)
    rows: Sequence[tuple[str, str, bool]] = [
        (HOME_CONTEXT, url, login is not None or home.token_file.is_file()),
        *((name, one.url, bool(one.token)) for name, one in sorted(contexts.known.items())),
    ]
    if as_json:
        found = [{"name": name, "url": where, "has_token": has_token} for name, where, has_token in rows]
        show.print_json({"current": contexts.current, "contexts": found})
        return
    show.print_table(
        ("", "NAME", "URL", "TOKEN"),
        [("*" if name == contexts.current else "", name, where, "yes" if has else "-") for name, where, has in rows],
    )


@context.command()
@click.argument("name")
@click.option("--url", required=True, help="Address of the platform's gateway, such as https://rdukit.example.com.")
@click.option(
    "--token", default=None, metavar="TOKEN|@FILE", help="Token for the platform; without one, log in afterwards."
)
@click.option("--use", "is_used", is_flag=True, help="Use this platform from now on.")
def add(name: str, url: str, token: str | None, is_used: bool) -> None:
    """Add a named platform. Its token is stored in the home folder (contexts.json, 0600).

    Example: rdukit context add lab --url https://rdukit.example.com --use

    Example: rdukit context add local --url http://127.0.0.1:8080
    """
    try:
        given = parse_token(token) if token else ""
    except ValueError as cause:
        raise InvalidArgument(f"--token {token} is not valid: {cause}") from cause
    contexts = read_contexts(current_home()).added(name, GatewayContext(url, given))
    write_contexts(current_home(), contexts.using(name) if is_used else contexts)
    click.echo(f"{name} is {contexts.known[name].url}{'; commands go there now' if is_used else ''}")
    if not given:
        click.echo(f"log in there with: rdukit login --context {name}", err=True)


@context.command()
@click.argument("name", shell_complete=_complete)
def use(name: str) -> None:
    """Use a platform from now on; home is the one of this home folder.

    The setting gateway.url overrides it, and --context of a command overrides both.

    Example: rdukit context use lab

    Example: rdukit context use local
    """
    home = current_home()
    contexts = read_contexts(home).using(name)
    write_contexts(home, contexts)
    found, login = contexts.find(name), read_login(home)
    url = found.url if found is not None else (login["url"] if login else "") or own_url(home)
    click.echo(f"commands go to {name} now: {url}")
    _tell_of_settings()


@context.command()
@click.argument("name", shell_complete=_complete)
def remove(name: str) -> None:
    """Remove a platform and its token from this list. The token stays valid there unless rdukit logout ended it.

    Example: rdukit context remove lab

    Example: rdukit context remove old
    """
    home = current_home()
    before = read_contexts(home)
    contexts = before.without(name)
    write_contexts(home, contexts)
    click.echo(f"{name} was removed; commands go to {contexts.current}")


def _tell_of_settings() -> None:
    """Print which settings override the context in use, if any."""
    settings: Sequence[Any] = (CONTEXT, GATEWAY_URL)
    for setting in settings:
        if value := resolve(setting):
            click.echo(f"the setting {setting.name} ({value}, ${setting.variable}) overrides it", err=True)
            return
