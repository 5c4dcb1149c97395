"""Calls of endpoints: a request is passed to a ready replica of the tenant's endpoint, and its answer is streamed back.

A request that fails before the first byte of its answer, or whose replica hangs until then, is tried on another one.
The gateway records whether it still has requests at draining replicas.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Final

import httpx
from anyio import to_thread
from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse

from rdukit.box.sse import EVENT_STREAM
from rdukit.errors import DeadlineExceeded, OutputRefused, Unavailable
from rdukit.http.answers import read_beginning, read_bounded_async, refuse_packed
from rdukit.settings import resolve
from rdukit.telemetry.model import Span, SpanContext, SpanKind
from rdukit.telemetry.spans import TRACEPARENT, begin_span, end_span, format_traceparent, is_traced
from rdukit_platform.api.bodies import SHORT_BYTES
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import EndpointsCaller, platform_of
from rdukit_platform.api.replica_connection import HANG_S, ReplicaConnection
from rdukit_platform.api.replica_timing import tell_timing
from rdukit_platform.db.models import EndpointReplicaRow, EndpointRevisionRow
from rdukit_platform.endpoints.history import CallHistory
from rdukit_platform.endpoints.replicas import keep_busy, touch
from rdukit_platform.endpoints.routing import (
    PASSED,
    ReadyReplica,
    body_at_box,
    choose_replica,
    choose_revision,
    is_gone,
    is_inference,
    merge_models,
    path_at_box,
    read_words,
    returned_headers,
)
from rdukit_platform.endpoints.schemas import model_of
from rdukit_platform.endpoints.service import get_endpoint
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.endpoints.usage import MAX_READ, TAIL, UsageCounter, Use, read_model, read_use
from rdukit_platform.settings import ENDPOINT_ANSWER_S, ENDPOINT_WAIT_S

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/endpoints", tags=["endpoint calls"])

#: Seconds between writes of usage, and between checks of draining replicas.
TICK_S: Final = 0.5
#: Seconds for which a record of open requests at a draining replica is valid.
BUSY_S: Final = 3.0
#: Seconds between polls for a ready replica.
LOOK_S: Final = 0.1
#: Bytes read of a replica's reason why it is not ready.
MAX_WORDS: Final = 16 << 10
#: Longest wait in seconds for another replica's list of models; numbers of cached revisions, and of cached replicas of
#: experts.
LIST_S: Final = 5.0
MAX_KNOWN: Final = 1000
#: Header that names the expert of a bundle which answered.
EXPERT_HEADER: Final = "x-rdukit-expert"


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint as a call needs it."""

    endpoint_id: str
    wanted: int
    #: The wanted revision, and the canary with its percentage.
    revision: int
    canary: int | None
    canary_percent: int
    #: Whether it may be without replicas while it is idle.
    may_idle: bool
    ready: tuple[ReadyReplica, ...]
    #: Model name of each revision in requests, and names of all experts and adapters of a bundle.
    models: Mapping[int, str]
    bundled: Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class PassedRequest:
    """A request below an endpoint, with the headers that replicas get."""

    method: str
    #: Such as ``v2/models/M/infer``, not quoted.
    path: str
    body: bytes = b""
    query: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class EndpointCalls:
    """Calls of a gateway. Belongs to its event loop."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._connections: dict[str, ReplicaConnection] = {}
        #: Open requests at each replica.
        self.under_way: Counter[str] = Counter()
        self.usage = UsageCounter(platform.database, platform.clock)
        self.history = CallHistory()
        #: Numbers of calls so far, per endpoint and revision.
        self._turns = Counter[tuple[str, int]]()
        #: For endpoints that may idle: open requests, and endpoints called since the last tick.
        self._callers = Counter[str]()
        self._called = set[str]()
        #: Cached names of models by revision, which is immutable, and of all models of a bundle.
        self._models: dict[tuple[str, int], tuple[str, frozenset[str]]] = {}
        #: Last answering replica per endpoint and expert, which has the expert in memory.
        self._holders: dict[tuple[str, str], str] = {}
        self._task: asyncio.Task[None] | None = None
        #: Threads that read the usage of long answers.
        self._counting = set[asyncio.Task[None]]()

    def start(self) -> None:
        """Begin to write usage."""
        self._task = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Write unwritten usage, and close the connections."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.gather(*self._counting, return_exceptions=True)
        await to_thread.run_sync(self.usage.flush)
        for connection in self._connections.values():
            await connection.close()

    async def call(self, tenant_id: str, name: str, request: PassedRequest) -> StreamingResponse:
        """Pass a request on. Returns the answer once its first bytes have arrived.

        Raises:
            NotFound: the tenant has no such endpoint, or the route is not passed on.
            Unavailable: no replica is ready in time, or all ready ones failed.
            DeadlineExceeded: a replica took the request and gave no answer in time.
        """
        clock, began = asyncio.get_running_loop().time, self._platform.clock.now()
        target = await to_thread.run_sync(self._find, tenant_id, name)
        path_at_box(request.method, request.path, name, name)  # refused before any wait
        deadline, tried, last = clock() + resolve(ENDPOINT_WAIT_S), set[str](), None
        attempts = Counter[str]()
        turn = self._turns[target.endpoint_id, 0]
        self._turns[target.endpoint_id, 0] += 1
        revision = choose_revision(target.revision, target.canary, target.canary_percent, turn)
        if target.may_idle:
            self._called.add(target.endpoint_id)
            if not target.ready:  # the scheduler starts replicas for a call
                await to_thread.run_sync(self._touch, [target.endpoint_id])
                self._platform.notifier.wake()
        while True:
            turn = self._turns[target.endpoint_id, revision]
            known = target.bundled.get(revision)
            expert = target.endpoint_id, read_model(request.body, request.body[-TAIL:], known) if known else ""
            holder = self._holders.get(expert, "")
            replica = choose_replica(target.ready, self.under_way, tried | self._hung(), turn, revision, holder)
            if replica is None:
                if target.wanted == 0 or clock() > deadline:
                    self._count(request, target, 0, Use(1, 1))
                    self._record(request, target, began, failed=True)
                    raise last or _none_ready(name, target)
                if target.may_idle:
                    self._called.add(target.endpoint_id)
                await asyncio.sleep(LOOK_S)
                if last is not None and last.detail.get("is_up"):  # it may be ready now
                    tried.clear()
                target = await to_thread.run_sync(self._find, tenant_id, name)
                continue
            self._turns[target.endpoint_id, revision] += 1
            tried.add(replica.id)
            attempts[replica.id] += 1
            model = target.models[replica.revision]
            at_box = path_at_box(request.method, request.path, name, model)
            body = body_at_box(request.path, request.body, name, model, target.bundled.get(replica.revision) or ())
            sent_at = clock()
            try:
                answer = await self._send(target, replica, at_box, replace(request, body=body))
            except (DeadlineExceeded, OutputRefused):
                self._record(request, target, began, failed=True)
                raise
            except Unavailable as failed:
                last = failed
                if failed.detail.get("is_silent"):  # other replicas of its node may hang, too; probe them together
                    tried |= await self._silent([each for each in target.ready if each.id not in tried])
                elif attempts[replica.id] == 1:  # it had a replica, so this was no wait for one
                    deadline += clock() - sent_at
                if failed.detail.get("is_broken") and attempts[replica.id] == 1:
                    tried.discard(replica.id)  # it may have closed an idle connection
                logger.info("replica failed a call endpoint=%s replica=%s error=%s", name, replica.id, failed.message)
            else:
                self._record(request, target, began, failed=answer.status_code >= 500)
                if expert[1]:
                    self._hold(expert, replica.id)
                is_list = answer.status_code == 200 and at_box.startswith("/v1/models")
                return await self._of_all(answer, target, replica, at_box) if is_list else answer

    def _count(self, request: PassedRequest, target: Target, revision: int, use: Use, model: str = "") -> None:
        """Count a call; requests for metadata, such as readiness, do not count."""
        if is_inference(request.method, request.path):
            self.usage.count(target.endpoint_id, revision, use, model)

    def _record(self, request: PassedRequest, target: Target, began: float, *, failed: bool) -> None:
        """Record the latency of a call that counts."""
        if is_inference(request.method, request.path):
            self.history.record(target.endpoint_id, began, self._platform.clock.now(), failed=failed)

    def _hold(self, expert: tuple[str, str], replica_id: str) -> None:
        """Remember the replica that answered for an expert; the least recently used entry is dropped."""
        self._holders.pop(expert, None)
        self._holders[expert] = replica_id
        if len(self._holders) > MAX_KNOWN:
            del self._holders[next(iter(self._holders))]

    async def _of_all(
        self, answer: StreamingResponse, target: Target, replica: ReadyReplica, path: str
    ) -> StreamingResponse:
        """Return a replica's description of its models, with their states at the other replicas of its revision."""
        others = [each for each in target.ready if each.revision == replica.revision and each.id != replica.id]
        if not others or not target.bundled.get(replica.revision):
            return answer
        parts = (part async for part in answer.body_iterator if isinstance(part, bytes))
        async with aclosing(parts):
            own = await read_bounded_async(parts, MAX_READ, "the replica", OutputRefused)
        merged = merge_models(own, await asyncio.gather(*(self._list(each, path) for each in others)))
        headers = {**answer.headers, "content-length": str(len(merged))}
        return StreamingResponse(iter([merged]), answer.status_code, headers)

    async def _list(self, replica: ReadyReplica, path: str) -> bytes:
        """Return a replica's answer at ``path``; empty if it is late or too long."""
        with suppress(httpx.HTTPError, Unavailable, TimeoutError):
            async with asyncio.timeout(LIST_S), self._connection(replica).http.stream("GET", path) as answer:
                refuse_packed(answer.headers, "the replica")
                return await read_bounded_async(answer.aiter_raw(), MAX_READ, "the replica")
        return b""

    async def _send(
        self, target: Target, replica: ReadyReplica, path: str, request: PassedRequest
    ) -> StreamingResponse:
        self.under_way[replica.id] += 1
        self._callers[target.endpoint_id] += target.may_idle
        forwarded = begin_span("replica", {"rdukit.replica": replica.id}, kind=SpanKind.CLIENT)
        headers = {**request.headers, TRACEPARENT: format_traceparent(_as_wanted(forwarded.context))}
        answer: httpx.Response | None = None
        try:
            connection = self._connection(replica)
            http = connection.http
            url = httpx.URL(str(http.base_url)).copy_with(path=path, query=request.query or None)
            sent = http.build_request(request.method, url, headers=headers, content=request.body)
            async with connection.expecting():
                answer = await http.send(sent, stream=True)
            # "Not loaded" is a valid answer about an expert, too.
            is_told = path.endswith("/ready") and target.bundled.get(replica.revision) and "/models/" in path
            if answer.status_code == 503 and not is_told:
                said = b""
                with suppress(TimeoutError):
                    async with asyncio.timeout(LIST_S):
                        said = await read_beginning(answer.aiter_raw(), MAX_WORDS)
                raise Unavailable(f"the replica is not ready: {read_words(said)}", is_up=True)
            refuse_packed(answer.headers, "the replica", OutputRefused)
            stream = answer.aiter_raw()
            async with connection.expecting():
                first = await anext(stream, b"")
            if is_gone(answer.status_code, answer.headers, first):
                raise Unavailable(f"the replica no longer exists: {read_words(first)}")
        except (httpx.ReadTimeout, httpx.WriteTimeout) as cause:
            await self._done(target, replica, answer, forwarded, "timeout")
            self._count(request, target, replica.revision, Use(1, 1))
            raise DeadlineExceeded(
                f"the replica gave no answer within {resolve(ENDPOINT_ANSWER_S):g} s ({ENDPOINT_ANSWER_S.name})"
            ) from cause
        except TimeoutError as cause:
            await self._done(target, replica, answer, forwarded, "hang")
            words = f"the replica has ended, or hangs: it has answered no health check for up to {HANG_S:g} s"
            raise Unavailable(words, is_up=True, is_silent=True) from cause
        except httpx.HTTPError as cause:
            await self._done(target, replica, answer, forwarded, type(cause).__name__)
            is_broken = not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout)
            raise Unavailable(f"the replica does not answer: {type(cause).__name__}", is_broken=is_broken) from cause
        except BaseException as error:
            await self._done(target, replica, answer, forwarded, type(error).__name__)
            if isinstance(error, OutputRefused):
                self._count(request, target, replica.revision, Use(1, 1))
            raise
        returned = returned_headers(answer.headers)
        if "content-length" in answer.headers:
            returned["content-length"] = answer.headers["content-length"]
        passed = self._pass_on(request, target, replica, answer, first, stream, forwarded)
        return StreamingResponse(passed, answer.status_code, returned)

    async def _pass_on(
        self, request: PassedRequest, target: Target, replica: ReadyReplica, answer: httpx.Response, first: bytes,
        stream: AsyncIterator[bytes], forwarded: Span,
    ) -> AsyncGenerator[bytes]:  # fmt: skip
        is_events = answer.headers.get("content-type", "").startswith(EVENT_STREAM)
        head, tail = bytearray(first[:MAX_READ]), first[-TAIL:] if is_events else b""
        began = self._platform.clock.now()
        try:
            yield first
            async for block in stream:
                if is_events:
                    tail = (tail + block)[-TAIL:]
                elif len(head) < MAX_READ:
                    head += block[:MAX_READ]
                yield block
        finally:
            said = request, target, replica.revision, answer.status_code, answer.headers, bytes(head), tail
            if len(head) <= SHORT_BYTES:
                self._count_answer(*said)
            else:
                task = asyncio.create_task(
                    to_thread.run_sync(self._count_answer, *said, limiter=self._platform.bodies.readers)
                )
                self._counting.add(task)
                task.add_done_callback(self._counting.discard)
            if is_inference(request.method, request.path):
                self.history.occupy(target.endpoint_id, began, self._platform.clock.now())
            tell_timing(forwarded, answer.headers.get("server-timing", ""))
            await self._done(target, replica, answer, forwarded)

    def _count_answer(
        self, request: PassedRequest, target: Target, revision: int, status: int, headers: Mapping[str, str],
        head: bytes, tail: bytes,
    ) -> None:  # fmt: skip
        given = headers.get("inference-header-content-length", "")
        length = int(given) if given.isdecimal() and len(given) < 10 else None
        use = read_use(status, head, tail, header_bytes=length)
        known = target.bundled.get(revision, frozenset())
        model = headers.get(EXPERT_HEADER, "").partition(";")[0]
        if known and model not in known:
            model = read_model(head, tail, known)
        self._count(request, target, revision, use, model if known else "")

    async def _done(
        self, target: Target, replica: ReadyReplica, answer: httpx.Response | None, forwarded: Span, error: str = ""
    ) -> None:
        self.under_way[replica.id] -= 1
        forwarded.error = error
        end_span(forwarded)
        if target.may_idle:
            self._callers[target.endpoint_id] -= 1
            self._called.add(target.endpoint_id)
        if answer is not None:
            with suppress(httpx.HTTPError):
                await answer.aclose()

    def _connection(self, replica: ReadyReplica) -> ReplicaConnection:
        found = self._connections.get(replica.id)
        if found is None:
            found = self._connections[replica.id] = ReplicaConnection(replica, resolve(ENDPOINT_ANSWER_S))
        return found

    def _hung(self) -> set[str]:
        return {replica_id for replica_id, connection in self._connections.items() if connection.is_hung}

    async def _silent(self, replicas: Sequence[ReadyReplica]) -> set[str]:
        """Probe replicas concurrently. Returns those that do not answer."""
        answers = await asyncio.gather(*(self._answers(each) for each in replicas))
        return {each.id for each, is_there in zip(replicas, answers, strict=True) if not is_there}

    async def _answers(self, replica: ReadyReplica) -> bool:
        with suppress(Unavailable):
            return await self._connection(replica).answers()
        return False

    def _find(self, tenant_id: str, name: str) -> Target:
        with self._platform.database.read() as session:
            row = get_endpoint(session, tenant_id, name)
            columns = (
                EndpointReplicaRow.id, EndpointReplicaRow.revision, EndpointReplicaRow.address,
                EndpointReplicaRow.address_uid,
            )  # fmt: skip
            is_ready = EndpointReplicaRow.state == str(ReplicaState.READY)
            ready = session.execute(select(*columns).where(EndpointReplicaRow.endpoint_id == row.id, is_ready)).all()
            replicas = tuple(ReadyReplica(each, number, str(at), uid) for each, number, at, uid in ready)
            known = self._models_of(session, row.id, {each.revision for each in replicas})
        return Target(
            row.id, row.replicas, row.revision, row.canary, row.canary_percent or 0, row.idle_s is not None, replicas,
            {number: model for number, (model, _) in known.items()},
            {number: bundled for number, (_, bundled) in known.items()},
        )  # fmt: skip

    def _models_of(
        self, session: Session, endpoint_id: str, numbers: Collection[int]
    ) -> dict[int, tuple[str, frozenset[str]]]:
        """Return the model name of each revision in requests, with all names of a bundle's models."""
        known = {number: self._models.get((endpoint_id, number)) for number in numbers}
        if missing := [number for number, found in known.items() if found is None]:
            is_missing = EndpointRevisionRow.endpoint_id == endpoint_id, EndpointRevisionRow.number.in_(missing)
            for row in session.scalars(select(EndpointRevisionRow).where(*is_missing)):
                found = model_of(row), frozenset(str(each["name"]) for each in row.models or ())
                known[row.number] = self._models[endpoint_id, row.number] = found
            for oldest in list(self._models)[:-MAX_KNOWN]:
                self._models.pop(oldest, None)
        return {number: found for number, found in known.items() if found is not None}

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await to_thread.run_sync(self.usage.flush)
            self._callers = +self._callers
            called, self._called = self._called | set(self._callers), set()
            try:
                if called:
                    await to_thread.run_sync(self._touch, sorted(called))
                if not self._connections:
                    continue
                states = await to_thread.run_sync(self._states, list(self._connections))
                busy = [
                    each for each, state in states.items()
                    if state == ReplicaState.DRAINING and self.under_way[each] > 0
                ]  # fmt: skip
                if busy:
                    await to_thread.run_sync(self._keep_busy, busy)
            except SQLAlchemyError as error:
                logger.warning("replicas not checked error=%s", error)
                continue
            for replica_id, connection in list(self._connections.items()):
                if states.get(replica_id, ReplicaState.ENDED) != ReplicaState.ENDED:
                    continue
                # its worker may be lost while its box lives; only replicas with open requests matter
                if self.under_way[replica_id]:
                    connection.end_waits()
                else:
                    del self.under_way[replica_id]
                    await self._connections.pop(replica_id).close()

    def _touch(self, endpoint_ids: list[str]) -> None:
        with self._platform.database.write() as session:
            touch(session, endpoint_ids, self._platform.clock.now())

    def _states(self, replica_ids: list[str]) -> dict[str, str]:
        columns = (EndpointReplicaRow.id, EndpointReplicaRow.state)
        with self._platform.database.read() as session:
            rows = session.execute(select(*columns).where(EndpointReplicaRow.id.in_(replica_ids))).all()
        return {each: state for each, state in rows}  # noqa: C416

    def _keep_busy(self, replica_ids: list[str]) -> None:
        with self._platform.database.write() as session:
            keep_busy(session, replica_ids, self._platform.clock.now() + BUSY_S)


