"""Operations of a tenant on schedules: create, read, pause, resume, remove. Each runs in the caller's transaction."""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, Field, JsonValue
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, IllegalValue, NotFound
from rdukit_platform.db.models import ScheduledRunRow, ScheduleRow
from rdukit_platform.db.rows import new_id, read_page
from rdukit_platform.jobs.schemas import PipelineRequest, RequestBody
from rdukit_platform.schedules.timing import Missed, Overlap, RunState, check_cron, explain_cron, find_next

#: Largest number of schedules per tenant.
MAX_SCHEDULES: Final = 100
#: Number of runs shown and stored per schedule.
SHOWN_RUNS: Final = 20
KEPT_RUNS: Final = 500

ScheduleName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]


class ScheduleRequest(RequestBody):
    """Body of ``POST /v1/schedules``."""

    name: ScheduleName
    cron: Annotated[str, Field(min_length=1, max_length=128, description="Minute, hour, day, month, weekday.")]
    zone: Annotated[str, Field(min_length=1, max_length=64, description="Time zone, such as Europe/Berlin.")] = "UTC"
    missed: Missed = Field(
        default=Missed.SKIP, strict=False,
        description="Action for due times missed while the platform was down: skip them, or run the latest.",
    )  # fmt: skip
    overlap: Overlap = Field(
        default=Overlap.SKIP, strict=False,
        description="Action while the previous run's pipeline has not ended: skip the run, or queue it.",
    )  # fmt: skip
    pipeline: PipelineRequest


class ScheduledRun(BaseModel):
    """Run of a schedule: ``due_at``, its state and reason, and its pipeline."""

    due_at: float
    state: RunState
    why: str | None
    pipeline: str | None


class Schedule(BaseModel):
    """A schedule. ``words`` explain its expression; ``next_at`` is null while it is paused; ``runs`` are the newest."""

    id: str
    name: str
    cron: str
    words: str
    zone: str
    missed: Missed
    overlap: Overlap
    created_at: float
    paused_at: float | None
    next_at: float | None
    pipeline: dict[str, JsonValue]
    runs: list[ScheduledRun]


class SchedulePage(BaseModel):
    """Schedules, newest first; ``next_cursor`` asks for the rest."""

    schedules: list[Schedule]
    next_cursor: str | None


class RemovedSchedule(BaseModel):
    """Id of a removed schedule."""

    id: str


def check_schedule(request: ScheduleRequest) -> None:
    """Refuse an invalid schedule; its pipeline is not checked (pure).

    Raises:
        IllegalValue: the message says what would be valid.
    """
    check_cron(request.cron, request.zone)
    if request.pipeline.idempotency_key is not None:
        raise IllegalValue("pipeline.idempotency_key is not allowed, because each run is a new pipeline; leave it out")
    for step in request.pipeline.steps:
        if step.deadline is not None:
            raise IllegalValue(f"step {step.name!r} has a fixed deadline, which later runs would miss; use deadline_s")


def create_schedule(
    session: Session, tenant_id: str, request: ScheduleRequest, now: float, by: str | None = None
) -> ScheduleRow:  # fmt: skip
    """Record a schedule that ``by`` creates, or return an identical one. The request and its pipeline were checked.

    Raises:
        Conflict: another schedule has its name, or the tenant has reached its limit.
    """
    content = request.model_dump(mode="json")
    pipeline = content.pop("pipeline")
    found = find_schedule(session, tenant_id, request.name)
    if found is not None:
        if {name: getattr(found, name) for name in content} == content and found.request == pipeline:
            return found
        raise Conflict(
            f"schedule {request.name!r} already exists; choose another name, or remove it first: rdukit pipeline "
            f"unschedule {request.name}"
        )
    own = select(func.count()).select_from(ScheduleRow).where(ScheduleRow.tenant_id == tenant_id)
    if (session.scalar(own) or 0) >= MAX_SCHEDULES:
        raise Conflict(f"the tenant has {MAX_SCHEDULES} schedules, which is the limit; remove one")
    row = ScheduleRow(
        id=new_id("sched"), tenant_id=tenant_id, request=pipeline, created_at=now, paused_at=None,
        next_at=find_next(request.cron, request.zone, now), submitted_by=by, **content,
    )  # fmt: skip
    session.add(row)
    session.flush()
    return row


