"""Boxes of tests' own behind an endpoint: an application at a socket is a ready replica."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from rdukit.http.unix_sockets import REST_SOCKET, rest_address
from rdukit_platform.api.replica_connection import LIVE
from rdukit_platform.catalog.experts import get_expert
from rdukit_platform.catalog.model import Selector
from rdukit_platform.endpoints import replicas
from rdukit_platform.endpoints.replicas import reconcile
from rdukit_platform.endpoints.service import ServedParts, create_endpoint
from support.platform.gateway import Example, GatewayUnderTest

Application = Callable[[Any, Any, Any], Awaitable[None]]


@contextmanager
def box(folder: Path, application: Application, is_live: Callable[[], bool] = lambda: True) -> Iterator[str]:
    """Serve an application at a socket, as a box would, which answers looks if it is live. Yields its address."""
    folder.mkdir()
    path = folder / REST_SOCKET

    async def with_looks(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != LIVE:
            await application(scope, receive, send)
        elif is_live():
            await answer(send, 200, b"application/json", b"{}")
        else:
            await asyncio.sleep(3600.0)

    server = uvicorn.Server(uvicorn.Config(with_looks, uds=str(path), log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield rest_address(path)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


def serve(gateway: GatewayUnderTest, *addresses: str) -> str:
    """Make an endpoint ``chat`` with a ready replica at each address. Returns a token that may call it."""
    token = gateway.token("lab", "read", "write")
    tenant = gateway.ask("GET", "/v1/me", token).json()["tenant"]["id"]
    database, now = gateway.platform.database, time.time()
    example = Example(database, gateway.platform.store, tenant, now)
    example.promote(example.run_pipeline()[1])
    with database.write() as session:
        expert = get_expert(session, tenant, "digits")
        assert expert.pef_id is not None
        parts = ServedParts(Selector("chatty"), expert.pef_id, None, None, 1)
        create_endpoint(session, tenant, "chat", parts, len(addresses), now)
    reconcile(database, now, lambda leases: {})
    for address in addresses:
        with database.write() as session:
            claimed = replicas.claim_next(session, "worker-1", 3600.0, now)
            assert claimed is not None
            replicas.make_ready(session, claimed.fencing, address, os.getuid(), {}, now)
    return token


async def answer(send: Any, status: int, kind: bytes, *blocks: bytes, pause_s: float = 0.0) -> None:
    headers = [(b"content-type", kind), (b"set-cookie", b"a=b")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for block in blocks:
        await send({"type": "http.response.body", "body": block, "more_body": True})
        await asyncio.sleep(pause_s)
    await send({"type": "http.response.body", "body": b""})
