"""``rdukit tenant``: create and change tenants, and create API tokens."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar

import click

from rdukit.cli.commands import JSON_OPTION, TOKEN_OPTION, ExtensibleGroup
from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_platform.cli import connect, show
from rdukit_platform.cli.token import LIFE_OPTION, ROLE_OPTION, SCOPE_OPTION, access_body, life_body
from rdukit_platform.tenants.roles import ROLES


class ByteCount(click.ParamType[int | str]):
    """A count of bytes with or without a unit, or the word ``default``."""

    name = "bytes"
    DEFAULT = "default"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number of bytes, or ``default``."""
        text = str(value).strip()
        found = re.fullmatch(r"(\d+)\s*([KMGT]i)?B?", text)
        if found is None and text != self.DEFAULT:
            self.fail(
                f"{text!r} is not a number of bytes; expected 1000000, 512MiB, 10GiB, 0 or {self.DEFAULT}", param, ctx
            )
        return text if found is None else int(found[1]) << {None: 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}[found[2]]


class Count(click.ParamType[int | str]):
    """A count of tiles or jobs, or the word ``none``."""

    name = "count"
    NONE = "none"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the count, or ``none``."""
        text = str(value).strip()
        if text != self.NONE and not re.fullmatch(r"\d{1,7}", text):
            self.fail(f"{text!r} is not a number; expected 0, 8, … or {self.NONE}", param, ctx)
        return text if text == self.NONE else int(text)


WEIGHT = click.FloatRange(0.01, 1000)
F = TypeVar("F", bound=Callable[..., Any])

_LIMITS: Final = {
    "quota": ("TILES", "Quota: tiles guaranteed to the tenant; further tiles are borrowed; none: no quota."),
    "max_tiles": ("TILES", "Limit of tiles for its jobs and endpoints; none: no limit."),
    "max_jobs": ("JOBS", "Limit of active jobs; none: the setting scheduler.tenant_jobs."),
}


def _limit_options(command: F) -> F:
    for name, (metavar, text) in reversed(_LIMITS.items()):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, type=Count(), default=None, metavar=metavar, help=text)(command)
    return command


def _limits(**given: int | str | None) -> dict[str, object]:
    return {name: None if value == Count.NONE else value for name, value in given.items() if value is not None}


def describe_limits(tenant: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe a tenant's limits, as lines of a name and a text (pure)."""
    return [(name.replace("_", " "), str(tenant[name])) for name in _LIMITS if tenant.get(name) is not None]


@click.group(cls=ExtensibleGroup)
def tenant() -> None:
    """Create tenants and API tokens. Needs a token with the scope admin.

    Example: rdukit tenant create lab

    Example: rdukit tenant create guest --max-jobs 4
    """


@tenant.command("list")
@JSON_OPTION
@TOKEN_OPTION
def list_(as_json: bool) -> None:
    """List all tenants.

    Example: rdukit tenant list

    Example: rdukit tenant list --json
    """
    with connect() as client:
        found = client.get("/v1/tenants")
    if as_json:
        show.print_json(found)
    else:
        show.print_table(
            ("ID", "NAME", "WEIGHT", "QUOTA", "MAX TILES", "MAX JOBS", "CREATED"),
            [
                (t["id"], t["name"], f"{t['weight']:g}", *("-" if t[name] is None else t[name] for name in _LIMITS),
                 show.clock(t["created_at"]))
                for t in found["tenants"]
            ],
        )  # fmt: skip


