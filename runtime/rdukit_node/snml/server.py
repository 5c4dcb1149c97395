"""SNML's server: gRPC on the node's UNIX socket and on loopback TCP, in a thread of the daemon's process.

It is a client of the daemon's socket like any other. Limits on messages, connections, streams and time protect the
daemon's process from any client.

Source: runtime reference 7.1 (the two places, the socket preferred). Ours: changes need a token.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rdukit.errors import Conflict, InvalidArgument, RdukitError, Unavailable
from rdukit.files.home import make_folder
from rdukit.http.tls import find_server_files
from rdukit.proto import snml_pb2 as pb
from rdukit.proto import snml_pb2_grpc
from rdukit.settings import resolve
from rdukit_node.daemon.listener import find_identity
from rdukit_node.settings import SNML_TLS_CA, SNML_TLS_CERTIFICATE, SNML_TLS_KEY, NodePaths
from rdukit_node.snml.node_calls import NodeCalls
from rdukit_node.snml.servicer import EmulatedNodeServicer, SnmlServicer
from rdukit_node.snml.token import load_or_create_token
from rdukit_node.snml.watch import EventWatch

logger = logging.getLogger(__name__)

SERVICES: Final = tuple(pb.DESCRIPTOR.services_by_name[name].full_name for name in ("SNMLRPC", "EmulatedNodeRPC"))
LOOPBACK: Final = "127.0.0.1"
#: Largest request; 1000 injections fit. Largest reply: the inventory of the largest platform is a tenth of it.
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_REPLY_BYTES: Final = 8 << 20
MAX_CALLS: Final = 128
MAX_CONNECTIONS: Final = 128
_MAX_STREAMS: Final = 64
_MAX_METADATA_BYTES: Final = 16 << 10
_MAX_SOCKET_PATH: Final = 107
#: Everybody on the machine may connect, as everybody may read.
_SOCKET_MODE: Final = 0o666
_START_S: Final = 15.0
_GRACE_S: Final = 0.3

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_REPLY_BYTES),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.max_concurrent_streams", _MAX_STREAMS),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 3),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.so_reuseport", 0),
)


@dataclass(slots=True)
class SnmlServer:
    """A server that runs. ``notices``: addresses where it does not listen, and the reasons."""

    #: TCP port; ``None``: the UNIX socket only.
    port: int | None
    #: ``None``: TCP only.
    socket: Path | None
    notices: Sequence[str]
    _loop: asyncio.AbstractEventLoop
    _thread: threading.Thread
    _stopping: asyncio.Event
    _is_stopped: bool = field(default=False)

    def stop(self) -> None:
        """End it: calls under way get a moment, the socket's file goes. Again: nothing happens."""
        if self._is_stopped:
            return
        self._is_stopped = True
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_START_S)


def start_snml(paths: NodePaths, port: int | None) -> SnmlServer:
    """Serve the daemon at ``paths.socket``, which may begin to answer later.

    ``port``: TCP port on the loopback address, 0 for any free one, ``None`` for none. An unavailable port or socket is
    only a notice if the other one works.

    Raises:
        InvalidArgument: the token file cannot be kept.
        Unavailable: neither socket nor port can be had.
    """
    token = load_or_create_token(paths.admin_token)
    started: Future[SnmlServer] = Future()
    thread = threading.Thread(target=_run, args=(paths, port, token, started), name="snml", daemon=True)
    thread.start()
    server = started.result(_START_S)
    logger.info("event=snml-ready socket=%s port=%s", server.socket, server.port)
    return server


def _run(paths: NodePaths, port: int | None, token: str, started: "Future[SnmlServer]") -> None:
    try:
        asyncio.run(_serve(paths, port, token, started))
    except BaseException as error:
        if started.done():
            logger.error("event=snml-ended error=%s", error, exc_info=error)
        else:
            started.set_exception(error)


async def _serve(paths: NodePaths, port: int | None, token: str, started: "Future[SnmlServer]") -> None:
    calls = NodeCalls(paths.socket, token)
    watch = EventWatch(calls)
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
    snml_pb2_grpc.add_SNMLRPCServicer_to_server(SnmlServicer(calls, token), server)
    snml_pb2_grpc.add_EmulatedNodeRPCServicer_to_server(EmulatedNodeServicer(calls, watch, token), server)
    health_pb2_grpc.add_HealthServicer_to_server(_NodeHealth(calls), server)
    reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    notices: list[str] = []
    bound_socket = _bind_socket(server, paths.snml_socket, notices)
    bound_port = None if port is None else _bind_port(server, port, notices)
    if bound_socket is None and bound_port is None:
        raise Unavailable(f"SNML cannot listen anywhere: {'; '.join(notices) or 'no port was asked for'}")
    identity = None if bound_socket is None else find_identity(bound_socket)
    try:
        await server.start()
        stopping = asyncio.Event()
        loop, thread = asyncio.get_running_loop(), threading.current_thread()
        started.set_result(SnmlServer(bound_port, bound_socket, tuple(notices), loop, thread, stopping))
        await stopping.wait()
    finally:
        await watch.stop()
        calls.close()
        await server.stop(_GRACE_S)
        calls.close_connections()
        if bound_socket is not None and find_identity(bound_socket) == identity:
            bound_socket.unlink(missing_ok=True)


def _bind_socket(server: Any, path: Path, notices: list[str]) -> Path | None:
    try:
        _make_room(path)
        server.add_insecure_port(f"unix:{quote(str(path))}")
        path.chmod(_SOCKET_MODE)
    except (OSError, RuntimeError, RdukitError) as error:
        notices.append(f"SNML has no UNIX socket at {path}: {error}")
        return None
    return path


def _make_room(path: Path) -> None:
    """Remove the socket of a dead server.

    Raises:
        Conflict: a server lives there, or it is something else.
        InvalidArgument: the path is too long.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise InvalidArgument(f"the path is longer than {_MAX_SOCKET_PATH} bytes; choose a shorter state folder")
    make_folder(path.parent)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise Conflict("another file is already there; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise Conflict("another node serves it; give this node another state folder")


def _add_port(server: Any, address: str) -> int:
    tls = find_server_files(resolve(SNML_TLS_CERTIFICATE), resolve(SNML_TLS_KEY), resolve(SNML_TLS_CA), "snml")
    if tls is None:
        return int(server.add_insecure_port(address))
    ca = None if tls.ca is None else tls.ca.read_bytes()
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)
    return int(server.add_secure_port(address, credentials))


def _bind_port(server: Any, port: int, notices: list[str]) -> int | None:
    try:
        with socket.socket() as probe:  # gRPC would say it on stderr, in its own words
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, port))
        bound: int = _add_port(server, f"{LOOPBACK}:{port}")
    except (OSError, OverflowError, RuntimeError):
        bound = 0
    if not bound:
        notices.append(
            f"SNML does not listen on TCP: {LOOPBACK}:{port} is taken or not allowed; choose another port, or use the "
            "UNIX socket"
        )
        return None
    return bound


class _NodeHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The standard health service: each call checks whether the daemon answers."""

    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """Report the health of the server (empty name) or of one of its services."""
        if request.service not in {"", *SERVICES}:
            legal = ", ".join(SERVICES)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service[:80]!r}; expected {legal}")
        status = health_pb2.HealthCheckResponse.ServingStatus
        try:
            await self._calls.call("hello")
        except RdukitError:
            return health_pb2.HealthCheckResponse(status=status.NOT_SERVING)
        return health_pb2.HealthCheckResponse(status=status.SERVING)
