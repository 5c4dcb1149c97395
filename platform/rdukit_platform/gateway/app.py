"""ASGI application of the gateway, with its pages of documentation."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import orjson
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute

from rdukit import __version__
from rdukit.errors import NotFound
from rdukit.http.routes_ahead import answer_nobody
from rdukit.http.tls import find_server_files
from rdukit.settings import resolve
from rdukit_platform.api.artifacts import router as artifacts
from rdukit_platform.api.audit import router as audit
from rdukit_platform.api.catalog import router as catalog
from rdukit_platform.api.context import Platform
from rdukit_platform.api.endpoint_calls import EndpointCalls
from rdukit_platform.api.endpoint_calls import router as endpoint_calls
from rdukit_platform.api.endpoints import router as endpoints
from rdukit_platform.api.entries import router as entries
from rdukit_platform.api.experts import router as experts
from rdukit_platform.api.jobs import router as jobs
from rdukit_platform.api.load import router as load
from rdukit_platform.api.login import router as login
from rdukit_platform.api.maintenance import router as maintenance
from rdukit_platform.api.members import router as members
from rdukit_platform.api.nodes import router as nodes
from rdukit_platform.api.runs import router as runs
from rdukit_platform.api.schedules import router as schedules
from rdukit_platform.api.sweeps import router as sweeps
from rdukit_platform.api.tenants import router as tenants
from rdukit_platform.api.uploads import router as uploads
from rdukit_platform.api.webhooks import router as webhooks
from rdukit_platform.catalog.catalog import clear_incoming
from rdukit_platform.console.access_pages import router as access
from rdukit_platform.console.catalog_pages import router as catalog_pages
from rdukit_platform.console.endpoint_form_pages import router as endpoint_form_pages
from rdukit_platform.console.endpoint_pages import router as endpoint_pages
from rdukit_platform.console.expert_pages import router as expert_pages
from rdukit_platform.console.job_actions import router as job_actions
from rdukit_platform.console.login_pages import router as login_pages
from rdukit_platform.console.member_pages import router as member_pages
from rdukit_platform.console.playground_pages import router as playground_pages
from rdukit_platform.console.routes import router as console
from rdukit_platform.console.run_form_pages import router as run_forms
from rdukit_platform.console.run_pages import router as run_pages
from rdukit_platform.console.schedule_pages import router as schedule_pages
from rdukit_platform.console.sweep_form_pages import router as sweep_forms
from rdukit_platform.console.sweep_pages import router as sweep_pages
from rdukit_platform.console.tenant_pages import router as tenant_pages
from rdukit_platform.console.webhook_pages import router as webhook_pages
from rdukit_platform.gateway.guard import check_query, check_routes, enforce_permission
from rdukit_platform.gateway.health import router as health
from rdukit_platform.gateway.metrics import router as metrics
from rdukit_platform.gateway.middleware import ERRORS, BodyLimitMiddleware, RequestContextMiddleware, add_error_handlers
from rdukit_platform.gateway.withdrawn import WithdrawnMiddleware
from rdukit_platform.settings import (
    GATEWAY_PROXIES,
    GATEWAY_TLS_CA,
    GATEWAY_TLS_CERTIFICATE,
    GATEWAY_TLS_KEY,
    GRPC_ADDRESS,
)

#: Number of threads; each follower of events needs one briefly, several times a second.
THREADS = 64


def forwarding() -> dict[str, Any]:
    """Return the server's options for trusted proxies, which may name a request's origin; by default none."""
    proxies = resolve(GATEWAY_PROXIES)
    return {"proxy_headers": bool(proxies), "forwarded_allow_ips": proxies or ""}


#: Seconds that gRPC's calls have to end when the gateway stops.
STOP_S: Final = 1.0


async def _start_rpc(app: FastAPI, platform: Platform) -> Any:
    """Start gRPC if the settings enable it. Returns its server; ``app.state.grpc_port`` is its port."""
    if not (address := resolve(GRPC_ADDRESS)):
        return None
    from rdukit_platform.gateway.rpc import start_rpc  # imported on demand: gRPC takes 20 MB

    tls = find_server_files(
        resolve(GATEWAY_TLS_CERTIFICATE), resolve(GATEWAY_TLS_KEY), resolve(GATEWAY_TLS_CA), "gateway"
    )
    server, app.state.grpc_port = await start_rpc(platform, address, tls)
    return server


def _bare_app(**more: Any) -> FastAPI:
    """Return an application without routes that enforces the permission of every route added later."""
    return FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, responses=ERRORS,
        dependencies=[Depends(enforce_permission)], **more,
    )  # fmt: skip


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes shared by all gateways of this process: they depend on no platform, and are prepared once."""
    app = _bare_app()
    for each in (
        runs,
        jobs,
        sweeps,
        schedules,
        webhooks,
        artifacts,
        uploads,
        catalog,
        entries,
        experts,
        endpoints,
        nodes,
        maintenance,
        tenants,
        members,
        login,
        audit,
        load,
    ):
        app.include_router(each, dependencies=[Depends(check_query)])
    for each in (
        health,
        metrics,
        endpoint_calls,
        router,
        console,
        catalog_pages,
        run_pages,
        run_forms,
        sweep_forms,
        job_actions,
        sweep_pages,
        schedule_pages,
        expert_pages,
        endpoint_pages,
        endpoint_form_pages,
        playground_pages,
        access,
        login_pages,
        member_pages,
        tenant_pages,
        webhook_pages,
    ):
        app.include_router(each)
    check_routes(app)
    return app.router.routes


