"""``rdukit login``, ``logout`` and ``whoami``: get a personal token through the console's login."""

import socket
import time
import webbrowser
from typing import Any, Final
from urllib.parse import urlencode

import click

from rdukit.cli.commands import CONTEXT_OPTION, JSON_OPTION, TOKEN_OPTION
from rdukit.errors import Overloaded, RdukitError
from rdukit_platform.cli import show
from rdukit_platform.client.contexts import find_login, find_place, forget_login, keep_login, login_target
from rdukit_platform.settings import current_home

#: Placeholder for the routes that need no token.
_NO_TOKEN: Final = "none"


@click.command()
@click.option(
    "--url", default=None, help="URL of the gateway; default: the setting gateway.url, or this home folder's gateway."
)
@click.option("--name", default=None, help="Name of the token; default: this machine's name.")
@click.option("--no-browser", is_flag=True, help="Only print the address, without opening a browser.")
@CONTEXT_OPTION
@JSON_OPTION
def login(url: str | None, name: str | None, no_browser: bool, as_json: bool) -> None:
    """Log in through the console, in a browser on any machine. The token is stored in the home folder (login.json,
    0600).

    With --context it is stored under that name (contexts.json). The command prints an address and a code: open the
    address, log in, compare the code, and allow it.

    Example: rdukit login --url https://rdukit.example.com

    Example: rdukit login --name laptop --no-browser
    """
    from rdukit_platform.client.http import ApiClient

    home = current_home()
    target = login_target(home, url)
    address = target.url
    with ApiClient(address, _NO_TOKEN) as client:
        begun = client.post("/v1/login/device", {"name": name or f"login on {socket.gethostname()}"[:64]})
        page = f"{address}{begun['path']}"
        whole = f"{page}?{urlencode({'code': begun['user_code']})}"
        click.echo(f"Open {page} in a browser and type the code {begun['user_code']}\nor open {whole}", err=True)
        if not no_browser:
            webbrowser.open(whole)
        done = _wait(client, begun)
    if (said := keep_login(home, target, done["token"])) and not as_json:
        click.echo(said, err=True)
    _print_me(done["me"], address, as_json)


@click.command()
@CONTEXT_OPTION
def logout() -> None:
    """End the token of rdukit login, and delete it here.

    Example: rdukit logout

    Example: rdukit logout --context lab
    """
    from rdukit_platform.client.http import ApiClient

    home = current_home()
    kept = find_login(home)
    with ApiClient(kept.url, kept.token) as client:
        try:
            client.post("/v1/logout")
            click.echo("logged out", err=True)
        except RdukitError as error:
            click.echo(f"the token was deleted here, but not revoked on the platform: {error.message}", err=True)
    forget_login(home, kept)


@click.command()
@JSON_OPTION
@TOKEN_OPTION
def whoami(as_json: bool) -> None:
    """Show your identity on the platform: user, tenant, role and token expiry.

    Example: rdukit whoami

    Example: rdukit whoami --json
    """
    from rdukit_platform.client.http import ApiClient

    place = find_place(current_home())
    with ApiClient(place.url, place.token) as client:
        _print_me(client.get("/v1/me"), client.url, as_json, place.context)


def _wait(client: Any, begun: dict[str, Any]) -> dict[str, Any]:
    while True:
        try:
            found: dict[str, Any] = client.post("/v1/login/token", {"device_code": begun["device_code"]})
            if found["status"] == "done":
                return found
        except Overloaded:
            pass  # it asked too early
        time.sleep(begun["interval_s"])


def _print_me(me: dict[str, Any], url: str, as_json: bool, context: str = "") -> None:
    if as_json:
        show.print_json(me)
        return
    if context:
        click.echo(f"context  {context}")
    user = me["user"]
    if user is not None:
        click.echo(f"user     {user['email'] or user['id']}\nrole     {user['role']}")
        click.echo(f"tenants  {' '.join(user['tenants'])}")
    else:
        click.echo(f"allows   {' '.join(me['scopes'])}")
    ends = "never" if me["expires_at"] is None else show.clock(me["expires_at"])
    click.echo(f"tenant   {me['tenant']['name']}\ntoken    {me['token']}, ends {ends}\ngateway  {url}")
