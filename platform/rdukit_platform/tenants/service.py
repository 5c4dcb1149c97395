"""Tenants, and authentication by tokens. A token is shown once; only its SHA-256 is stored."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, NotFenced, Unauthenticated
from rdukit_platform.db.models import TenantRow, TokenRow
from rdukit_platform.db.rows import new_id
from rdukit_platform.services import UNFENCED, live_services
from rdukit_platform.tenants.scopes import is_over, restrict
from rdukit_platform.tenants.standing import find_standing

DEFAULT_TENANT: Final = "default"
#: Built once, because each request uses it.
_OWNER: Final = (
    select(TokenRow, TenantRow)
    .join(TenantRow, TenantRow.id == TokenRow.tenant_id)
    .where(TokenRow.sha256 == bindparam("sha256"))
)
_HINT: Final = (
    "send Authorization: Bearer <token>; log in with: rdukit login; rdukit up writes the first one to the file token "
    "in its home folder, and its operator gets another by: rdukit tenant token --break-glass"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Authenticated caller: a tenant, and the scopes of its token."""

    tenant_id: str
    tenant_name: str
    scopes: frozenset[str]
    #: Id of the token, for the audit log.
    token_id: str
    #: Time at which the token ends; ``None``: never.
    expires_at: float | None = None
    #: User that owns the token; ``None``: the tenant owns it.
    user_id: str | None = None
    #: Whether it is a session of the console.
    is_session: bool = False

    @property
    def submitter(self) -> str:
        """Return the user's id, or that of the tenant's token."""
        return self.user_id or self.token_id


class TokenEnded(Exception):
    """Cause of ``Unauthenticated`` if the token was once valid. ``caller``: its former owner."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller.token_id)
        self.caller = caller


def authenticate(session: Session, token: str | None, now: float) -> Caller:
    """Return the caller that a token belongs to.

    Raises:
        Unauthenticated: no token, or one that is not valid.
    """
    if not token:
        raise Unauthenticated(f"no API token was sent; {_HINT}")
    return authenticate_digest(session, hash_token(token), now)


def authenticate_digest(session: Session, sha256: str, now: float) -> Caller:
    """Authenticate by the token's hash. Raises as ``authenticate``."""
    found = session.execute(_OWNER, {"sha256": sha256}).one_or_none()
    if found is None:
        raise Unauthenticated(f"the API token is not valid; {_HINT}")
    row, tenant = found
    scopes, why = read_validity(session, row, now)
    caller = Caller(tenant.id, tenant.name, scopes, row.id, row.expires_at, row.user_id, row.is_session)
    if why:
        raise Unauthenticated(f"the API token {row.id} is not valid: it {why}; {_HINT}") from TokenEnded(caller)
    return caller


def read_validity(session: Session, row: TokenRow, now: float) -> tuple[frozenset[str], str]:
    """Return a token's present scopes, and the reason why it is no longer valid; empty: it is valid.

    A user's token is limited to the user's present scopes; a session has exactly these.
    """
    if why := is_over(now, row.revoked_at, row.expires_at, row.blocked_at):
        return frozenset(), why
    if row.user_id is None:
        return frozenset(row.scopes), ""
    standing = find_standing(session, row.user_id, row.tenant_id)
    if standing is None:
        return frozenset(), "belongs to a user who is disabled or no member of the tenant"
    return standing.scopes if row.is_session else restrict(row.scopes, standing.scopes), ""


def is_token_valid(session: Session, token_id: str, now: float) -> bool:
    """Return whether a token is still valid."""
    row = session.get(TokenRow, token_id)
    return row is not None and not read_validity(session, row, now)[1]


def find_withdrawn(session: Session, token_ids: Iterable[str], now: float) -> set[str]:
    """Return the tokens that were blocked or revoked, or whose user has lost access to the tenant.

    Expired tokens are not included.
    """
    return {each for each in token_ids if _is_withdrawn(session, session.get(TokenRow, each), now)}


def _is_withdrawn(session: Session, row: TokenRow | None, now: float) -> bool:
    if row is None or is_over(now, row.revoked_at, None, row.blocked_at):
        return True
    return row.user_id is not None and find_standing(session, row.user_id, row.tenant_id) is None


def hash_token(token: str) -> str:
    """Hash a token for storage: tokens are random enough that a plain hash cannot be reversed."""
    return hashlib.sha256(token.encode()).hexdigest()


def check_may_add(session: Session, now: float) -> None:
    """Refuse a second tenant if job boxes are not isolated.

    Raises:
        NotFenced: the message names the worker and the reason.
    """
    if count_tenants(session) == 0:
        return
    for worker in live_services(session, now):
        kind, _, why = worker.walls.partition(": ")
        if kind == UNFENCED:
            raise NotFenced(f"only one tenant is allowed, because job boxes are not fenced on {worker.id}: {why}")


def create_tenant(session: Session, name: str, now: float, weight: float = 1.0) -> TenantRow:
    """Add a tenant.

    Raises:
        Conflict: the name is taken.
    """
    if session.scalars(select(TenantRow.id).where(TenantRow.name == name)).first() is not None:
        raise Conflict(f"tenant {name!r} already exists")
    row = TenantRow(id=new_id("ten"), name=name, created_at=now, weight=weight)
    session.add(row)
    session.flush()
    return row


def count_tenants(session: Session) -> int:
    """Count the tenants."""
    return session.scalars(select(func.count()).select_from(TenantRow)).one()


def list_tenants(session: Session) -> Sequence[TenantRow]:
    """List all tenants by name."""
    return session.scalars(select(TenantRow).order_by(TenantRow.name)).all()


def find_tenant(session: Session, name_or_id: str) -> TenantRow | None:
    """Return the tenant with this id or name."""
    return session.scalars(
        select(TenantRow).where((TenantRow.id == name_or_id) | (TenantRow.name == name_or_id))
    ).one_or_none()
