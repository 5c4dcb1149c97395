"""``rdukit user``: manage members of a tenant and users; ``rdukit org``: manage organisations."""

from typing import Any
from urllib.parse import quote

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Choice, ExtensibleGroup
from rdukit_platform.cli import connect, show
from rdukit_platform.tenants.roles import ROLES

_TENANT = click.option("--tenant", default=None, help="Tenant by id or name [default: your own].")
_ROLE = Choice(tuple(ROLES))


@click.group(cls=ExtensibleGroup)
def user() -> None:
    """List, invite and remove the members of your tenant, and choose their roles.

    Needs the role tenant-admin; administrators of the organisation or the platform manage other tenants' users.

    Example: rdukit user invite ada@example.com --role ml-engineer

    Example: rdukit user invite grace@example.com --role viewer --tenant lab
    """


@user.command("list")
@_TENANT
@click.option("--all", "is_all", is_flag=True, help="Show all users of the platform; needs the scope admin.")
@click.option(
    "--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="With --all: largest number of rows."
)
@click.option("--cursor", default=None, help="With --all: next_cursor of the previous page.")
@JSON_OPTION
@TOKEN_OPTION
def list_(tenant: str | None, is_all: bool, limit: int, cursor: str | None, as_json: bool) -> None:
    """List the members of a tenant and their roles.

    Example: rdukit user list

    Example: rdukit user list --tenant lab
    """
    with connect() as client:
        if is_all:
            found = client.get("/v1/users", limit=limit, cursor=cursor)
        else:
            found = client.get("/v1/members", tenant=tenant)
    if as_json:
        show.print_json(found)
    elif is_all:
        rows = [(u["id"], u["email"], u["name"], _state(u), show.ago(u["last_login_at"])) for u in found["users"]]
        show.print_table(("ID", "EMAIL", "NAME", "STATE", "LAST LOGIN"), rows)
        if found["next_cursor"]:
            click.echo(f"more with: --cursor {found['next_cursor']}", err=True)
    else:
        show.print_table(
            ("ID", "EMAIL", "NAME", "ROLE", "BY", "STATE", "LAST LOGIN"),
            [
                (m["id"], m["email"], m["name"], m["role"], m["by"], m["state"], show.ago(m["last_login_at"]))
                for m in found["members"]
            ],
        )


@user.command()
@click.argument("email")
@click.option("--role", type=_ROLE, required=True, help="Role of the member; rdukit tenant roles lists them.")
@_TENANT
@JSON_OPTION
@TOKEN_OPTION
def invite(email: str, role: str, tenant: str | None, as_json: bool) -> None:
    """Invite an e-mail address: a user who logs in with this verified address becomes a member. Prints the user's id;
    no mail is sent.

    Example: rdukit user invite ada@example.com --role ml-engineer

    Example: rdukit user invite grace@example.com --role viewer --tenant lab
    """
    with connect() as client:
        made = client.post("/v1/members", {"email": email, "role": role} | ({"tenant": tenant} if tenant else {}))
        where = client.url
    _print(made, as_json)
    if made["state"] == "invited":
        click.echo(f"ask {made['email']} to log in at {where}/console/ or with rdukit login", err=True)


@user.command()
@click.argument("member", metavar="EMAIL")
@click.argument("new_role", metavar="ROLE", type=_ROLE)
@_TENANT
@JSON_OPTION
@TOKEN_OPTION
def role(member: str, new_role: str, tenant: str | None, as_json: bool) -> None:
    """Change the role of a member (e-mail or id). Its sessions and tokens are limited to that role at once.

    Example: rdukit user role ada@example.com viewer

    Example: rdukit user role ada@example.com tenant-admin --tenant lab
    """
    with connect() as client:
        _print(client.patch(_path(member, tenant), {"role": new_role}), as_json)


@user.command()
@click.argument("member", metavar="EMAIL")
@_TENANT
@JSON_OPTION
@TOKEN_OPTION
def remove(member: str, tenant: str | None, as_json: bool) -> None:
    """Remove a member (e-mail or id) from a tenant. Its sessions and tokens there end at once.

    Example: rdukit user remove ada@example.com

    Example: rdukit user remove ada@example.com --tenant lab
    """
    with connect() as client:
        _print(client.delete(_path(member, tenant)), as_json)


@user.command()
@click.argument("member", metavar="EMAIL")
@JSON_OPTION
@TOKEN_OPTION
def disable(member: str, as_json: bool) -> None:
    """Disable a user, and end all of its sessions and tokens. Needs the scope admin.

    Example: rdukit user disable ada@example.com

    Example: rdukit user disable ada@example.com --context lab
    """
    _change(member, {"disabled": True}, as_json)


