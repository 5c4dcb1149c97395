"""Organisations: groups of tenants, and administrators who manage the members of these tenants."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, NotFound
from rdukit_platform.db.models import OrganisationAdminRow, OrganisationRow, TenantRow, UserRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.tenants.standing import find_standing
from rdukit_platform.tenants.users import end_tokens, find_or_add_user, get_user, read_email


@dataclass(frozen=True, slots=True)
class Organisation:
    """An organisation with its tenants and administrators, by name."""

    row: OrganisationRow
    tenants: Sequence[TenantRow]
    admins: Sequence[UserRow]


def create_organisation(session: Session, name: str, now: float) -> OrganisationRow:
    """Add an organisation without tenants.

    Raises:
        Conflict: the name is taken.
    """
    if session.scalars(select(OrganisationRow.id).where(OrganisationRow.name == name)).first() is not None:
        raise Conflict(f"organisation {name!r} already exists")
    row = OrganisationRow(id=new_id("org"), name=name, created_at=now)
    session.add(row)
    session.flush()
    return row


def list_organisations(session: Session) -> list[Organisation]:
    """List all organisations by name."""
    return [
        read_organisation(session, row)
        for row in session.scalars(select(OrganisationRow).order_by(OrganisationRow.name))
    ]


def get_organisation(session: Session, name_or_id: str) -> OrganisationRow:
    """Return the organisation with this id or name.

    Raises:
        NotFound: there is no such organisation.
    """
    is_it = (OrganisationRow.id == name_or_id) | (OrganisationRow.name == name_or_id)
    row = session.scalars(select(OrganisationRow).where(is_it)).one_or_none()
    if row is None:
        raise NotFound(f"there is no organisation {name_or_id[:64]!r}; list them with: rdukit org list")
    return row


def read_organisation(session: Session, row: OrganisationRow) -> Organisation:
    """Return an organisation with its tenants and administrators."""
    tenants = select(TenantRow).where(TenantRow.organisation_id == row.id).order_by(TenantRow.name)
    admins = select(UserRow).join(OrganisationAdminRow, OrganisationAdminRow.user_id == UserRow.id)
    chosen = admins.where(OrganisationAdminRow.organisation_id == row.id).order_by(UserRow.email)
    return Organisation(row, session.scalars(tenants).all(), session.scalars(chosen).all())


def move_tenant(session: Session, tenant: TenantRow, organisation: OrganisationRow | None, now: float) -> None:
    """Move a tenant to an organisation, or to none. Administrators of the old one lose access."""
    old = tenant.organisation_id
    tenant.organisation_id = None if organisation is None else organisation.id
    session.flush()
    if old is not None and old != tenant.organisation_id:
        admins = select(OrganisationAdminRow.user_id).where(OrganisationAdminRow.organisation_id == old)
        for user_id in session.scalars(admins).all():
            _end_where_out(session, user_id, [tenant], now)


def add_admin(session: Session, organisation: OrganisationRow, email: str, now: float) -> UserRow:
    """Make the user with an e-mail address an administrator of an organisation, from its first login on.

    Raises:
        InvalidArgument: the address is invalid.
        Conflict: the user is an administrator already.
    """
    user = find_or_add_user(session, read_email(email), now)
    if session.get(OrganisationAdminRow, (organisation.id, user.id)) is not None:
        raise Conflict(f"{user.email} is already an administrator of {organisation.name}")
    session.add(OrganisationAdminRow(organisation_id=organisation.id, user_id=user.id, created_at=now))
    session.flush()
    return user


def remove_admin(session: Session, organisation: OrganisationRow, user: str, now: float) -> UserRow:
    """Remove a user (id or e-mail) as administrator of an organisation, with its tokens in tenants where it is not a
    member.

    Raises:
        NotFound: the user does not administer it.
    """
    found = get_user(session, user)
    row = session.get(OrganisationAdminRow, (organisation.id, found.id))
    if row is None:
        raise NotFound(f"{found.email} does not administer {organisation.name}; see: rdukit org list")
    session.delete(row)
    session.flush()
    _end_where_out(session, found.id, read_organisation(session, organisation).tenants, now)
    return found


def _end_where_out(session: Session, user_id: str, tenants: Sequence[TenantRow], now: float) -> None:
    for tenant in tenants:
        if find_standing(session, user_id, tenant.id) is None:
            end_tokens(session, user_id, now, tenant.id)
