"""Routes of members of a tenant, of the platform's users, and of organisations."""

from typing import Annotated, Literal

from fastapi import APIRouter, Request, status
from pydantic import BaseModel, Field

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.dependencies import (
    Admin,
    Cursor,
    Limit,
    MembersKeeper,
    OtherTenant,
    Reader,
    StrictJsonRoute,
    platform_of,
)
from rdukit_platform.api.tenants import Tenant, show_tenant
from rdukit_platform.audit.service import Act, record
from rdukit_platform.db.models import UserRow
from rdukit_platform.identity.claims import is_of_domain
from rdukit_platform.identity.issuer import is_configured
from rdukit_platform.identity.settings import read_allowed_domains
from rdukit_platform.jobs.schemas import RequestBody
from rdukit_platform.tenants import organisations as orgs
from rdukit_platform.tenants import users
from rdukit_platform.tenants.roles import TENANT_ADMIN
from rdukit_platform.tenants.scopes import MEMBERS, allows
from rdukit_platform.tenants.service import Caller, find_tenant
from rdukit_platform.tenants.users import Member

router = APIRouter(prefix="/v1", tags=["members"], route_class=StrictJsonRoute)

Role = Annotated[str, Field(max_length=64)]
Email = Annotated[str, Field(max_length=254)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")]


class MemberView(BaseModel):
    """A member of a tenant."""

    #: Id of the user.
    id: str
    email: str
    name: str
    role: str
    #: Origin: an invitation, the issuer's groups, or administration of the organisation.
    by: Literal["invitation", "claims", "organisation"]
    #: Invited: has not logged in yet.
    state: Literal["invited", "active", "disabled"]
    last_login_at: float | None


class MemberList(BaseModel):
    """Members of a tenant by e-mail."""

    tenant: str
    members: list[MemberView]


class InviteRequest(RequestBody):
    """Body of ``POST /v1/members``."""

    email: Email
    role: Role
    #: Id or name; without it the caller's own.
    tenant: Annotated[str | None, Field(max_length=64)] = None


class RoleChange(RequestBody):
    """Body of ``PATCH /v1/members/{user}``."""

    role: Role


class UserView(BaseModel):
    """A user of the platform."""

    id: str
    email: str
    name: str
    #: Issuer of its identity; null: invited, and not logged in yet.
    issuer: str | None
    subject: str | None
    admin: bool
    created_at: float
    last_login_at: float | None
    disabled_at: float | None


class UserPage(BaseModel):
    """The platform's users, newest first; ``next_cursor`` asks for the rest."""

    users: list[UserView]
    next_cursor: str | None


class UserChange(RequestBody):
    """Body of ``PATCH /v1/users/{user}``: the changes."""

    #: Disabling ends all tokens and sessions of the user.
    disabled: bool | None = None
    #: Whether the user is an administrator of the platform.
    admin: bool | None = None


class OrganisationView(BaseModel):
    """An organisation, its tenants and its administrators."""

    id: str
    name: str
    created_at: float
    tenants: list[Tenant]
    admins: list[str]


class OrganisationList(BaseModel):
    """Organisations by name."""

    organisations: list[OrganisationView]


class OrganisationRequest(RequestBody):
    """Body of ``POST /v1/organisations``."""

    name: Name


@router.get("/members")
def list_members(request: Request, caller: Reader, tenant: OtherTenant = None) -> MemberList:
    """List the members of the caller's tenant, or of another one that it manages."""
    return read_members(request, caller, tenant)


def read_members(request: Request, caller: Caller, tenant: OtherTenant = None) -> MemberList:
    """Read the members as ``caller`` may see them: its own tenant's, or those that it manages."""
    with platform_of(request).database.read() as session:
        own = tenant is None or tenant in (caller.tenant_id, caller.tenant_name)
        if not own and not allows(caller.scopes, MEMBERS):
            raise NotFound(f"there is no tenant {tenant!r}; list yours with: rdukit whoami")
        chosen = find_tenant(session, caller.tenant_id) if own else users.choose_managed_tenant(session, caller, tenant)
        assert chosen is not None
        return MemberList(
            tenant=chosen.name, members=[show_member(each) for each in users.list_members(session, chosen)]
        )


@router.post("/members", status_code=status.HTTP_201_CREATED)
def invite(request: Request, caller: MembersKeeper, body: InviteRequest) -> MemberView:
    """Invite an e-mail address: a user who logs in with this verified address becomes a member. The role must be within
    the caller's scopes.
    """
    return add_member(request, caller, body)


def add_member(request: Request, caller: Caller, body: InviteRequest) -> MemberView:
    """Invite for ``caller`` and record it. Raises as ``users.invite``; ``Conflict`` if the address cannot log in."""
    platform = platform_of(request)
    now = platform.clock.now()
    if not is_configured():
        command = f"rdukit tenant token {body.tenant}" if body.tenant else "rdukit token create"
        raise Conflict(
            f"{body.email.strip()} could not log in, because oidc.issuer, by which users log in, is not set; for "
            f"access without a login: {command} --role {body.role}"
        )
    domains = read_allowed_domains()
    if domains and not is_of_domain(body.email.strip(), domains):
        raise InvalidArgument(
            f"{body.email.strip()} could not log in; expected an address of {', '.join(domains)} (oidc.allowed_domains)"
        )
    with platform.database.write() as session:
        tenant = users.choose_managed_tenant(session, caller, body.tenant)
        member = users.invite(session, caller, tenant, body.email, body.role, now)
        detail = f"{member.user.email} as {body.role}"
        record(session, entry_of(request, caller, Act.INVITE_MEMBER, member.user.id, tenant.id, detail))
        return show_member(member)


@router.patch("/members/{user}")
def change_role(
    request: Request, user: str, caller: MembersKeeper, body: RoleChange, tenant: OtherTenant = None
) -> MemberView:
    """Change the role of a member (id or e-mail), within the caller's scopes. It takes effect at once."""
    return change_member(request, caller, user, body.role, tenant)


def change_member(request: Request, caller: Caller, user: str, role: str, asked: str | None = None) -> MemberView:
    """Change a role for ``caller``, and record it. Raises as ``users.change_role``."""
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.write() as session:
        tenant = users.choose_managed_tenant(session, caller, asked)
        before = users.get_member(session, tenant, user).membership
        old = before.role if before else TENANT_ADMIN
        member = users.change_role(session, caller, tenant, user, role, now)
        detail = f"{member.user.email} from {old} to {role}"
        record(session, entry_of(request, caller, Act.CHANGE_MEMBER, member.user.id, tenant.id, detail))
        return show_member(member)


@router.delete("/members/{user}")
def remove(request: Request, user: str, caller: MembersKeeper, tenant: OtherTenant = None) -> MemberView:
    """Remove a member (id or e-mail). Its sessions and tokens in the tenant end at once."""
    return remove_member(request, caller, user, tenant)


def remove_member(request: Request, caller: Caller, user: str, asked: str | None = None) -> MemberView:
    """Remove a member for ``caller``, and record it. Raises as ``users.remove``."""
    platform = platform_of(request)
    with platform.database.write() as session:
        tenant = users.choose_managed_tenant(session, caller, asked)
        member = users.remove(session, caller, tenant, user, platform.clock.now())
        record(session, entry_of(request, caller, Act.REMOVE_MEMBER, member.user.id, tenant.id, member.user.email))
        return show_member(member)


@router.get("/users")
def list_users(request: Request, caller: Admin, limit: Limit = 50, cursor: Cursor = None) -> UserPage:
    """List the platform's users, newest first."""
    with platform_of(request).database.read() as session:
        rows, following = users.list_users(session, limit, cursor)
        return UserPage(users=[_show_user(row) for row in rows], next_cursor=following)


@router.patch("/users/{user}")
def change_user(request: Request, user: str, caller: Admin, body: UserChange) -> UserView:
    """Disable or enable a user (id or e-mail), or grant or revoke administration of the platform."""
    platform = platform_of(request)
    now = platform.clock.now()
    if body.disabled is None and body.admin is None:
        raise InvalidArgument(f"no change was given; expected {', '.join(UserChange.model_fields)}")
    with platform.database.write() as session:
        row = users.get_user(session, user)
        changes = []
        if body.admin is not None:
            row.is_admin = body.admin
            changes.append("administrator" if body.admin else "no administrator")
        if body.disabled is not None:
            if body.disabled:
                users.disable(session, row, now)
            else:
                row.disabled_at = None
            changes.append("disabled" if body.disabled else "enabled")
        detail = f"{row.email}: {', '.join(changes)}"
        record(session, entry_of(request, caller, Act.CHANGE_USER, row.id, caller.tenant_id, detail))
        return _show_user(row)


@router.get("/organisations")
def list_organisations(request: Request, caller: Admin) -> OrganisationList:
    """List all organisations."""
    with platform_of(request).database.read() as session:
        return OrganisationList(organisations=[_show(each) for each in orgs.list_organisations(session)])


@router.post("/organisations", status_code=status.HTTP_201_CREATED)
def create_organisation(request: Request, caller: Admin, body: OrganisationRequest) -> OrganisationView:
    """Add an organisation."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = orgs.create_organisation(session, body.name, platform.clock.now())
        record(session, entry_of(request, caller, Act.CHANGE_ORGANISATION, row.id, None, f"{row.name}: made"))
        return _show(orgs.read_organisation(session, row))


@router.put("/organisations/{organisation}/tenants/{tenant}")
def add_tenant(request: Request, organisation: str, tenant: str, caller: Admin) -> OrganisationView:
    """Move a tenant to an organisation (ids or names)."""
    return _move(request, caller, organisation, tenant, is_in=True)


@router.delete("/organisations/{organisation}/tenants/{tenant}")
def remove_tenant(request: Request, organisation: str, tenant: str, caller: Admin) -> OrganisationView:
    """Remove a tenant from its organisation (ids or names)."""
    return _move(request, caller, organisation, tenant, is_in=False)


@router.put("/organisations/{organisation}/admins/{user}")
def add_admin(request: Request, organisation: str, user: str, caller: Admin) -> OrganisationView:
    """Make a verified e-mail address an administrator of an organisation."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = orgs.get_organisation(session, organisation)
        made = orgs.add_admin(session, row, user, platform.clock.now())
        detail = f"{row.name}: {made.email} administers it"
        record(session, entry_of(request, caller, Act.CHANGE_ORGANISATION, row.id, None, detail))
        return _show(orgs.read_organisation(session, row))


@router.delete("/organisations/{organisation}/admins/{user}")
def remove_admin(request: Request, organisation: str, user: str, caller: Admin) -> OrganisationView:
    """Remove a user (id or e-mail) as administrator of an organisation."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = orgs.get_organisation(session, organisation)
        gone = orgs.remove_admin(session, row, user, platform.clock.now())
        detail = f"{row.name}: {gone.email} is no longer its administrator"
        record(session, entry_of(request, caller, Act.CHANGE_ORGANISATION, row.id, None, detail))
        return _show(orgs.read_organisation(session, row))


def show_member(member: Member) -> MemberView:
    """Return the API's view of a member."""
    user, membership = member.user, member.membership
    is_known = user.subject is not None
    return MemberView(
        id=user.id, email=user.email, name=user.name, role=membership.role if membership else TENANT_ADMIN,
        by="organisation" if membership is None else "claims" if membership.is_claimed else "invitation",
        state="disabled" if user.disabled_at is not None else "active" if is_known else "invited",
        last_login_at=user.last_login_at,
    )  # fmt: skip


def _move(request: Request, caller: Caller, organisation: str, tenant: str, *, is_in: bool) -> OrganisationView:
    platform = platform_of(request)
    with platform.database.write() as session:
        row, found = orgs.get_organisation(session, organisation), find_tenant(session, tenant)
        if found is None or (not is_in and found.organisation_id != row.id):
            raise NotFound(f"there is no tenant {tenant[:64]!r} {'' if is_in else 'in it'}".rstrip())
        orgs.move_tenant(session, found, row if is_in else None, platform.clock.now())
        detail = f"{row.name}: {'with' if is_in else 'without'} the tenant {found.name}"
        record(session, entry_of(request, caller, Act.CHANGE_ORGANISATION, row.id, found.id, detail))
        return _show(orgs.read_organisation(session, row))


def _show_user(row: UserRow) -> UserView:
    values = {name: getattr(row, name) for name in UserView.model_fields if name != "admin"}
    return UserView.model_validate(values | {"admin": row.is_admin})


def _show(found: orgs.Organisation) -> OrganisationView:
    tenants = [show_tenant(row) for row in found.tenants]
    return OrganisationView(
        id=found.row.id, name=found.row.name, created_at=found.row.created_at, tenants=tenants,
        admins=[user.email or user.id for user in found.admins],
    )  # fmt: skip
