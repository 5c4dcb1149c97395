"""The gateway's ASGI application."""

import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI

from rdukit import __version__
from rdukit.settings import resolve
from rdukit_platform.artifacts.routes import router as artifacts
from rdukit_platform.audit.routes import router as audit
from rdukit_platform.catalog.catalog import clear_incoming
from rdukit_platform.catalog.routes import router as catalog
from rdukit_platform.context import Platform
from rdukit_platform.gateway.bodies import BodyBorder
from rdukit_platform.gateway.borders import ERRORS, RequestBorder, add_error_handlers
from rdukit_platform.gateway.health import router as health
from rdukit_platform.gateway.manual import router as manual
from rdukit_platform.jobs.routes import router as jobs
from rdukit_platform.nodes.routes import router as nodes
from rdukit_platform.settings import GATEWAY_PROXIES
from rdukit_platform.tenants.routes import router as tenants

#: Followers of events each need a thread for a moment, several times a second.
THREADS = 64


def forwarding() -> dict[str, Any]:
    """Options of the server: by whom it lets itself be told where a request comes from. By default by nobody."""
    proxies = resolve(GATEWAY_PROXIES)
    return {"proxy_headers": bool(proxies), "forwarded_allow_ips": proxies or ""}


def create_app(platform: Platform) -> FastAPI:
    """The application over an opened platform."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        clear_incoming(platform.home.installing)
        platform.catalog.warm_up()
        yield
        platform.audit.close()
        platform.database.close()
        platform.waker.close()

    app = FastAPI(
        title="rdukit platform",
        version=__version__,
        description="Jobs, pipelines and artifacts of an emulated DataScale system. Independent of SambaNova Systems.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.platform = platform
    for router in (health, jobs, artifacts, catalog, nodes, tenants, audit, manual):
        app.include_router(router)
    if importlib.util.find_spec("rdukit_platform.console") is not None:
        from rdukit_platform.console.access_pages import router as access
        from rdukit_platform.console.routes import router as console

        app.include_router(console)
        app.include_router(access)
    add_error_handlers(app)
    app.add_middleware(BodyBorder, platform=platform)
    app.add_middleware(RequestBorder)
    return app
