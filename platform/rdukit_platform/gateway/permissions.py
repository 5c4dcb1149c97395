"""Permissions of the gateway's routes (pure): which scopes each asks for. The manual's page is written from this table.

``gateway.guard`` enforces the table at each request: a route that is not in it is nobody's. What a route's own code
asks for comes after. ``tests/security/test_permissions.py`` tries every route with every role, for its own tenant and
another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rdukit_platform.tenants.roles import ROLES
from rdukit_platform.tenants.scopes import (
    ADMIN,
    ARTIFACTS_READ,
    ARTIFACTS_WRITE,
    BOXES_READ,
    BOXES_WRITE,
    ENDPOINTS_CALL,
    ENDPOINTS_READ,
    ENDPOINTS_WRITE,
    JOBS_READ,
    JOBS_WRITE,
    MEMBERS,
    METRICS,
    READ,
    TOKENS,
    all_of,
)


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission for a route: all scopes of one of ``alternatives``. Without any, ``needs_token`` says who may."""

    alternatives: tuple[frozenset[str], ...] = ()
    needs_token: bool = True

    def lets_in(self, scopes: Iterable[str]) -> bool:
        """Return whether a caller with ``scopes`` may call the route."""
        own = all_of(scopes)
        return not self.alternatives or any(needed <= own for needed in self.alternatives)

    def __str__(self) -> str:
        if not self.alternatives:
            return "any token" if self.needs_token else "nobody's leave"
        return " or ".join(" and ".join(f"`{scope}`" for scope in sorted(each)) for each in self.alternatives)


#: Callers without a token get in, too.
PUBLIC: Final = Permission(needs_token=False)
ANY_TOKEN: Final = Permission()


def needs(*scopes: str) -> Permission:
    """Return the permission that asks for all of ``scopes``."""
    return Permission((frozenset(scopes),))


def needs_one(*scopes: str) -> Permission:
    """Return the permission that asks for any of ``scopes``."""
    return Permission(tuple(frozenset({scope}) for scope in scopes))


_VISIT: Final = needs(READ)
_KEEPS_WEBHOOKS: Final = needs(JOBS_READ, JOBS_WRITE)
_KEEPS_ENDPOINTS: Final = needs(READ, ENDPOINTS_WRITE)

