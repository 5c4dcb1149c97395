"""A server as a process: REST and gRPC listen, an announcement, and an orderly end on SIGTERM or with the parent.

It serves a ``Service``: a ModelBox, or a PEF alone.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

# Children are started by fork and exec, which gRPC's own handlers for a bare fork only disturb; before grpc's import.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# gRPC's thread that polls then reads sockets itself: a hop less for each request.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

import uvicorn
import uvloop

from rdukit.box.settings import GRPC
from rdukit.errors import InvalidArgument, PermissionDenied
from rdukit.fence.kernel import signal_on_parent_death
from rdukit.files.atomic import write_json_unflushed
from rdukit.files.home import make_folder
from rdukit.http.limits import HostRule
from rdukit.http.tls import find_server_files, make_server_context
from rdukit.http.unix_sockets import (
    GRPC_SOCKET,
    REST_SOCKET,
    SocketPath,
    is_listening,
    listen_at,
    make_private,
    rest_address,
)
from rdukit.settings import resolve
from rdukit.telemetry.spans import BOX, name_service
from rdukit_serving.access import Access, AccessLog
from rdukit_serving.settings import ACCESS_LOG, HOSTS, TLS_CA, TLS_CERTIFICATE, TLS_KEY, TOKENS, running_file

if TYPE_CHECKING:
    import grpc

    from rdukit_serving.models.served import ServedModels
    from rdukit_serving.rest.routes import Application, ServerApp
    from rdukit_serving.rpc.server import AddService

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Addresses of a server and how it starts. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    rest_port: int = 0
    grpc_port: int = 0
    #: Listen at ``rest.sock`` and ``grpc.sock`` in this folder, made private, rather than at ports.
    socket_folder: Path | None = None
    announce: Path | None = None
    #: Process whose end also ends this one; None: the parent. 0: no process.
    parent: int | None = None
    #: Called with the REST URL, the gRPC address and the kernels of the served model once the server is ready.
    on_ready: Callable[[str, str, str], object] = lambda rest, grpc, kernels: None


class Service(Protocol):
    """The part of a server that differs between a ModelBox and a PEF."""

    @property
    def name(self) -> str:
        """Name for logs and the announcement."""
        ...

    @property
    def models(self) -> "ServedModels":
        """Models that answer the inference protocol."""
        ...

    def takes_requests(self) -> bool:
        """Return at once whether a request that arrives now would be processed."""
        ...

    async def why_not_ready(self) -> str:
        """Return why an inference would not be answered now; empty if one was."""
        ...

    async def load(self) -> None:
        """Load the models that are served from the beginning.

        Raises:
            RdukitError: one cannot be loaded.
        """
        ...

    def make_routes(self, access: Access) -> "Application":
        """Build the application for all routes but the inference protocol's. Called once, in a thread."""
        ...

    def grpc_services(self) -> "Sequence[AddService]":
        """Return what adds further services to the gRPC server."""
        ...

    async def close(self) -> None:
        """Accept no more requests, and end every process."""
        ...


def serve(options: ServerOptions, make_service: Callable[[], Service]) -> None:
    """Serve until stopped. ``make_service`` is called on the event loop.

    Raises:
        InvalidArgument: a port or socket is taken, or a setting is wrong.
        RdukitError: the service cannot be made, or its model not be loaded.
    """
    name_service(BOX)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, make_service, os.getppid() if options.parent is None else options.parent))


