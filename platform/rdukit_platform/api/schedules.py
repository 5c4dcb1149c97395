"""Routes of schedules: pipelines that are submitted at the times of a cron expression."""

from fastapi import APIRouter, Request, status

from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.dependencies import Cursor, JobsReader, JobsWriter, Limit, StrictJsonRoute, platform_of
from rdukit_platform.audit.service import Act, record
from rdukit_platform.jobs.pipelines import check_pipeline, with_step_tiles, with_steps_expanded
from rdukit_platform.schedules import service
from rdukit_platform.schedules.service import (
    RemovedSchedule,
    Schedule,
    SchedulePage,
    ScheduleRequest,
    get_schedule,
    runs_of,
    show_schedule,
)
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=StrictJsonRoute)


@router.post("", status_code=status.HTTP_201_CREATED)
def create(request: Request, caller: JobsWriter, body: ScheduleRequest) -> Schedule:
    """Create a schedule, which submits a pipeline at the times of a cron expression. An identical request changes
    nothing.
    """
    platform = platform_of(request)
    service.check_schedule(body)
    boxes, now = platform.catalog.boxes(), platform.clock.now()
    expanded = with_steps_expanded(body.pipeline)
    with platform.database.read() as session:
        steps = with_step_tiles(platform.store, session, caller.tenant_id, expanded.steps)
    with platform.database.write() as session:
        check_pipeline(session, boxes, caller.tenant_id, expanded.model_copy(update={"steps": steps}), now)
        row = service.create_schedule(session, caller.tenant_id, body, now, caller.submitter)
        if row.created_at == now:
            detail = f"{row.cron} {row.zone}"
            record(session, entry_of(request, caller, Act.CREATE_SCHEDULE, row.name, detail=detail))
        return show_schedule(row, runs_of(session, row.id))


@router.get("")
def list_(request: Request, caller: JobsReader, limit: Limit = 50, cursor: Cursor = None) -> SchedulePage:
    """Return the tenant's schedules, newest first, each with its newest run."""
    with platform_of(request).database.read() as session:
        rows, following = service.list_schedules(session, caller.tenant_id, limit, cursor)
        shown = [show_schedule(row, runs_of(session, row.id, 1)) for row in rows]
    return SchedulePage(schedules=shown, next_cursor=following)


@router.get("/{schedule}")
def show(request: Request, schedule: str, caller: JobsReader) -> Schedule:
    """Show one schedule, by name or id, with its newest runs."""
    with platform_of(request).database.read() as session:
        row = get_schedule(session, caller.tenant_id, schedule)
        return show_schedule(row, runs_of(session, row.id))


@router.delete("/{schedule}")
def remove(request: Request, schedule: str, caller: JobsWriter) -> RemovedSchedule:
    """Remove a schedule and its runs; pipelines that it has submitted continue."""
    platform = platform_of(request)
    with platform.database.read() as session:  # checked before the write lock is taken
        get_schedule(session, caller.tenant_id, schedule)
    with platform.database.write() as session:
        row = get_schedule(session, caller.tenant_id, schedule, is_locked=True)
        service.remove_schedule(session, row)
        record(session, entry_of(request, caller, Act.REMOVE_SCHEDULE, row.name))
    return RemovedSchedule(id=row.id)


@router.post("/{schedule}/pause")
def pause(request: Request, schedule: str, caller: JobsWriter) -> Schedule:
    """Pause a schedule until it is resumed."""
    return change_schedule(request, caller, schedule, is_paused=True)


@router.post("/{schedule}/resume")
def resume(request: Request, schedule: str, caller: JobsWriter) -> Schedule:
    """Resume a schedule at its next due time."""
    return change_schedule(request, caller, schedule, is_paused=False)


def change_schedule(request: Request, caller: Caller, named: str, *, is_paused: bool) -> Schedule:
    """Pause or resume one of the caller's schedules. Returns it.

    Raises:
        NotFound: the tenant has no such schedule.
    """
    platform = platform_of(request)
    with platform.database.read() as session:
        get_schedule(session, caller.tenant_id, named)
    with platform.database.write() as session:
        row = get_schedule(session, caller.tenant_id, named, is_locked=True)
        if is_paused:
            service.pause_schedule(row, platform.clock.now())
        else:
            service.resume_schedule(row, platform.clock.now())
        act = Act.PAUSE_SCHEDULE if is_paused else Act.RESUME_SCHEDULE
        record(session, entry_of(request, caller, act, row.name))
        return show_schedule(row, runs_of(session, row.id))
