"""Dependencies of routes: the platform, a caller with a scope, and JSON bodies that have no key twice."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Request, Response
from fastapi.params import Body, Form
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers

from rdukit.errors import NotFound
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.bodies import MAX_VALUES, read_body
from rdukit_platform.api.context import Platform
from rdukit_platform.audit.service import Act
from rdukit_platform.identity.bearers import authenticate_bearer, is_jwt
from rdukit_platform.tenants import scopes
from rdukit_platform.tenants.permissions import ANY_TOKEN, PUBLIC, Permission, needs, needs_one
from rdukit_platform.tenants.roles import lacks_scope
from rdukit_platform.tenants.service import Caller, authenticate, find_tenant

#: Names the tenant of a request that carries a token of the issuer's.
TENANT_HEADER: Final = "Rdukit-Tenant"
#: Clients of Anthropic's and SambaStudio's APIs have the token in these, when they call an endpoint.
KEY_HEADERS: Final = ("x-api-key", "key")
ENDPOINTS: Final = "/v1/endpoints/"
#: For lists; the reading code checks the values.
Limit = Annotated[int, Query(description="Rows of a page, 1 to 200.")]
Cursor = Annotated[str | None, Query(description="next_cursor of the previous page.")]
OtherTenant = Annotated[
    str | None, Query(description="Name or id of another tenant, for callers who may manage it; default: your own.")
]
ViewedTenant = Annotated[
    str | None, Query(description="Name or id of another tenant, for administrators; the access is recorded.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=128,
        description="Idempotency key: the same key, here or in the body, gives the same answer.",
    ),
]
_bearer = HTTPBearer(auto_error=False, description="API token, or a token of the issuer")


def platform_of(request: Request) -> Platform:
    """Return the platform that this gateway serves."""
    platform: Platform = request.app.state.platform
    return platform


async def find_caller(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> Caller:
    """Return the caller that the ``Authorization`` header names. Raises as ``identify``."""
    known: Caller | None = getattr(request.state, "caller", None)
    return known if known is not None else await run_in_threadpool(identify, request)


def identify(request: Request) -> Caller:
    """Return the caller of the ``Authorization`` header, which is checked once.

    Raises:
        Unauthenticated: the header is missing, or its token is not valid.
        Overloaded: the token or its tenant sends too many requests.
    """
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None:
        return known
    token = token_of(request.scope["path"], request.headers)
    caller = authenticate_token(platform_of(request), token, request.headers.get(TENANT_HEADER, ""))
    request.state.caller = caller
    platform_of(request).rates.check(caller)
    return caller


def token_of(path: str, headers: Headers) -> str | None:
    """Return the token in the ``Authorization`` header, or where clients of an endpoint's API send it."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token.strip()
    if path.startswith(ENDPOINTS):
        return next((headers[name].strip() for name in KEY_HEADERS if name in headers), None)
    return None


def authenticate_token(platform: Platform, token: str | None, tenant: str = "") -> Caller:
    """Return the caller whose token this is, and record the use of the token. Raises as ``authenticate``.

    Args:
        tenant: name of the tenant to enter, for a user with an issuer's token; empty: the user's first. Other tokens
            are of one tenant.
    """
    if token and is_jwt(token):
        caller = authenticate_bearer(platform.database, platform.issuer, token, tenant, platform.clock)
    else:
        with platform.database.read() as session:
            caller = authenticate(session, token, platform.clock.now())
    platform.audit.used(caller.token_id)
    return caller


def check_permission(caller: Caller, permission: Permission) -> None:
    """Refuse a caller whose scopes do not satisfy the permission.

    Raises:
        PermissionDenied: this is so.
    """
    if permission.lets_in(caller.scopes):
        return
    if len(permission.alternatives) == 1:
        for scope in sorted(permission.alternatives[0]):
            check_scope(caller, scope)
    raise lacks_scope(caller.scopes, str(permission).replace("`", ""), permission.alternatives)


def check_scope(caller: Caller, scope: str) -> Caller:
    """Return ``caller`` if its token has the scope, or one that includes it.

    Raises:
        PermissionDenied: the caller lacks the scope.
    """
    if not scopes.allows(caller.scopes, scope):
        raise lacks_scope(caller.scopes, scope)
    return caller


_Known = Annotated[Caller, Depends(find_caller)]


@dataclass(frozen=True)
class Needs:
    """Dependency of a route: a caller whom ``permission`` lets in. It declares the permission of the route."""

    permission: Permission

    async def __call__(self, caller: _Known) -> Caller:  # a function that is not async waits for a thread
        """Return the caller. Raises as ``check_permission``."""
        check_permission(caller, self.permission)
        return caller