@tenant.command()
@click.argument("name")
@click.option(
    "--weight", type=WEIGHT, default=1.0, show_default=True, help="Weight of the tenant's share of the tiles."
)
@_limit_options
@JSON_OPTION
@TOKEN_OPTION
def create(
    name: str, weight: float, quota: int | str | None, max_tiles: int | str | None, max_jobs: int | str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Add a tenant. Prints its id. A NAME has lower-case letters, digits and hyphens.

    Example: rdukit tenant create lab --quota 8 --max-tiles 16

    Example: rdukit tenant create guest --max-jobs 4
    """
    with connect() as client:
        body = {"name": name, "weight": weight, **_limits(quota=quota, max_tiles=max_tiles, max_jobs=max_jobs)}
        made = client.post("/v1/tenants", body)
    if as_json:
        show.print_json(made)
    else:
        click.echo(made["id"])
        click.echo(
            f"next, create a token for the tenant's users: rdukit tenant token {name} --expires-in 30d", err=True
        )
        click.echo("then use it: export RDUKIT_TOKEN=rdk_… && rdukit job submit logreg preprocess --wait", err=True)


@tenant.command("set")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--weight", type=WEIGHT, default=None, help="Weight of the tenant's share of the tiles.")
@click.option(
    "--artifact-bytes",
    type=ByteCount(),
    default=None,
    metavar="BYTES",
    help="Limit of bytes of artifacts, such as 10GiB; 0: no limit; default: the setting artifacts.tenant_bytes.",
)
@_limit_options
@JSON_OPTION
@TOKEN_OPTION
def set_(
    tenant_id: str, weight: float | None, artifact_bytes: int | str | None, quota: int | str | None,
    max_tiles: int | str | None, max_jobs: int | str | None, as_json: bool,
) -> None:  # fmt: skip
    """Change a tenant (id or name).

    Example: rdukit tenant set lab --weight 2 --quota 8 --max-tiles 16 --artifact-bytes 10GiB

    Example: rdukit tenant set guest --max-jobs none
    """
    body: dict[str, object] = {} if weight is None else {"weight": weight}
    if artifact_bytes is not None:
        body["artifact_bytes"] = None if artifact_bytes == ByteCount.DEFAULT else artifact_bytes
    body |= _limits(quota=quota, max_tiles=max_tiles, max_jobs=max_jobs)
    if not body:
        raise InvalidArgument(
            "no change was given; expected --weight, --quota, --max-tiles, --max-jobs, --artifact-bytes"
        )
    with connect() as client:
        changed = client.patch(f"/v1/tenants/{tenant_id}", body)
        found = client.get(f"/v1/tenants/{tenant_id}")
    if as_json:
        show.print_json(found)
    else:
        parts = [f"the weight {changed['weight']:g}", *(f"{name} {text}" for name, text in describe_limits(changed))]
        click.echo(f"{changed['name']} has {', '.join(parts)} and {show.describe_use(found['artifacts'])}")


@tenant.command()
@JSON_OPTION
def roles(as_json: bool) -> None:
    """List the roles that tokens and members have, and the scopes of each.

    Example: rdukit tenant roles

    Example: rdukit tenant roles --json
    """
    if as_json:
        show.print_json(
            {"roles": [{"name": r.name, "scopes": list(r.scopes), "purpose": r.purpose} for r in ROLES.values()]}
        )
    else:
        show.print_table(("ROLE", "SCOPES", "FOR"), [(r.name, " ".join(r.scopes), r.purpose) for r in ROLES.values()])


@tenant.command("show")
@click.argument("tenant_id", metavar="[TENANT]", required=False)
@JSON_OPTION
@TOKEN_OPTION
def show_(tenant_id: str | None, as_json: bool) -> None:
    """Show a tenant (id or name) and its present use; without TENANT the token's own.

    Example: rdukit tenant show lab

    Example: rdukit tenant show
    """
    with connect() as client:
        tenant_id = tenant_id or str(client.get("/v1/me")["tenant"]["id"])
        found = client.get(f"/v1/tenants/{tenant_id}")
    if as_json:
        show.print_json(found)
        return
    show.print_fields(
        [
            ("id", found["id"]), ("name", found["name"]), ("created", show.clock(found["created_at"])),
            ("weight", f"{found['weight']:g}"), *describe_limits(found), ("tiles", found["tiles"]),
            ("jobs", f"{found['active_jobs']} active, {found['queued_jobs']} queued"),
            ("artifacts", show.describe_use(found["artifacts"])),
        ]
    )  # fmt: skip


@tenant.command()
@click.argument("tenant_id", metavar="[TENANT]", required=False)
@click.option("--name", default="token", show_default=True, help="Name of the token.")
@SCOPE_OPTION
@ROLE_OPTION
@LIFE_OPTION
@click.option("--break-glass", is_flag=True, help="Create an administrator's token on the host itself; see below.")
@click.option("--reason", default="", help="Reason for --break-glass, for the audit log.")
@JSON_OPTION
@TOKEN_OPTION
def token(
    tenant_id: str | None, name: str, scopes: Sequence[str], role: str | None, life_s: float | None,
    break_glass: bool, reason: str, as_json: bool,
) -> None:  # fmt: skip
    """Create an API token for a tenant (id or name). It is printed once and cannot be shown again.

    With --break-glass it needs the database, but no gateway and no token. It is for operators who have lost the
    administrator's token. That token ends after 15 minutes, or --expires-in up to 1h.

    Example: rdukit tenant token lab --scope read --expires-in 30d

    Example: rdukit tenant token --break-glass --reason "the administrator's token is lost"
    """
    if break_glass:
        made = _break_glass(life_s, reason)
    elif tenant_id is None:
        raise InvalidArgument("TENANT is missing; pass a tenant's id or name, as listed by: rdukit tenant list")
    else:
        body: dict[str, object] = {"name": name} | access_body(scopes, role)
        with connect() as client:
            made = client.post(f"/v1/tenants/{tenant_id}/tokens", body | life_body(life_s))
    show.print_answer(made, as_json, str(made["token"]))


def _break_glass(life_s: float | None, reason: str) -> dict[str, object]:
    from rdukit.interfaces import SystemClock
    from rdukit_platform.db.engine import Database
    from rdukit_platform.db.migrate import is_newest
    from rdukit_platform.settings import current_home
    from rdukit_platform.tenants.tokens import BREAK_GLASS_S, break_glass

    home = current_home()
    path = home.database_file()
    if path is not None and not path.exists():
        raise NotFound(
            f"there is no database {path}, so no platform has run here; set RDUKIT_HOME to a platform's home folder"
        )
    with closing(Database.of_home(home)) as database:
        if not is_newest(database):
            raise Conflict("the database belongs to another version of rdukit; start this version once: rdukit up")
        life_s = BREAK_GLASS_S if life_s is None else life_s
        row, text = break_glass(database, SystemClock().now(), life_s, reason)
    return {"id": row.id, "token": text, "scopes": row.scopes, "expires_at": row.expires_at, "tenant": row.tenant_id}
