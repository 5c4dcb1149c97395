"""The console's pages of members."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from rdukit.errors import InvalidArgument, RdukitError
from rdukit_platform.api.members import InviteRequest, add_member, change_member, read_members, remove_member
from rdukit_platform.console.access import MembersEditor, Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.identity.issuer import is_configured
from rdukit_platform.tenants.roles import ROLES
from rdukit_platform.tenants.scopes import MEMBERS, allows, may_give
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console/members", include_in_schema=False, route_class=PageRoute)


@router.get("")
def members(request: Request, caller: Visitor) -> Response:
    """Show the tenant's members."""
    return _page(request, caller)


@router.post("")
def invite(
    request: Request, caller: MembersEditor, email: Annotated[str, Form()] = "", role: Annotated[str, Form()] = ""
) -> Response:
    """Invite a member."""
    try:
        add_member(request, caller, InviteRequest(email=email.strip()[:254], role=_checked(role)))
    except RdukitError as error:
        return _page(request, caller, error.message, error.http_status, email[:254], role)
    return RedirectResponse("/console/members", 303)


@router.post("/{user}/role")
def change(request: Request, user: str, caller: MembersEditor, role: Annotated[str, Form()] = "") -> Response:
    """Change a member's role."""
    change_member(request, caller, user, _checked(role))
    return RedirectResponse("/console/members", 303)


@router.post("/{user}/remove")
def remove(request: Request, user: str, caller: MembersEditor) -> Response:
    """Remove a member."""
    remove_member(request, caller, user)
    return RedirectResponse("/console/members", 303)


def _checked(role: str) -> str:
    if role not in ROLES:
        raise InvalidArgument(f"there is no role {role[:64]!r}; expected {', '.join(ROLES)}")
    return role


def _page(
    request: Request, caller: Caller, error: str = "", status: int = 200, email: str = "", role: str = ""
) -> Response:
    given = [role for role in ROLES.values() if may_give(caller.scopes, role.scopes)]
    found = read_members(request, caller)
    return page(
        request, "members.html", status, section="Members", members=found.members, error=error, roles=given,
        manages=allows(caller.scopes, MEMBERS), own=caller.user_id, email=email, chosen=role,
        invites=is_configured(),
    )  # fmt: skip
