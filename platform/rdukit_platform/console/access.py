"""Sessions of the console: a signed cookie to a caller, and the key that signs cookies."""

import base64
import binascii
import hashlib
import hmac
import json
import math
import secrets
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Request
from sqlalchemy import delete
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rdukit.errors import PermissionDenied, Unauthenticated
from rdukit.files.atomic import write_atomic
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.dependencies import check_permission, check_scope, platform_of
from rdukit_platform.audit.service import Act, record
from rdukit_platform.db.models import EndedSessionRow
from rdukit_platform.settings import Home
from rdukit_platform.tenants.permissions import Permission, needs
from rdukit_platform.tenants.scopes import (
    ADMIN,
    BOXES_WRITE,
    ENDPOINTS_CALL,
    ENDPOINTS_WRITE,
    JOBS_WRITE,
    MEMBERS,
    READ,
    TOKENS,
)
from rdukit_platform.tenants.service import Caller, authenticate, authenticate_digest, hash_token


def cookie_key(home: Home) -> bytes:
    """Return the key that signs cookies, in ``console.key`` (0600); made at first use."""
    path = home.folder / "console.key"
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        write_atomic(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
        # Read again: if two processes create one at once, the later one wins.
        key = path.read_bytes()
    return key


def log_in(request: Request, token: str) -> str:
    """Return the cookie for an API token.

    Raises:
        Unauthenticated: the token is not valid.
        PermissionDenied: it may not read.
    """
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.read() as session:  # a stranger waits for no writer, and keeps none waiting
        caller = request.state.caller = authenticate(session, token, now)
    check_scope(caller, READ)
    with platform.database.write() as session:
        record(session, entry_of(request, caller, Act.LOGIN, caller.token_id))
    return seal_session(request, hash_token(token), min(now + SESSION_S, caller.expires_at or math.inf))


def seal_session(request: Request, sha256: str, ends: float) -> str:
    """Return the cookie for the token or session with this digest."""
    return seal(ConsoleSession(sha256, ends), cookie_key(platform_of(request).home))


def give_cookie(request: Request, answer: Response, cookie: str) -> None:
    """Set a session's cookie in the browser; scripts and other sites cannot read it."""
    answer.set_cookie(
        COOKIE, cookie, max_age=SESSION_S, path="/console", httponly=True, samesite="lax",
        secure=request.url.scheme == "https",
    )  # fmt: skip


def find_visitor(request: Request) -> Caller | None:
    """Return the caller of the cookie's valid session; ``None`` without a session, or if its token has ended."""
    platform = platform_of(request)
    cookie = request.cookies.get(COOKIE)
    session = find_session(cookie, cookie_key(platform.home), platform.clock.now()) if cookie else None
    if session is None:
        return None
    with platform.database.read() as database:
        if database.get(EndedSessionRow, hash_token(cookie or "")) is not None:
            return None
        try:
            caller = authenticate_digest(database, session.token_sha256, platform.clock.now())
        except Unauthenticated:
            return None
    platform.audit.used(caller.token_id)
    return caller


def end_session(request: Request, caller: Caller) -> None:
    """End a session that a token opened: its cookie opens nothing any more, wherever it may be."""
    platform = platform_of(request)
    cookie, now = request.cookies.get(COOKIE, ""), platform.clock.now()
    session = find_session(cookie, cookie_key(platform.home), now)
    if session is None:
        return
    with platform.database.write() as database:
        database.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at <= now))
        database.merge(EndedSessionRow(cookie_sha256=hash_token(cookie), expires_at=session.expires_at))
        record(database, entry_of(request, caller, Act.LOGOUT, caller.token_id))


def check_same_site(request: Request) -> None:
    """Refuse a form that another site sent.

    Raises:
        PermissionDenied: the browser reports another origin.
    """
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "same-origin")
    is_foreign = origin is not None and origin != "null" and origin.partition("://")[2] != request.headers.get("host")
    if site not in {"same-origin", "none"} or is_foreign:
        raise PermissionDenied("this form was sent from another site; use the console's own pages")


def identify_visitor(request: Request) -> Caller:
    """Return the caller of a console request's session, which is checked once.

    Raises:
        Unauthenticated: the request has no session.
        Overloaded: the session or its tenant sends too many requests.
    """
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None:
        return known
    caller = find_visitor(request)
    if caller is None:
        raise Unauthenticated("log in to the console")
    request.state.caller = caller
    platform_of(request).rates.check(caller)
    return caller


@dataclass(frozen=True)
class Visit:
    """Dependency of a page: a visitor whom ``permission`` lets in. It declares the permission of the page."""

    permission: Permission

    async def __call__(self, request: Request) -> Caller:
        """Return the visitor. Raises as ``identify_visitor`` and ``check_permission``."""
        known: Caller | None = getattr(request.state, "caller", None)
        caller = await run_in_threadpool(identify_visitor, request) if known is None else known
        check_permission(caller, self.permission)
        return caller


Visitor = Annotated[Caller, Depends(Visit(needs(READ)))]
MembersEditor = Annotated[Caller, Depends(Visit(needs(READ, MEMBERS)))]
Editor = Annotated[Caller, Depends(Visit(needs(READ, JOBS_WRITE)))]
BoxesEditor = Annotated[Caller, Depends(Visit(needs(READ, BOXES_WRITE)))]
Keeper = Annotated[Caller, Depends(Visit(needs(READ, TOKENS)))]
EndpointsEditor = Annotated[Caller, Depends(Visit(needs(READ, ENDPOINTS_WRITE)))]
Player = Annotated[Caller, Depends(Visit(needs(READ, ENDPOINTS_CALL)))]
Administrator = Annotated[Caller, Depends(Visit(needs(READ, ADMIN)))]


COOKIE: Final = "rdukit_console"
SESSION_S: Final = 12 * 3600
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """A login: digest of the API token, and the end in seconds since the epoch."""

    token_sha256: str
    expires_at: float


def seal(session: ConsoleSession, key: bytes) -> str:
    """Return the cookie's value."""
    body = json.dumps([session.token_sha256, session.expires_at]).encode()
    return f"{base64.urlsafe_b64encode(body).decode()}.{_sign(body, key)}"


def find_session(cookie: str | None, key: bytes, now: float) -> ConsoleSession | None:
    """Return the session in a cookie; ``None`` if there is no cookie, or it is foreign, altered or too old."""
    if not cookie or "." not in cookie:
        return None
    text, signature = cookie.rsplit(".", 1)
    try:
        body = base64.urlsafe_b64decode(text.encode())
        if not hmac.compare_digest(_sign(body, key).encode(), signature.encode()):
            return None
        digest, expires_at = json.loads(body)
    except (ValueError, TypeError, binascii.Error):
        return None
    return ConsoleSession(str(digest), float(expires_at)) if float(expires_at) > now else None


def _sign(body: bytes, key: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()
