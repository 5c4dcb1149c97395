"""Create, list, rotate and revoke tokens; the caller's own token limits its rights here.

Every change checks again, in its own transaction, that the caller's token is valid, so a revoked token leaves nothing
behind.
"""

import getpass
import os
import secrets
from collections.abc import Sequence
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from rdukit.files.atomic import write_atomic
from rdukit.settings import resolve
from rdukit_platform.audit.service import Act, AuditRecord, record
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import TenantRow, TokenRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.settings import TOKEN_MAX_DAYS, Home
from rdukit_platform.tenants.scopes import (
    ADMIN,
    DAY_S,
    READ,
    SCOPES,
    WRITE,
    all_of,
    choose_end,
    choose_next_end,
    end_of_old,
    may_give,
    name_scopes,
)
from rdukit_platform.tenants.service import (
    DEFAULT_TENANT,
    Caller,
    authenticate,
    create_tenant,
    find_tenant,
    hash_token,
    read_validity,
)

#: Maker of tokens that a user of the host created.
HOST: Final = "host"
#: Maker of break-glass tokens.
GLASS: Final = "break-glass"
#: Scopes of the first token; as administrator's it includes the others.
FIRST_SCOPES: Final = (READ, WRITE, ADMIN)
#: Largest number of valid tokens of a tenant.
MAX_TOKENS: Final = 1000
#: Default and longest lifetime of a break-glass token, in seconds.
BREAK_GLASS_S: Final = 900.0
BREAK_GLASS_MAX_S: Final = 3600.0
_PREFIX: Final = "rdk_"


