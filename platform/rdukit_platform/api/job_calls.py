"""Calls about jobs that REST and gRPC share."""

from collections.abc import Callable, Mapping

from sqlalchemy.orm import Session

from rdukit.errors import RdukitError
from rdukit_platform.api.context import Platform
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import listing, pipelines, service
from rdukit_platform.jobs.fit import with_tiles
from rdukit_platform.jobs.schemas import (
    CheckedJob,
    Job,
    JobBatch,
    JobBatchRequest,
    JobPage,
    JobRequest,
    Pipeline,
    PipelineRequest,
    show_job,
    show_pipeline,
)
from rdukit_platform.tenants.service import Caller


def submit_job(platform: Platform, caller: Caller, body: JobRequest) -> Job:
    """Record a job of the caller's tenant. Raises as ``service.submit_job``."""
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        body = with_tiles(platform.store, session, caller.tenant_id, body)
    with platform.database.write(on_commit=platform.notifier.wake) as session:
        job = service.submit_job(session, boxes, caller.tenant_id, body, platform.clock.now(), caller.submitter)
        # A job of an earlier request with this key may have attempts.
        shown = show_job(job, service.list_attempts(session, job.id) if job.attempt else ())
    return shown


def submit_jobs(platform: Platform, caller: Caller, body: JobBatchRequest) -> JobBatch:
    """Record jobs of the caller's tenant, all or none. Raises as ``service.submit_jobs`` and ``Rates.check_batch``."""
    platform.rates.check_batch(caller, len(body.jobs))
    boxes, requests = platform.catalog.boxes(), list[JobRequest]()
    with platform.database.read() as session:
        for number, request in enumerate(body.jobs):
            if body.idempotency_key is not None and request.idempotency_key is None:
                request = request.model_copy(update={"idempotency_key": f"{body.idempotency_key}:{number}"})
            try:
                requests.append(with_tiles(platform.store, session, caller.tenant_id, request))
            except RdukitError as refused:
                refused.detail.setdefault("job", number)
                raise
    with platform.database.write(on_commit=platform.notifier.wake) as session:
        now = platform.clock.now()
        return JobBatch(ids=service.submit_jobs(session, boxes, caller.tenant_id, requests, now, caller.submitter))


def submit_pipeline(platform: Platform, caller: Caller, body: PipelineRequest) -> Pipeline:
    """Record a pipeline of the caller's tenant: all its jobs or none. It counts as a batch.

    Raises as ``pipelines.submit_pipeline`` and ``Rates.check_batch``.
    """
    body = pipelines.with_steps_expanded(body)
    platform.rates.check_batch(caller, len(body.steps), "pipeline", "steps")
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        steps = pipelines.with_step_tiles(platform.store, session, caller.tenant_id, body.steps)
    body = body.model_copy(update={"steps": steps})
    with platform.database.write(on_commit=platform.notifier.wake) as session:
        row, jobs = pipelines.submit_pipeline(
            session, boxes, caller.tenant_id, body, platform.clock.now(), caller.submitter
        )
        return show_pipeline(row, jobs)


def check_job(platform: Platform, caller: Caller, body: JobRequest) -> CheckedJob:
    """Return the job that would be recorded; nothing is recorded. Raises as ``service.submit_job``."""
    boxes, now = platform.catalog.boxes(), platform.clock.now()
    with platform.database.read() as session:
        body = with_tiles(platform.store, session, caller.tenant_id, body)
        return service.foresee_job(session, boxes, caller.tenant_id, body, now)


def list_jobs(
    platform: Platform,
    caller: Caller,
    state: str | None,
    limit: int,
    cursor: str | None,
    labels: Mapping[str, str],
    search: str = "",
    box: str | None = None,
) -> JobPage:
    """Return a page of the tenant's jobs. Raises as ``listing.find_jobs``."""
    with platform.database.read() as session:
        found = listing.find_jobs(session, caller.tenant_id, search, state, limit, cursor, labels, box)
    jobs = [show_job(row) for row in found.jobs]
    return JobPage(jobs=jobs, next_cursor=found.next_cursor, searched_to=found.searched_to)


def read_job(platform: Platform, caller: Caller, job_id: str) -> Job:
    """Return one of the tenant's jobs with its attempts. Raises as ``service.get_job``."""
    with platform.database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
        return show_job(job, service.list_attempts(session, job.id))


def change_job(
    platform: Platform, caller: Caller, job_id: str, change: Callable[[Session, JobRow, float], JobRow]
) -> Job:
    """Change one of the tenant's jobs: cancel, pause or resume it. Raises as ``change``, and as ``service.get_job``."""
    with platform.database.read() as session:  # checked before the write lock is taken
        service.get_job(session, caller.tenant_id, job_id)
    with platform.database.write() as session:
        job = service.get_job(session, caller.tenant_id, job_id, is_locked=True)
        job = change(session, job, platform.clock.now())
        shown = show_job(job, service.list_attempts(session, job.id))
    platform.notifier.wake()
    return shown
