"""Routes of operations, and an operation's events as a server-sent stream."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response, StreamingResponse

from rdukit.box.sse import EVENT_STREAM, KEEP_ALIVE, frame_event, frame_retry
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations.values import OperationEvent, OperationState
from rdukit_modelbox.rest.schemas import OperationResponse, OperationsResponse, errors
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.rest.web import JsonAnswer

#: Largest sequence number.
_LAST: Final = (1 << 63) - 1
#: One event of the stream.
_EVENT_SCHEMA: Final = {
    "type": "object",
    "properties": {
        "event": {"enum": ["state", "progress", "log", "result"]},
        "id": {"type": "string", "description": "The sequence number: `after` or Last-Event-ID of the next stream."},
        "data": {"type": "string", "description": "The event as JSON: sequence, kind, at, operation, progress or log."},
    },
    "required": ["event", "id", "data"],
}
#: Content of answers that are streams of events.
EVENTS_CONTENT: Final = {EVENT_STREAM: {"schema": _EVENT_SCHEMA}}
#: Seconds of silence after which a comment is sent.
KEEP_ALIVE_S: Final = 5.0
#: Milliseconds that browsers wait before they reconnect.
RETRY_MS: Final = 500


def operation_routes(service: BoxService) -> APIRouter:
    """Return the routes that list, show, follow and cancel operations."""
    router = APIRouter(tags=["operations"], prefix="/v1/operations")

    @router.get("", response_model=OperationsResponse, responses=errors())
    async def list_operations(
        state: OperationState | None = None,
        verb: Verb | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Annotated[str, Query(max_length=256)] = "",
    ) -> Response:
        """List the operations since the start of this box, newest first."""
        page = service.operations.page(state, verb, limit, cursor)
        return JsonAnswer({"operations": [o.to_json() for o in page.operations], "next_cursor": page.cursor})

    @router.get("/{operation_id}", response_model=OperationResponse, responses=errors(404))
    async def get_operation(operation_id: str) -> Response:
        """Show an operation's present state."""
        return JsonAnswer(service.operations.get(operation_id).to_json())

    @router.get(
        "/{operation_id}/events", response_class=StreamingResponse,
        responses={**errors(404), 200: {"description": "an event stream", "content": EVENTS_CONTENT}},
    )  # fmt: skip
    async def events(
        operation_id: str,
        after: Annotated[int, Query(ge=0, le=_LAST, description="Only events with higher numbers.")] = 0,
        follow: Annotated[bool, Query(description="Continue until the result; false: only present events.")] = True,
        last_event_id: Annotated[str, Header(description="Continue after this event, like `after`.")] = "",
    ) -> Response:
        """Stream an operation's events as they happen; end after the result."""
        service.operations.get(operation_id)
        last = last_event_id if last_event_id.isascii() and last_event_id.isdigit() else "0"
        start = max(after, min(int(last[:20]), _LAST))
        watched = service.watch(operation_id, start) if follow else _now(service, operation_id, start)
        return answer_events(watched)

    @router.post("/{operation_id}/cancel", response_model=OperationResponse, responses=errors(404))
    async def cancel(operation_id: str) -> Response:
        """Cancel a queued or running operation and wait for its end; an ended one is unchanged."""
        operation = await service.cancel(operation_id)
        return JsonAnswer(operation.to_json())

    return router


def answer_events(events: AsyncIterator[OperationEvent], headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a stream of events; ``headers``: further headers."""
    told = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})}
    return StreamingResponse(stream_events(events), media_type=EVENT_STREAM, headers=told)


async def _now(service: BoxService, operation_id: str, after: int) -> AsyncIterator[OperationEvent]:
    for event in service.operations.events_after(operation_id, after):
        yield event


async def stream_events(events: AsyncIterator[OperationEvent]) -> AsyncIterator[bytes]:
    """Yield each event in its frame, and comments during silence."""
    yield frame_retry(RETRY_MS)
    pending = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=KEEP_ALIVE_S)
            if not done:
                yield KEEP_ALIVE
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            yield frame_event(event.kind, event.sequence, event.to_json())
            pending = asyncio.ensure_future(anext(events))
    finally:
        pending.cancel()