async def _serve(options: ServerOptions, make_service: Callable[[], Service], parent: int) -> None:
    stop = asyncio.Event()
    _stop_on_signals(stop, parent)
    access, access_log = Access.from_file(resolve(TOKENS)), AccessLog(resolve(ACCESS_LOG))
    service = make_service()
    # The model's process imports torch while this one imports the web framework.
    loading = asyncio.create_task(service.load())
    await asyncio.sleep(0)
    servers = await _Servers.start(options, service, access, access_log)
    try:
        await loading
    except BaseException:
        await servers.stop(grace_s=0)  # in order, so that the last words are the reason
        await service.close()
        raise
    announced = {"rest": servers.rest_url, "grpc": servers.grpc_address, "pid": os.getpid(), "box": service.name}
    announcement = options.announce or running_file(os.getpid())
    if options.announce is not None:
        write_json_unflushed(announcement, announced)
    else:
        with suppress(OSError, PermissionDenied):  # only ``rdukit status`` would miss it
            make_folder(announcement.parent)
            write_json_unflushed(announcement, announced)
    # Present objects stay; freezing them keeps garbage collections short.
    gc.collect()
    gc.freeze()
    servers.app.routes()  # while nobody asks for them yet
    current = service.models.repository.current
    kernels = current.signature.properties.get("kernels", "") if current is not None else ""
    options.on_ready(servers.rest_url, servers.grpc_address, kernels)
    logger.info("server ready name=%s rest=%s grpc=%s", service.name, servers.rest_url, servers.grpc_address)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({servers.serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    logger.info("server stopping name=%s", service.name)
    await service.close()
    await servers.stop(grace_s=2)
    access_log.flush()
    with suppress(OSError):
        announcement.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Servers:
    """Listening servers: REST and, unless it is off, gRPC."""

    app: "ServerApp"
    rest: "_Server"
    #: Runs until the REST server has ended.
    serving: asyncio.Task[None]
    #: ``None``: the model is not served.
    grpc: "grpc.aio.Server | None"
    rest_url: str
    #: Empty: it is not served.
    grpc_address: str
    #: Keeps the folder of the gRPC socket open.
    held: ExitStack

    @classmethod
    async def start(cls, options: ServerOptions, service: Service, access: Access, access_log: AccessLog) -> "_Servers":
        """Listen and answer.

        Raises:
            InvalidArgument: a port or socket is taken.
        """
        from rdukit_serving.rest.connection import make_protocol
        from rdukit_serving.rest.routes import OpenInferenceApp, ServerApp
        from rdukit_serving.rpc.server import start_grpc
        from rdukit_serving.rpc.service import OpenInferenceServicer

        held = ExitStack()
        tls = None
        if options.socket_folder is None:  # who reaches a socket is on this machine
            tls = find_server_files(resolve(TLS_CERTIFICATE), resolve(TLS_KEY), resolve(TLS_CA), "box")
        listener, rest_url, grpc_bound, grpc_name = _bind(options, held)
        grpc_server, grpc_address = None, ""
        if resolve(GRPC):
            servicer = OpenInferenceServicer(service.models, access_log, service.why_not_ready)
            services = [*service.grpc_services(), servicer.add_to]
            try:
                grpc_server, grpc_port = await start_grpc(service, grpc_bound, services, access, tls)
            except RuntimeError as cause:
                listener.close()
                held.close()
                raise InvalidArgument(
                    f"gRPC cannot listen at {grpc_name} ({cause}); pass another address, or port 0"
                ) from cause
            grpc_address = grpc_name
            if options.socket_folder is None:
                grpc_address = f"{options.host}:{grpc_port}"
            else:
                (options.socket_folder / GRPC_SOCKET).chmod(0o600)
        inference = OpenInferenceApp(service.models, access, access_log, service.why_not_ready)
        app = ServerApp(inference, partial(service.make_routes, access), access)
        # Browser pages cannot reach a socket, nor do they know a token.
        is_guarded = options.socket_folder is not None or not access.is_open
        hosts = None if is_guarded else HostRule(options.host, resolve(HOSTS).split(","))
        context = None if tls is None else make_server_context(tls)
        config = uvicorn.Config(
            app, loop="uvloop", http=make_protocol(inference.fast_path, hosts=hosts, tls=context), ws="none",
            lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=5, server_header=False,
            proxy_headers=False,
        )  # fmt: skip
        if context is not None:
            rest_url = rest_url.replace("http://", "https://", 1)
        rest = _Server(config)
        serving = asyncio.create_task(rest.serve(sockets=[listener]))
        started = asyncio.create_task(rest.has_started.wait())
        await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        return cls(app, rest, serving, grpc_server, rest_url, grpc_address, held)

    async def stop(self, grace_s: float) -> None:
        """Accept no more requests; running gRPC calls have ``grace_s`` to end."""
        self.rest.should_exit = True
        if self.grpc is not None:
            await self.grpc.stop(grace=grace_s)
        await self.serving
        self.held.close()


class _Server(uvicorn.Server):
    """Server that leaves signals to ``_stop_on_signals``: operations must end before the servers do."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.has_started.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _stop_on_signals(stop: asyncio.Event, parent: int) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if parent == 0:
        return

    def check_parent() -> None:
        # The kernel also reports the end of the starting thread, whose process may live on.
        if os.getppid() != parent:
            stop.set()

    loop.add_signal_handler(signal.SIGHUP, check_parent)
    signal_on_parent_death(signal.SIGHUP)
    check_parent()


def _bind(options: ServerOptions, held: ExitStack) -> tuple[socket.socket, str, str, str]:
    """Return the REST listener, its URL, and the gRPC address to bind and to publish."""
    folder = options.socket_folder
    if folder is None:
        listener, grpc = _listen(options.host, options.rest_port), f"{options.host}:{options.grpc_port}"
        return listener, f"http://{options.host}:{listener.getsockname()[1]}", grpc, grpc
    make_private(folder)
    rest_path, grpc_path = (folder.absolute() / name for name in (REST_SOCKET, GRPC_SOCKET))
    listener = listen_at(rest_path)
    held.callback(rest_path.unlink, missing_ok=True)
    short = held.enter_context(SocketPath(grpc_path))
    if is_listening(short.text):
        raise InvalidArgument(f"another process already listens at {grpc_path}; pass another folder")
    return listener, rest_address(rest_path), f"unix:{short.text}", f"unix:{grpc_path}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError as cause:
        raise InvalidArgument(f"REST port {port} cannot be bound ({cause.strerror}); pass another one, or 0") from cause
