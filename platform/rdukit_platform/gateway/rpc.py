"""gRPC of the gateway: ``rdukit.platform.v1.Jobs``, health and reflection, with the calls and permissions of REST.

Each method is served as a stream, so the caller is identified before a byte of its message is read.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc
from anyio import to_thread
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from sqlalchemy.exc import DataError, IntegrityError

from rdukit.errors import (
    Conflict,
    InvalidArgument,
    MalformedRequest,
    RdukitError,
    RequestTimeout,
    Unavailable,
)
from rdukit.http.tls import TlsFiles
from rdukit.proto import jobs_pb2 as pb
from rdukit.rpc.errors import refusal_of, status_code_of
from rdukit.rpc.server import add_reflection, credentials_of
from rdukit.settings import resolve
from rdukit_platform.api import job_calls
from rdukit_platform.api.audit_requests import note_refused_call
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import TENANT_HEADER, authenticate_token, check_permission
from rdukit_platform.api.jobs import LAST, follow_events
from rdukit_platform.api.load_ledger import CallerLoad
from rdukit_platform.db.engine import AWAY
from rdukit_platform.db.rows import check_limit
from rdukit_platform.gateway.body_limits import JOB_BYTES
from rdukit_platform.gateway.middleware import REQUESTS, SECONDS
from rdukit_platform.gateway.permissions import GRPC_PERMISSIONS
from rdukit_platform.gateway.rpc_messages import event_message, job_message, line_message, request_from
from rdukit_platform.jobs import service
from rdukit_platform.jobs.schemas import Job
from rdukit_platform.settings import MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_HEADER_BYTES, SILENCE_S
from rdukit_platform.tenants.service import Caller

logger = logging.getLogger(__name__)

SERVICE: Final = pb.DESCRIPTOR.services_by_name["Jobs"]
#: Largest numbers of concurrent calls of one connection, and of all.
MAX_CALLS: Final = 256
ALL_CALLS: Final = 4096
#: Seconds until a keepalive ping of an idle connection, and seconds for its answer.
KEEPALIVE_S: Final = 30

Context = Any
#: Answers a message of a caller with one message or more.
Method = Callable[[Caller, Any], AsyncIterator[Any]]


class JobsRpc:
    """Methods of ``rdukit.platform.v1.Jobs``: each yields its answers."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    async def submit(self, caller: Caller, message: pb.SubmitRequest) -> AsyncIterator[pb.Job]:
        """Submit a job."""
        yield job_message(await self._call(_submit, caller, message))

    async def get(self, caller: Caller, message: pb.JobRequest) -> AsyncIterator[pb.Job]:
        """Show one job."""
        yield job_message(await self._call(job_calls.read_job, caller, message.id))

    async def list(self, caller: Caller, message: pb.ListRequest) -> AsyncIterator[pb.ListResponse]:
        """List jobs, newest first."""
        labels = service.read_labels([f"{key}={value}" for key, value in message.labels.items()])
        page = await self._call(
            job_calls.list_jobs,
            caller,
            message.state or None,
            check_limit(message.page_size or 50, "page_size"),
            message.page_token or None,
            labels,
            message.search,
            message.box or None,
        )
        yield pb.ListResponse(
            jobs=[job_message(job) for job in page.jobs],
            next_page_token=page.next_cursor or "",
            searched_to=page.searched_to,
        )

    async def cancel(self, caller: Caller, message: pb.JobRequest) -> AsyncIterator[pb.Job]:
        """Cancel a job at once."""
        yield job_message(await self._call(job_calls.change_job, caller, message.id, service.cancel_job))

    async def pause(self, caller: Caller, message: pb.JobRequest) -> AsyncIterator[pb.Job]:
        """Pause a job until it is resumed."""
        yield job_message(await self._call(job_calls.change_job, caller, message.id, service.pause_job))

    async def resume(self, caller: Caller, message: pb.JobRequest) -> AsyncIterator[pb.Job]:
        """Resume a paused job."""
        yield job_message(await self._call(job_calls.change_job, caller, message.id, service.resume_job))

    async def watch(self, caller: Caller, message: pb.WatchRequest) -> AsyncIterator[pb.Event]:
        """Follow a job's states and progress until it has ended."""
        async for row in self._follow(caller, message.id, message.after):
            if row.kind != "log":
                yield event_message(row)

    async def logs(self, caller: Caller, message: pb.LogsRequest) -> AsyncIterator[pb.LogLine]:
        """Yield the lines of a job's log; with ``follow`` until it has ended."""
        async for row in self._follow(caller, message.id, message.after, "log", is_once=not message.follow):
            yield line_message(row)

    async def _follow(
        self, caller: Caller, job_id: str, after: int, kind: str | None = None, *, is_once: bool = False
    ) -> AsyncIterator[Any]:
        if not 0 <= after <= LAST:
            raise InvalidArgument(f"after is {after}; expected the sequence number of an event, or 0", field="after")
        await self._call(job_calls.read_job, caller, job_id)
        self._platform.followers.check(caller.tenant_id)
        async with aclosing(follow_events(self._platform, caller, job_id, after, kind)) as batches:
            async for batch in batches:
                for row in batch:
                    yield row
                if is_once and not batch:
                    return

    async def _call(self, call: Callable[..., Any], caller: Caller, *arguments: object) -> Any:
        return await to_thread.run_sync(call, self._platform, caller, *arguments)


