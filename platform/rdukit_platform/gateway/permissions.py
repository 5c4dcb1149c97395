"""Permissions of the gateway's routes and calls (pure), read from what each route declares.

A route declares its permission by one of its dependencies: ``Needs`` of ``api/dependencies.py``, ``Visit`` of
``console/access.py`` or ``PUBLIC_ROUTE``. ``gateway.guard`` enforces it at each request, and refuses a route without
one. ``docs/permissions.md`` is the table that a review reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from rdukit.errors import PermissionDenied
from rdukit_platform.tenants.permissions import Permission, needs
from rdukit_platform.tenants.scopes import JOBS_READ, JOBS_WRITE


def declared_permissions(routes: Iterable[BaseRoute]) -> dict[str, Permission]:
    """Return the permission of each route, by method and path.

    Raises:
        PermissionDenied: a route declares no permission, or several.
    """
    found: dict[str, Permission] = {}
    for route in _each(routes):
        declared = list(_declared(route.dependant)) if isinstance(route, APIRoute) else []
        keys = [f"{method} {getattr(route, 'path', route)}" for method in getattr(route, "methods", None) or ["any"]]
        if len(declared) != 1:
            raise PermissionDenied(
                f"{', '.join(keys)} declares {len(declared)} permissions, but needs exactly one: give it a caller "
                "type of "
                "api/dependencies.py or console/access.py, or PUBLIC_ROUTE"
            )
        found |= dict.fromkeys(keys, declared[0])
    return found


def _each(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    for route in routes:
        router = getattr(route, "original_router", None)  # FastAPI keeps an included router whole
        if router is None:
            yield route
        else:
            yield from _each(router.routes)


def _declared(dependant: Dependant) -> Iterator[Permission]:
    for each in dependant.dependencies:
        permission = getattr(each.call, "permission", None)
        if isinstance(permission, Permission):
            yield permission
        yield from _declared(each)


#: Service and method of each call by gRPC. Health and reflection are everybody's, as the pages of REST are.
GRPC_PERMISSIONS: Final[Mapping[str, Permission]] = {
    "rdukit.platform.v1.Jobs/Submit": needs(JOBS_WRITE),
    "rdukit.platform.v1.Jobs/Get": needs(JOBS_READ),
    "rdukit.platform.v1.Jobs/List": needs(JOBS_READ),
    "rdukit.platform.v1.Jobs/Cancel": needs(JOBS_WRITE),
    "rdukit.platform.v1.Jobs/Pause": needs(JOBS_WRITE),
    "rdukit.platform.v1.Jobs/Resume": needs(JOBS_WRITE),
    "rdukit.platform.v1.Jobs/Watch": needs(JOBS_READ),
    "rdukit.platform.v1.Jobs/Logs": needs(JOBS_READ),
}


#: Routes that wait for a model or for content, and block no other request meanwhile.
_PATIENT: Final = frozenset(
    {
        "GET /v1/endpoints/{name}/{path:path}",
        "POST /v1/endpoints/{name}/{path:path}",
        "POST /console/endpoints/{name}/playground",
        "POST /console/endpoints/{name}/playground/stream",
        "POST /v1/artifacts",
        "POST /v1/artifacts/gc",
        "GET /v1/artifacts/{artifact_id}/content",
        "POST /v1/artifacts/{artifact_id}/verify",
        "PUT /v1/uploads/{upload_id}/files/{number}",
        "PUT /v1/uploads/{upload_id}/files",
        "POST /v1/uploads/{upload_id}/finish",
        "POST /v1/boxes",
        "GET /v1/audit/verify",
        "GET /health",
        "GET /health/live",
    }
)


def has_own_threads(route: str) -> bool:
    """Return whether requests of a route (as in ``PERMISSIONS``) need no turn of their tenant."""
    return route in _PATIENT
