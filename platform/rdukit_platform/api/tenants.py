"""Routes of tenants and tokens."""

from collections.abc import Set
from typing import Annotated

from fastapi import APIRouter, Query, Request, status
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from rdukit.errors import InvalidArgument, NotFound
from rdukit.settings import resolve
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import (
    Admin,
    Anyone,
    Cursor,
    Limit,
    OtherTenant,
    Reader,
    StrictJsonRoute,
    TokenKeeper,
    platform_of,
)
from rdukit_platform.artifacts.service import ArtifactUseView
from rdukit_platform.audit.service import ADMINISTRATOR, Act, record
from rdukit_platform.db.models import TenantRow, TokenRow, UserRow
from rdukit_platform.jobs.schemas import RequestBody
from rdukit_platform.jobs.tenant_use import read_tenant_uses
from rdukit_platform.settings import TOKEN_GRACE_S
from rdukit_platform.tenants.roles import ROLES, choose_scopes
from rdukit_platform.tenants.scopes import ADMIN
from rdukit_platform.tenants.service import Caller, check_may_add, create_tenant, find_tenant, list_tenants
from rdukit_platform.tenants.standing import find_standing, tenants_of_user
from rdukit_platform.tenants.tokens import (
    GLASS,
    HOST,
    block_token,
    give_token,
    list_tokens,
    own_tokens,
    revoke_tokens,
    rotate_token,
)

router = APIRouter(prefix="/v1", tags=["tenants"], route_class=StrictJsonRoute)

WithMade = Annotated[bool, Query(description="Also revoke the tokens created with it, directly or indirectly.")]


class Me(BaseModel):
    """Owner of the token."""

    tenant: "Tenant"
    scopes: list[str]
    #: Id of the token.
    token: str
    expires_at: float | None
    #: User that owns the token; null: the tenant owns it.
    user: "MyUser | None" = None


class MyUser(BaseModel):
    """The user that owns a token."""

    id: str
    email: str
    name: str
    #: Its role in the tenant.
    role: str
    #: Names of the tenants that it may enter.
    tenants: list[str]


class Tenant(BaseModel):
    """A tenant."""

    id: str
    name: str
    created_at: float | None = None
    weight: float | None = None
    #: Guaranteed tiles, limit of tiles, and limit of active jobs; null: not set.
    quota: int | None = None
    max_tiles: int | None = None
    max_jobs: int | None = None


class TenantList(BaseModel):
    """Tenants by name."""

    tenants: list[Tenant]


#: Weight of a tenant's share in the scheduler.
Weight = Annotated[float, Field(ge=0.01, le=1000, allow_inf_nan=False)]


class TenantDetail(Tenant):
    """A tenant, and its present use."""

    #: Tiles that its active jobs have or are about to get, and its active and queued jobs.
    tiles: int
    active_jobs: int
    queued_jobs: int
    #: Its own limit of bytes, if it has one; 0: no limit.
    artifact_bytes: int | None
    artifacts: ArtifactUseView


#: Tiles or jobs, on all nodes together.
Count = Annotated[int, Field(ge=0, le=1_000_000)]


class TenantLimits(RequestBody):
    """Base of requests with a tenant's limits; null is the same as a missing key."""

    quota: Count | None = Field(
        default=None, description="Quota: tiles guaranteed to the tenant; further tiles are borrowed."
    )
    max_tiles: Count | None = Field(default=None, description="Limit of tiles for its jobs and endpoints.")
    max_jobs: Count | None = Field(default=None, description="Limit of active jobs; default: scheduler.tenant_jobs.")


