"""The gRPC server of any set of services: limits, TLS, tokens, health and reflection.

A service is registered through ``Guarded``, which represents the server: every service except health requires a token
if tokens are configured. An interceptor would do the same, but cost every call a third of an inference; here the token
is checked where the call's method is looked up. Health is ``grpc.health.v1``.

gRPC's threads keep the operating system's usual scheduling policy. Under ``SCHED_BATCH`` its polling thread interrupts
the event loop less: a tenth more requests on a quiet machine, 0.89 to 1.16 times as many next to other load (1 to 32
callers). That policy needs over a hundred lines that watch threads' waits; without them a busy neighbour delays a lone
caller. Pinned threads would not help: boxes often have one core.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from rdukit.errors import NotFound, Unauthenticated
from rdukit.http.tls import TlsFiles
from rdukit.proto import inference_pb2 as pb
from rdukit.rpc.errors import add_strictly
from rdukit.rpc.server import add_reflection, credentials_of
from rdukit_serving.access import Access

#: Rows of 4096 requests of 784 floats fit.
MAX_MESSAGE_BYTES: Final = 64 << 20
MAX_METADATA_BYTES: Final = 32 << 10
#: Concurrent calls per connection, and concurrent connections.
MAX_STREAMS: Final = 512
MAX_CONNECTIONS: Final = 1024

Context = Any
#: Adds a service to a server and gives its full name.
AddService = Callable[[Any], str]


def add_health(readiness: "Readiness", names: Sequence[str], server: Any) -> str:
    """Add ``grpc.health.v1`` for the services ``names``; return its name."""
    add_strictly(health_pb2_grpc.add_HealthServicer_to_server, ReadinessHealth(readiness, names), server)
    return str(health.SERVICE_NAME)


async def start_grpc(
    readiness: "Readiness",
    address: str,
    services: Sequence[AddService],
    access: Access | None = None,
    tls: TlsFiles | None = None,
) -> tuple[Any, int]:
    """Start ``services``, health and reflection at ``HOST:PORT`` or ``unix:PATH``; return the server and its port.

    Every service but health is guarded by ``access``.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.max_concurrent_streams", MAX_STREAMS),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
            ("grpc.server_handshake_timeout_ms", 5_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.http2.max_ping_strikes", 3),
            ("grpc.so_reuseport", 0),
        ],
    )
    guarded = server if access is None or access.is_open else Guarded(server, access)
    names = [add(guarded) for add in services]
    names.append(add_health(readiness, names, server))
    add_reflection(names, reflected_pool(names), guarded)
    bound = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, credentials_of(tls))
    await server.start()
    return server, bound