def prepare_routes() -> None:
    """Prepare the routes for gateways forked from this process, which takes FastAPI most of a second."""
    app = _bare_app()
    app.router.routes[:] = _routes()
    asyncio.run(answer_nobody(app))


def create_app(platform: Platform) -> FastAPI:
    """Return the application over an opened platform."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        clear_incoming(platform.home.installing)
        platform.catalog.warm_up()
        calls = app.state.calls = EndpointCalls(platform)
        calls.start()
        rpc = await _start_rpc(app, platform)
        yield
        if rpc is not None:
            await rpc.stop(STOP_S)
        await calls.close()
        platform.audit.close()
        platform.database.close()
        platform.notifier.close()

    app = _bare_app(
        title="rdukit platform",
        version=__version__,
        description="Jobs, pipelines and artifacts of an emulated DataScale system. Independent of SambaNova Systems. "
        "[To the console](/console/)",
        lifespan=lifespan,
    )
    app.state.platform = platform
    app.router.routes[:] = _routes()
    _summarise(app)
    add_error_handlers(app)
    app.add_middleware(BodyLimitMiddleware, platform=platform)
    app.add_middleware(WithdrawnMiddleware, platform=platform)
    app.add_middleware(RequestContextMiddleware, platform=platform)
    return app


def _summarise(app: FastAPI) -> None:
    """Use the first sentence of a docstring as an operation's summary in the OpenAPI document, not the function's name.

    The first thread that needs it builds it once, in two seconds, without delaying others.
    """
    describe, lock = app.openapi, threading.Lock()

    def openapi() -> dict[str, Any]:
        with lock:
            return app.openapi_schema or summarised()

    def summarised() -> dict[str, Any]:
        found = describe()
        for operation in (one for path in found["paths"].values() for one in path.values()):
            first = operation.get("description", "").partition("\n\n")[0].partition(". ")[0]
            words = " ".join(first.replace("``", "").split()).rstrip(".")
            operation["summary"] = words or operation["summary"]
        return found

    app.openapi = openapi  # type: ignore[method-assign]


_STATIC: Final = Path(__file__).with_name("static")
_FILES: Final = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "docs.css": "text/css"}

router = APIRouter(include_in_schema=False)


@router.get("/")
def send_to_console() -> Response:
    """Redirect browsers from the gateway's address to the console."""
    return RedirectResponse("/console/")


@router.get("/openapi.json")
def give_document(request: Request) -> Response:
    """Return the OpenAPI document of the routes, whose text is built once."""
    state = request.app.state
    state.document = getattr(state, "document", None) or orjson.dumps(request.app.openapi())
    return Response(state.document, media_type="application/json")


@router.get("/docs")
def show_page(request: Request) -> HTMLResponse:
    """Return the page; it reads ``/openapi.json``."""
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title=str(request.app.title),
        swagger_js_url="/docs/static/swagger-ui-bundle.js",
        swagger_css_url="/docs/static/docs.css",
        swagger_favicon_url="/console/static/icon.svg",
    )


@router.get("/docs/static/{name}")
def give_file(name: str) -> FileResponse:
    """Return the page's script and style sheet."""
    if name not in _FILES:
        raise NotFound(f"there is no file {name!r} here; legal: {', '.join(_FILES)}")
    return FileResponse(_STATIC / name, media_type=_FILES[name], headers={"Cache-Control": "public, max-age=86400"})
