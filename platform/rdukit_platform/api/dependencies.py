"""Dependencies of routes: the platform, a caller with a scope, and JSON bodies that have no key twice."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
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
from rdukit_platform.tenants.roles import lacks_scope
from rdukit_platform.tenants.service import Caller, authenticate, find_tenant

#: Names the tenant of a request that carries a token of the issuer's.
TENANT_HEADER: Final = "Rdukit-Tenant"
#: Clients of Anthropic's and SambaStudio's APIs have the token in these, when they call an endpoint.
KEY_HEADERS: Final = ("x-api-key", "key")
ENDPOINTS: Final = "/v1/endpoints/"
#: Of lists; what is legal is checked where they are read.
Limit = Annotated[int, Query(description="Rows of a page, 1 to 200.")]
Cursor = Annotated[str | None, Query(description="next_cursor of the page before.")]
OtherTenant = Annotated[
    str | None, Query(description="Name or id of another tenant, for those who may manage it; by default one's own.")
]
ViewedTenant = Annotated[
    str | None, Query(description="Name or id of another tenant, for administrators: it is looked at, and recorded.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(min_length=1, max_length=128, description="The same key, here or in the body, gives the same answer."),
]
_bearer = HTTPBearer(auto_error=False, description="API token, or a token of the issuer's")


def platform_of(request: Request) -> Platform:
    """Return the platform that this gateway serves."""
    platform: Platform = request.app.state.platform
    return platform


async def find_caller(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> Caller:
    """Return the caller that the ``Authorization`` header names. Raises as ``identify``."""
    known: Caller | None = getattr(request.state, "caller", None)
    return known if known is not None else await run_in_threadpool(identify, request)


def identify(request: Request) -> Caller:
    """Return the caller that the ``Authorization`` header names; it is looked at once.

    Raises:
        Unauthenticated: there is none, or its token is not valid.
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
    """Return the caller whose token this is; that it was used is noted. Raises as ``authenticate``.

    Args:
        tenant: name of the tenant that is meant, of those which the user of an issuer's token may enter; empty: the
            first. Other tokens are of one tenant.
    """
    if token and is_jwt(token):
        caller = authenticate_bearer(platform.database, platform.issuer, token, tenant, platform.clock)
    else:
        with platform.database.read() as session:
            caller = authenticate(session, token, platform.clock.now())
    platform.audit.used(caller.token_id)
    return caller


Anyone = Annotated[Caller, Depends(find_caller)]


def check_scope(caller: Caller, scope: str) -> Caller:
    """``caller`` if its token has the scope, or one that includes it.

    Raises:
        PermissionDenied: it has not.
    """
    if not scopes.allows(caller.scopes, scope):
        raise lacks_scope(caller.scopes, scope)
    return caller


def _needs(scope: str) -> Callable[[Caller], Coroutine[Any, Any, Caller]]:
    async def check(caller: Anyone) -> Caller:  # what is not async waits for a thread
        return check_scope(caller, scope)

    return check


def _views(scope: str) -> Callable[..., Coroutine[Any, Any, Caller]]:
    async def check(request: Request, caller: Anyone, tenant: ViewedTenant = None) -> Caller:
        if tenant is None or tenant in (caller.tenant_id, caller.tenant_name):
            return check_scope(caller, scope)
        return await run_in_threadpool(_view_tenant, request, check_scope(caller, scopes.ADMIN), tenant)

    return check


def _view_tenant(request: Request, caller: Caller, tenant: str) -> Caller:
    """Return an administrator as who looks at another tenant's things, and record that it does.

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


async def _keeps_webhooks(caller: Anyone) -> Caller:
    # Who is told of jobs could read them.
    return check_scope(check_scope(caller, scopes.JOBS_READ), scopes.JOBS_WRITE)


async def _reads_nodes(caller: Anyone) -> Caller:
    return caller if scopes.allows(caller.scopes, scopes.METRICS) else check_scope(caller, scopes.READ)


Reader = Annotated[Caller, Depends(_needs(scopes.READ))]
Admin = Annotated[Caller, Depends(_needs(scopes.ADMIN))]
JobsReader = Annotated[Caller, Depends(_needs(scopes.JOBS_READ))]
JobsViewer = Annotated[Caller, Depends(_views(scopes.JOBS_READ))]
JobsWriter = Annotated[Caller, Depends(_needs(scopes.JOBS_WRITE))]
ArtifactsReader = Annotated[Caller, Depends(_needs(scopes.ARTIFACTS_READ))]
ArtifactsWriter = Annotated[Caller, Depends(_needs(scopes.ARTIFACTS_WRITE))]
BoxesReader = Annotated[Caller, Depends(_needs(scopes.BOXES_READ))]
BoxesWriter = Annotated[Caller, Depends(_needs(scopes.BOXES_WRITE))]
EndpointsReader = Annotated[Caller, Depends(_needs(scopes.ENDPOINTS_READ))]
EndpointsViewer = Annotated[Caller, Depends(_views(scopes.ENDPOINTS_READ))]
EndpointsWriter = Annotated[Caller, Depends(_needs(scopes.ENDPOINTS_WRITE))]
EndpointsCaller = Annotated[Caller, Depends(_needs(scopes.ENDPOINTS_CALL))]
NodesReader = Annotated[Caller, Depends(_reads_nodes)]
MembersKeeper = Annotated[Caller, Depends(_needs(scopes.MEMBERS))]
WebhookKeeper = Annotated[Caller, Depends(_keeps_webhooks)]
TokenKeeper = Annotated[Caller, Depends(_needs(scopes.TOKENS))]


class StrictJsonRequest(Request):
    """A request that reads its JSON strictly. FastAPI wraps what is wrong with it: see the cause of its HTTP error."""

    #: Takes what the route takes; FastAPI takes what it returns as it is.
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
