"""Routes of jobs and pipelines, and the streams of a job's events and log lines until it has ended."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Annotated, Final

import anyio
import orjson
from fastapi import APIRouter, Header, Query, Request, status
from starlette.responses import Response, StreamingResponse

from rdukit.box.sse import EVENT_STREAM, KEEP_ALIVE, frame_json
from rdukit.errors import InvalidArgument
from rdukit_platform.api import job_calls
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import (
    Cursor,
    IdempotencyKey,
    JobsReader,
    JobsViewer,
    JobsWriter,
    Limit,
    StrictJsonRoute,
    platform_of,
)
from rdukit_platform.db.models import JobEventRow, JobRow
from rdukit_platform.jobs import pipelines, service
from rdukit_platform.jobs.promotion import pipeline_jobs
from rdukit_platform.jobs.schemas import (
    MAX_LABELS,
    CheckedJob,
    EventPage,
    Job,
    JobBatch,
    JobBatchRequest,
    JobPage,
    JobRequest,
    Pipeline,
    PipelinePage,
    PipelineRequest,
    show_event,
    show_pipeline,
)
from rdukit_platform.jobs.search import MAX_SEARCH
from rdukit_platform.jobs.service import get_job, list_events
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.tenants.service import Caller, is_token_valid

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=StrictJsonRoute)

_TEXT: Final = {"schema": {"type": "string"}}
Follow = Annotated[bool, Query(description="Follow new lines until the job ends.")]
SEARCH: Final = (
    "Words that each have to occur in a job's name, box, verb, reason, labels or submitter, or begin its id. A page "
    "may have few or no jobs and still a next_cursor, which continues the search."
)
BOX: Final = "Only jobs of this box: NAME, or NAME:VERSION of one that the tenant installed. Pages are as those of q."
#: Largest sequence number that databases can hold.
LAST = (1 << 63) - 1


@router.post("/jobs", status_code=status.HTTP_201_CREATED)
def submit(request: Request, caller: JobsWriter, body: JobRequest, idempotency_key: IdempotencyKey = None) -> Job:
    """Submit a job. The same idempotency key, in the body or as a header, gives the same job."""
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": idempotency_key})
    return job_calls.submit_job(platform_of(request), caller, body)


@router.post("/jobs/batch", status_code=status.HTTP_201_CREATED)
def submit_batch(request: Request, caller: JobsWriter, body: JobBatchRequest) -> JobBatch:
    """Submit many jobs at once, all or none. The same idempotency key gives the same jobs. Returns their ids."""
    return job_calls.submit_jobs(platform_of(request), caller, body)


@router.post("/jobs/check")
def check(request: Request, caller: JobsWriter, body: JobRequest) -> CheckedJob:
    """Check a job: return the job that would be recorded, or the refusal; nothing is recorded."""
    return job_calls.check_job(platform_of(request), caller, body)


@router.get("/jobs")
def list_(
    request: Request,
    caller: JobsViewer,
    state: Annotated[str | None, Query(description=f"Only jobs in this state: {', '.join(JobState)}.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    label: Annotated[
        list[str],
        Query(max_length=MAX_LABELS, description="KEY=VALUE; repeat for more: jobs with all of these labels."),
    ] = [],  # noqa: B006
    q: Annotated[str, Query(max_length=MAX_SEARCH, description=SEARCH)] = "",
    box: Annotated[str | None, Query(description=BOX)] = None,
) -> JobPage:
    """Return the tenant's jobs, newest first; with ``label`` (key=value), only those with all labels."""
    labels = service.read_labels(label)
    return job_calls.list_jobs(platform_of(request), caller, state, limit, cursor, labels, q, box)


@router.get("/jobs/{job_id}")
def show(request: Request, job_id: str, caller: JobsViewer) -> Job:
    """Show one job with its attempts."""
    return job_calls.read_job(platform_of(request), caller, job_id)


