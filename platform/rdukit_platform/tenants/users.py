"""Users and their memberships: invite, change, remove, disable. Callers cannot grant more than they have.

A user's tokens and sessions allow what the user may at each moment (``standing``). If the user leaves a tenant, its
tokens there are revoked, permanently.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, NotFound, PermissionDenied
from rdukit_platform.db.models import MembershipRow, OrganisationAdminRow, TenantRow, TokenRow, UserRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.tenants.roles import get_role, lacks_scope
from rdukit_platform.tenants.scopes import ADMIN, MEMBERS, all_of, allows, may_give, name_scopes
from rdukit_platform.tenants.service import Caller, find_tenant
from rdukit_platform.tenants.standing import administers_organisation
from rdukit_platform.tenants.tokens import check_still_valid

_EMAIL: Final = re.compile(r"[!-?A-~]{1,64}@[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*")
_MAX_EMAIL: Final = 254
#: Members that a tenant may have.
MAX_MEMBERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Member:
    """A user in a tenant: its membership, or ``None`` for an administrator of the organisation."""

    user: UserRow
    membership: MembershipRow | None


def read_email(text: str) -> str:
    """Return an e-mail address in lower case.

    Raises:
        InvalidArgument: the text is not an e-mail address.
    """
    email = text.strip().lower()
    if len(email) > _MAX_EMAIL or not _EMAIL.fullmatch(email):
        raise InvalidArgument(f"{text[:64]!r} is not an e-mail address; expected one such as ada@example.com")
    return email


def choose_managed_tenant(session: Session, caller: Caller, asked: str | None) -> TenantRow:
    """Return the tenant (by id or name; ``None``: the caller's own) whose members ``caller`` manages.

    Administrators manage the members of all tenants, an organisation's administrators those of its tenants.

    Raises:
        NotFound: there is no such tenant, or the caller does not manage it.
        PermissionDenied: the caller's token lacks the scope members.
    """
    own = asked is None or asked in (caller.tenant_id, caller.tenant_name)
    tenant = session.get_one(TenantRow, caller.tenant_id) if own else find_tenant(session, asked or "")
    if not own and tenant is not None and ADMIN not in caller.scopes:
        organisation = tenant.organisation_id
        is_theirs = (
            caller.user_id is not None
            and organisation is not None
            and administers_organisation(session, caller.user_id, organisation)
        )
        tenant = tenant if is_theirs else None
    if tenant is None:
        raise NotFound(f"there is no tenant {asked!r} whose members are yours to manage; list them with: rdukit whoami")
    if not allows(caller.scopes, MEMBERS):
        raise lacks_scope(caller.scopes, MEMBERS)
    return tenant


def list_members(session: Session, tenant: TenantRow) -> list[Member]:
    """List a tenant's members by e-mail, with the administrators of its organisation."""
    query = select(UserRow, MembershipRow).join(MembershipRow, MembershipRow.user_id == UserRow.id)
    found = {
        user.id: Member(user, membership)
        for user, membership in session.execute(query.where(MembershipRow.tenant_id == tenant.id))
    }
    if tenant.organisation_id is not None:
        admins = select(UserRow).join(OrganisationAdminRow, OrganisationAdminRow.user_id == UserRow.id)
        for user in session.scalars(admins.where(OrganisationAdminRow.organisation_id == tenant.organisation_id)):
            found[user.id] = Member(user, None)
    return sorted(found.values(), key=lambda member: (member.user.email, member.user.id))


def list_users(session: Session, limit: int = 50, cursor: str | None = None) -> tuple[list[UserRow], str | None]:
    """Return the platform's users, newest first, and the cursor of the next page."""
    return read_page(session, select(UserRow), UserRow.created_at, UserRow.id, limit, cursor)


def invite(session: Session, caller: Caller, tenant: TenantRow, email: str, role: str, now: float) -> Member:
    """Make the user with this e-mail address a member; a new user becomes one at the first login.

    Raises:
        InvalidArgument: the address or the role is invalid.
        PermissionDenied: the role has scopes that the caller lacks.
        Conflict: the user is a member already, is disabled, or the tenant has reached its limit of members.
    """
    check_still_valid(session, caller, now)
    _check_gives(caller, role)
    user = find_or_add_user(session, read_email(email), now)
    if user.disabled_at is not None:
        raise Conflict(f"{user.email} is disabled ({user.id}); an administrator enables it: rdukit user enable")
    if session.get(MembershipRow, (user.id, tenant.id)) is not None:
        raise Conflict(f"{user.email} is already a member of {tenant.name}; change the role: rdukit user role")
    if len(list_members(session, tenant)) >= MAX_MEMBERS:
        raise Conflict(f"{tenant.name} has {MAX_MEMBERS} members, which is the limit; remove some")
    row = MembershipRow(user_id=user.id, tenant_id=tenant.id, role=role, is_claimed=False, created_at=now)
    session.add(row)
    session.flush()
    return Member(user, row)


def change_role(session: Session, caller: Caller, tenant: TenantRow, user: str, role: str, now: float) -> Member:
    """Change the role of a member (id or e-mail). Its tokens and sessions are limited to it at once.

    Raises:
        NotFound: the tenant has no such member.
        PermissionDenied: the old role or the new one has scopes that the caller lacks.
        Conflict: the issuer's claims determine the role.
    """
    check_still_valid(session, caller, now)
    member = get_member(session, tenant, user)
    _check_gives(caller, role)
    if member.membership is None:
        raise _from_organisation(member, tenant)
    _check_gives(caller, member.membership.role)
    if member.membership.is_claimed:
        raise Conflict(
            f"the role of {member.user.email} follows from the issuer's groups (oidc.claim_roles); change them there"
        )
    member.membership.role = role
    return member


def remove(session: Session, caller: Caller, tenant: TenantRow, user: str, now: float) -> Member:
    """Remove a member (id or e-mail), and end its tokens and sessions in this tenant. Raises as ``change_role``."""
    check_still_valid(session, caller, now)
    member = get_member(session, tenant, user)
    if member.membership is None:
        raise _from_organisation(member, tenant)
    _check_gives(caller, member.membership.role)
    session.delete(member.membership)
    end_tokens(session, member.user.id, now, tenant.id)
    return member


def disable(session: Session, user: UserRow, now: float) -> None:
    """Disable a user, and end all of its tokens and sessions."""
    user.disabled_at = user.disabled_at or now
    end_tokens(session, user.id, now)


def end_tokens(session: Session, user_id: str, now: float, tenant_id: str | None = None) -> None:
    """Revoke a user's tokens and sessions, of one tenant or of all."""
    own = (TokenRow.user_id == user_id) & TokenRow.revoked_at.is_(None)
    if tenant_id is not None:
        own &= TokenRow.tenant_id == tenant_id
    # Locked first, so that the second statement sees tokens that are being created.
    session.execute(select(TokenRow.id).where(own).with_for_update()).all()
    session.execute(update(TokenRow).where(own).values(revoked_at=now))


def get_member(session: Session, tenant: TenantRow, user: str) -> Member:
    """Return a tenant's member by id or e-mail.

    Raises:
        NotFound: there is no such member.
        InvalidArgument: several have this e-mail.
    """
    return _only([m for m in list_members(session, tenant) if user.lower() in (m.user.id, m.user.email)], user)


def get_user(session: Session, user: str) -> UserRow:
    """Return a user of the platform by id or e-mail. Raises as ``get_member``."""
    found = session.scalars(select(UserRow).where((UserRow.id == user) | (UserRow.email == user.lower()))).all()
    return _only([Member(row, None) for row in found], user).user


def find_or_add_user(session: Session, email: str, now: float) -> UserRow:
    """Return the user with an e-mail address: the last to log in with it, else an invited one, else a new one."""
    found = session.scalars(select(UserRow).where(UserRow.email == email)).all()
    if found:
        return max(found, key=lambda user: (user.disabled_at is None, user.last_login_at or 0.0))
    row = UserRow(
        id=new_id("usr"), issuer=None, subject=None, email=email, name="", is_admin=False, created_at=now,
        last_login_at=None, disabled_at=None,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


def emails_of_tokens(session: Session, token_ids: Sequence[str]) -> dict[str, str]:
    """Return the owner of each token: the user's e-mail, or its id without one."""
    query = select(TokenRow.id, UserRow.email, UserRow.id).join(UserRow, UserRow.id == TokenRow.user_id)
    return {token: email or user for token, email, user in session.execute(query.where(TokenRow.id.in_(token_ids)))}


def _only(found: Sequence[Member], asked: str) -> Member:
    if not found:
        raise NotFound(f"there is no member {asked[:64]!r}; list them with: rdukit user list")
    if len(found) > 1:
        ids = ", ".join(member.user.id for member in found)
        raise InvalidArgument(f"{len(found)} users have the e-mail {asked[:64]!r}; name one by its id: {ids}")
    return found[0]


def _check_gives(caller: Caller, role: str) -> None:
    if not may_give(caller.scopes, get_role_scopes(role)):
        beyond = name_scopes(all_of(get_role_scopes(role)) - all_of(caller.scopes))
        raise PermissionDenied(f"you cannot give scopes that you lack: the role {role!r} has {beyond}")


def get_role_scopes(role: str) -> Sequence[str]:
    """Return the scopes of a role. Raises as ``get_role``."""
    return get_role(role).scopes


def _from_organisation(member: Member, tenant: TenantRow) -> Conflict:
    return Conflict(
        f"{member.user.email} is an administrator of the organisation of {tenant.name}; change that with: rdukit org "
        "remove-admin"
    )
