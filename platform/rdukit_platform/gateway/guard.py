"""Checks of a request against its route before the route's code runs: a route without a permission is refused."""

import logging
from typing import Final

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from starlette.concurrency import run_in_threadpool

from rdukit.errors import MalformedRequest, PermissionDenied, suggest
from rdukit_platform.api.audit_requests import address_of
from rdukit_platform.api.dependencies import check_permission, identify, platform_of
from rdukit_platform.console.access import check_same_site, identify_visitor
from rdukit_platform.gateway.permissions import has_own_threads
from rdukit_platform.tenants.permissions import Permission
from rdukit_platform.tenants.service import Caller

logger = logging.getLogger(__name__)

#: Most characters of a mistyped name that an answer repeats.
MAX_NAME: Final = 64


async def enforce_permission(request: Request) -> None:
    """Pass a request to its route if the route's permission allows it.

    Raises:
        Unauthenticated: the route needs a caller, but the request has none.
        PermissionDenied: the caller lacks the route's permission, the route declares none, or another site sent the
            form.
    """
    route = f"{request.method} {request.scope['route'].path}"
    await _check(request, route)
    caller: Caller | None = getattr(request.state, "caller", None)
    if not has_own_threads(route):
        owner = address_of(request) if caller is None else caller.tenant_id
        request.state.turn = await platform_of(request).turns.take(owner)


async def _check(request: Request, route: str) -> None:
    permission: Permission | None = request.app.state.permissions.get(route)
    if permission is None:
        logger.error("a route without a permission is refused route=%s", route)
        raise PermissionDenied(f"{route} cannot be called, because it declares no permission")
    if not permission.needs_token:
        return
    is_page = route.partition(" ")[2].startswith("/console")
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        caller = await run_in_threadpool(identify_visitor if is_page else identify, request)
    check_permission(caller, permission)
    if is_page and request.method != "GET":
        check_same_site(request)


def check_query(request: Request) -> None:
    """Refuse query parameters that the route lacks; otherwise a list would look filtered by them.

    Raises:
        MalformedRequest: the message has the expected values.
    """
    if not request.query_params:
        return
    fields = get_flat_params(request.scope["route"].dependant)
    legal = sorted(field.alias for field in fields if isinstance(field.field_info, Query))
    for name in request.query_params:
        if name not in legal:
            raise MalformedRequest(
                f"there is no query parameter {name[:MAX_NAME]!r}; expected {', '.join(legal) or 'none'}."
                f"{suggest(name[:MAX_NAME], legal)}",
                field=name[:MAX_NAME], legal=legal,
            )  # fmt: skip