@dataclass(frozen=True)
class Views:
    """Dependency of a route: a caller with ``permission``, or an administrator who reads another tenant's data."""

    permission: Permission

    async def __call__(self, request: Request, caller: _Known, tenant: ViewedTenant = None) -> Caller:
        """Return the caller with the tenant that it reads. Raises as ``check_permission`` and ``_view_tenant``."""
        if tenant is None or tenant in (caller.tenant_id, caller.tenant_name):
            check_permission(caller, self.permission)
            return caller
        return await run_in_threadpool(_view_tenant, request, check_scope(caller, scopes.ADMIN), tenant)


@dataclass(frozen=True)
class Public:
    """Dependency of a route that callers without a token may call, too."""

    permission: Permission = PUBLIC

    async def __call__(self) -> None:
        """Allow every request."""


def _view_tenant(request: Request, caller: Caller, tenant: str) -> Caller:
    """Return an administrator as a viewer of another tenant, and record that.

    Raises:
        NotFound: there is no such tenant.
    """
    platform = platform_of(request)
    with platform.database.read() as session:
        found = find_tenant(session, tenant)
    if found is None:
        raise NotFound(f"there is no tenant {tenant[:80]!r}; list them with: rdukit tenant list")
    target = f"{request.method} {request.url.path}"
    platform.audit.note(entry_of(request, caller, Act.VIEW_TENANT, target, found.id))
    return replace(caller, tenant_id=found.id, tenant_name=found.name)


#: For ``dependencies`` of a route.
PUBLIC_ROUTE: Final = Depends(Public())
Anyone = Annotated[Caller, Depends(Needs(ANY_TOKEN))]
Reader = Annotated[Caller, Depends(Needs(needs(scopes.READ)))]
Admin = Annotated[Caller, Depends(Needs(needs(scopes.ADMIN)))]
JobsReader = Annotated[Caller, Depends(Needs(needs(scopes.JOBS_READ)))]
JobsViewer = Annotated[Caller, Depends(Views(needs(scopes.JOBS_READ)))]
JobsWriter = Annotated[Caller, Depends(Needs(needs(scopes.JOBS_WRITE)))]
ArtifactsReader = Annotated[Caller, Depends(Needs(needs(scopes.ARTIFACTS_READ)))]
ArtifactsWriter = Annotated[Caller, Depends(Needs(needs(scopes.ARTIFACTS_WRITE)))]
BoxesReader = Annotated[Caller, Depends(Needs(needs(scopes.BOXES_READ)))]
BoxesWriter = Annotated[Caller, Depends(Needs(needs(scopes.BOXES_WRITE)))]
EndpointsReader = Annotated[Caller, Depends(Needs(needs(scopes.ENDPOINTS_READ)))]
EndpointsViewer = Annotated[Caller, Depends(Views(needs(scopes.ENDPOINTS_READ)))]
EndpointsWriter = Annotated[Caller, Depends(Needs(needs(scopes.ENDPOINTS_WRITE)))]
EndpointsCaller = Annotated[Caller, Depends(Needs(needs(scopes.ENDPOINTS_CALL)))]
NodesReader = Annotated[Caller, Depends(Needs(needs_one(scopes.METRICS, scopes.READ)))]
MembersKeeper = Annotated[Caller, Depends(Needs(needs(scopes.MEMBERS)))]
MetricsReader = Annotated[Caller, Depends(Needs(needs_one(scopes.METRICS, scopes.JOBS_READ, scopes.ENDPOINTS_READ)))]
#: Receivers of messages about jobs could read them.
WebhookKeeper = Annotated[Caller, Depends(Needs(needs(scopes.JOBS_READ, scopes.JOBS_WRITE)))]
TokenKeeper = Annotated[Caller, Depends(Needs(needs(scopes.TOKENS)))]


class StrictJsonRequest(Request):
    """A request that reads its JSON strictly. FastAPI wraps errors of the body: see the cause of its HTTP error."""

    #: Adapter of the route's body; FastAPI uses its result unchanged.
    adapter: TypeAdapter[Any] | None = None
    max_values = MAX_VALUES

    async def json(self) -> Any:
        """Return the body's value. Raises as ``read_body``."""
        return await read_body(platform_of(self).bodies, await self.body(), self.adapter, self.max_values)


class StrictJsonRoute(APIRoute):
    """A route of such requests."""

    #: Values that a body may have.
    max_values = MAX_VALUES

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given a strict request."""
        handle, field = super().get_route_handler(), self.body_field
        is_json = field is not None and isinstance(field.field_info, Body) and not isinstance(field.field_info, Form)
        is_whole = is_json and not self._embed_body_fields
        taken: Any = field.field_info.annotation if field is not None and is_whole else None
        adapter = None if taken is None else TypeAdapter(taken)

        async def strictly(request: Request) -> Response:
            strict = StrictJsonRequest(request.scope, request.receive, request._send)
            strict.adapter, strict.max_values = adapter, self.max_values
            return await handle(strict)

        return strictly
