"""Routes of tenants and tokens."""

from typing import Annotated

from fastapi import APIRouter, Request, status
from pydantic import BaseModel, ConfigDict, Field

from rdukit.errors import NotFound
from rdukit_platform.db.models import TenantRow
from rdukit_platform.gateway.dependencies import Admin, Reader, platform_of
from rdukit_platform.gateway.strict_route import StrictRoute
from rdukit_platform.tenants.service import READ, WRITE, create_tenant, create_token, find_tenant, list_tenants

router = APIRouter(prefix="/v1", tags=["tenants"], route_class=StrictRoute)


class Me(BaseModel):
    """Who the token belongs to."""

    tenant: "Tenant"
    scopes: list[str]


class Tenant(BaseModel):
    """A tenant."""

    id: str
    name: str
    created_at: float | None = None


class TenantList(BaseModel):
    """All tenants by name."""

    tenants: list[Tenant]


class TenantRequest(BaseModel):
    """Body of ``POST /v1/tenants``."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")]


class TokenRequest(BaseModel):
    """Body of ``POST /v1/tenants/{id}/tokens``."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(min_length=1, max_length=64)] = "token"
    scopes: list[str] = [READ, WRITE]


class Token(BaseModel):
    """A new token; its text is shown this once."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    token: str


@router.get("/me")
def me(caller: Reader) -> Me:
    """Tenant and scopes of the token."""
    return Me(tenant=Tenant(id=caller.tenant_id, name=caller.tenant_name), scopes=sorted(caller.scopes))


@router.get("/tenants")
def list_(request: Request, caller: Admin) -> TenantList:
    """All tenants."""
    with platform_of(request).database.read() as session:
        return TenantList(tenants=[_show(row) for row in list_tenants(session)])


@router.post("/tenants", status_code=status.HTTP_201_CREATED)
def create(request: Request, caller: Admin, body: TenantRequest) -> Tenant:
    """Add a tenant."""
    platform = platform_of(request)
    with platform.database.write() as session:
        return _show(create_tenant(session, body.name, platform.clock.now()))


@router.post("/tenants/{tenant_id}/tokens", status_code=status.HTTP_201_CREATED)
def create_token_(request: Request, tenant_id: str, caller: Admin, body: TokenRequest) -> Token:
    """Add a token of a tenant (by id or name)."""
    platform = platform_of(request)
    with platform.database.write() as session:
        tenant = find_tenant(session, tenant_id)
        if tenant is None:
            raise NotFound(f"there is no tenant {tenant_id!r}; list them with: rdukit tenant list")
        row, text = create_token(session, tenant.id, body.name, body.scopes, platform.clock.now())
        return Token(id=row.id, tenant=tenant.id, name=row.name, scopes=row.scopes, token=text)


def _show(row: TenantRow) -> Tenant:
    return Tenant(id=row.id, name=row.name, created_at=row.created_at)
