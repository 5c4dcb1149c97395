"""The console's pages of tokens and of the audit log, and the form of maintenance."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from rdukit.errors import InvalidArgument, RdukitError
from rdukit_platform.api.audit import AuditPage, read_entries
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.maintenance import MaintenanceRequest, change, move, plan
from rdukit_platform.api.maintenance import end as end_window
from rdukit_platform.api.tenants import Token, TokenRequest, end_token, make_token, read_tokens, replace_token
from rdukit_platform.audit.service import Act, AuditOutcome
from rdukit_platform.console.access import Administrator, Keeper, Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.nodes.registry import ONLY
from rdukit_platform.tenants.roles import ROLES
from rdukit_platform.tenants.scopes import ADMIN, MEANINGS, may_give
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Days of life that the form offers.
LIVES: Final = (1, 7, 30, 90, 365)
#: Buttons of the form of maintenance.
_PLAN: Final = "plan"
_END: Final = "end"
_ACTS: Final = {
    "cordon": Act.CORDON, "drain": Act.DRAIN, "uncordon": Act.UNCORDON, _PLAN: Act.MAINTAIN, _END: Act.END_MAINTENANCE,
}  # fmt: skip
_MOVES: Final = {"leave": Act.LEAVE_NODE, "rejoin": Act.REJOIN_NODE}


@router.get("/audit")
def audit(
    request: Request, caller: Visitor, outcome: str = "", action: str = "", about: str = "", cursor: str | None = None
) -> Response:
    """Show the audit log, or the entries of an outcome, an action, and about one thing."""
    about = about.strip()[:160]
    found: AuditPage = read_entries(
        platform_of(request), caller, action or None, outcome or None, cursor=cursor, about=about or None
    )
    asked = {"outcome": outcome, "action": action, "about": about}
    query = urlencode({name: value for name, value in asked.items() if value})
    return page(
        request, "audit.html", section="Audit", entries=found.entries, next_cursor=found.next_cursor, asked=asked,
        actions=[str(act) for act in Act], outcomes=[str(each) for each in AuditOutcome],
        sees_all=ADMIN in caller.scopes, here=f"/console/audit{'?' + query if query else ''}",
    )  # fmt: skip


@router.get("/tokens")
def tokens(request: Request, caller: Keeper, cursor: str | None = None) -> Response:
    """Return the tenant's tokens."""
    return _tokens_page(request, caller, cursor)


@router.post("/tokens")
def create(
    request: Request,
    caller: Keeper,
    name: Annotated[str, Form()] = "token",
    role: Annotated[str, Form()] = "",
    scope: Annotated[list[str] | None, Form()] = None,
    days: Annotated[int, Form()] = LIVES[2],
) -> Response:
    """Create a token; only this page shows it."""
    if days not in LIVES:
        raise InvalidArgument(f"a lifetime of {days} days was requested; expected one of {', '.join(map(str, LIVES))}")
    try:
        scopes = (scope or [])[:32] if scope or not role else None
        body = TokenRequest(
            name=name.strip()[:64] or "token", role=role[:64] or None, scopes=scopes, expires_in_s=days * 86400.0
        )
        made = make_token(request, caller, caller.tenant_id, body)
    except RdukitError as error:
        asked = {"name": name[:64], "role": role, "scopes": scope or [], "days": days}
        return _tokens_page(request, caller, error=error.message, status=error.http_status, asked=asked)
    return _tokens_page(request, caller, made=made)


@router.post("/tokens/{token_id}/rotate")
def rotate(request: Request, token_id: str, caller: Keeper) -> Response:
    """Replace a token; the answer is the one page that shows the new one."""
    return _tokens_page(request, caller, made=replace_token(request, caller, token_id))


@router.post("/tokens/{token_id}/revoke")
def revoke(request: Request, token_id: str, caller: Keeper) -> Response:
    """End a token."""
    end_token(request, caller, token_id)
    return RedirectResponse("/console/tokens", 303)


@router.post("/nodes/maintenance")
def maintain(
    request: Request,
    caller: Administrator,
    act: Annotated[str, Form()],
    node: Annotated[str, Form()] = ONLY,
    component: Annotated[str, Form()] = "/NODE",
    reason: Annotated[str, Form()] = "",
    deadline: Annotated[str, Form()] = "",
    starts: Annotated[str, Form()] = "",
    ends: Annotated[str, Form()] = "",
    window: Annotated[str, Form()] = "",
) -> Response:
    """Cordon, drain or uncordon a part of a node, plan or end its maintenance, or let it leave or rejoin."""
    if act in _MOVES:
        move(request, caller, node, _MOVES[act])
        return RedirectResponse("/console/nodes", 303)
    if act not in _ACTS:
        raise InvalidArgument(f"the form asks for {act[:20]!r}; expected {', '.join([*_ACTS, *_MOVES])}")
    if act == _END:
        end_window(request, node, window.strip()[:64], caller)
        return RedirectResponse("/console/nodes", 303)
    part, why, grace_s = component.strip()[:200] or "/NODE", reason.strip()[:200], _read_seconds(deadline)
    if act == _PLAN:
        if not why:
            raise InvalidArgument("maintenance needs a reason; users with waiting jobs see it")
        try:
            body = MaintenanceRequest(
                component=part, reason=why, starts_at=_read_moment(starts), ends_at=_read_moment(ends), grace_s=grace_s
            )
        except ValidationError as wrong:
            first = wrong.errors()[0]
            raise InvalidArgument(f"{first['loc'][0]} of the maintenance is not valid: {first['msg']}") from wrong
        plan(request, node, caller, body)
        return RedirectResponse("/console/nodes", 303)
    given: dict[str, object] = {"component": part}
    if act != "uncordon" and why:
        given["reason"] = why
    if act == "drain" and grace_s is not None:
        given["deadline_s"] = grace_s
    change(request, caller, node, _ACTS[act], act, given)
    return RedirectResponse("/console/nodes", 303)


def _read_seconds(text: str) -> float | None:
    if not text.strip():
        return None
    if not text.strip().isdecimal() or len(text) > 8:
        raise InvalidArgument(f"the deadline is {text[:20]!r}; expected whole seconds, or nothing")
    return float(text)


def _read_moment(text: str) -> float | None:
    """Read a UTC time of the form; ``None`` if it is empty."""
    if not text.strip():
        return None
    try:
        at = datetime.fromisoformat(text.strip()[:40])
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as cause:
        raise InvalidArgument(f"{text[:40]!r} is not a time; expected a UTC time such as 2026-12-01T06:00") from cause


def _tokens_page(
    request: Request,
    caller: Caller,
    cursor: str | None = None,
    made: Token | None = None,
    error: str = "",
    status: int = 200,
    asked: Mapping[str, object] | None = None,
) -> Response:
    asked = asked or {"name": "", "role": "", "scopes": [], "days": LIVES[2]}
    platform = platform_of(request)
    found = read_tokens(platform, caller, cursor=cursor)
    legal = [(scope, said) for scope, said in MEANINGS.items() if may_give(caller.scopes, [scope])]
    roles = [role for role in ROLES.values() if may_give(caller.scopes, role.scopes)]
    return page(
        request, "tokens.html", status, section="Tokens", tokens=found.tokens, next_cursor=found.next_cursor,
        made=made, error=error, scopes=legal, roles=roles, lives=LIVES, own=caller.token_id, time=platform.clock.now(),
        asked=asked,
    )  # fmt: skip
