"""Routes that take up jobs again: clone one with changes."""

from fastapi import APIRouter, Request, status

from rdukit_platform.api.dependencies import JobsWriter, StrictJsonRoute, platform_of
from rdukit_platform.api.jobs import IdempotencyKey
from rdukit_platform.jobs import service
from rdukit_platform.jobs.clone import CloneRequest, clone_request
from rdukit_platform.jobs.fit import with_tiles
from rdukit_platform.jobs.schemas import Job, show_job

#: Served before the routes of single jobs: an id is any word there.
router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=StrictJsonRoute)


@router.post("/{job_id}/clone", status_code=status.HTTP_201_CREATED)
def clone(
    request: Request, job_id: str, caller: JobsWriter, body: CloneRequest, idempotency_key: IdempotencyKey = None
) -> Job:
    """Submit a job like another one, with changed parameters, inputs or name."""
    platform = platform_of(request)
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": idempotency_key})
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        asked = clone_request(service.get_job(session, caller.tenant_id, job_id), body)
        asked = with_tiles(platform.store, platform.home.snd_socket, session, caller.tenant_id, asked)
    with platform.database.write() as session:
        job = service.submit_job(session, boxes, caller.tenant_id, asked, platform.clock.now())
        shown = show_job(job, service.list_attempts(session, job.id))
    platform.notifier.wake()
    return shown
