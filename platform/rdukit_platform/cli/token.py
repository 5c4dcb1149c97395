"""``rdukit token``: manage a tenant's own tokens."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Choice, Duration, ExtensibleGroup
from rdukit.errors import InvalidArgument
from rdukit_platform.cli import connect, show
from rdukit_platform.tenants.roles import ROLES
from rdukit_platform.tenants.scopes import SCOPES

VIEWED_TENANT = click.option(
    "--tenant",
    default=None,
    help="Tenant by id or name; another one needs the scope admin, and is recorded in the audit log.",
)
SCOPE_OPTION = click.option(
    "--scope", "scopes", type=Choice(SCOPES), multiple=True,
    help="Scope of the token; repeat for more. Default: read and write.",
)  # fmt: skip
ROLE_OPTION = click.option(
    "--role", type=Choice(tuple(ROLES)), default=None,
    help="Role instead of scopes; rdukit tenant roles lists their permissions.",
)  # fmt: skip
LIFE_OPTION = click.option(
    "--expires-in", "life_s", type=Duration(), default=None, help="Lifetime, such as 12h or 30d."
)


def access_body(scopes: Sequence[str], role: str | None) -> dict[str, object]:
    """Return the part of a request body with a token's scopes or role.

    Raises:
        InvalidArgument: both scopes and a role are given.
    """
    if role is not None and scopes:
        raise InvalidArgument("--role and --scope cannot be combined; give one of them")
    return {"role": role} if role is not None else {"scopes": list(scopes)} if scopes else {}


def life_body(life_s: float | None) -> dict[str, object]:
    """Return the part of a request body with a token's lifetime."""
    return {} if life_s is None else {"expires_in_s": life_s}


@click.group(cls=ExtensibleGroup)
def token() -> None:
    """List, create, rotate and revoke the API tokens of your tenant. Needs a token with the scope tokens, or admin.

    Example: rdukit token create ci --scope jobs:write --expires-in 30d

    Example: rdukit token create ci --role viewer
    """


@token.command("list")
@click.option("--tenant", default=None, help="Tenant by id or name; another one needs the scope admin.")
@show.page_options
@JSON_OPTION
@TOKEN_OPTION
def list_(tenant: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List tokens, newest first, also ended ones.

    Example: rdukit token list

    Example: rdukit token list --json
    """
    with connect() as client:
        page = client.get("/v1/tokens", tenant=tenant, limit=limit, cursor=cursor)
    rows = [
        (t["id"], t["name"], t["role"] or " ".join(t["scopes"]), show.clock(t["created_at"]),
         show.ago(t["last_used_at"]), _end(t), t["made_by"] or "-")
        for t in page["tokens"]
    ]  # fmt: skip
    show.print_page(page, as_json, ("ID", "NAME", "ALLOWS", "CREATED", "LAST USED", "ENDS", "MADE BY"), rows)


@token.command()
@click.argument("name", default="token")
@SCOPE_OPTION
@ROLE_OPTION
@LIFE_OPTION
@JSON_OPTION
@TOKEN_OPTION
def create(name: str, scopes: Sequence[str], role: str | None, life_s: float | None, as_json: bool) -> None:
    """Create a token with no more than your own scopes. It is printed once; NAME describes its purpose.

    Example: rdukit token create dashboard --scope read --expires-in 90d

    Example: rdukit token create ci --role viewer
    """
    with connect() as client:
        made = client.post("/v1/tokens", {"name": name} | access_body(scopes, role) | life_body(life_s))
    _print_new(made, as_json)


@token.command()
@click.argument("token_id", metavar="[ID]", required=False)
@click.option(
    "--grace", "grace_s", type=Duration(), default=None, help="Time for which the old token stays valid, such as 1h."
)
@JSON_OPTION
@TOKEN_OPTION
def rotate(token_id: str | None, grace_s: float | None, as_json: bool) -> None:
    """Replace a token by one with the same name, scopes and lifetime. The new one is printed once.

    Without ID it rotates the token that this command uses. A token in the home folder (of rdukit up, rdukit login or a
    context) is replaced there.

    Example: rdukit token rotate --grace 10m

    Example: rdukit token rotate tok-7k2m9x41abcd
    """
    from rdukit_platform.client.contexts import find_place, keep_token
    from rdukit_platform.client.http import ApiClient
    from rdukit_platform.settings import current_home

    place = find_place(current_home())
    with ApiClient(place.url, place.token) as client:
        own = client.get("/v1/me")["token"]
        body = {} if grace_s is None else {"grace_s": grace_s}
        made = client.post(f"/v1/tokens/{quote(token_id or own, safe='')}/rotate", body)
    if (token_id or own) == own and (kept := keep_token(current_home(), place.token, made["token"])):
        click.echo(f"written to {kept}", err=True)
    _print_new(made, as_json)


@token.command()
@click.argument("token_id", metavar="ID")
@click.option("--with-made", is_flag=True, help="Also revoke the tokens created with it, directly or indirectly.")
@JSON_OPTION
@TOKEN_OPTION
def revoke(token_id: str, with_made: bool, as_json: bool) -> None:
    """End a token now, with the streams and console sessions that it opened. Prints the ids of the ended tokens.

    Example: rdukit token revoke tok-7k2m9x41abcd --with-made

    Example: rdukit token revoke tok-7k2m9x41abcd
    """
    with connect() as client:
        gone = client.delete(f"/v1/tokens/{quote(token_id, safe='')}{'?with_made=true' if with_made else ''}")
    if as_json:
        show.print_json(gone)
    elif gone["revoked"]:
        click.echo("\n".join(gone["revoked"]))
    else:
        click.echo(f"{token_id} had ended already", err=True)


@token.command()
@click.argument("token_id", metavar="ID")
@JSON_OPTION
@TOKEN_OPTION
def block(token_id: str, as_json: bool) -> None:
    """Block a token of any tenant at once, as administrator. See who loads the gateway: rdukit status.

    Example: rdukit token block tok-7k2m9x41abcd

    Example: rdukit token block tok-7k2m9x41abcd --context lab
    """
    _change(token_id, "block", "blocked; to unblock it: rdukit token unblock", as_json)


@token.command()
@click.argument("token_id", metavar="ID")
@JSON_OPTION
@TOKEN_OPTION
def unblock(token_id: str, as_json: bool) -> None:
    """Unblock a blocked token, as administrator.

    Example: rdukit token unblock tok-7k2m9x41abcd

    Example: rdukit token unblock tok-7k2m9x41abcd --context lab
    """
    _change(token_id, "unblock", "unblocked", as_json)


def _change(token_id: str, verb: str, words: str, as_json: bool) -> None:
    with connect() as client:
        changed = client.post(f"/v1/tokens/{quote(token_id, safe='')}/{verb}")
    show.print_answer(changed, as_json, f"{token_id} is {words}{' ' + token_id if verb == 'block' else ''}")


def _print_new(made: Mapping[str, Any], as_json: bool) -> None:
    show.print_answer(made, as_json, made["token"])


def _end(token: Mapping[str, Any]) -> str:
    if token["revoked_at"] is not None:
        return f"revoked {show.ago(token['revoked_at'])} ago"
    if token.get("blocked_at") is not None:
        return f"blocked {show.ago(token['blocked_at'])} ago"
    return "never" if token["expires_at"] is None else show.clock(token["expires_at"])