@router.get("/jobs/{job_id}/events", response_model=EventPage, responses={200: {"content": {EVENT_STREAM: {}}}})
def events(
    request: Request,
    job_id: str,
    caller: JobsReader,
    after: Annotated[int, Query(ge=0, le=LAST, description="Only events with a higher sequence number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Events of a page.")] = 1000,
    accept: Annotated[str, Header(description=f"{EVENT_STREAM}: server-sent events until the job ends.")] = "*/*",
    last_event_id: Annotated[
        str | None, Header(description="Same as after, sent by clients that reconnect to a stream.")
    ] = None,
) -> Response | EventPage:
    """List what happened to a job: JSON, or server-sent events until it ends (``Accept: text/event-stream``)."""
    platform = platform_of(request)
    with platform.database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
        if EVENT_STREAM not in accept:
            rows = service.list_events(session, job.id, after, limit)
            return EventPage(events=[show_event(row) for row in rows])
    if last_event_id is not None:
        if not (last_event_id.isdecimal() and int(last_event_id[:20]) <= LAST):
            raise InvalidArgument(f"Last-Event-ID is {last_event_id[:80]!r}; expected the id of an event")
        after = max(after, int(last_event_id))
    platform.followers.check(caller.tenant_id)
    return StreamingResponse(
        stream_events(platform, caller, job.id, after),
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.get("/jobs/{job_id}/logs", response_model=None, responses={200: {"content": {"text/plain": _TEXT}}})
def logs(request: Request, job_id: str, caller: JobsReader, follow: Follow = False) -> Response:
    """Return the job's log as text; with ``follow=true`` until it ends."""
    platform = platform_of(request)
    with platform.database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
    if not follow:
        return StreamingResponse(log_pages(platform, job.id), media_type="text/plain")
    platform.followers.check(caller.tenant_id)
    return StreamingResponse(stream_logs(platform, caller, job.id), media_type="text/plain")


@router.post("/jobs/{job_id}/cancel")
def cancel(request: Request, job_id: str, caller: JobsWriter) -> Job:
    """Cancel a job at once, in any open state."""
    return job_calls.change_job(platform_of(request), caller, job_id, service.cancel_job)


@router.post("/jobs/{job_id}/pause")
def pause(request: Request, job_id: str, caller: JobsWriter) -> Job:
    """Pause a job until it is resumed; a running training writes a checkpoint first, and its tiles are freed."""
    return job_calls.change_job(platform_of(request), caller, job_id, service.pause_job)


@router.post("/jobs/{job_id}/resume")
def resume(request: Request, job_id: str, caller: JobsWriter) -> Job:
    """Resume a paused job; a training continues from its checkpoint."""
    return job_calls.change_job(platform_of(request), caller, job_id, service.resume_job)


@router.post("/pipelines", status_code=status.HTTP_201_CREATED)
def submit_pipeline(
    request: Request, caller: JobsWriter, body: PipelineRequest, idempotency_key: IdempotencyKey = None
) -> Pipeline:
    """Submit a pipeline: all its jobs, or none."""
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": idempotency_key})
    return job_calls.submit_pipeline(platform_of(request), caller, body)


@router.get("/pipelines")
def list_pipelines(request: Request, caller: JobsReader, limit: Limit = 50, cursor: Cursor = None) -> PipelinePage:
    """Return the tenant's pipelines, newest first, with their jobs."""
    with platform_of(request).database.read() as session:
        rows, following = pipelines.list_pipelines(session, caller.tenant_id, limit, cursor)
        shown = [show_pipeline(row, pipeline_jobs(session, row.id)) for row in rows]
    return PipelinePage(pipelines=shown, next_cursor=following)


@router.get("/pipelines/{pipeline_id}")
def show_one_pipeline(request: Request, pipeline_id: str, caller: JobsReader) -> Pipeline:
    """Show one pipeline with its jobs."""
    with platform_of(request).database.read() as session:
        row = pipelines.get_pipeline(session, caller.tenant_id, pipeline_id)
        jobs: list[JobRow] = list(pipeline_jobs(session, row.id))
    return show_pipeline(row, jobs)


@router.post("/pipelines/{pipeline_id}/cancel")
def cancel_pipeline(request: Request, pipeline_id: str, caller: JobsWriter) -> Pipeline:
    """Cancel all jobs of a pipeline that have not ended."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = pipelines.cancel_pipeline(session, caller.tenant_id, pipeline_id, platform.clock.now())
        shown = show_pipeline(row, pipeline_jobs(session, row.id))
    platform.notifier.wake()
    return shown


#: Largest number of log lines in memory at once.
LOG_PAGE: Final = 500
#: A comment line this often keeps proxies from closing a quiet stream.
KEEP_ALIVE_S: Final = 10.0


async def follow_events(
    platform: Platform, caller: Caller, job_id: str, after: int, kind: str | None = None
) -> AsyncGenerator[list[JobEventRow]]:
    """Yield batches of events after a sequence number, empty ones while nothing happens; ends after the final state.

    It also ends with the caller's token.
    """

    def look() -> tuple[list[JobEventRow], bool]:
        with platform.database.read() as session:
            if not is_token_valid(session, caller.token_id, platform.clock.now()):
                return [], True
            # The state is read first: events written with it are then seen as well.
            has_ended = JobState(get_job(session, caller.tenant_id, job_id).state) in FINAL
            return list(list_events(session, job_id, after, kind=kind)), has_ended

    followers, looks = platform.followers, -1
    with followers.following(caller.tenant_id):
        while True:
            events, has_ended = await anyio.to_thread.run_sync(look, limiter=followers.looks)
            looks = 0 if any(event.kind == "state" for event in events) else looks + 1
            if events:
                after = events[-1].id
            yield events
            if has_ended and not events:
                return
            if not has_ended:
                await anyio.sleep(followers.pause_s(caller.tenant_id, looks))


async def stream_events(platform: Platform, caller: Caller, job_id: str, after: int) -> AsyncIterator[bytes]:
    """Yield server-sent events: ``event`` is the kind, ``id`` the sequence number, ``data`` the event as JSON."""
    said_at = anyio.current_time()
    async with aclosing(follow_events(platform, caller, job_id, after)) as batches:
        async for batch in batches:
            for row in batch:
                yield frame_json(row.kind, row.id, orjson.dumps(show_event(row).model_dump()))
            if batch or anyio.current_time() - said_at >= KEEP_ALIVE_S:
                said_at = anyio.current_time()
                if not batch:
                    yield KEEP_ALIVE


async def stream_logs(platform: Platform, caller: Caller, job_id: str) -> AsyncIterator[bytes]:
    """Yield log lines as text."""
    async with aclosing(follow_events(platform, caller, job_id, 0, kind="log")) as batches:
        async for batch in batches:
            for row in batch:
                yield log_line(row)


def log_pages(platform: Platform, job_id: str) -> Iterator[bytes]:
    """Yield a job's log so far: the next page is read when the previous one was consumed."""
    after: int | None = 0
    while after is not None:
        with platform.database.read() as session:
            rows = list_events(session, job_id, after, LOG_PAGE, kind="log")
            page = b"".join(log_line(row) for row in rows)
        after = rows[-1].id if len(rows) == LOG_PAGE else None
        if page:
            yield page


def log_line(row: JobEventRow) -> bytes:
    """Return a log event as a line of text."""
    return f"{row.data.get('line', '')}\n".encode()
