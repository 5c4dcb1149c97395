"""Tokens of the issuer (JWT) in API calls: each becomes a session of its user, and ends like a session.

The first call with a token verifies it and counts as a login. It stores a row with the token's hash and expiry, which
later calls find like any token's row. Use in a second tenant adds a second row.
"""

import json
import re
from contextlib import suppress
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from rdukit.errors import PermissionDenied, Unauthenticated
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit_platform.audit.service import Act, AuditRecord, record
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import TenantRow, TokenRow
from rdukit_platform.identity.claims import ClaimedIdentity, check_domain, claimed_roles
from rdukit_platform.identity.issuer import Issuer
from rdukit_platform.identity.logins import choose_first_tenant, enter, open_session
from rdukit_platform.identity.settings import OIDC_CLAIM_ROLES, read_allowed_domains, read_claim_roles
from rdukit_platform.tenants.service import Caller, authenticate_digest, find_tenant, hash_token
from rdukit_platform.tenants.standing import tenants_of_user

_JWT: Final = re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\Z")


def is_jwt(token: str) -> bool:
    """Return whether a token has the form of a signed JWT, unlike the platform's own tokens (pure)."""
    return _JWT.match(token) is not None


def authenticate_bearer(database: Database, issuer: Issuer, token: str, tenant: str, clock: Clock) -> Caller:
    """Authenticate the user of an issuer's token, in a tenant.

    Args:
        tenant: its name; empty: the first that the user may enter.
    Raises:
        Unauthenticated: the token is not valid, or was ended here.
        PermissionDenied: its user is disabled, of no allowed domain, or no member of the tenant.
        Unavailable: the issuer's keys are unknown, and it does not answer.
    """
    with database.read() as session:
        chosen = find_tenant(session, tenant) if tenant else None
        digest = _digest_of(token, chosen)
        is_nowhere = bool(tenant) and chosen is None
        if not is_nowhere and is_known(session, digest):
            return authenticate_digest(session, digest, clock.now())
    identity, ends_at = issuer.read_bearer(token)
    now = clock.now()
    if ends_at <= now:  # valid within the leeway of clocks, but an ended session is refused
        raise Unauthenticated("the token is not valid: it has expired (exp)")
    if is_nowhere:
        raise PermissionDenied(f"the user may not enter a tenant {tenant[:64]!r}")
    with suppress(IntegrityError):  # another call with the same token came first
        _log_in(database, identity, token, chosen, ends_at, now)
    with database.read() as session:
        return authenticate_digest(session, digest, now)


def is_known(session: Session, digest: str) -> bool:
    """Return whether a token with this hash has been seen."""
    return session.scalars(select(TokenRow.id).where(TokenRow.sha256 == digest)).first() is not None


def _digest_of(token: str, tenant: TenantRow | None) -> str:
    return hash_token(f"{token} {tenant.id}" if tenant else token)


def _log_in(
    database: Database, identity: ClaimedIdentity, token: str, chosen: TenantRow | None, ends_at: float, now: float
) -> None:
    check_domain(identity, read_allowed_domains())
    roles = claimed_roles(identity.groups, read_claim_roles(resolve(OIDC_CLAIM_ROLES)))
    with database.write() as session:
        digest = _digest_of(token, chosen)
        if is_known(session, digest):
            return
        user = enter(session, identity, roles, now)
        # A token ended in one tenant is ended in all.
        digests = [_digest_of(token, tenant) for tenant in (None, *tenants_of_user(session, user))]
        ended = select(TokenRow.id).where(TokenRow.sha256.in_(digests), TokenRow.revoked_at.is_not(None))
        if session.scalars(ended).first() is not None:
            raise Unauthenticated("the token was revoked here; get a new one from the issuer")
        tenant_id = (chosen or choose_first_tenant(session, user)).id
        row = open_session(session, user, tenant_id, now, ends_at, digest)
        detail = json.dumps({"user": user.id, "email": user.email, "role": row.role})
        act = AuditRecord(now, Act.BEARER_LOGIN, actor=row.id, tenant_id=tenant_id, target=row.id, detail=detail)
        record(session, act)