class TenantRequest(TenantLimits):
    """Body of ``POST /v1/tenants``."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
    weight: Weight = 1.0


class TenantChange(TenantLimits):
    """Body of ``PATCH /v1/tenants/{id}``: the changes."""

    weight: Weight | None = None
    #: Limit of bytes of artifacts; 0: no limit; null: the setting ``artifacts.tenant_bytes``.
    artifact_bytes: Annotated[int, Field(ge=0, lt=1 << 62)] | None = None


class TokenRequest(RequestBody):
    """Body of ``POST /v1/tokens`` and ``POST /v1/tenants/{id}/tokens``."""

    name: Annotated[str, Field(min_length=1, max_length=64)] = "token"
    #: Instead of a role; without either ``read`` and ``write``.
    scopes: Annotated[list[str] | None, Field(max_length=32)] = None
    #: Name of a role, whose scopes it gets: ``GET /v1/roles``.
    role: Annotated[str | None, Field(max_length=64)] = None
    #: Lifetime in seconds; default: its creator's remaining lifetime, or ``token.max_days``.
    expires_in_s: Annotated[float | None, Field(gt=0, le=1e10, allow_inf_nan=False)] = None


class RotateRequest(RequestBody):
    """Body of ``POST /v1/tokens/{id}/rotate``."""

    #: Seconds that the old token stays valid; without it ``token.grace_s``.
    grace_s: Annotated[float | None, Field(ge=0, le=30 * 86400, allow_inf_nan=False)] = None


class Token(BaseModel):
    """A new token; its text is shown only once."""

    id: str
    tenant: str
    name: str
    scopes: list[str]
    role: str | None
    token: str
    expires_at: float | None


class TokenView(BaseModel):
    """A token, without its text, which only its holder knows."""

    id: str
    name: str
    scopes: list[str]
    #: Role at its creation.
    role: str | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    #: Time at which an administrator blocked it; null: not blocked.
    blocked_at: float | None = None
    #: When it was last used, to about a minute.
    last_used_at: float | None
    #: The token that created it (administrator: another tenant's), or host, or break-glass; null: not recorded.
    made_by: str | None
    #: The token that replaces it after a rotation.
    replaced_by: str | None
    #: User that owns it; null: the tenant owns it.
    user_id: str | None = None


class TokenPage(BaseModel):
    """A tenant's tokens, newest first; ``next_cursor`` asks for the rest."""

    tokens: list[TokenView]
    next_cursor: str | None


class RoleView(BaseModel):
    """A role: a name for scopes."""

    name: str
    title: str
    scopes: list[str]
    purpose: str


class RoleList(BaseModel):
    """The roles, in the order in which the manual has them."""

    roles: list[RoleView]


class RevokedTokens(BaseModel):
    """Ids of the tokens that ended with the request."""

    revoked: list[str]


@router.get("/me")
def me(request: Request, caller: Anyone) -> Me:
    """Show the token's owner and scopes. Any token may ask."""
    return show_me(platform_of(request), caller)


def show_me(platform: Platform, caller: Caller) -> Me:
    """Return the owner of the caller's token."""
    with platform.database.read() as session:
        tenant = show_tenant(session.get_one(TenantRow, caller.tenant_id))
    user = read_user(platform, caller)
    return Me(
        tenant=tenant, scopes=sorted(caller.scopes), token=caller.token_id, expires_at=caller.expires_at, user=user
    )


def read_user(platform: Platform, caller: Caller) -> MyUser | None:
    """Read the user that owns a caller's token."""
    if caller.user_id is None:
        return None
    with platform.database.read() as session:
        row = session.get_one(UserRow, caller.user_id)
        standing = find_standing(session, row.id, caller.tenant_id)
        names = [tenant.name for tenant in tenants_of_user(session, row)]
    return MyUser(id=row.id, email=row.email, name=row.name, role=standing.role if standing else "", tenants=names)


@router.get("/roles")
def list_roles(caller: Anyone) -> RoleList:
    """List the roles and their scopes. Any token may ask."""
    return RoleList(
        roles=[
            RoleView(name=role.name, title=role.title, scopes=list(role.scopes), purpose=role.purpose)
            for role in ROLES.values()
        ]
    )


@router.get("/tenants")
def list_(request: Request, caller: Admin) -> TenantList:
    """List all tenants."""
    with platform_of(request).database.read() as session:
        return TenantList(tenants=[show_tenant(row) for row in list_tenants(session)])


@router.post("/tenants", status_code=status.HTTP_201_CREATED)
def create(request: Request, caller: Admin, body: TenantRequest) -> Tenant:
    """Add a tenant."""
    platform = platform_of(request)
    with platform.database.write() as session:
        check_may_add(session, platform.clock.now())
        row = create_tenant(session, body.name, platform.clock.now(), body.weight)
        row.quota, row.max_tiles, row.max_jobs = body.quota, body.max_tiles, body.max_jobs
        _check_limits(row)
        record(session, entry_of(request, caller, Act.CREATE_TENANT, row.id, row.id))
        return show_tenant(row)


