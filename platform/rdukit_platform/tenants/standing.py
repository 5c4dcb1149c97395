"""Present role of a user in a tenant, looked up in each request of a user's token or session."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from rdukit_platform.db.models import MembershipRow, OrganisationAdminRow, TenantRow, UserRow
from rdukit_platform.tenants.roles import ROLES, TENANT_ADMIN
from rdukit_platform.tenants.scopes import ADMIN

#: Name shown as the role of platform administrators.
ADMIN_ROLE: Final = "admin"


@dataclass(frozen=True, slots=True)
class Standing:
    """A user's role in a tenant, and its scopes."""

    role: str
    scopes: frozenset[str]


def choose_standing(*, is_admin: bool, administers: bool, role: str | None) -> Standing | None:
    """Choose a user's role in a tenant (pure); ``None``: no role.

    ``administers``: whether it is an administrator of the tenant's organisation. ``role``: that of its membership.
    A role that no longer exists allows nothing.
    """
    if is_admin:
        return Standing(ADMIN_ROLE, frozenset({ADMIN}))
    if administers:
        return Standing(TENANT_ADMIN, frozenset(ROLES[TENANT_ADMIN].scopes))
    return Standing(role, frozenset(ROLES[role].scopes)) if role in ROLES and role is not None else None


def find_standing(session: Session, user_id: str, tenant_id: str) -> Standing | None:
    """Return a user's role in a tenant; ``None``: not a member, disabled, or unknown."""
    user = session.get(UserRow, user_id)
    tenant = session.get(TenantRow, tenant_id)
    if user is None or tenant is None or user.disabled_at is not None:
        return None
    administers = tenant.organisation_id is not None and administers_organisation(
        session, user_id, tenant.organisation_id
    )
    membership = session.get(MembershipRow, (user_id, tenant_id))
    return choose_standing(
        is_admin=user.is_admin, administers=administers, role=membership.role if membership else None
    )


def administers_organisation(session: Session, user_id: str, organisation_id: str) -> bool:
    """Return whether a user is an administrator of an organisation."""
    return session.get(OrganisationAdminRow, (organisation_id, user_id)) is not None


def tenants_of_user(session: Session, user: UserRow) -> Sequence[TenantRow]:
    """List the tenants that a user may enter, by name."""
    query = select(TenantRow).order_by(TenantRow.name)
    if user.disabled_at is not None:
        return []
    if not user.is_admin:
        own = select(MembershipRow.tenant_id).where(MembershipRow.user_id == user.id)
        organisations = select(OrganisationAdminRow.organisation_id).where(OrganisationAdminRow.user_id == user.id)
        query = query.where(or_(TenantRow.id.in_(own), TenantRow.organisation_id.in_(organisations)))
    return [row for row in session.scalars(query).all() if find_standing(session, user.id, row.id) is not None]
