"""Connections to a box that idle are closed in time, and those in use are kept."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import uvicorn

from rdukit.http.connections import MAX_HELD_BYTES
from rdukit_serving.rest.connection import make_protocol
from rdukit_serving.tuning.fast_path import FastPath
from support import shows

pytestmark = shows("inference", "security")

REQUEST = b"GET / HTTP/1.1\r\nhost: box\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nhost: box\r\n\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Says ok; on /slow after longer than connections may idle."""
    if scope["path"] == "/slow":
        await asyncio.sleep(1.6)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def server_port(idle_s: float) -> AsyncIterator[int]:
    """Of a server that closes what idles for so long."""
    fast_path = FastPath(cast(Any, None), cast(Any, None))
    protocol = make_protocol(fast_path, idle_s=idle_s)
    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, http=protocol, ws="none", lifespan="off", log_config=None,
        timeout_keep_alive=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes = REQUEST) -> None:
    writer.write(request)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


async def test_a_connection_is_kept_while_it_is_used_and_closed_when_it_idles() -> None:
    async with server_port(idle_s=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            await ask(reader, writer)
            await asyncio.sleep(0.6)
        # Working is not idling.
        await ask(reader, writer, SLOW)
        await ask(reader, writer)
        began = time.monotonic()
        assert await asyncio.wait_for(reader.read(), 60) == b""
        assert time.monotonic() - began > 0.8
        writer.close()


async def test_a_head_that_came_in_pieces_is_held_no_longer_than_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_BOX_MAX_HEADER_BYTES", str(MAX_HELD_BYTES))
    half = REQUEST[:-2] + b"x: " + b"y" * (MAX_HELD_BYTES // 2)
    async with server_port(idle_s=600) as port, contextlib.AsyncExitStack() as closing:
        connections = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            closing.callback(writer.close)
            connections.append((reader, writer))
            writer.write(half)
            await writer.drain()
            await ask(reader, writer, b"\r\n\r\n")
        for reader, writer in connections:
            await ask(reader, writer)
