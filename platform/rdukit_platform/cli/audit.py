"""``rdukit audit``: who did what on the platform, or was refused."""

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, Choice, ExtensibleGroup


@click.group(cls=ExtensibleGroup)
def audit() -> None:
    """List who was let do what, and who was refused. Tenants see what is theirs, administrators all.

    Example: rdukit audit list --outcome refused
    """


@audit.command("list")
@click.option("--action", default=None, help="Only this, such as token.create, or request for refused requests.")
@click.option("--outcome", type=Choice(["done", "refused"]), default=None, help="Only what ended so.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", default=None, help="next_cursor of the page before.")
@JSON_OPTION
@TOKEN_OPTION
def list_(action: str | None, outcome: str | None, limit: int, cursor: str | None, as_json: bool) -> None:
    """List entries of the audit log, newest first.

    Example: rdukit audit list --action token.create --json
    """
    from rdukit_platform.cli import show
    from rdukit_platform.cli.client import ApiClient

    with ApiClient.of_home() as client:
        page = client.get("/v1/audit", action=action, outcome=outcome, limit=limit, cursor=cursor)
    if as_json:
        show.print_json(page)
        return
    show.print_table(
        ("TIME", "ACTOR", "ACTION", "TARGET", "OUTCOME", "REASON", "ADDRESS", "COUNT"),
        [
            (show.clock(e["at"]), e["actor"], e["action"], e["target"], e["outcome"], e["reason"], e["address"],
             e["count"])
            for e in page["entries"]
        ],
    )  # fmt: skip
    if page["next_cursor"]:
        click.echo(f"older ones: --cursor {page['next_cursor']}", err=True)
