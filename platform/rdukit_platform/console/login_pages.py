"""The console's pages of logins: at the issuer and back, a command's code, and another tenant."""

import json
from collections.abc import Mapping
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from rdukit.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, RdukitError, Unauthenticated
from rdukit.settings import resolve
from rdukit_platform.api.audit_requests import address_of, entry_of, note_refusal
from rdukit_platform.api.dependencies import PUBLIC_ROUTE, platform_of
from rdukit_platform.api.login import DEVICE_PAGE
from rdukit_platform.audit.service import Act, record
from rdukit_platform.console.access import SESSION_S, Visitor, give_cookie, seal_session
from rdukit_platform.console.page import SECURITY_HEADERS, PageRoute, page, safe_next
from rdukit_platform.db.models import UserRow
from rdukit_platform.identity import logins
from rdukit_platform.identity.claims import ClaimedIdentity, check_domain, claimed_roles
from rdukit_platform.identity.devices import answer_device, find_device
from rdukit_platform.identity.issuer import is_configured
from rdukit_platform.identity.settings import OIDC_CLAIM_ROLES, OIDC_ISSUER, read_allowed_domains, read_claim_roles
from rdukit_platform.settings import GATEWAY_URL
from rdukit_platform.tenants.service import Caller, find_tenant
from rdukit_platform.tenants.tokens import check_still_valid

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Cookie of the browser that began a login, as long as that is under way.
BROWSER_COOKIE: Final = "rdukit_login"
_HERE: Final = "/console/oidc"


def login_form(request: Request, following: str, error: str = "", status: int = 200) -> Response:
    """Return the login page: the issuer's button, if there is an issuer, and the field for a token."""
    issuer = urlsplit(resolve(OIDC_ISSUER)).hostname or "" if is_configured() else ""
    return page(request, "login.html", status, next=safe_next(following), error=error, issuer=issuer)


