"""Rendering: pages, fragments that renew themselves, and errors as pages."""

import hashlib
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from rdukit import __version__
from rdukit.errors import RdukitError, Unauthenticated
from rdukit.units import format_bytes, format_count, format_seconds
from rdukit_platform.api.audit_requests import note_refusal
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.login import DEVICE_PAGE
from rdukit_platform.api.rates import RETRY_AFTER
from rdukit_platform.api.tenants import read_user
from rdukit_platform.catalog.figures import figure_text, figure_words
from rdukit_platform.console.navigation import manual_line, navigation_for
from rdukit_platform.console.views import age_words, clock_words, date_words
from rdukit_platform.tenants.service import Caller

#: Only the console's own files; no inline script or style.
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOGIN: Final = "/console/login"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rdukit_platform.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": format_bytes, "clock": clock_words, "date": date_words, "count": format_count}
    environment.filters["seconds"] = format_seconds
    environment.filters["figure"] = lambda value, name: figure_text(name, value)
    environment.filters["figure_words"] = lambda value, name: figure_words(name, value)
    return environment


def render(request: Request, template: str, **context: object) -> str:
    """Return a template's text. Every template has ``now``, ``caller`` and ``version``."""
    now = platform_of(request).clock.now()
    environment = _environment().overlay()
    environment.filters = {**_environment().filters, "ago": lambda at: age_words(at, now)}
    caller = getattr(request.state, "caller", None)
    section = str(context.pop("section", ""))
    return environment.get_template(template).render(
        caller=caller,
        tenants=_tenants_of(request, caller),
        version=__version__,
        section=section,
        navigation=navigation_for(caller.scopes) if caller else [],
        manual=manual_line(section) if caller else "",
        **context,
    )


def gateway_address(request: Request) -> str:
    """Return the address of the gateway, as this request's caller reaches it, without a slash at its end."""
    return str(request.base_url).rstrip("/")


def page(request: Request, template: str, status: int = 200, **context: object) -> Response:
    """Return a whole page."""
    return HTMLResponse(render(request, template, **context), status, headers=SECURITY_HEADERS)


def live(
    request: Request, name: str, path: str, template: str, *, seconds: int = 2, is_live: bool = True, **context: object
) -> Markup:
    """Return a part of a page that asks for itself again at ``path`` every ``seconds``, as long as ``is_live``."""
    body = render(request, template, **context)
    url = f"{path}{'&' if '?' in path else '?'}{urlencode({'seen': _tag(body)})}"
    return Markup(
        render(request, "_live.html", name=name, url=url, seconds=seconds, is_live=is_live, body=Markup(body))
    )


def fragment(request: Request, part: Markup) -> Response:
    """Return the answer to a request for a part: 204 if the browser already has it."""
    if f"seen={request.query_params.get('seen')}" in part:
        return Response(status_code=204, headers=SECURITY_HEADERS)
    return HTMLResponse(str(part), headers=SECURITY_HEADERS)


def safe_next(path: str) -> str:
    """Return ``path`` if it is a page of the console, else its first page."""
    is_ours = path.startswith("/console/") and not path.startswith(LOGIN) and "\\" not in path and "//" not in path
    return path if is_ours else "/console/"


class PageRoute(APIRoute):
    """A route whose errors are pages, and which sends visitors without a session to the login."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_explain(request: Request) -> Response:
            try:
                return await handle(request)
            except Unauthenticated:
                return _to_login(request)
            except RdukitError as error:
                return explain(request, error)

        return handle_or_explain


def _tenants_of(request: Request, caller: Caller | None) -> list[str]:
    """Return the names of the tenants among which a user may choose."""
    if caller is None or not caller.is_session:
        return []
    known: list[str] | None = getattr(request.state, "tenants", None)
    if known is None:
        user = read_user(platform_of(request), caller)
        known = request.state.tenants = user.tenants if user else []
    return known


def _to_login(request: Request) -> Response:
    here = request.url.path if request.method == "GET" else "/console/"
    if here == DEVICE_PAGE and "code" in request.query_params:
        here += f"?code={quote(request.query_params['code'], safe='')}"
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={**SECURITY_HEADERS, "HX-Redirect": LOGIN})
    return RedirectResponse(f"{LOGIN}?next={quote(here, safe='/')}", 303, headers=SECURITY_HEADERS)


def explain(request: Request, error: RdukitError) -> Response:
    """Return an error as a page; a refusal goes into the audit log."""
    note_refusal(request, error)
    title = {404: "Not found", 403: "Not allowed", 409: "Not possible", 429: "Too many requests"}.get(
        error.http_status, "Something is wrong"
    )
    answer = page(request, "error.html", error.http_status, title=title, message=error.message)
    if RETRY_AFTER in error.detail:
        answer.headers["Retry-After"] = str(error.detail[RETRY_AFTER])
    return answer


def _tag(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