def create_token(
    session: Session,
    tenant_id: str,
    name: str,
    scopes: Sequence[str],
    now: float,
    expires_at: float | None = None,
    made_by: str = HOST,
    role: str | None = None,
    user_id: str | None = None,
) -> tuple[TokenRow, str]:
    """Add a token of the tenant, or of ``user_id``. Returns its row and its text, which is not stored.

    Raises:
        NotFound: no such tenant.
        InvalidArgument: unknown scope.
        Conflict: the tenant has reached its limit of tokens.
    """
    if session.get(TenantRow, tenant_id) is None:
        raise NotFound(f"there is no tenant {tenant_id!r}; list them with: rdukit tenant list")
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        what = (
            f"there is no scope {', '.join(repr(each[:64]) for each in unknown[:8])}"
            if unknown
            else "scopes are missing"
        )
        raise InvalidArgument(f"{what}; expected {', '.join(SCOPES)}", legal=list(SCOPES))
    valid = TokenRow.revoked_at.is_(None) & (TokenRow.expires_at.is_(None) | (TokenRow.expires_at > now))
    own = (TokenRow.tenant_id == tenant_id) & TokenRow.is_session.is_(False)
    count = session.scalar(select(func.count()).select_from(TokenRow).where(own, valid))
    if (count or 0) >= MAX_TOKENS:
        raise Conflict(f"the tenant has {MAX_TOKENS} valid tokens, which is the limit; revoke some: rdukit token list")
    text = _PREFIX + secrets.token_urlsafe(32)
    row = TokenRow(
        id=new_id("tok"), tenant_id=tenant_id, sha256=hash_token(text), name=name, scopes=sorted(set(scopes)),
        created_at=now, expires_at=expires_at, made_by=made_by, role=role, user_id=user_id,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row, text


def give_token(
    session: Session,
    caller: Caller,
    tenant_id: str,
    name: str,
    scopes: Sequence[str],
    now: float,
    life_s: float | None,
    role: str | None = None,
) -> tuple[TokenRow, str]:
    """Create a token within the caller's rights: of its own tenant, with its own scopes, and ending no later.

    Administrators may create tokens for all tenants, beyond their own end. Tokens made by a user's token belong to that
    user. Tokens made by a session outlive it, but end with its user. Raises as ``create_token``, and:
        PermissionDenied: it is more than the caller has.
    """
    check_still_valid(session, caller, now)
    if not _is_admin(caller) and caller.tenant_id != tenant_id:
        raise NotFound(f"there is no tenant {tenant_id!r}; list them with: rdukit tenant list")
    if not set(scopes) <= set(SCOPES) or may_give(caller.scopes, scopes):
        makers_end = None if _is_admin(caller) or caller.is_session else caller.expires_at
        ends = choose_end(now, life_s, makers_end, resolve(TOKEN_MAX_DAYS) * DAY_S)
        return create_token(session, tenant_id, name, scopes, now, ends, caller.token_id, role, caller.user_id)
    beyond = name_scopes(all_of(scopes) - all_of(caller.scopes))
    raise PermissionDenied(
        f"a token cannot give scopes that it lacks: this token lacks {beyond}; it has: {name_scopes(caller.scopes)}"
    )


def check_still_valid(session: Session, caller: Caller, now: float) -> None:
    """Check again, in a changing transaction, that the caller's token is still valid.

    Its row is locked, so the token cannot be revoked before the transaction has ended.

    Raises:
        Unauthenticated: the token is no longer valid.
    """
    row = session.get(TokenRow, caller.token_id, with_for_update=True)
    if row is None or read_validity(session, row, now)[1]:
        raise Unauthenticated("the API token ended during the request")


def list_tokens(
    session: Session, tenant_id: str, limit: int = 50, cursor: str | None = None
) -> tuple[list[TokenRow], str | None]:
    """Return the tenant's tokens, newest first and with ended ones, and the cursor of the next page.

    Console sessions are not included.
    """
    query = select(TokenRow).where(TokenRow.tenant_id == tenant_id, TokenRow.is_session.is_(False))
    return read_page(session, query, TokenRow.created_at, TokenRow.id, limit, cursor)


def own_tokens(session: Session, tenant_id: str) -> frozenset[str]:
    """Return the ids of all tokens that a tenant has or had."""
    return frozenset(session.scalars(select(TokenRow.id).where(TokenRow.tenant_id == tenant_id)))


def rotate_token(
    session: Session, caller: Caller, token_id: str, now: float, grace_s: float
) -> tuple[TokenRow, TokenRow, str]:
    """Replace a token by one with the same name, scopes and length of life; the old one ends after ``grace_s``.

    Returns the old row, the new row and the new text.

    Raises:
        NotFound: the caller's tenant has no such token.
        PermissionDenied: it has scopes that the caller lacks, was made to end soon, or is another user's own.
        Conflict: it has ended, or was replaced already, or is a session.
    """
    check_still_valid(session, caller, now)
    old = _get_own(session, caller, token_id)
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict(f"token {old.id} has ended; create another: rdukit token create")
    if old.replaced_by is not None:
        raise Conflict(f"token {old.id} was already replaced by {old.replaced_by}; rotate that one")
    if old.made_by == GLASS:
        raise PermissionDenied(
            f"token {old.id} is a break-glass token, which cannot be rotated; create another token: rdukit token create"
        )
    if old.is_session:
        raise Conflict(f"{old.id} is a session of the console, not a token; end it with: rdukit token revoke")
    if old.user_id is not None and old.user_id != caller.user_id:
        raise PermissionDenied(
            f"token {old.id} belongs to a user, and only that user may get its text; revoke it instead"
        )
    ends = choose_next_end(now, old.created_at, old.expires_at, resolve(TOKEN_MAX_DAYS) * DAY_S)
    new, text = create_token(
        session, old.tenant_id, old.name, old.scopes, now, ends, caller.token_id, old.role, old.user_id
    )
    old.expires_at, old.replaced_by = end_of_old(now, old.expires_at, grace_s), new.id
    return old, new, text


def revoke_tokens(
    session: Session, caller: Caller, token_id: str, now: float, *, with_made: bool = False
) -> list[TokenRow]:
    """Revoke a token, and ``with_made`` all tokens created from it, directly or indirectly. Returns those that ended.

    Raises:
        NotFound: the caller's tenant has no such token.
        PermissionDenied: a token has scopes that the caller lacks; then no token is revoked.
    """
    check_still_valid(session, caller, now)
    pending, found = [_get_own(session, caller, token_id)], dict[str, TokenRow]()
    while pending:
        row = pending.pop()
        if row.id not in found:
            found[row.id] = row
            if with_made:
                made = session.scalars(select(TokenRow).where(TokenRow.made_by == row.id)).all()
                pending += [_checked(caller, child) for child in made]
    ended = [row for row in found.values() if row.revoked_at is None]
    for row in ended:
        row.revoked_at = now
    return ended


def block_token(session: Session, caller: Caller, token_id: str, now: float, *, is_blocked: bool) -> TokenRow:
    """Block a token, or unblock it; repeating that is not an error. Returns its row.

    Raises:
        NotFound: there is no such token.
        Conflict: the token is the caller's own, or has ended.
    """
    check_still_valid(session, caller, now)
    row = _get_own(session, caller, token_id)
    if row.id == caller.token_id:
        raise Conflict(f"token {row.id} sent this request; end it with: rdukit token revoke {row.id}")
    if row.revoked_at is not None:
        raise Conflict(f"token {row.id} was revoked and cannot be blocked or unblocked")
    row.blocked_at = (row.blocked_at or now) if is_blocked else None
    return row


def ensure_first_token(database: Database, home: Home, now: float) -> None:
    """Create the default tenant, and write an admin token to ``token`` (0600) unless a valid one is there."""
    with database.write() as session:
        tenant = find_tenant(session, DEFAULT_TENANT) or create_tenant(session, DEFAULT_TENANT, now)
        try:
            authenticate(session, home.token_file.read_text().strip(), now)
            return
        except (FileNotFoundError, Unauthenticated):
            row, text = create_token(session, tenant.id, "first", FIRST_SCOPES, now)
            detail = f"the first token, in {home.token_file.name} of the home folder"
            record(session, AuditRecord(now, Act.CREATE_TOKEN, tenant_id=tenant.id, target=row.id, detail=detail))
            # Written before the commit: a token missing in the database is replaced at the next start.
            write_atomic(home.token_file, text.encode() + b"\n", mode=0o600)


def break_glass(database: Database, now: float, life_s: float, reason: str) -> tuple[TokenRow, str]:
    """Create a short-lived administrator's token for operators with access to the database.

    Raises:
        InvalidArgument: the lifetime is too long, or no reason is given.
    """
    if not 0 < life_s <= BREAK_GLASS_MAX_S:
        raise InvalidArgument(
            f"a lifetime of {life_s:g} s was requested for a break-glass token; expected up to {BREAK_GLASS_MAX_S:g}"
        )
    if not reason.strip():
        raise InvalidArgument("no reason was given; the audit log needs one")
    with database.write() as session:
        tenant = find_tenant(session, DEFAULT_TENANT) or create_tenant(session, DEFAULT_TENANT, now)
        row, text = create_token(session, tenant.id, "break-glass", [ADMIN], now, now + life_s, GLASS)
        detail = f"user {_user()} of the host, for {life_s:.0f} s: {reason.strip()}"
        record(
            session, AuditRecord(now, Act.BREAK_GLASS, actor=HOST, tenant_id=tenant.id, target=row.id, detail=detail)
        )
    return row, text


def _user() -> str:
    try:
        return f"{getpass.getuser()} ({os.getuid()})"
    except (KeyError, OSError):
        return str(os.getuid())


def _is_admin(caller: Caller) -> bool:
    return ADMIN in caller.scopes


def _get_own(session: Session, caller: Caller, token_id: str) -> TokenRow:
    row = session.get(TokenRow, token_id, with_for_update=True)
    if row is None or not (_is_admin(caller) or row.tenant_id == caller.tenant_id):
        raise NotFound(f"there is no token {token_id!r}; list yours with: rdukit token list")
    return _checked(caller, row)


def _checked(caller: Caller, row: TokenRow) -> TokenRow:
    if not may_give(caller.scopes, row.scopes):
        beyond = name_scopes(all_of(row.scopes) - all_of(caller.scopes))
        raise PermissionDenied(
            f"token {row.id} has {beyond}, which this token lacks; it has: {name_scopes(caller.scopes)}"
        )
    return row
