"""Run a box as a process: both wires up, an announcement, and an orderly end on SIGTERM or when the parent dies."""

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

# Children are started by fork and exec, which gRPC's own handlers for a bare fork only disturb; before grpc's import.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# gRPC's thread that polls then reads sockets itself: a hop less for each request.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

import uvicorn
import uvloop

from rdukit.errors import InvalidArgument
from rdukit.fence.kernel import signal_on_parent_death
from rdukit.files.atomic import write_json_atomic
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
from rdukit_modelbox.artifacts.reference import is_remote
from rdukit_modelbox.doctor import running_file
from rdukit_modelbox.service import BoxService
from rdukit_serving.access import Access, AccessLog
from rdukit_serving.settings import ACCESS_LOG, CHECKPOINT, HOSTS, PEF, TLS_CA, TLS_CERTIFICATE, TLS_KEY, TOKENS

if TYPE_CHECKING:
    import grpc

    from rdukit_serving.rest.routes import BoxApp

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to run a box. Port 0 takes a free one."""

    box_file: Path
    state: Path
    mounts: Sequence[Path] = ()
    host: str = "127.0.0.1"
    rest_port: int = 0
    grpc_port: int = 0
    #: Listen at ``rest.sock`` and ``grpc.sock`` in this folder, made private, rather than at ports.
    socket_folder: Path | None = None
    announce: Path | None = None
    #: Process to end with; None: the one that started this one. 0: none.
    parent: int | None = None
    #: Served from the beginning; a PEF without parameters needs no checkpoint.
    pef: str | None = None
    checkpoint: str | None = None
    #: Hears the REST URL, the gRPC address and which kernels the served model runs once the box is ready.
    tell: Callable[[str, str, str], object] = lambda rest, grpc, kernels: None


def serve(options: ServeOptions) -> None:
    """Serve until told to stop.

    Raises:
        InvalidArgument: the box's YAML is wrong, a mount is not a folder, or a port or socket is taken.
        RdukitError: the model that it was told to serve cannot be loaded.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options, os.getppid() if options.parent is None else options.parent))


