"""``rdukit login``, ``logout`` and ``whoami``: a token of one's own, by the console's login."""

import json
import socket
import time
import webbrowser
from typing import Any, Final
from urllib.parse import urlencode

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION
from rdukit.errors import NotFound, Overloaded, RdukitError

#: The gateway asks commands that have no token yet for none.
_NO_TOKEN: Final = "none"


@click.command()
@click.option("--url", default=None, help="The gateway; default: the setting gateway.url, or this home folder's.")
@click.option("--name", default=None, help="What the token is called; default: this machine's name.")
@click.option("--no-browser", is_flag=True, help="Print the address only, as on a machine without a browser.")
@JSON_OPTION
def login(url: str | None, name: str | None, no_browser: bool, as_json: bool) -> None:
    """Log in by the console, in a browser on any machine. The token lies in the home folder (login.json, 0600).

    Prints an address and a code. Open it, log in there, compare the code, and allow it.

    Example: rdukit login --url https://rdukit.example.com
    """
    from rdukit.files.atomic import write_atomic
    from rdukit.settings import resolve
    from rdukit_platform.client.http import ApiClient, find_url
    from rdukit_platform.settings import GATEWAY_URL, current_home

    home, is_own = current_home(), not resolve(GATEWAY_URL, url)
    address = find_url(home, url, own=is_own).rstrip("/")
    with ApiClient(address, _NO_TOKEN) as client:
        begun = client.post("/v1/login/device", {"name": name or f"login on {socket.gethostname()}"[:64]})
        page = f"{address}{begun['path']}"
        whole = f"{page}?{urlencode({'code': begun['user_code']})}"
        click.echo(f"Open {page} in a browser and type the code {begun['user_code']}\nor open {whole}", err=True)
        if not no_browser:
            webbrowser.open(whole)
        done = _wait(client, begun)
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {"url": "" if is_own else address, "token": done["token"]}
    write_atomic(home.login_file, json.dumps(kept).encode() + b"\n", mode=0o600)
    _print_me(done["me"], address, as_json)


@click.command()
def logout() -> None:
    """End the token of rdukit login, and forget it.

    Example: rdukit logout
    """
    from rdukit_platform.client.http import ApiClient, find_url, read_login
    from rdukit_platform.settings import current_home

    home = current_home()
    kept = read_login(home)
    if kept is None:
        raise NotFound(f"nobody is logged in: there is no {home.login_file}")
    with ApiClient(kept["url"] or find_url(home, own=True), kept["token"]) as client:
        try:
            client.post("/v1/logout")
            click.echo("logged out", err=True)
        except RdukitError as error:
            click.echo(f"the token is forgotten here, but was not ended: {error.message}", err=True)
    home.login_file.unlink(missing_ok=True)


@click.command()
@JSON_OPTION
@TOKEN_OPTION
def whoami(as_json: bool) -> None:
    """Show who you are to the platform: user, tenant, role, and when the token ends.

    Example: rdukit whoami
    """
    from rdukit_platform.client.http import ApiClient

    with ApiClient.of_home() as client:
        _print_me(client.get("/v1/me"), client.url, as_json)


def _wait(client: Any, begun: dict[str, Any]) -> dict[str, Any]:
    while True:
        try:
            found: dict[str, Any] = client.post("/v1/login/token", {"device_code": begun["device_code"]})
            if found["status"] == "done":
                return found
        except Overloaded:
            pass  # it asked too early
        time.sleep(begun["interval_s"])


def _print_me(me: dict[str, Any], url: str, as_json: bool) -> None:
    from rdukit_platform.cli import show

    if as_json:
        show.print_json(me)
        return
    user = me["user"]
    if user is not None:
        click.echo(f"user     {user['email'] or user['id']}\nrole     {user['role']}")
        click.echo(f"tenants  {' '.join(user['tenants'])}")
    ends = "never" if me["expires_at"] is None else show.clock(me["expires_at"])
    click.echo(f"tenant   {me['tenant']['name']}\ntoken    {me['token']}, ends {ends}\ngateway  {url}")
