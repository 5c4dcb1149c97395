"""Tenants and their tokens. A token is shown once; only its SHA-256 is kept."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, NotFound, Unauthenticated
from rdukit.files import write_atomic
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import TenantRow, TokenRow
from rdukit_platform.ids import new_id
from rdukit_platform.settings import Home

READ: Final = "read"
WRITE: Final = "write"
ADMIN: Final = "admin"
SCOPES: Final = (READ, WRITE, ADMIN)
DEFAULT_TENANT: Final = "default"
_PREFIX: Final = "rdk_"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant and what its token allows."""

    tenant_id: str
    tenant_name: str
    scopes: frozenset[str]


def authenticate(session: Session, token: str | None) -> Caller:
    """The caller that a token belongs to.

    Raises:
        Unauthenticated: no token, or one that is not valid.
    """
    hint = "send Authorization: Bearer <token>; rdukit up writes the first one to the file token in its home folder"
    if not token:
        raise Unauthenticated(f"no API token was sent; {hint}")
    found = session.execute(
        select(TokenRow, TenantRow)
        .join(TenantRow, TenantRow.id == TokenRow.tenant_id)
        .where(TokenRow.sha256 == hash_token(token), TokenRow.revoked_at.is_(None))
    ).one_or_none()
    if found is None:
        raise Unauthenticated(f"the API token is not valid; {hint}")
    row, tenant = found
    return Caller(tenant.id, tenant.name, frozenset(row.scopes))


def hash_token(token: str) -> str:
    """What is kept of a token: it is random enough that a plain hash cannot be reversed."""
    return hashlib.sha256(token.encode()).hexdigest()


def create_tenant(session: Session, name: str, now: float) -> TenantRow:
    """Add a tenant.

    Raises:
        Conflict: the name is taken.
    """
    if session.scalars(select(TenantRow.id).where(TenantRow.name == name)).first() is not None:
        raise Conflict(f"a tenant is called {name!r} already")
    row = TenantRow(id=new_id("ten"), name=name, created_at=now)
    session.add(row)
    session.flush()
    return row


def create_token(
    session: Session, tenant_id: str, name: str, scopes: Sequence[str], now: float
) -> tuple[TokenRow, str]:
    """Add a token. Returns its row and its text, which is not kept.

    Raises:
        NotFound: no such tenant.
        InvalidArgument: unknown scope.
    """
    if session.get(TenantRow, tenant_id) is None:
        raise NotFound(f"there is no tenant {tenant_id!r}; list them with: rdukit tenant list")
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise InvalidArgument(f"scopes {unknown or 'are missing'}; legal: {list(SCOPES)}", legal=list(SCOPES))
    text = _PREFIX + secrets.token_urlsafe(32)
    row = TokenRow(
        id=new_id("tok"),
        tenant_id=tenant_id,
        sha256=hash_token(text),
        name=name,
        scopes=sorted(set(scopes)),
        created_at=now,
    )
    session.add(row)
    session.flush()
    return row, text


def list_tenants(session: Session) -> Sequence[TenantRow]:
    """All tenants by name."""
    return session.scalars(select(TenantRow).order_by(TenantRow.name)).all()


def find_tenant(session: Session, name_or_id: str) -> TenantRow | None:
    """The tenant with this id or name."""
    return session.scalars(
        select(TenantRow).where((TenantRow.id == name_or_id) | (TenantRow.name == name_or_id))
    ).one_or_none()


def ensure_first_token(database: Database, home: Home, now: float) -> None:
    """Make the default tenant, and an admin token for it in ``token`` (0600) unless a valid one is there."""
    with database.write() as session:
        tenant = find_tenant(session, DEFAULT_TENANT) or create_tenant(session, DEFAULT_TENANT, now)
        try:
            present = home.token_file.read_text().strip()
            authenticate(session, present)
            return
        except (FileNotFoundError, Unauthenticated):
            _, text = create_token(session, tenant.id, "first", SCOPES, now)
            # Written before the commit: a token that is not in the database is replaced at the next start.
            write_atomic(home.token_file, text.encode() + b"\n", mode=0o600)
