"""The console's pages of experts: searchable cards, and one expert with its origins."""

from typing import Annotated, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from rdukit.errors import RdukitError
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.experts import MAX_REASON, DeprecateRequest, Expert, show_expert
from rdukit_platform.api.experts import deprecate as mark
from rdukit_platform.catalog.experts import get_expert, list_experts, versions_of_expert
from rdukit_platform.catalog.model import read_selector
from rdukit_platform.catalog.own import box_of, find_version
from rdukit_platform.console.access import BoxesEditor, Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.console.queries import read_artifact_page, use_commands
from rdukit_platform.console.views import first_figures, result_figures
from rdukit_platform.tenants.scopes import BOXES_WRITE, ENDPOINTS_WRITE, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console/experts", include_in_schema=False, route_class=PageRoute)

#: Longest search that is accepted.
MAX_SEARCH: Final = 200


@router.get("")
def experts(
    request: Request, caller: Visitor, search: str = "", deprecated: bool = False, cursor: str | None = None
) -> Response:
    """Show the experts that a search finds, as cards."""
    search = search[:MAX_SEARCH]
    with platform_of(request).database.read() as session:
        rows, following = list_experts(session, caller.tenant_id, search, None, 30, cursor, with_deprecated=deprecated)
        cards = [(expert, first_figures(expert.metrics)) for expert in map(show_expert, rows)]
        is_empty = not cards and cursor is None and not deprecated
        are_hidden = is_empty and bool(
            list_experts(session, caller.tenant_id, search, None, 1, None, with_deprecated=True)[0]
        )
    asked = {"search": search, "deprecated": "true" if deprecated else ""}
    here = "/console/experts?" + urlencode({key: value for key, value in asked.items() if value})
    return page(
        request, "experts.html", section="Experts", cards=cards, search=search, deprecated=deprecated,
        next_cursor=following, here=here.rstrip("?"), are_hidden=are_hidden,
    )  # fmt: skip


@router.get("/{name}")
def expert(request: Request, name: str, caller: Visitor) -> Response:
    """Show one version of an expert: its card, figures, and source artifacts."""
    return _page(request, caller, name)


@router.post("/{name}/deprecate")
def deprecate(
    request: Request, name: str, caller: BoxesEditor, reason: Annotated[str, Form(max_length=4000)] = ""
) -> Response:
    """Mark a version of an expert as deprecated."""
    reason = reason.strip()
    if not reason or len(reason) > MAX_REASON:
        error = f"it has {len(reason)} characters; expected 1 to {MAX_REASON}" if reason else "give a short reason"
        return _page(request, caller, name, error, reason)
    mark(request, name, caller, DeprecateRequest(reason=reason))
    return RedirectResponse(f"/console/experts/{quote(name, safe=':')}", 303)


def _page(request: Request, caller: Caller, name: str, error: str = "", reason: str = "") -> Response:
    platform = platform_of(request)
    with platform.database.read() as session:
        row = get_expert(session, caller.tenant_id, name)
        shown = show_expert(row, versions_of_expert(session, caller.tenant_id, row.name))
        found = read_artifact_page(session, caller.tenant_id, row.checkpoint_id)
    return page(
        request, "expert.html", 422 if error else 200, section="Experts", expert=shown,
        figures=result_figures(shown.metrics), checkpoint=found.artifact, parents=found.parents,
        children=found.children, commands=_find_commands(platform, caller, shown),
        can_write=allows(caller.scopes, BOXES_WRITE),
        can_serve=allows(caller.scopes, ENDPOINTS_WRITE), error=error, reason=reason,
    )  # fmt: skip


def _find_commands(platform: Platform, caller: Caller, expert: Expert) -> list[str]:
    """Return the commands by which jobs use the expert; empty if the box is gone, or the catalog cannot be read."""
    asked = read_selector(expert.box)
    try:
        box = platform.catalog.boxes().boxes.get(asked.name)
    except RdukitError:
        return []
    if asked.version is not None:
        with platform.database.read() as session:
            row = find_version(session, caller.tenant_id, asked.name, asked.version)
        box = None if row is None or row.uninstalled_at is not None else box_of(row)
    return [] if box is None else use_commands(box, expert)
