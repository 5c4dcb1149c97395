"""Schedules in the console: a table on the page of pipelines, and the buttons that pause and resume them."""

from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from rdukit_platform.api.schedules import change_schedule
from rdukit_platform.console.access import Editor
from rdukit_platform.console.page import PageRoute
from rdukit_platform.schedules.service import Schedule, ScheduledRun, list_schedules, runs_of, show_schedule
from rdukit_platform.schedules.timing import RunState, local_time

router = APIRouter(prefix="/console/schedules", include_in_schema=False, route_class=PageRoute)

#: Colour for the outcome of a due time: a class of the style sheet.
TONES: Final = {
    RunState.STARTED: "good",
    RunState.WAITING: "busy",
    RunState.SKIPPED: "off",
    RunState.MISSED: "off",
    RunState.FAILED: "bad",
}
#: Schedules that the page has; the command line lists all.
SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """Line of the table: the schedule, its next run in its own zone, and its last run with its due time and colour."""

    schedule: Schedule
    next: str
    last: ScheduledRun | None
    due: str
    tone: str


def read_schedule_lines(session: Session, tenant_id: str) -> list[ScheduleLine]:
    """Read the tenant's schedules, each with its newest run."""
    rows, _ = list_schedules(session, tenant_id, SHOWN)
    return [view_schedule(show_schedule(row, runs_of(session, row.id, 1))) for row in rows]


def view_schedule(found: Schedule) -> ScheduleLine:
    """Return a schedule as a line of the table (pure)."""
    last = found.runs[0] if found.runs else None
    paused = "paused" if found.paused_at is not None else "never again"
    return ScheduleLine(
        schedule=found,
        next=paused if found.next_at is None else local_time(found.next_at, found.zone),
        last=last,
        due="" if last is None else local_time(last.due_at, found.zone),
        tone="" if last is None else TONES[last.state],
    )


@router.post("/{schedule}/pause")
def pause(request: Request, schedule: str, caller: Editor) -> Response:
    """Pause a schedule."""
    change_schedule(request, caller, schedule, is_paused=True)
    return RedirectResponse("/console/pipelines", 303)


@router.post("/{schedule}/resume")
def resume(request: Request, schedule: str, caller: Editor) -> Response:
    """Resume a paused schedule."""
    change_schedule(request, caller, schedule, is_paused=False)
    return RedirectResponse("/console/pipelines", 303)
