"""The console's pages of tenants: limits and use of each, and the forms of administrators."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Form, Request
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from rdukit.errors import InvalidArgument, RdukitError
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.tenants import TenantChange, TenantRequest, change, choose_tenant, create
from rdukit_platform.console.access import Administrator, Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.console.run_form import read_whole
from rdukit_platform.db.models import TenantRow
from rdukit_platform.jobs.tenant_use import TenantUse, read_tenant_uses
from rdukit_platform.tenants.scopes import ADMIN
from rdukit_platform.tenants.service import Caller, list_tenants

router = APIRouter(prefix="/console/tenants", include_in_schema=False, route_class=PageRoute)

GIB: Final = 1 << 30
MOST: Final = 1_000_000
COUNTS: Final = ("quota", "max_tiles", "max_jobs")
#: Labels of the forms' fields, by their names in requests.
LABELS: Final = {
    "name": "Name", "weight": "Weight", "quota": "Quota of tiles", "max_tiles": "Most tiles", "max_jobs": "Most jobs",
    "artifact_bytes": "GiB of artifacts",
}  # fmt: skip

Text = Annotated[str, Form(max_length=64)]


@dataclass(frozen=True, slots=True)
class TenantLine:
    """A tenant and its use."""

    tenant: TenantRow
    use: TenantUse


@router.get("")
def tenants(request: Request, caller: Visitor) -> Response:
    """Show the caller's tenant, and to administrators all."""
    return _list(request, caller, {}, "")


@router.post("")
def add(
    request: Request,
    caller: Administrator,
    name: Text = "",
    weight: Text = "",
    quota: Text = "",
    max_tiles: Text = "",
    max_jobs: Text = "",
) -> Response:
    """Add a tenant."""
    given = {"name": name, "weight": weight, "quota": quota, "max_tiles": max_tiles, "max_jobs": max_jobs}
    try:
        made = create(request, caller, TenantRequest.model_validate({"name": name.strip(), **_read(given)}))
    except (RdukitError, ValidationError) as error:
        return _list(request, caller, given, error_text(error))
    return RedirectResponse(f"/console/tenants/{made.id}", 303)


@router.get("/{tenant}")
def tenant(request: Request, tenant: str, caller: Visitor) -> Response:
    """Show one tenant, to administrators with the form that changes it."""
    return _one(request, caller, tenant, None, "")


@router.post("/{tenant}")
def change_(
    request: Request,
    tenant: str,
    caller: Administrator,
    weight: Text = "",
    quota: Text = "",
    max_tiles: Text = "",
    max_jobs: Text = "",
    artifact_gib: Text = "",
) -> Response:
    """Change a tenant's limits: all that the form shows."""
    given = {"weight": weight, "quota": quota, "max_tiles": max_tiles, "max_jobs": max_jobs,
             "artifact_gib": artifact_gib}  # fmt: skip
    try:
        change(request, tenant, caller, TenantChange.model_validate(_read(given)))
    except (InvalidArgument, ValidationError) as error:
        return _one(request, caller, tenant, given, error_text(error))
    return RedirectResponse(f"/console/tenants/{tenant}", 303)


def error_text(error: RdukitError | ValidationError) -> str:
    """Describe the errors of a form, by its fields' labels (pure)."""
    if isinstance(error, RdukitError):
        return error.message
    first = error.errors()[0]
    name = str(first["loc"][-1]) if first["loc"] else ""
    if name == "name":
        return "Name: expected up to 63 lower-case letters, digits and hyphens, of which the first is a letter"
    return f"{LABELS.get(name, name)}: {first['msg']}"


def _read(given: dict[str, str]) -> dict[str, object]:
    """Read a form's limits; an empty field is null.

    Raises:
        InvalidArgument: a field is not a number, or not legal.
    """
    found: dict[str, object] = {}
    for name in COUNTS:
        try:
            found[name] = read_whole(given[name], 0, MOST)
        except ValueError as wrong:
            raise InvalidArgument(f"{LABELS[name]}: {wrong}") from wrong
    try:
        found["weight"] = float(given["weight"].strip() or 1)
        if text := given.get("artifact_gib", "").strip():
            found["artifact_bytes"] = int(float(text) * GIB)
        elif "artifact_gib" in given:
            found["artifact_bytes"] = None
    except (ValueError, OverflowError) as wrong:
        raise InvalidArgument("Weight and GiB of artifacts: expected numbers such as 1 or 0.5") from wrong
    return found


def _lines(session: Session, rows: list[TenantRow]) -> list[TenantLine]:
    uses = read_tenant_uses(session, rows)
    return [TenantLine(row, uses[row.id]) for row in rows]


def _list(request: Request, caller: Caller, given: dict[str, str], error: str) -> Response:
    with platform_of(request).database.read() as session:
        is_admin = ADMIN in caller.scopes
        rows = list(list_tenants(session)) if is_admin else [session.get_one(TenantRow, caller.tenant_id)]
        lines = _lines(session, rows)
        return page(
            request, "tenants.html", 400 if error else 200, section="Tenants", lines=lines, is_admin=is_admin,
            given=given, error=error,
        )  # fmt: skip


def _one(request: Request, caller: Caller, tenant: str, given: dict[str, str] | None, error: str) -> Response:
    with platform_of(request).database.read() as session:
        row = session.get_one(TenantRow, choose_tenant(session, caller, tenant))
        (line,) = _lines(session, [row])
        shown = {
            "weight": f"{row.weight:g}", **{name: _text(getattr(row, name)) for name in COUNTS},
            "artifact_gib": "" if row.artifact_bytes is None else f"{row.artifact_bytes / GIB:.15g}",
        }  # fmt: skip
        return page(
            request, "tenant.html", 400 if error else 200, section="Tenants", line=line, error=error,
            is_admin=ADMIN in caller.scopes, given=shown if given is None else given,
        )  # fmt: skip


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