#: Method and path of each route, as the application declares them.
PERMISSIONS: Final[Mapping[str, Permission]] = {
    "GET /openapi.json": PUBLIC,
    "GET /": PUBLIC,
    "GET /docs": PUBLIC,
    "GET /docs/static/{name}": PUBLIC,
    "GET /health": PUBLIC,
    "GET /health/live": PUBLIC,
    "GET /metrics": needs_one(METRICS, JOBS_READ, ENDPOINTS_READ),
    "GET /v1/me": ANY_TOKEN,
    "GET /v1/roles": ANY_TOKEN,
    "GET /v1/jobs": needs(JOBS_READ),
    "POST /v1/jobs": needs(JOBS_WRITE),
    "POST /v1/jobs/batch": needs(JOBS_WRITE),
    "POST /v1/jobs/check": needs(JOBS_WRITE),
    "GET /v1/jobs/compare": needs(JOBS_READ),
    "GET /v1/jobs/{job_id}": needs(JOBS_READ),
    "GET /v1/jobs/{job_id}/events": needs(JOBS_READ),
    "GET /v1/jobs/{job_id}/logs": needs(JOBS_READ),
    "GET /v1/jobs/{job_id}/metrics": needs(JOBS_READ),
    "GET /v1/jobs/{job_id}/trace": needs(JOBS_READ),
    "POST /v1/jobs/{job_id}/cancel": needs(JOBS_WRITE),
    "POST /v1/jobs/{job_id}/pause": needs(JOBS_WRITE),
    "POST /v1/jobs/{job_id}/resume": needs(JOBS_WRITE),
    "POST /v1/jobs/{job_id}/clone": needs(JOBS_WRITE),
    "GET /v1/pipelines": needs(JOBS_READ),
    "POST /v1/pipelines": needs(JOBS_WRITE),
    "GET /v1/pipelines/{pipeline_id}": needs(JOBS_READ),
    "POST /v1/pipelines/{pipeline_id}/cancel": needs(JOBS_WRITE),
    "GET /v1/schedules": needs(JOBS_READ),
    "POST /v1/schedules": needs(JOBS_WRITE),
    "GET /v1/schedules/{schedule}": needs(JOBS_READ),
    "DELETE /v1/schedules/{schedule}": needs(JOBS_WRITE),
    "POST /v1/schedules/{schedule}/pause": needs(JOBS_WRITE),
    "POST /v1/schedules/{schedule}/resume": needs(JOBS_WRITE),
    "GET /v1/sweeps": needs(JOBS_READ),
    "POST /v1/sweeps": needs(JOBS_WRITE),
    "GET /v1/sweeps/{sweep_id}": needs(JOBS_READ),
    "POST /v1/sweeps/{sweep_id}/cancel": needs(JOBS_WRITE),
    "GET /v1/webhooks": needs(JOBS_READ),
    "POST /v1/webhooks": _KEEPS_WEBHOOKS,
    "GET /v1/webhooks/{webhook_id}": needs(JOBS_READ),
    "DELETE /v1/webhooks/{webhook_id}": _KEEPS_WEBHOOKS,
    "POST /v1/webhooks/{webhook_id}/disable": _KEEPS_WEBHOOKS,
    "POST /v1/webhooks/{webhook_id}/enable": _KEEPS_WEBHOOKS,
    "POST /v1/webhooks/{webhook_id}/rotate": _KEEPS_WEBHOOKS,
    "POST /v1/webhooks/{webhook_id}/test": _KEEPS_WEBHOOKS,
    "GET /v1/webhooks/{webhook_id}/deliveries": needs(JOBS_READ),
    "GET /v1/webhooks/{webhook_id}/deliveries/{delivery_id}": needs(JOBS_READ),
    "POST /v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": _KEEPS_WEBHOOKS,
    "GET /v1/artifacts": needs(ARTIFACTS_READ),
    "POST /v1/artifacts": needs(ARTIFACTS_WRITE),
    "GET /v1/artifacts/usage": needs(ARTIFACTS_READ),
    "POST /v1/artifacts/gc": needs(ADMIN),
    "GET /v1/artifacts/{artifact_id}": needs(ARTIFACTS_READ),
    "DELETE /v1/artifacts/{artifact_id}": needs(ARTIFACTS_WRITE),
    "GET /v1/artifacts/{artifact_id}/content": needs(ARTIFACTS_READ),
    "GET /v1/artifacts/{artifact_id}/lineage": needs(ARTIFACTS_READ),
    "PUT /v1/artifacts/{artifact_id}/pin": needs(ARTIFACTS_WRITE),
    "DELETE /v1/artifacts/{artifact_id}/pin": needs(ARTIFACTS_WRITE),
    "POST /v1/artifacts/{artifact_id}/verify": needs(ARTIFACTS_READ),
    "POST /v1/uploads": needs(ARTIFACTS_WRITE),
    "GET /v1/uploads/{upload_id}": needs(ARTIFACTS_WRITE),
    "DELETE /v1/uploads/{upload_id}": needs(ARTIFACTS_WRITE),
    "PUT /v1/uploads/{upload_id}/files/{number}": needs(ARTIFACTS_WRITE),
    "PUT /v1/uploads/{upload_id}/files": needs(ARTIFACTS_WRITE),
    "POST /v1/uploads/{upload_id}/finish": needs(ARTIFACTS_WRITE),
    "GET /v1/catalog": needs(BOXES_READ),
    "GET /v1/catalog/{box}": needs(BOXES_READ),
    "GET /v1/catalog/{box}/picture": needs(BOXES_READ),
    "GET /v1/entries": needs(BOXES_READ),
    "GET /v1/entries/compare": needs(BOXES_READ),
    "GET /v1/entries/show": needs(BOXES_READ),
    "GET /v1/boxes": needs(BOXES_READ),
    "POST /v1/boxes": needs(BOXES_WRITE),
    "DELETE /v1/boxes/{box}": needs(BOXES_WRITE),
    "GET /v1/experts": needs(BOXES_READ),
    "POST /v1/experts": needs(BOXES_WRITE),
    "GET /v1/experts/{expert}": needs(BOXES_READ),
    "POST /v1/experts/{expert}/deprecate": needs(BOXES_WRITE),
    "GET /v1/endpoints": needs(ENDPOINTS_READ),
    "POST /v1/endpoints": needs(ENDPOINTS_WRITE),
    "GET /v1/endpoints/{name}": needs(ENDPOINTS_READ),
    "DELETE /v1/endpoints/{name}": needs(ENDPOINTS_WRITE),
    "POST /v1/endpoints/{name}/update": needs(ENDPOINTS_WRITE),
    "POST /v1/endpoints/{name}/promote": needs(ENDPOINTS_WRITE),
    "POST /v1/endpoints/{name}/rollback": needs(ENDPOINTS_WRITE),
    "GET /v1/endpoints/{name}/{path:path}": needs(ENDPOINTS_CALL),
    "POST /v1/endpoints/{name}/{path:path}": needs(ENDPOINTS_CALL),
    "GET /v1/nodes": needs_one(METRICS, READ),
    "POST /v1/nodes/{node}/cordon": needs(ADMIN),
    "POST /v1/nodes/{node}/uncordon": needs(ADMIN),
    "POST /v1/nodes/{node}/drain": needs(ADMIN),
    "POST /v1/nodes/{node}/leases/{lease}/release": needs(ADMIN),
    "POST /v1/nodes/{node}/maintenance": needs(ADMIN),
    "POST /v1/nodes/{node}/leave": needs(ADMIN),
    "POST /v1/nodes/{node}/rejoin": needs(ADMIN),
    "POST /v1/nodes/{node}/labels": needs(ADMIN),
    "DELETE /v1/nodes/{node}/maintenance/{window}": needs(ADMIN),
    "GET /v1/tenants": needs(ADMIN),
    "POST /v1/tenants": needs(ADMIN),
    "GET /v1/tenants/{tenant_id}": needs(READ),
    "PATCH /v1/tenants/{tenant_id}": needs(ADMIN),
    "POST /v1/tenants/{tenant_id}/tokens": needs(ADMIN),
    "GET /v1/tokens": needs(TOKENS),
    "POST /v1/tokens": needs(TOKENS),
    "DELETE /v1/tokens/{token_id}": needs(TOKENS),
    "POST /v1/tokens/{token_id}/rotate": needs(TOKENS),
    "POST /v1/tokens/{token_id}/block": needs(ADMIN),
    "POST /v1/tokens/{token_id}/unblock": needs(ADMIN),
    "GET /v1/load": needs(ADMIN),
    "GET /v1/members": needs(READ),
    "POST /v1/members": needs(MEMBERS),
    "PATCH /v1/members/{user}": needs(MEMBERS),
    "DELETE /v1/members/{user}": needs(MEMBERS),
    "GET /v1/users": needs(ADMIN),
    "PATCH /v1/users/{user}": needs(ADMIN),
    "GET /v1/organisations": needs(ADMIN),
    "POST /v1/organisations": needs(ADMIN),
    "PUT /v1/organisations/{organisation}/tenants/{tenant}": needs(ADMIN),
    "DELETE /v1/organisations/{organisation}/tenants/{tenant}": needs(ADMIN),
    "PUT /v1/organisations/{organisation}/admins/{user}": needs(ADMIN),
    "DELETE /v1/organisations/{organisation}/admins/{user}": needs(ADMIN),
    "GET /v1/audit": needs(READ),
    "GET /v1/audit/verify": needs(READ),
    "GET /v1/audit/export": needs(ADMIN),
    "POST /v1/login/device": PUBLIC,
    "POST /v1/login/token": PUBLIC,
    "POST /v1/logout": ANY_TOKEN,
    "GET /console": PUBLIC,
    "GET /console/static/{name}": PUBLIC,
    "GET /console/login": PUBLIC,
    "POST /console/login": PUBLIC,
    "POST /console/logout": PUBLIC,
    "GET /console/oidc/login": PUBLIC,
    "GET /console/oidc/callback": PUBLIC,
    "GET /console/device": _VISIT,
    "POST /console/device": _VISIT,
    "POST /console/tenant": _VISIT,
    "GET /console/members": _VISIT,
    "POST /console/members": needs(READ, MEMBERS),
    "POST /console/members/{user}/role": needs(READ, MEMBERS),
    "POST /console/members/{user}/remove": needs(READ, MEMBERS),
    "GET /console/tenants": _VISIT,
    "POST /console/tenants": needs(READ, ADMIN),
    "GET /console/tenants/{tenant}": _VISIT,
    "POST /console/tenants/{tenant}": needs(READ, ADMIN),
    "GET /console/webhooks": _VISIT,
    "POST /console/webhooks": needs(READ, JOBS_WRITE),
    "GET /console/webhooks/{webhook_id}": _VISIT,
    "GET /console/webhooks/{webhook_id}/part": _VISIT,
    "POST /console/webhooks/{webhook_id}/test": needs(READ, JOBS_WRITE),
    "POST /console/webhooks/{webhook_id}/disable": needs(READ, JOBS_WRITE),
    "POST /console/webhooks/{webhook_id}/enable": needs(READ, JOBS_WRITE),
    "POST /console/webhooks/{webhook_id}/rotate": needs(READ, JOBS_WRITE),
    "POST /console/webhooks/{webhook_id}/remove": needs(READ, JOBS_WRITE),
    "POST /console/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": needs(READ, JOBS_WRITE),
    "GET /console/": _VISIT,
    "GET /console/parts/jobs": _VISIT,
    "GET /console/jobs/{job_id}": _VISIT,
    "GET /console/jobs/{job_id}/part": _VISIT,
    "GET /console/jobs/{job_id}/log": _VISIT,
    "POST /console/jobs/{job_id}/cancel": needs(READ, JOBS_WRITE),
    "POST /console/jobs/{job_id}/pause": needs(READ, JOBS_WRITE),
    "POST /console/jobs/{job_id}/resume": needs(READ, JOBS_WRITE),
    "POST /console/jobs/{job_id}/promote": needs(READ, BOXES_WRITE),
    "POST /console/pipelines/{pipeline_id}/cancel": needs(READ, JOBS_WRITE),
    "GET /console/pipelines": _VISIT,
    "GET /console/parts/pipelines": _VISIT,
    "GET /console/parts/sweeps": _VISIT,
    "GET /console/pipelines/{pipeline_id}": _VISIT,
    "GET /console/pipelines/{pipeline_id}/part": _VISIT,
    "POST /console/schedules/{schedule}/pause": needs(READ, JOBS_WRITE),
    "POST /console/schedules/{schedule}/resume": needs(READ, JOBS_WRITE),
    "GET /console/artifacts": _VISIT,
    "GET /console/artifacts/{artifact_id}": _VISIT,
    "GET /console/artifacts/{artifact_id}/picture": _VISIT,
    "GET /console/nodes": _VISIT,
    "GET /console/parts/nodes": _VISIT,
    "POST /console/nodes/maintenance": needs(READ, ADMIN),
    "GET /console/catalog": _VISIT,
    "GET /console/entries/compare": _VISIT,
    "GET /console/catalog/{name}": _VISIT,
    "GET /console/catalog/{name}/picture": _VISIT,
    "GET /console/jobs/{job_id}/again": _VISIT,
    "GET /console/catalog/{name}/run/{verb}": _VISIT,
    "POST /console/catalog/{name}/run/{verb}": needs(READ, JOBS_WRITE),
    "GET /console/catalog/{name}/pipeline": _VISIT,
    "POST /console/catalog/{name}/pipeline": needs(READ, JOBS_WRITE),
    "GET /console/sweeps/new": _VISIT,
    "GET /console/jobs/{job_id}/sweep": _VISIT,
    "GET /console/catalog/{name}/sweep/{verb}": _VISIT,
    "POST /console/catalog/{name}/sweep/{verb}": needs(READ, JOBS_WRITE),
    "GET /console/compare": _VISIT,
    "GET /console/sweeps": _VISIT,
    "GET /console/sweeps/{sweep_id}": _VISIT,
    "GET /console/sweeps/{sweep_id}/part": _VISIT,
    "POST /console/sweeps/{sweep_id}/cancel": needs(READ, JOBS_WRITE),
    "GET /console/experts": _VISIT,
    "GET /console/experts/{name}": _VISIT,
    "POST /console/experts/{name}/deprecate": needs(READ, BOXES_WRITE),
    "GET /console/endpoints": _VISIT,
    "GET /console/endpoints/{name}": _VISIT,
    "GET /console/endpoints/{name}/part": _VISIT,
    "GET /console/new/endpoint": _VISIT,
    "POST /console/endpoints": _KEEPS_ENDPOINTS,
    "GET /console/endpoints/{name}/revision": _VISIT,
    "POST /console/endpoints/{name}/revision": _KEEPS_ENDPOINTS,
    "POST /console/endpoints/{name}/scale": _KEEPS_ENDPOINTS,
    "POST /console/endpoints/{name}/canary": _KEEPS_ENDPOINTS,
    "POST /console/endpoints/{name}/promote": _KEEPS_ENDPOINTS,
    "POST /console/endpoints/{name}/rollback": _KEEPS_ENDPOINTS,
    "POST /console/endpoints/{name}/delete": _KEEPS_ENDPOINTS,
    "GET /console/endpoints/{name}/playground": _VISIT,
    "POST /console/endpoints/{name}/playground": needs(READ, ENDPOINTS_CALL),
    "GET /console/audit": _VISIT,
    "GET /console/tokens": needs(READ, TOKENS),
    "POST /console/tokens": needs(READ, TOKENS),
    "POST /console/tokens/{token_id}/rotate": needs(READ, TOKENS),
    "POST /console/tokens/{token_id}/revoke": needs(READ, TOKENS),
}

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


#: Routes that wait for a model or for content, and keep no other request from being served meanwhile.
_PATIENT: Final = frozenset(
    {
        "GET /v1/endpoints/{name}/{path:path}",
        "POST /v1/endpoints/{name}/{path:path}",
        "POST /console/endpoints/{name}/playground",
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
    """Return whether requests of a route (as in ``PERMISSIONS``) take no turn of their tenant's."""
    return route in _PATIENT


def is_public(route: str) -> bool:
    """Return whether a route (method and path, without parameters in it) is everybody's."""
    permission = PERMISSIONS.get(route)
    return permission is not None and not permission.needs_token


def roles_let_in(permission: Permission) -> list[str]:
    """Return the names of the roles that may call a route of this permission."""
    return [role.name for role in ROLES.values() if permission.lets_in(role.scopes)]