class Guarded:
    """Stand-in for an asynchronous server while services are added to it."""

    def __init__(self, server: Any, access: Access) -> None:
        self._server = server
        self._access = access

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        """Add services, guarded."""
        self._server.add_generic_rpc_handlers(tuple(_GuardedService(handler, self._access) for handler in handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Do nothing, because ``add_generic_rpc_handlers`` adds the same methods."""


class _GuardedService(grpc.ServiceRpcHandler):  # type: ignore[misc]
    """Service whose calls need a token."""

    def __init__(self, service: Any, access: Access) -> None:
        self._service = service
        self._access = access

    def service_name(self) -> str:
        """Return its full name."""
        return str(self._service.service_name())

    def service(self, details: Any) -> Any:
        """Return the handler of a call, or one that refuses it; None if the service has no such method."""
        handler = self._service.service(details)
        if handler is None:
            return None
        metadata = details.invocation_metadata or ()
        header = next((value for key, value in metadata if key == "authorization"), None)
        try:
            self._access.check(None if header is None else str(header).encode())
        except Unauthenticated as error:
            return _refusing(handler, error.message)
        return handler


def _refusing(handler: Any, reason: str) -> Any:
    """Return a handler that ends every call; as a stream, it reads no message first."""

    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        yield  # makes it a stream

    return grpc.stream_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)


_OWN_PACKAGE: Final = pb.DESCRIPTOR.package
_PROTOCOL_PACKAGE: Final = "inference"
_PROTOCOL_FILE: Final = "open_inference_grpc.proto"


def reflected_pool(services: Sequence[str]) -> descriptor_pool.DescriptorPool:
    """Return a pool with the files of ``services``, of generated code here and the inference protocol."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    default = descriptor_pool.Default()
    for name in services:
        try:
            _add(pool, default.FindFileContainingSymbol(name), added)
        except KeyError:
            continue
    pool.Add(protocol_file())
    return pool


def protocol_file() -> descriptor_pb2.FileDescriptorProto:
    """Return our file of the inference protocol, with the protocol's package in place of ours."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = _PROTOCOL_FILE, _PROTOCOL_PACKAGE
    for service in file.service:
        for method in service.method:
            method.input_type = _renamed(method.input_type)
            method.output_type = _renamed(method.output_type)
    pending = list(file.message_type)
    while pending:
        message = pending.pop()
        pending.extend(message.nested_type)
        for field in message.field:
            if field.type_name:
                field.type_name = _renamed(field.type_name)
    return file


def _renamed(name: str) -> str:
    return name.replace(f".{_OWN_PACKAGE}.", f".{_PROTOCOL_PACKAGE}.", 1)


def _add(pool: descriptor_pool.DescriptorPool, file: Any, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(pool, dependency, added)
    copy = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(copy)
    pool.Add(copy)


#: Seconds between two looks of a ``Watch``.
LOOK_EVERY_S: Final = 0.25

Status = health_pb2.HealthCheckResponse.ServingStatus


class Readiness(Protocol):
    """Readiness of the served models."""

    def takes_requests(self) -> bool:
        """Return at once whether a request that arrives now would be processed."""
        ...

    async def why_not_ready(self) -> str:
        """Return why an inference would not be answered now; empty if one was."""
        ...


class ReadinessHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Readiness of the server (empty name) or of one of its services."""

    def __init__(self, readiness: Readiness, names: Iterable[str]) -> None:
        """``names``: the services that the server has."""
        self._readiness = readiness
        self._names = frozenset({"", *names})

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """Answer once."""
        if request.service not in self._names:
            legal = ", ".join(sorted(self._names - {""}))
            raise NotFound(f"no service {request.service[:80]!r}; expected {legal}", field="service")
        if await self._readiness.why_not_ready():
            return health_pb2.HealthCheckResponse(status=Status.NOT_SERVING)
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Answer now and at each change; a service that is not there is ``SERVICE_UNKNOWN``."""
        last = None
        while True:
            status = self._status(request.service)
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(LOOK_EVERY_S)

    def _status(self, name: str) -> int:
        if name not in self._names:
            return int(Status.SERVICE_UNKNOWN)
        return int(Status.SERVING if self._readiness.takes_requests() else Status.NOT_SERVING)


Request = TypeVar("Request")
Answer = TypeVar("Answer")


async def answer_in_order(
    requests: AsyncIterable[Request], answer: Callable[[Request], Awaitable[Answer]], at_once: int
) -> AsyncGenerator[Answer, None]:
    """Answer requests in their order, at most ``at_once`` at a time; the next request is read when one is answered.

    Closing the iterator cancels requests in progress. Errors of ``requests`` and ``answer`` end it.
    """
    slots = asyncio.Semaphore(at_once)
    tasks: asyncio.Queue[asyncio.Task[Answer] | None] = asyncio.Queue()
    working: set[asyncio.Task[Answer]] = set()

    async def work(request: Request) -> Answer:
        return await answer(request)

    async def read() -> None:
        try:
            async for request in requests:
                await slots.acquire()
                task = asyncio.create_task(work(request))
                working.add(task)
                tasks.put_nowait(task)
        finally:
            tasks.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (task := await tasks.get()) is not None:
            answered = await task
            working.discard(task)
            slots.release()
            yield answered
        await reader
    finally:
        reader.cancel()
        for task in working:
            task.cancel()
        await asyncio.gather(reader, *working, return_exceptions=True)
