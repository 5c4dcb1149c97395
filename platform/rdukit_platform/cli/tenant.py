"""``rdukit tenant``: create tenants and API tokens."""

from collections.abc import Sequence

import click

from rdukit.command_options import JSON_OPTION


@click.group()
def tenant() -> None:
    """Create tenants and API tokens. Needs a token with the scope admin.

    Example: rdukit tenant create --name lab
    """


@tenant.command("list")
@JSON_OPTION
def list_(as_json: bool) -> None:
    """List all tenants.

    Example: rdukit tenant list
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        found = client.get("/v1/tenants")
    if as_json:
        show.print_json(found)
    else:
        show.print_table(
            ("ID", "NAME", "CREATED"), [(t["id"], t["name"], show.clock(t["created_at"])) for t in found["tenants"]]
        )


@tenant.command()
@click.option("--name", required=True, help="Lower-case letters, digits and hyphens.")
@JSON_OPTION
def create(name: str, as_json: bool) -> None:
    """Add a tenant. Prints its id.

    Example: rdukit tenant create --name lab
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        made = client.post("/v1/tenants", {"name": name})
    if as_json:
        show.print_json(made)
    else:
        click.echo(made["id"])


@tenant.command()
@click.option("--tenant", "tenant_id", required=True, help="Id or name of the tenant.")
@click.option("--name", default="token", show_default=True, help="What the token is for.")
@click.option("--scope", "scopes", multiple=True, default=("read", "write"), show_default=True, help="May repeat.")
@JSON_OPTION
def token(tenant_id: str, name: str, scopes: Sequence[str], as_json: bool) -> None:
    """Make an API token. It is printed this once and cannot be shown again.

    Example: rdukit tenant token --tenant lab --scope read
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        made = client.post(f"/v1/tenants/{tenant_id}/tokens", {"name": name, "scopes": list(scopes)})
    if as_json:
        show.print_json(made)
    else:
        click.echo(made["token"])
