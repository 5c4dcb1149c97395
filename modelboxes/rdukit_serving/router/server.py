"""A router as a process: it listens, guarded as a box is, and ends in order on Ctrl-C or SIGTERM."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import uvicorn
import uvloop
from starlette.applications import Starlette
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rdukit.errors import InvalidArgument
from rdukit.http.limits import HostRule, HttpLimits
from rdukit.http.protocol import GuardedHttp, make_protocol_factory
from rdukit.settings import resolve
from rdukit_serving.rest.web import BodyLimits
from rdukit_serving.router.proxy import RouterDoor
from rdukit_serving.settings import ADDRESS_CONNECTIONS, HOSTS, MAX_CONNECTIONS, MAX_HEADER_BYTES, SILENCE_S

#: Seconds that open answers may take to end.
GRACE_S: Final = 5


def serve_router(make_door: Callable[[], RouterDoor], host: str, port: int, on_ready: Callable[[str], object]) -> None:
    """Serve until stopped; ``on_ready`` gets the URL. ``make_door`` is called on the event loop.

    Raises:
        InvalidArgument: the port is taken, or the experts do not fit the router.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(make_door, host, port, on_ready))


async def _serve(make_door: Callable[[], RouterDoor], host: str, port: int, on_ready: Callable[[str], object]) -> None:
    door = make_door()
    try:
        listener = socket.create_server((host, port), backlog=512)
    except OSError as cause:
        raise InvalidArgument(f"port {port} cannot be bound ({cause.strerror}); pass another --port, or 0") from cause
    limits = HttpLimits(resolve(MAX_HEADER_BYTES), MAX_HEADER_BYTES.name, resolve(SILENCE_S), resolve(SILENCE_S))
    # Pages in a browser must not reach experts through the router, since it needs no token.
    protocol = partial(_RouterProtocol, hosts=HostRule(host, resolve(HOSTS).split(",")))
    config = uvicorn.Config(
        BodyLimits(Starlette(routes=door.routes())), loop="uvloop", ws="none", lifespan="off", log_config=None,
        http=make_protocol_factory(protocol, limits, resolve(MAX_CONNECTIONS), resolve(ADDRESS_CONNECTIONS)),
        access_log=False, timeout_graceful_shutdown=GRACE_S, server_header=False, proxy_headers=False,
    )  # fmt: skip
    server = _RouterServer(config, partial(on_ready, f"http://{host}:{listener.getsockname()[1]}"))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(setattr, server, "should_exit", True))
    try:
        await server.serve(sockets=[listener])
    finally:
        await door.close()


class _RouterServer(uvicorn.Server):
    """Server that says when it listens, and leaves signals to the loop."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _RouterProtocol(GuardedHttp, HttpToolsProtocol):
    """Uvicorn's, guarded."""

    flow_control = FlowControl

    def on_response_complete(self) -> None:
        """Record that the request is answered."""
        super().on_response_complete()
        if not self.pipeline:
            self._watch.end_answer(self.loop.time())
