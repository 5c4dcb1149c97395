"""Routes that treat jobs as runs: compare several, read all metrics of one, clone one with changes."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, status

from rdukit_platform.api.dependencies import IdempotencyKey, JobsReader, JobsWriter, StrictJsonRoute, platform_of
from rdukit_platform.api.jobs import LAST
from rdukit_platform.catalog.check import check_names
from rdukit_platform.jobs import service
from rdukit_platform.jobs.clone import clone_request
from rdukit_platform.jobs.compare import Comparison, compare_runs, read_ids, read_runs
from rdukit_platform.jobs.fit import with_tiles
from rdukit_platform.jobs.metrics import MetricPage, read_progress_events, show_page
from rdukit_platform.jobs.promotion import made_inputs
from rdukit_platform.jobs.schemas import CloneRequest, Job, show_job
from rdukit_platform.jobs.trace import JobTrace, read_trace

#: Served before the routes of single jobs: an id is any word there.
router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictJsonRoute)


@router.get("/compare")
def compare(
    request: Request,
    caller: JobsReader,
    ids: Annotated[list[str], Query(max_length=64, description="Ids of jobs, comma-separated or repeated.")],
) -> Comparison:
    """Put jobs side by side: parameters, metrics, results, artifacts and times."""
    platform = platform_of(request)
    asked, boxes = read_ids(ids), platform.catalog.boxes()
    with platform.database.read() as session:
        return compare_runs(read_runs(session, boxes, caller.tenant_id, asked))


@router.get("/{job_id}/metrics")
def metrics(
    request: Request,
    job_id: str,
    caller: JobsReader,
    after: Annotated[int, Query(ge=0, le=LAST, description="Only points with a higher sequence number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=5000, description="Points of a page.")] = 1000,
) -> MetricPage:
    """List the figures of a job's progress events, oldest first."""
    with platform_of(request).database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
        return show_page(read_progress_events(session, job.id, after, limit + 1), limit)


@router.get("/{job_id}/trace")
def trace(request: Request, job_id: str, caller: JobsReader) -> JobTrace:
    """Show the time of a job by spans: its queue, worker and box."""
    with platform_of(request).database.read() as session:
        return read_trace(session, service.get_job(session, caller.tenant_id, job_id))


@router.post("/{job_id}/clone", status_code=status.HTTP_201_CREATED)
def clone(
    request: Request,
    job_id: str,
    caller: JobsWriter,
    body: CloneRequest | None = None,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Clone a job, with changed parameters, inputs or name; without a body, unchanged."""
    platform, body = platform_of(request), body or CloneRequest()
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": idempotency_key})
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        cloned = service.get_job(session, caller.tenant_id, job_id)
        asked = clone_request(cloned, body, made_inputs(session, cloned))
        box = boxes.box(asked.box)
        check_names(box, box.verb(asked.verb), body.defaults)
        asked = with_tiles(platform.store, session, caller.tenant_id, asked)
    with platform.database.write() as session:
        job = service.submit_job(session, boxes, caller.tenant_id, asked, platform.clock.now(), caller.submitter)
        shown = show_job(job, service.list_attempts(session, job.id))
    platform.notifier.wake()
    return shown