def _submit(platform: Platform, caller: Caller, message: pb.SubmitRequest) -> Job:
    return job_calls.submit_job(platform, caller, request_from(message))


def methods_of(platform: Platform) -> Mapping[str, Method]:
    """Return each method of the service by its name."""
    methods = JobsRpc(platform)
    return {method.name: getattr(methods, method.name.lower()) for method in SERVICE.methods}


async def start_rpc(platform: Platform, address: str, tls: TlsFiles | None) -> tuple[Any, int]:
    """Start serving at ``HOST:PORT``. Returns the server and its port.

    Raises:
        InvalidArgument: the address is not valid, or taken.
    """
    server = grpc.aio.server(
        maximum_concurrent_rpcs=ALL_CALLS,
        options=[
            ("grpc.max_receive_message_length", min(JOB_BYTES, resolve(MAX_BODY_BYTES))),
            ("grpc.max_metadata_size", resolve(MAX_HEADER_BYTES)),
            ("grpc.absolute_max_metadata_size", resolve(MAX_HEADER_BYTES)),
            ("grpc.max_concurrent_streams", MAX_CALLS),
            ("grpc.max_allowed_incoming_connections", resolve(MAX_CONNECTIONS)),
            ("grpc.server_handshake_timeout_ms", 5_000),
            ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_S * 1000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.http2.max_ping_strikes", 3),
            ("grpc.so_reuseport", 0),
        ],
    )
    handlers = {
        method.name: grpc.stream_stream_rpc_method_handler(
            _served(platform, f"{SERVICE.full_name}/{method.name}", answer),
            # Raw bytes: gRPC would report malformed messages as the server's fault, not the caller's.
            request_deserializer=None,
            response_serializer=lambda message: message.SerializeToString(),
        )
        for method, answer in ((method, methods_of(platform)[method.name]) for method in SERVICE.methods)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    names = [SERVICE.full_name, health.SERVICE_NAME]
    status = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    for name in ("", *names):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    add_reflection(names, descriptor_pool.Default(), server)
    try:
        port = (
            server.add_insecure_port(address) if tls is None else server.add_secure_port(address, credentials_of(tls))
        )
    except RuntimeError as cause:
        raise InvalidArgument(f"gateway.grpc_address is {address!r}: {cause}; expected a free HOST:PORT") from cause
    await server.start()
    logger.info("grpc up address=%s port=%d", address, port)
    return server, port


def _served(platform: Platform, name: str, answer: Method) -> Callable[[Any, Context], Any]:
    """Return a method's handler: authenticate, check the permission, decode the message, then answer."""
    input_class = next(m for m in SERVICE.methods if name.endswith(f"/{m.name}")).input_type._concrete_class

    async def serve(requests: AsyncIterator[bytes], context: Context) -> None:
        began, caller, code = time.perf_counter(), None, "OK"
        try:
            caller = await to_thread.run_sync(_enter, platform, name, context)
            check_permission(caller, GRPC_PERMISSIONS[name])
            message = input_class.FromString(await _in_time(anext(requests), "its message"))
            async with aclosing(answer(caller, message)) as answers:  # type: ignore[type-var]
                async for each in answers:
                    await _in_time(context.write(each), "reading an answer")
        except Exception as broken:  # noqa: BLE001 - a call's boundary
            error = _error_of(broken, name)
            code = error.grpc_status
            note_refused_call(platform, caller, _address_of(context), name, error)
            refusal = refusal_of(error)
            await context.abort(status_code_of(error), refusal.message, refusal.metadata)
        finally:
            platform.load.note(caller, CallerLoad(1, seconds=time.perf_counter() - began), platform.clock.now())
            REQUESTS.labels("GRPC", name, code).inc()
            SECONDS.labels("GRPC", name).observe(time.perf_counter() - began)

    return serve


def _enter(platform: Platform, name: str, context: Context) -> Caller:
    given = {key: str(value) for key, value in context.invocation_metadata() or ()}
    kind, _, token = given.get("authorization", "").partition(" ")
    tenant = given.get(TENANT_HEADER.lower(), "")
    caller = authenticate_token(platform, token.strip() if kind.lower() == "bearer" else None, tenant)
    platform.rates.check(caller)
    return caller


async def _in_time(work: Any, what: str) -> Any:
    seconds = resolve(SILENCE_S)
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as cause:
        raise RequestTimeout(f"the call took more than {seconds:g} s (gateway.silence_s) for {what}") from cause


def _error_of(broken: Exception, name: str) -> RdukitError:
    match broken:
        case RdukitError():
            return broken
        case StopAsyncIteration():
            return MalformedRequest("the call contains no message", field="request")
        case _ if isinstance(broken, AWAY):
            logger.warning("database does not answer method=%s error=%s", name, broken)
            return Unavailable("the database does not answer; try again")
        case IntegrityError():
            return Conflict("another request created the same object at the same time; send it again")
        case DataError():
            return InvalidArgument("a text has the character NUL, or a number is too large, for the database")
    if type(broken).__name__ == "DecodeError":
        return MalformedRequest(f"the message cannot be decoded: {broken}", field="request")
    logger.error("call failed method=%s", name, exc_info=broken)
    return RdukitError("the gateway failed; its log has the cause")


def _address_of(context: Context) -> str:
    # ipv4:127.0.0.1:4711, and ipv6:%5B::1%5D:4711
    return str(context.peer()).partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "")
