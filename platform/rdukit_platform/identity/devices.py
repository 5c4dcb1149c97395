"""Logins of devices: a command shows a code, its user types it into the console, the command gets a token.

Source: RFC 8628, the device authorization grant, of which the gateway is the authorization server.
"""

import secrets
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from rdukit.errors import NotFound, Overloaded, PermissionDenied, Unauthenticated
from rdukit.settings import resolve
from rdukit_platform.db.models import DeviceLoginRow, TokenRow
from rdukit_platform.identity.settings import LOGIN_DAYS
from rdukit_platform.settings import TOKEN_MAX_DAYS
from rdukit_platform.tenants.scopes import DAY_S
from rdukit_platform.tenants.service import Caller, authenticate_digest, hash_token
from rdukit_platform.tenants.tokens import check_still_valid, give_token

#: Seconds in which the user must type the code.
DEVICE_S: Final = 600.0
#: Seconds between polls of a command.
INTERVAL_S: Final = 2.0
MAX_DEVICES: Final = 10_000
#: Letters of codes: no vowels, which would form words, and no look-alikes.
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"


def begin_device(session: Session, name: str, address: str, now: float) -> tuple[str, str]:
    """Begin a login of a device. Returns its secret code, and the code that it shows.

    Raises:
        Overloaded: too many are under way.
    """
    session.execute(delete(DeviceLoginRow).where(DeviceLoginRow.expires_at <= now))
    if (session.scalar(select(func.count()).select_from(DeviceLoginRow)) or 0) >= MAX_DEVICES:
        raise Overloaded(f"{MAX_DEVICES} device logins are in progress; try again in some minutes")
    device_code = secrets.token_urlsafe(32)
    letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
    user_code = f"{letters[:4]}-{letters[4:]}"
    session.add(DeviceLoginRow(
        device_sha256=hash_token(device_code), user_code=user_code, name=name, address=address, token_id=None,
        is_denied=False, next_poll_at=now, expires_at=now + DEVICE_S,
    ))  # fmt: skip
    session.flush()
    return device_code, user_code


def find_device(session: Session, user_code: str, now: float) -> DeviceLoginRow:
    """Return the device that shows a code and is not answered yet.

    Raises:
        NotFound: no login of a device waits under this code.
    """
    letters = "".join(c for c in user_code.upper() if c.isalpha())[:16]
    query = select(DeviceLoginRow).where(DeviceLoginRow.user_code == f"{letters[:4]}-{letters[4:]}")
    row = session.scalars(query.with_for_update()).one_or_none()
    if row is None or row.expires_at <= now or row.token_id is not None or row.is_denied:
        raise NotFound("no command waits with this code; it was mistyped, has been used, or is older than ten minutes")
    return row


def answer_device(session: Session, caller: Caller, user_code: str, now: float, *, is_allowed: bool) -> DeviceLoginRow:
    """Allow a device's login as ``caller``, or refuse it. Raises as ``find_device``."""
    check_still_valid(session, caller, now)
    row = find_device(session, user_code, now)
    if is_allowed:
        row.token_id = caller.token_id
    else:
        row.is_denied = True
    return row


def poll_device(session: Session, device_code: str, now: float) -> tuple[Caller, TokenRow, str] | None:
    """Return the approving caller, the new token and its text; ``None``: the user has not answered.

    The token has its user's present rights, and lives at most ``login.days``.

    Raises:
        NotFound: no device has this code, or no longer.
        PermissionDenied: it was refused.
        Overloaded: it asks too often.
        Unauthenticated: the user who approved it has logged out.
    """
    row = session.get(DeviceLoginRow, hash_token(device_code), with_for_update=True)
    if row is None or row.expires_at <= now:
        raise NotFound("this login was not answered within ten minutes, or has been used; begin again: rdukit login")
    if row.is_denied:
        raise PermissionDenied("this login was refused in the console")
    if row.token_id is None:
        if now < row.next_poll_at:
            raise Overloaded(f"the command asks too often; expected every {INTERVAL_S:g} s", retry_after_s=2)
        row.next_poll_at = now + 0.5 * INTERVAL_S
        return None
    maker = session.get(TokenRow, row.token_id)
    if maker is None:
        raise Unauthenticated("the user who approved this command has logged out; begin again: rdukit login")
    caller = authenticate_digest(session, maker.sha256, now)
    made, text = give_token(
        session, caller, caller.tenant_id, row.name, sorted(caller.scopes), now, _choose_life(caller, now), maker.role
    )
    session.delete(row)
    return caller, made, text


def _choose_life(caller: Caller, now: float) -> float | None:
    days = [days for days in (resolve(LOGIN_DAYS), resolve(TOKEN_MAX_DAYS)) if days]
    lives = [min(days) * DAY_S] if days else []
    if caller.expires_at is not None and not caller.is_session:
        lives.append(caller.expires_at - now)
    return min(lives) if lives else None
