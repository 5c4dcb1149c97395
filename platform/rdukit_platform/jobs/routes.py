"""Routes of jobs and pipelines."""

from typing import Annotated, Final

from fastapi import APIRouter, Header, Query, Request, status
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from rdukit.errors import InvalidArgument
from rdukit_platform.db.models import JobRow
from rdukit_platform.gateway.dependencies import JobsReader, JobsWriter, platform_of
from rdukit_platform.gateway.strict_route import StrictRoute
from rdukit_platform.jobs import pipelines, service
from rdukit_platform.jobs.follow import log_line, stream_events, stream_logs
from rdukit_platform.jobs.promotion import pipeline_jobs
from rdukit_platform.jobs.schemas import (
    EventPage,
    Job,
    JobPage,
    JobRequest,
    Pipeline,
    PipelinePage,
    PipelineRequest,
)
from rdukit_platform.jobs.tiles import with_tiles
from rdukit_platform.jobs.view import show_event, show_job, show_pipeline

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=StrictRoute)

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=128)]
EVENT_STREAM = "text/event-stream"
_TEXT: Final = {"schema": {"type": "string"}}
#: Numbers of events are below what databases hold.
LAST = (1 << 63) - 1


@router.post("/jobs", status_code=status.HTTP_201_CREATED)
def submit(request: Request, caller: JobsWriter, body: JobRequest, idempotency_key: IdempotencyKey = None) -> Job:
    """Submit a job. The same idempotency key, in the body or as a header, gives the same job."""
    platform = platform_of(request)
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": idempotency_key})
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        body = with_tiles(platform, session, caller.tenant_id, body)
    with platform.database.write() as session:
        job = service.submit_job(session, boxes, caller.tenant_id, body, platform.clock.now())
        shown = show_job(job, service.list_attempts(session, job.id))
    platform.waker.wake()
    return shown


@router.get("/jobs")
def list_(
    request: Request, caller: JobsReader, state: str | None = None, limit: int = 50, cursor: str | None = None
) -> JobPage:
    """The tenant's jobs, newest first."""
    with platform_of(request).database.read() as session:
        rows, following = service.list_jobs(session, caller.tenant_id, state, limit, cursor)
    return JobPage(jobs=[show_job(row) for row in rows], next_cursor=following)


@router.get("/jobs/{job_id}")
def show(request: Request, job_id: str, caller: JobsReader) -> Job:
    """One job with its attempts."""
    with platform_of(request).database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
        return show_job(job, service.list_attempts(session, job.id))


@router.get("/jobs/{job_id}/events", response_model=EventPage, responses={200: {"content": {EVENT_STREAM: {}}}})
def events(
    request: Request,
    job_id: str,
    caller: JobsReader,
    after: Annotated[int, Query(ge=0, le=LAST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    accept: Annotated[str, Header()] = "*/*",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response | EventPage:
    """What happened to a job: JSON, or server-sent events until it ends (``Accept: text/event-stream``)."""
    platform = platform_of(request)
    with platform.database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
        if EVENT_STREAM not in accept:
            rows = service.list_events(session, job.id, after, limit)
            return EventPage(events=[show_event(row) for row in rows])
    if last_event_id is not None:
        if not (last_event_id.isdecimal() and int(last_event_id[:20]) <= LAST):
            raise InvalidArgument(f"Last-Event-ID is {last_event_id[:80]!r}; legal: the id of an event")
        after = max(after, int(last_event_id))
    platform.followers.check(caller.tenant_id)
    return StreamingResponse(
        stream_events(platform, caller, job.id, after),
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.get("/jobs/{job_id}/logs", response_model=None, responses={200: {"content": {"text/plain": _TEXT}}})
def logs(request: Request, job_id: str, caller: JobsReader, follow: bool = False) -> Response:
    """The job's log as text; with ``follow=true`` until it ends."""
    platform = platform_of(request)
    with platform.database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
        if not follow:
            rows = service.list_events(session, job.id, kind="log", limit=100_000)
            return PlainTextResponse(b"".join(log_line(row) for row in rows))
    platform.followers.check(caller.tenant_id)
    return StreamingResponse(stream_logs(platform, caller, job.id), media_type="text/plain")


@router.post("/jobs/{job_id}/cancel")
def cancel(request: Request, job_id: str, caller: JobsWriter) -> Job:
    """End a job now, whatever it does."""
    platform = platform_of(request)
    with platform.database.read() as session:  # what is not the caller's to end waits for no writer
        service.get_job(session, caller.tenant_id, job_id)
    with platform.database.write() as session:
        job = service.get_job(session, caller.tenant_id, job_id, is_locked=True)
        job = service.cancel_job(session, job, platform.clock.now())
        shown = show_job(job, service.list_attempts(session, job.id))
    platform.waker.wake()
    return shown


@router.post("/pipelines", status_code=status.HTTP_201_CREATED)
def submit_pipeline(
    request: Request, caller: JobsWriter, body: PipelineRequest, idempotency_key: IdempotencyKey = None
) -> Pipeline:
    """Submit a pipeline: all its jobs, or none."""
    platform = platform_of(request)
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": idempotency_key})
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        steps = [with_tiles(platform, session, caller.tenant_id, step) for step in body.steps]
    body = body.model_copy(update={"steps": steps})
    with platform.database.write() as session:
        row, jobs = pipelines.submit_pipeline(session, boxes, caller.tenant_id, body, platform.clock.now())
        shown = show_pipeline(row, jobs)
    platform.waker.wake()
    return shown


@router.get("/pipelines")
def list_pipelines(request: Request, caller: JobsReader, limit: int = 50, cursor: str | None = None) -> PipelinePage:
    """The tenant's pipelines, newest first, with their jobs."""
    with platform_of(request).database.read() as session:
        rows, following = pipelines.list_pipelines(session, caller.tenant_id, limit, cursor)
        shown = [show_pipeline(row, pipeline_jobs(session, row.id)) for row in rows]
    return PipelinePage(pipelines=shown, next_cursor=following)


@router.get("/pipelines/{pipeline_id}")
def show_one_pipeline(request: Request, pipeline_id: str, caller: JobsReader) -> Pipeline:
    """One pipeline with its jobs."""
    with platform_of(request).database.read() as session:
        row = pipelines.get_pipeline(session, caller.tenant_id, pipeline_id)
        jobs: list[JobRow] = list(pipeline_jobs(session, row.id))
    return show_pipeline(row, jobs)
