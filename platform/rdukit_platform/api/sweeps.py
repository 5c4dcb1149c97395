"""Routes of sweeps."""

from fastapi import APIRouter, Request, status

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import (
    Cursor,
    IdempotencyKey,
    JobsReader,
    JobsWriter,
    Limit,
    StrictJsonRoute,
    platform_of,
)
from rdukit_platform.jobs.fit import with_tiles
from rdukit_platform.sweeps import service
from rdukit_platform.sweeps.decide import count_trials
from rdukit_platform.sweeps.model import SweepRequest
from rdukit_platform.sweeps.schemas import Sweep, SweepPage, show_sweep
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"], route_class=StrictJsonRoute)


@router.post("", status_code=status.HTTP_201_CREATED)
def submit(request: Request, caller: JobsWriter, body: SweepRequest, idempotency_key: IdempotencyKey = None) -> Sweep:
    """Submit a sweep; the scheduler begins its trials, each a job."""
    if body.idempotency_key is None:
        body = body.model_copy(update={"idempotency_key": idempotency_key})
    return submit_sweep(platform_of(request), caller, body)


@router.get("")
def list_(request: Request, caller: JobsReader, limit: Limit = 50, cursor: Cursor = None) -> SweepPage:
    """Return the tenant's sweeps, newest first, without their trials."""
    with platform_of(request).database.read() as session:
        rows, following = service.list_sweeps(session, caller.tenant_id, limit, cursor)
        shown = [show_sweep(row, service.trials_of(session, row.id)) for row in rows]
    return SweepPage(sweeps=shown, next_cursor=following)


@router.get("/{sweep_id}")
def show(request: Request, sweep_id: str, caller: JobsReader) -> Sweep:
    """Show one sweep with its trials."""
    with platform_of(request).database.read() as session:
        row = service.get_sweep(session, caller.tenant_id, sweep_id)
        return show_sweep(row, service.trials_of(session, row.id), with_trials=True)


@router.post("/{sweep_id}/cancel")
def cancel(request: Request, sweep_id: str, caller: JobsWriter) -> Sweep:
    """Cancel a sweep at once, and its open trials."""
    platform = platform_of(request)
    with platform.database.read() as session:  # checked before the write lock is taken
        service.get_sweep(session, caller.tenant_id, sweep_id)
    with platform.database.write() as session:
        row = service.get_sweep(session, caller.tenant_id, sweep_id, is_locked=True)
        row = service.cancel_sweep(session, row, platform.clock.now())
        shown = show_sweep(row, service.trials_of(session, row.id), with_trials=True)
    platform.notifier.wake()
    return shown


def submit_sweep(platform: Platform, caller: Caller, body: SweepRequest) -> Sweep:
    """Record a sweep of the caller's tenant; its trials count like the jobs of a batch.

    Raises as ``check_sweep``, ``service.submit_sweep`` and ``Rates.check_batch``.
    """
    body = check_sweep(platform, caller, body)
    platform.rates.check_batch(caller, count_trials(body), "sweep", "trials")
    with platform.database.write(on_commit=platform.notifier.wake) as session:
        row = service.submit_sweep(session, caller.tenant_id, body, platform.clock.now(), caller.submitter)
        return show_sweep(row, service.trials_of(session, row.id), with_trials=True)


def check_sweep(platform: Platform, caller: Caller, body: SweepRequest) -> SweepRequest:
    """Return the request that would be recorded; nothing is recorded. Raises as ``service.check_sweep``."""
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        job = with_tiles(platform.store, session, caller.tenant_id, body.job)
        return service.check_sweep(session, boxes, caller.tenant_id, body.model_copy(update={"job": job}))