def find_schedule(session: Session, tenant_id: str, name: str) -> ScheduleRow | None:
    """Return the tenant's schedule of this name."""
    query = select(ScheduleRow).where(ScheduleRow.tenant_id == tenant_id, ScheduleRow.name == name)
    return session.scalars(query).one_or_none()


def get_schedule(session: Session, tenant_id: str, named: str, *, is_locked: bool = False) -> ScheduleRow:
    """Return one of the tenant's schedules, by name or id, locked if ``is_locked``.

    Raises:
        NotFound: the tenant has no such schedule.
    """
    row = find_schedule(session, tenant_id, named) or session.get(ScheduleRow, named)
    if row is not None and row.tenant_id == tenant_id:
        row = lock_schedule(session, row.id) if is_locked else row
    else:
        row = None
    if row is None:
        raise NotFound(f"there is no schedule {named[:80]!r}; list yours with: rdukit pipeline schedules")
    return row


def lock_schedule(session: Session, schedule_id: str) -> ScheduleRow | None:
    """Return a schedule's row, locked until the transaction ends; ``None``: it was removed."""
    query = select(ScheduleRow).where(ScheduleRow.id == schedule_id).with_for_update()
    return session.scalars(query.execution_options(populate_existing=True)).one_or_none()


def list_schedules(
    session: Session, tenant_id: str, limit: int = 50, cursor: str | None = None
) -> tuple[list[ScheduleRow], str | None]:
    """Return the tenant's schedules, newest first, and the cursor of the next page."""
    query = select(ScheduleRow).where(ScheduleRow.tenant_id == tenant_id)
    return read_page(session, query, ScheduleRow.created_at, ScheduleRow.id, limit, cursor)


def pause_schedule(row: ScheduleRow, now: float) -> None:
    """Pause a schedule: no run, not even a waiting one, starts until it is resumed. Pausing twice is not an error."""
    row.paused_at, row.next_at = row.paused_at or now, None


def resume_schedule(row: ScheduleRow, now: float) -> None:
    """Resume a schedule at its next due time; those that passed are skipped. Resuming twice is not an error."""
    if row.paused_at is not None:
        row.paused_at, row.next_at = None, find_next(row.cron, row.zone, now)


def remove_schedule(session: Session, row: ScheduleRow) -> None:
    """Remove a schedule with its runs, also waiting ones; their pipelines continue."""
    session.execute(delete(ScheduledRunRow).where(ScheduledRunRow.schedule_id == row.id))
    session.delete(row)
    session.flush()


def runs_of(session: Session, schedule_id: str, limit: int = SHOWN_RUNS) -> Sequence[ScheduledRunRow]:
    """Return a schedule's newest runs, the newest first."""
    query = select(ScheduledRunRow).where(ScheduledRunRow.schedule_id == schedule_id)
    return session.scalars(query.order_by(ScheduledRunRow.due_at.desc()).limit(limit)).all()


def show_schedule(row: ScheduleRow, runs: Sequence[ScheduledRunRow]) -> Schedule:
    """Return a schedule as the API shows it."""
    same = ("id", "name", "cron", "zone", "missed", "overlap", "created_at", "paused_at", "next_at")
    return Schedule.model_validate(
        {
            **{name: getattr(row, name) for name in same},
            "words": explain_cron(row.cron),
            "pipeline": row.request,
            "runs": [
                {"due_at": one.due_at, "state": one.state, "why": one.why, "pipeline": one.pipeline_id} for one in runs
            ],
        }
    )