@router.get("/tenants/{tenant_id}")
def show(request: Request, tenant_id: str, caller: Reader) -> TenantDetail:
    """Show a tenant (by id or name) and its present use; only administrators see other tenants."""
    with platform_of(request).database.read() as session:
        row = session.get_one(TenantRow, choose_tenant(session, caller, tenant_id))
        use = read_tenant_uses(session, [row])[row.id]
    shown = ArtifactUseView(artifacts=use.artifacts, bytes=use.artifact_bytes, limit_bytes=use.limit_bytes)
    return TenantDetail(
        **show_tenant(row).model_dump(), artifact_bytes=row.artifact_bytes, artifacts=shown, tiles=use.tiles,
        active_jobs=use.active_jobs, queued_jobs=use.queued_jobs,
    )  # fmt: skip


@router.patch("/tenants/{tenant_id}")
def change(request: Request, tenant_id: str, caller: Admin, body: TenantChange) -> Tenant:
    """Change a tenant (by id or name)."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = find_tenant(session, tenant_id)
        if row is None:
            raise NotFound(f"there is no tenant {tenant_id!r}; list them with: rdukit tenant list")
        changes = []
        for name in sorted(body.model_fields_set):
            value = getattr(body, name)
            if name == "weight" and value is None:
                raise InvalidArgument("weight is null; expected a number from 0.01 to 1000")
            if value != (before := getattr(row, name)):
                changes.append(f"{name} {_or_none(before)} to {_or_none(value)}")
            setattr(row, name, value)
        _check_limits(row)
        if not body.model_fields_set:
            raise InvalidArgument(f"no change was given; expected {', '.join(TenantChange.model_fields)}")
        if changes:
            record(session, entry_of(request, caller, Act.CHANGE_TENANT, row.id, row.id, ", ".join(changes)))
        return show_tenant(row)


@router.post("/tenants/{tenant_id}/tokens", status_code=status.HTTP_201_CREATED)
def create_token_of(request: Request, tenant_id: str, caller: Admin, body: TokenRequest) -> Token:
    """Add a token of a tenant (by id or name)."""
    platform = platform_of(request)
    with platform.database.read() as session:
        tenant = find_tenant(session, tenant_id)
    if tenant is None:
        raise NotFound(f"there is no tenant {tenant_id!r}; list them with: rdukit tenant list")
    return make_token(request, caller, tenant.id, body)


@router.get("/tokens")
def list_tokens_(
    request: Request, caller: TokenKeeper, tenant: OtherTenant = None, limit: Limit = 50, cursor: Cursor = None
) -> TokenPage:
    """List the tenant's tokens, newest first, also ended ones. An administrator may name another ``tenant``."""
    return read_tokens(platform_of(request), caller, tenant, limit, cursor)


def read_tokens(
    platform: Platform, caller: Caller, tenant: str | None = None, limit: int = 50, cursor: str | None = None
) -> TokenPage:
    """Return a page of tokens, as ``caller`` may see them. Raises as ``choose_tenant``."""
    with platform.database.read() as session:
        tenant_id = choose_tenant(session, caller, tenant)
        rows, following = list_tokens(session, tenant_id, limit, cursor)
        known = own_tokens(session, tenant_id)
    seen = known if ADMIN not in caller.scopes else None
    return TokenPage(tokens=[show_token(row, seen) for row in rows], next_cursor=following)


@router.post("/tokens", status_code=status.HTTP_201_CREATED)
def create_token_(request: Request, caller: TokenKeeper, body: TokenRequest) -> Token:
    """Add a token of the caller's tenant, within the caller's own scopes and lifetime."""
    return make_token(request, caller, caller.tenant_id, body)


@router.post("/tokens/{token_id}/rotate", status_code=status.HTTP_201_CREATED)
def rotate(request: Request, token_id: str, caller: TokenKeeper, body: RotateRequest | None = None) -> Token:
    """Replace a token by one with the same name, scopes and length of life. The old one ends after a grace."""
    return replace_token(request, caller, token_id, body.grace_s if body else None)


@router.delete("/tokens/{token_id}")
def revoke(request: Request, token_id: str, caller: TokenKeeper, with_made: WithMade = False) -> RevokedTokens:
    """Revoke a token; ``with_made``: also the tokens created with it, directly or indirectly."""
    return end_token(request, caller, token_id, with_made=with_made)


@router.post("/tokens/{token_id}/block")
def block(request: Request, token_id: str, caller: Admin) -> TokenView:
    """Block a token of any tenant at once, with its streams, until it is unblocked."""
    return _block(request, caller, token_id, is_blocked=True)


@router.post("/tokens/{token_id}/unblock")
def unblock(request: Request, token_id: str, caller: Admin) -> TokenView:
    """Unblock a blocked token."""
    return _block(request, caller, token_id, is_blocked=False)