def _none_ready(name: str, target: Target) -> Unavailable:
    if target.wanted == 0:
        return Unavailable(
            f"endpoint {name!r} has no replicas; start some with: rdukit endpoint update {name} --replicas 1"
        )
    return Unavailable(
        f"no replica of endpoint {name!r} became ready in {resolve(ENDPOINT_WAIT_S):g} s ({ENDPOINT_WAIT_S.name}); "
        f"see the reason with: rdukit endpoint show {name}"
    )


@router.get("/{name}/{path:path}", response_model=None)
async def call_to_read(request: Request, name: str, path: str, caller: EndpointsCaller) -> Response:
    """Pass on a request for metadata: ``v2/models/MODEL``, ``v2/health/ready``, ``v1/models``."""
    return await calls_of(request).call(caller.tenant_id, name, await _passed(request, path))


@router.post("/{name}/{path:path}", response_model=None)
async def call(request: Request, name: str, path: str, caller: EndpointsCaller) -> Response:
    """Forward an inference, by the Open Inference Protocol or OpenAI's routes; streams are forwarded as they arrive."""
    return await calls_of(request).call(caller.tenant_id, name, await _passed(request, path))


async def _passed(request: Request, path: str) -> PassedRequest:
    headers = {key: value for key, value in request.headers.items() if key in PASSED}
    query = request.scope.get("query_string", b"")
    return PassedRequest(request.method, path, await request.body(), query, headers)


def calls_of(request: Request) -> EndpointCalls:
    """Return the calls of this gateway."""
    platform_of(request)
    found: EndpointCalls = request.app.state.calls
    return found


def _as_wanted(context: SpanContext) -> SpanContext:
    """Return a span's context for a replica: sampled only if spans are collected, because recording costs time."""
    return replace(context, is_sampled=context.is_sampled and is_traced())
