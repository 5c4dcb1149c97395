"""Logins under way, users who log in, and their sessions.

A login under way is a row, which only its browser can use, once and within ten minutes.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from rdukit.errors import Overloaded, PermissionDenied, Unauthenticated
from rdukit_platform.db.models import MembershipRow, OidcLoginRow, OrganisationAdminRow, TenantRow, TokenRow, UserRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.identity.claims import ClaimedIdentity
from rdukit_platform.tenants.roles import ROLES
from rdukit_platform.tenants.service import find_tenant, hash_token
from rdukit_platform.tenants.standing import find_standing, tenants_of_user
from rdukit_platform.tenants.users import end_tokens

#: Seconds in which a user must log in at the issuer.
LOGIN_S: Final = 600.0
#: Largest number of logins under way.
MAX_LOGINS: Final = 10_000
#: Largest number of sessions of a user in a tenant; a further one ends the oldest.
MAX_SESSIONS: Final = 20
#: Origin of a session: a login in a browser, or a token of the issuer in an API call.
LOGIN: Final = "login"
BEARER: Final = "bearer"
#: Seconds that the row of an issuer's token stays after its end.
KEEP_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class BegunLogin:
    """A login that has begun: the issuer's parameters, and the browser's secret."""

    state: str
    browser: str
    nonce: str
    verifier: str


@dataclass(frozen=True, slots=True)
class TakenLogin:
    """A login that returned from the issuer."""

    nonce: str
    verifier: str
    redirect_uri: str
    next: str


def begin_login(session: Session, now: float, following: str, redirect_uri: str) -> BegunLogin:
    """Begin a login that leads to the page ``following``.

    Raises:
        Overloaded: too many are under way.
    """
    session.execute(delete(OidcLoginRow).where(OidcLoginRow.expires_at <= now))
    if (session.scalar(select(func.count()).select_from(OidcLoginRow)) or 0) >= MAX_LOGINS:
        raise Overloaded(f"{MAX_LOGINS} logins are in progress; try again in some minutes")
    begun = BegunLogin(*(secrets.token_urlsafe(32) for _ in range(4)))
    session.add(OidcLoginRow(
        state_sha256=hash_token(begun.state), browser_sha256=hash_token(begun.browser), nonce=begun.nonce,
        verifier=begun.verifier, redirect_uri=redirect_uri, next=following, expires_at=now + LOGIN_S,
    ))  # fmt: skip
    return begun


def take_login(session: Session, state: str, browser: str, now: float) -> TakenLogin:
    """Take the login of a state and of the browser that began it; a login can be taken only once.

    Raises:
        Unauthenticated: there is no such login.
    """
    row = session.get(OidcLoginRow, hash_token(state), with_for_update=True) if state else None
    is_right = row is not None and secrets.compare_digest(row.browser_sha256, hash_token(browser))
    if row is None or not is_right or row.expires_at <= now:
        raise Unauthenticated("this login was not begun in this browser, has been used, or took too long; log in again")
    session.delete(row)
    return TakenLogin(row.nonce, row.verifier, row.redirect_uri, row.next)


def enter(session: Session, identity: ClaimedIdentity, roles: Mapping[str, str], now: float) -> UserRow:
    """Return the user who has logged in, found by issuer and subject, or by an invitation to a verified e-mail address.

    ``roles``: roles by tenant from the issuer's groups; they replace those of the previous login.

    Raises:
        PermissionDenied: the user is disabled, or belongs to no tenant.
    """
    known = (UserRow.issuer == identity.issuer) & (UserRow.subject == identity.subject)
    user = session.scalars(select(UserRow).where(known)).one_or_none()
    for invited in _invited(session, identity.email):
        if user is None:
            user = invited
            user.issuer, user.subject = identity.issuer, identity.subject
        else:
            _join(session, invited, user)
    if user is None:
        user = UserRow(
            id=new_id("usr"), issuer=identity.issuer, subject=identity.subject, email=identity.email, name="",
            is_admin=False, created_at=now, last_login_at=None, disabled_at=None,
        )  # fmt: skip
        session.add(user)
    user.email, user.name, user.last_login_at = identity.email or user.email, identity.name, now
    session.flush()
    who = user.email or f"subject {user.subject}"
    if user.disabled_at is not None:
        raise PermissionDenied(f"{who} is disabled; ask an administrator of the platform")
    _follow_claims(session, user, roles, now)
    if not tenants_of_user(session, user):
        raise PermissionDenied(f"{who} is a member of no tenant; ask a tenant-admin for an invitation to this address")
    return user


def choose_first_tenant(session: Session, user: UserRow) -> TenantRow:
    """Return the tenant that a user enters: that of its newest session, if still permitted, else the first by name."""
    last = select(TokenRow.tenant_id).where(TokenRow.user_id == user.id, TokenRow.is_session)
    newest = session.scalars(last.order_by(TokenRow.created_at.desc()).limit(1)).first()
    tenants = tenants_of_user(session, user)
    return next((tenant for tenant in tenants if tenant.id == newest), tenants[0])


def open_session(
    session: Session, user: UserRow, tenant_id: str, now: float, expires_at: float, bearer_sha256: str | None = None
) -> TokenRow:
    """Open a session of a user in a tenant. Its row is a token without a known text.

    Args:
        bearer_sha256: hash of the issuer's token that represents the session; such sessions have no limit of number.

    Raises:
        PermissionDenied: the user may not enter the tenant.
    """
    standing = find_standing(session, user.id, tenant_id)
    if standing is None:
        raise PermissionDenied(f"{user.email or user.id} may not enter this tenant")
    row = TokenRow(
        id=new_id("tok"), tenant_id=tenant_id, sha256=bearer_sha256 or hash_token(secrets.token_urlsafe(32)),
        name="issuer's token" if bearer_sha256 else "console session", scopes=sorted(standing.scopes),
        role=standing.role, created_at=now, expires_at=expires_at, made_by=BEARER if bearer_sha256 else LOGIN,
        user_id=user.id, is_session=True,
    )  # fmt: skip
    session.add(row)
    session.flush()
    if bearer_sha256:
        old_ones = (TokenRow.user_id == user.id, TokenRow.made_by == BEARER, TokenRow.expires_at <= now - KEEP_S)
        session.execute(delete(TokenRow).where(*old_ones))
        return row
    own = (TokenRow.user_id == user.id) & (TokenRow.made_by == LOGIN) & TokenRow.revoked_at.is_(None)
    query = select(TokenRow).where(own, TokenRow.tenant_id == tenant_id, TokenRow.expires_at > now)
    for old in session.scalars(query.order_by(TokenRow.created_at.desc()).offset(MAX_SESSIONS)):
        old.revoked_at = now
    return row


def end_session(session: Session, token_id: str, now: float) -> None:
    """End a session."""
    session.get_one(TokenRow, token_id).revoked_at = now


def _invited(session: Session, email: str) -> list[UserRow]:
    if not email:
        return []
    query = select(UserRow).where(UserRow.email == email, UserRow.subject.is_(None)).order_by(UserRow.created_at)
    return list(session.scalars(query.with_for_update()))


def _join(session: Session, invited: UserRow, user: UserRow) -> None:
    """Move an invitation's memberships to a known user, and delete the invited row."""
    for member in session.scalars(select(MembershipRow).where(MembershipRow.user_id == invited.id)).all():
        if session.get(MembershipRow, (user.id, member.tenant_id)) is None:
            session.add(MembershipRow(
                user_id=user.id, tenant_id=member.tenant_id, role=member.role, is_claimed=False,
                created_at=member.created_at,
            ))  # fmt: skip
        session.delete(member)
    for admin in session.scalars(select(OrganisationAdminRow).where(OrganisationAdminRow.user_id == invited.id)).all():
        session.merge(OrganisationAdminRow(
            organisation_id=admin.organisation_id, user_id=user.id, created_at=admin.created_at
        ))  # fmt: skip
        session.delete(admin)
    user.is_admin = user.is_admin or invited.is_admin
    user.disabled_at = user.disabled_at or invited.disabled_at
    session.flush()
    session.delete(invited)


def _follow_claims(session: Session, user: UserRow, roles: Mapping[str, str], now: float) -> None:
    wanted = {}
    for name, role in roles.items():
        tenant = find_tenant(session, name)
        if tenant is not None and role in ROLES:
            wanted[tenant.id] = role
    for member in session.scalars(select(MembershipRow).where(MembershipRow.user_id == user.id)).all():
        claimed = wanted.pop(member.tenant_id, "")
        if not member.is_claimed:
            continue  # an invitation overrides groups
        if not claimed:
            session.delete(member)
            session.flush()
            if find_standing(session, user.id, member.tenant_id) is None:
                end_tokens(session, user.id, now, member.tenant_id)
        else:
            member.role = claimed
    for tenant_id, role in wanted.items():
        session.add(MembershipRow(user_id=user.id, tenant_id=tenant_id, role=role, is_claimed=True, created_at=now))
    session.flush()