@user.command()
@click.argument("member", metavar="EMAIL")
@JSON_OPTION
@TOKEN_OPTION
def enable(member: str, as_json: bool) -> None:
    """Enable a disabled user. Needs the scope admin.

    Example: rdukit user enable ada@example.com

    Example: rdukit user enable ada@example.com --context lab
    """
    _change(member, {"disabled": False}, as_json)


@user.command()
@click.argument("member", metavar="EMAIL")
@click.option("--off", "is_off", is_flag=True, help="End it.")
@JSON_OPTION
@TOKEN_OPTION
def admin(member: str, is_off: bool, as_json: bool) -> None:
    """Make a user an administrator of the platform: everything, of all tenants. Needs the scope admin.

    Example: rdukit user admin ada@example.com

    Example: rdukit user admin ada@example.com --off
    """
    _change(member, {"admin": not is_off}, as_json)


@click.group(cls=ExtensibleGroup)
def org() -> None:
    """Group tenants into organisations, whose administrators manage their members. Needs the scope admin.

    Example: rdukit org create acme

    Example: rdukit org create acme --json
    """


@org.command("list")
@JSON_OPTION
@TOKEN_OPTION
def list_organisations(as_json: bool) -> None:
    """List organisations, their tenants and administrators.

    Example: rdukit org list

    Example: rdukit org list --json
    """
    with connect() as client:
        found = client.get("/v1/organisations")
    if as_json:
        show.print_json(found)
        return
    rows = [
        (o["id"], o["name"], " ".join(t["name"] for t in o["tenants"]), " ".join(o["admins"]))
        for o in found["organisations"]
    ]
    show.print_table(("ID", "NAME", "TENANTS", "ADMINISTRATORS"), rows)


@org.command()
@click.argument("name")
@JSON_OPTION
@TOKEN_OPTION
def create(name: str, as_json: bool) -> None:
    """Add an organisation. Prints its id. A NAME has lower-case letters, digits and hyphens.

    Example: rdukit org create acme

    Example: rdukit org create acme --json
    """
    with connect() as client:
        _print(client.post("/v1/organisations", {"name": name}), as_json)


@org.command("add-tenant")
@click.argument("organisation")
@click.argument("tenant")
@JSON_OPTION
@TOKEN_OPTION
def add_tenant(organisation: str, tenant: str, as_json: bool) -> None:
    """Add a tenant to an organisation (ids or names).

    Example: rdukit org add-tenant acme lab

    Example: rdukit org add-tenant acme lab --context lab
    """
    _put_or_delete("put", organisation, "tenants", tenant, as_json)


@org.command("remove-tenant")
@click.argument("organisation")
@click.argument("tenant")
@JSON_OPTION
@TOKEN_OPTION
def remove_tenant(organisation: str, tenant: str, as_json: bool) -> None:
    """Remove a tenant from its organisation.

    Example: rdukit org remove-tenant acme lab

    Example: rdukit org remove-tenant acme lab --context lab
    """
    _put_or_delete("delete", organisation, "tenants", tenant, as_json)


@org.command("add-admin")
@click.argument("organisation")
@click.argument("email")
@JSON_OPTION
@TOKEN_OPTION
def add_admin(organisation: str, email: str, as_json: bool) -> None:
    """Make a user an administrator of an organisation: tenant-admin in each of its tenants.

    Example: rdukit org add-admin acme grace@example.com

    Example: rdukit org add-admin acme grace@example.com --context lab
    """
    _put_or_delete("put", organisation, "admins", email, as_json)


@org.command("remove-admin")
@click.argument("organisation")
@click.argument("email")
@JSON_OPTION
@TOKEN_OPTION
def remove_admin(organisation: str, email: str, as_json: bool) -> None:
    """Remove a user (e-mail or id) as administrator of an organisation.

    Example: rdukit org remove-admin acme grace@example.com

    Example: rdukit org remove-admin acme grace@example.com --context lab
    """
    _put_or_delete("delete", organisation, "admins", email, as_json)


def _put_or_delete(method: str, organisation: str, what: str, name: str, as_json: bool) -> None:
    path = f"/v1/organisations/{quote(organisation, safe='')}/{what}/{quote(name, safe='')}"
    with connect() as client:
        _print(client.put(path) if method == "put" else client.delete(path), as_json)


def _change(member: str, body: dict[str, object], as_json: bool) -> None:
    with connect() as client:
        _print(client.patch(f"/v1/users/{quote(member, safe='')}", body), as_json)


def _path(member: str, tenant: str | None) -> str:
    return f"/v1/members/{quote(member, safe='')}" + (f"?tenant={quote(tenant, safe='')}" if tenant else "")


def _print(changed: dict[str, Any], as_json: bool) -> None:
    show.print_answer(changed, as_json, changed["id"])


def _state(found: dict[str, Any]) -> str:
    if found["disabled_at"] is not None:
        return "disabled"
    said = "invited" if found["subject"] is None else "active"
    return f"{said}, administrator" if found["admin"] else said
