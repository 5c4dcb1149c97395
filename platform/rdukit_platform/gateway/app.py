"""ASGI application of the gateway."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio.to_thread
from fastapi import FastAPI

from rdukit import __version__
from rdukit.http.routes_ahead import answer_nobody
from rdukit.http.tls import find_server_files
from rdukit.settings import resolve
from rdukit_platform.api.context import Platform
from rdukit_platform.api.endpoint_calls import EndpointCalls
from rdukit_platform.catalog.catalog import clear_incoming
from rdukit_platform.gateway.middleware import BodyLimitMiddleware, RequestContextMiddleware, add_error_handlers
from rdukit_platform.gateway.routes import PERMISSIONS, ROUTES, bare_app
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
    """Return the server's options for trusted proxies, which may name a request's origin; there are none by default."""
    proxies = resolve(GATEWAY_PROXIES)
    return {"proxy_headers": bool(proxies), "forwarded_allow_ips": proxies or ""}


#: Seconds for open gRPC calls when the gateway stops.
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


def _app(**more: Any) -> FastAPI:
    app = bare_app(**more)
    app.router.routes[:] = ROUTES
    app.state.permissions = PERMISSIONS
    return app


def prepare_routes() -> None:
    """Prepare the routes of gateways that will be forked from this process: FastAPI takes most of a second for it."""
    asyncio.run(answer_nobody(_app()))


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

    app = _app(
        title="rdukit platform",
        version=__version__,
        description="Jobs, pipelines and artifacts of an emulated DataScale system. Independent of SambaNova Systems. "
        "[To the console](/console/)",
        lifespan=lifespan,
    )
    app.state.platform = platform
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