@router.get("/oidc/login", dependencies=[PUBLIC_ROUTE])
def begin(request: Request, next: str = "/console/") -> Response:
    """Send the browser to the issuer."""
    platform = platform_of(request)
    if not is_configured():
        raise NotFound("this platform has no issuer for logins (oidc.issuer); log in with an API token")
    try:
        platform.rates.check_login(address_of(request))
        redirect_uri = (resolve(GATEWAY_URL) or str(request.base_url)).rstrip("/") + f"{_HERE}/callback"
        platform.issuer.warm_up()  # before there is a row
        with platform.database.write() as session:
            begun = logins.begin_login(session, platform.clock.now(), safe_next(next)[:512], redirect_uri[:512])
        url = platform.issuer.authorization_url(redirect_uri, begun.state, begun.nonce, begun.verifier)
    except RdukitError as error:
        note_refusal(request, error)
        return login_form(request, next, error.message, error.http_status)
    answer = RedirectResponse(url, 303, headers=SECURITY_HEADERS)
    answer.set_cookie(
        BROWSER_COOKIE, begun.browser, max_age=int(logins.LOGIN_S), path=_HERE, httponly=True, samesite="lax",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


@router.get("/oidc/callback", dependencies=[PUBLIC_ROUTE])
def come_back(request: Request, code: str = "", state: str = "", error: str = "", iss: str | None = None) -> Response:
    """Open a session for the browser that the issuer sends back."""
    following = "/console/"
    try:
        platform = platform_of(request)
        with platform.database.write() as session:
            browser = request.cookies.get(BROWSER_COOKIE, "")
            login = logins.take_login(session, state, browser, platform.clock.now())
        following = login.next
        if error or not code:
            raise Unauthenticated(f"the issuer refused the login ({error[:64] or 'it gave no code'})")
        if iss is not None and iss != resolve(OIDC_ISSUER):
            raise Unauthenticated("the answer comes from another issuer (iss)")
        identity = platform.issuer.redeem(code, login.verifier, login.redirect_uri, login.nonce)
        check_domain(identity, read_allowed_domains())
        cookie = _open_session(request, identity)
    except RdukitError as refused:
        note_refusal(request, refused)
        answer = login_form(request, following, refused.message, refused.http_status)
    else:
        answer = RedirectResponse(safe_next(following), 303, headers=SECURITY_HEADERS)
        give_cookie(request, answer, cookie)
    answer.delete_cookie(BROWSER_COOKIE, path=_HERE)
    return answer


@router.get("/device")
def device(request: Request, caller: Visitor, code: str = "") -> Response:
    """Ask for the code that a command shows, or show the login that waits with it."""
    return _device_page(request, code)


@router.post("/device")
def answer_code(
    request: Request, caller: Visitor, code: Annotated[str, Form()] = "", answer: Annotated[str, Form()] = ""
) -> Response:
    """Allow or deny the login of a command."""
    if answer not in ("allow", "deny"):
        raise InvalidArgument(f"the form says {answer[:20]!r}; expected allow, deny")
    platform = platform_of(request)
    platform.rates.check_login(address_of(request))
    try:
        with platform.database.write() as session:
            row = answer_device(session, caller, code, platform.clock.now(), is_allowed=answer == "allow")
            said = "let in" if answer == "allow" else "kept out"
            detail = f"{row.name!r} of {row.address}: {said}"
            record(session, entry_of(request, caller, Act.DEVICE_LOGIN, row.user_code, None, detail))
            name = row.name
    except NotFound as missing:
        return _show_device(request, 404, error=missing.message)
    done = f"{name} is logged in; you may return to it." if answer == "allow" else f"{name} was kept out."
    return _show_device(request, done=done)


@router.post("/tenant")
def switch_tenant(request: Request, caller: Visitor, tenant: Annotated[str, Form()] = "") -> Response:
    """Switch to another tenant: begin a session there, and end this one."""
    platform = platform_of(request)
    now = platform.clock.now()
    if caller.user_id is None or not caller.is_session or caller.expires_at is None:
        raise Conflict("an API token belongs to a single tenant; log in as a user, or with another token")
    with platform.database.write() as session:
        check_still_valid(session, caller, now)
        found = find_tenant(session, tenant)
        user = session.get_one(UserRow, caller.user_id)
        try:
            if found is None:
                raise PermissionDenied("")
            opened = logins.open_session(session, user, found.id, now, caller.expires_at)
        except PermissionDenied as refused:
            raise NotFound(f"there is no tenant {tenant[:64]!r} that you may enter") from refused
        logins.end_session(session, caller.token_id, now)
        record(session, entry_of(request, caller, Act.SWITCH_TENANT, opened.id, found.id, f"to {found.name}"))
        cookie = seal_session(request, opened.sha256, caller.expires_at)
    answer = RedirectResponse("/console/", 303)
    give_cookie(request, answer, cookie)
    return answer


def _open_session(request: Request, identity: ClaimedIdentity) -> str:
    platform = platform_of(request)
    now = platform.clock.now()
    roles = claimed_roles(identity.groups, read_claim_roles(resolve(OIDC_CLAIM_ROLES)))
    with platform.database.write() as session:
        user = logins.enter(session, identity, roles, now)
        tenant = logins.choose_first_tenant(session, user)
        row = logins.open_session(session, user, tenant.id, now, now + SESSION_S)
        caller = Caller(tenant.id, tenant.name, frozenset(), row.id, row.expires_at, user.id, True)
        detail = json.dumps({"user": user.id, "email": user.email, "role": row.role})
        record(session, entry_of(request, caller, Act.OIDC_LOGIN, row.id, tenant.id, detail))
        return seal_session(request, row.sha256, now + SESSION_S)


def _device_page(request: Request, code: str) -> Response:
    if not code:
        return _show_device(request)
    platform = platform_of(request)
    platform.rates.check_login(address_of(request))
    try:
        with platform.database.read() as session:
            row = find_device(session, code, platform.clock.now())
            waiting = {"name": row.name, "address": row.address, "code": row.user_code}
    except NotFound as missing:
        return _show_device(request, 404, error=missing.message)
    return _show_device(request, waiting=waiting)


def _show_device(
    request: Request, status: int = 200, *, waiting: Mapping[str, str] | None = None, error: str = "", done: str = ""
) -> Response:
    return page(
        request, "device.html", status, section="", action=DEVICE_PAGE, waiting=waiting, error=error, done=done
    )  # fmt: skip