async def _serve(options: ServeOptions, parent: int) -> None:
    stop = asyncio.Event()
    _stop_on_signals(stop, parent)
    access, access_log = Access.from_file(resolve(TOKENS)), AccessLog(resolve(ACCESS_LOG))
    service = BoxService(options.box_file, options.state, options.mounts)
    # The model's process imports torch while this one imports the web framework.
    loading = asyncio.create_task(_load(service, options))
    await asyncio.sleep(0)
    wires = await _Wires.start(options, service, access, access_log)
    try:
        await loading
    except BaseException:
        await wires.stop(grace_s=0)  # in order, so that the last words are the reason
        await service.close()
        raise
    announced = {"rest": wires.rest_url, "grpc": wires.grpc_address, "pid": os.getpid(), "box": service.box.name}
    announcement = options.announce or running_file(os.getpid())
    if options.announce is not None:
        write_json_atomic(announcement, announced)
    else:
        with suppress(OSError):  # only ``rdukit status`` would miss it
            make_folder(announcement.parent)
            write_json_atomic(announcement, announced)
    # What is there now stays: collections look at requests' objects only.
    gc.collect()
    gc.freeze()
    wires.app.control()  # while nobody asks for it yet
    current = service.models.repository.current
    kernels = current.signature.properties.get("kernels", "") if current is not None else ""
    options.tell(wires.rest_url, wires.grpc_address, kernels)
    logger.info("box ready box=%s rest=%s grpc=%s", service.box.name, wires.rest_url, wires.grpc_address)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({wires.serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    logger.info("box stopping box=%s", service.box.name)
    await service.close()
    await wires.stop(grace_s=2)
    access_log.flush()
    with suppress(OSError):
        announcement.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Wires:
    """Both servers, listening."""

    app: "BoxApp"
    rest: "_Server"
    #: Runs until the REST server has ended.
    serving: asyncio.Task[None]
    grpc: "grpc.aio.Server"
    rest_url: str
    grpc_address: str
    #: Keeps the folder of the gRPC socket open.
    held: ExitStack

    @classmethod
    async def start(cls, options: ServeOptions, service: BoxService, access: Access, access_log: AccessLog) -> "_Wires":
        """Listen and answer.

        Raises:
            InvalidArgument: a port or socket is taken.
        """
        from rdukit_modelbox.wires import grpc_services, make_box_app
        from rdukit_serving.rest.connection import make_protocol
        from rdukit_serving.rpc.server import start_grpc

        held = ExitStack()
        tls = None
        if options.socket_folder is None:  # who reaches a socket is on this machine
            tls = find_server_files(resolve(TLS_CERTIFICATE), resolve(TLS_KEY), resolve(TLS_CA), "box")
        listener, rest_url, grpc_bound, grpc_name = _bind(options, held)
        try:
            grpc_server, grpc_port = await start_grpc(
                service, grpc_bound, grpc_services(service, access_log), access, tls
            )
        except RuntimeError as cause:
            listener.close()
            held.close()
            raise InvalidArgument(
                f"gRPC cannot listen at {grpc_name} ({cause}); pass another place, or port 0"
            ) from cause
        grpc_address = grpc_name
        if options.socket_folder is None:
            grpc_address = f"{options.host}:{grpc_port}"
        else:
            (options.socket_folder / GRPC_SOCKET).chmod(0o600)
        app = make_box_app(service, access, access_log)
        # No page in a browser reaches a socket, and none knows a token.
        is_guarded = options.socket_folder is not None or not access.is_open
        hosts = None if is_guarded else HostRule(options.host, resolve(HOSTS).split(","))
        context = None if tls is None else make_server_context(tls)
        config = uvicorn.Config(
            app, loop="uvloop", http=make_protocol(app.fast_path, hosts=hosts, tls=context), ws="none", lifespan="off",
            log_config=None, access_log=False, timeout_graceful_shutdown=5, server_header=False, proxy_headers=False,
        )  # fmt: skip
        if context is not None:
            rest_url = rest_url.replace("http://", "https://", 1)
        rest = _Server(config)
        serving = asyncio.create_task(rest.serve(sockets=[listener]))
        while not rest.started and not serving.done():
            await asyncio.sleep(0.005)
        return cls(app, rest, serving, grpc_server, rest_url, grpc_address, held)

    async def stop(self, grace_s: float) -> None:
        """Take nothing more; calls under way over gRPC have ``grace_s`` to end."""
        self.rest.should_exit = True
        await self.grpc.stop(grace=grace_s)
        await self.serving
        self.held.close()


async def _load(service: BoxService, options: ServeOptions) -> None:
    pef, checkpoint = options.pef or resolve(PEF), options.checkpoint or resolve(CHECKPOINT)
    if pef:
        files = [await _bring(service, text) if text else None for text in (pef, checkpoint)]
        assert files[0] is not None
        await service.models.start(files[0], files[1])


async def _bring(service: BoxService, text: str) -> Path:
    """Whoever starts a box may name any path; only what is elsewhere goes the way of requests."""
    return await service.models.resolve_path(text, "served file") if is_remote(text) else Path(text)


class _Server(uvicorn.Server):
    """Leaves signals to ``_stop_on_signals``: operations must end before the servers do."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _stop_on_signals(stop: asyncio.Event, parent: int) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if parent == 0:
        return

    def look_at_parent() -> None:
        # The kernel tells of the end of the thread that started us, too; its process may live on.
        if os.getppid() != parent:
            stop.set()

    loop.add_signal_handler(signal.SIGHUP, look_at_parent)
    signal_on_parent_death(signal.SIGHUP)
    look_at_parent()


def _bind(options: ServeOptions, held: ExitStack) -> tuple[socket.socket, str, str, str]:
    """The REST listener and its address, and the gRPC wire's address, as it is bound and as callers know it."""
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
        raise InvalidArgument(f"somebody listens at {grpc_path} already; pass another folder")
    return listener, rest_address(rest_path), f"unix:{short.text}", f"unix:{grpc_path}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError as cause:
        raise InvalidArgument(f"REST port {port} cannot be bound ({cause.strerror}); pass another one, or 0") from cause