def _block(request: Request, caller: Caller, token_id: str, *, is_blocked: bool) -> TokenView:
    platform = platform_of(request)
    with platform.database.write() as session:
        row = block_token(session, caller, token_id, platform.clock.now(), is_blocked=is_blocked)
        act = Act.BLOCK_TOKEN if is_blocked else Act.UNBLOCK_TOKEN
        record(session, entry_of(request, caller, act, row.id, row.tenant_id, f"named {row.name!r}"))
        return show_token(row, None)


def make_token(request: Request, caller: Caller, tenant_id: str, body: TokenRequest) -> Token:
    """Create a token for ``caller``, and record it. Raises as ``give_token``."""
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.write() as session:
        scopes = choose_scopes(body.role, body.scopes)
        row, text = give_token(session, caller, tenant_id, body.name, scopes, now, body.expires_in_s, body.role)
        record(session, entry_of(request, caller, Act.CREATE_TOKEN, row.id, tenant_id, _describe(row)))
    return _show_new(row, text)


def replace_token(request: Request, caller: Caller, token_id: str, grace_s: float | None = None) -> Token:
    """Rotate a token for ``caller``, and record it. Raises as ``rotate_token``."""
    platform = platform_of(request)
    grace_s = resolve(TOKEN_GRACE_S) if grace_s is None else grace_s
    with platform.database.write() as session:
        old, new, text = rotate_token(session, caller, token_id, platform.clock.now(), grace_s)
        detail = f"into {new.id}, {_describe(new)}; the old token ends within {grace_s:g} s"
        record(session, entry_of(request, caller, Act.ROTATE_TOKEN, old.id, old.tenant_id, detail))
    return _show_new(new, text)


def end_token(request: Request, caller: Caller, token_id: str, *, with_made: bool = False) -> RevokedTokens:
    """Revoke a token for ``caller``, and record it. Raises as ``revoke_tokens``."""
    platform = platform_of(request)
    with platform.database.write() as session:
        rows = revoke_tokens(session, caller, token_id, platform.clock.now(), with_made=with_made)
        for row in rows:
            record(session, entry_of(request, caller, Act.REVOKE_TOKEN, row.id, row.tenant_id, f"named {row.name!r}"))
    return RevokedTokens(revoked=[row.id for row in rows])


def choose_tenant(session: Session, caller: Caller, asked: str | None) -> str:
    """Return the id of the tenant whose tokens are requested.

    Raises:
        NotFound: no tenant has this id or name, or the caller may not see it.
    """
    if asked is None:
        return caller.tenant_id
    found = find_tenant(session, asked) if ADMIN in caller.scopes else None
    if found is not None:
        return found.id
    if asked in (caller.tenant_id, caller.tenant_name):
        return caller.tenant_id
    if ADMIN not in caller.scopes:
        raise NotFound(
            f"there is no tenant {asked!r} that this token may see; the token belongs to {caller.tenant_name!r}"
        )
    raise NotFound(f"there is no tenant {asked!r}; list them with: rdukit tenant list")


def show_token(row: TokenRow, known: Set[str] | None) -> TokenView:
    """Return a row as the API shows it to the tenant of the tokens ``known``; ``None``: to an administrator."""
    values = {name: getattr(row, name) for name in TokenView.model_fields}
    made_by = row.made_by
    if known is not None and made_by is not None and made_by not in {HOST, GLASS, *known}:
        values["made_by"] = ADMINISTRATOR
    return TokenView.model_validate(values)


def _describe(row: TokenRow) -> str:
    end = "without an end" if row.expires_at is None else f"for {row.expires_at - row.created_at:.0f} s"
    allowed = row.role or " ".join(row.scopes)
    return f"named {row.name!r}, {allowed}, {end}"


def _show_new(row: TokenRow, text: str) -> Token:
    return Token(
        id=row.id, tenant=row.tenant_id, name=row.name, scopes=row.scopes, role=row.role, token=text,
        expires_at=row.expires_at,
    )  # fmt: skip


def _or_none(value: object) -> object:
    return "none" if value is None else value


def _check_limits(row: TenantRow) -> None:
    if row.quota is not None and row.max_tiles is not None and row.quota > row.max_tiles:
        raise InvalidArgument(f"quota is {row.quota}, more than max_tiles; expected 0 to {row.max_tiles}")


def show_tenant(row: TenantRow) -> Tenant:
    """Return the API's view of a tenant."""
    return Tenant.model_validate({name: getattr(row, name) for name in Tenant.model_fields})
