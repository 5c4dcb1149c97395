"""The console's pages of sweeps: the list, and one sweep with its trials as a table and a picture."""

from urllib.parse import urlencode

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.catalog.own import newest_own
from rdukit_platform.console import parallel as picture
from rdukit_platform.console.access import Editor, Visitor
from rdukit_platform.console.page import PageRoute, fragment, gateway_address, live, page
from rdukit_platform.console.snippets import Readable, snippets_of
from rdukit_platform.console.views import TONES, progress_words
from rdukit_platform.jobs.states import JobState
from rdukit_platform.sweeps import service
from rdukit_platform.sweeps.model import Goal, SweepState
from rdukit_platform.sweeps.schemas import Sweep, show_sweep, varied
from rdukit_platform.tenants.scopes import JOBS_WRITE, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Colour of each state of a sweep: a class of the style sheet.
SWEEP_TONES = {
    SweepState.RUNNING: "busy",
    SweepState.SUCCEEDED: "good",
    SweepState.FAILED: "bad",
    SweepState.CANCELLED: "off",
}
#: Largest number of runs on the page of a comparison.
COMPARED = 4


@router.get("/sweeps")
def sweeps(request: Request, caller: Visitor, cursor: str | None = None) -> Response:
    """Show all sweeps."""
    platform = platform_of(request)
    with platform.database.read() as session:
        boxes = sorted({*platform.catalog.boxes().boxes, *(row.name for row in newest_own(session, caller.tenant_id))})
    return page(request, "sweeps.html", section="Sweeps", live=_sweeps_part(request, caller, cursor),
                boxes=boxes if allows(caller.scopes, JOBS_WRITE) else [])  # fmt: skip


@router.get("/parts/sweeps")
def sweeps_part(request: Request, caller: Visitor, cursor: str | None = None) -> Response:
    """Show all sweeps again."""
    return fragment(request, _sweeps_part(request, caller, cursor))


@router.get("/sweeps/{sweep_id}")
def sweep(request: Request, sweep_id: str, caller: Visitor) -> Response:
    """Show one sweep."""
    part, name = _sweep_part(request, caller, sweep_id)
    snippets = snippets_of(Readable.SWEEP, sweep_id, gateway_address(request))
    return page(request, "sweep.html", section="Sweeps", title=name, live=part, snippets=snippets)


@router.get("/sweeps/{sweep_id}/part")
def sweep_part(request: Request, sweep_id: str, caller: Visitor) -> Response:
    """Show one sweep again."""
    return fragment(request, _sweep_part(request, caller, sweep_id)[0])


@router.post("/sweeps/{sweep_id}/cancel")
def cancel(request: Request, sweep_id: str, caller: Editor) -> Response:
    """End a sweep and its trials."""
    platform = platform_of(request)
    with platform.database.read() as session:
        service.get_sweep(session, caller.tenant_id, sweep_id)
    with platform.database.write() as session:
        row = service.get_sweep(session, caller.tenant_id, sweep_id, is_locked=True)
        service.cancel_sweep(session, row, platform.clock.now())
    platform.notifier.wake()
    return RedirectResponse(f"/console/sweeps/{sweep_id}", 303)


def _sweeps_part(request: Request, caller: Caller, cursor: str | None) -> Markup:
    with platform_of(request).database.read() as session:
        rows, following = service.list_sweeps(session, caller.tenant_id, 20, cursor)
        shown = [show_sweep(row, service.trials_of(session, row.id)) for row in rows]
    path = f"/console/parts/sweeps{'?' + urlencode({'cursor': cursor}) if cursor else ''}"
    return live(
        request, "sweeps", path, "_sweeps.html", next_cursor=following, seconds=5,
        rows=[(one, SWEEP_TONES[SweepState(one.state)]) for one in shown],
        is_live=any(one.state == SweepState.RUNNING for one in shown), can_write=allows(caller.scopes, JOBS_WRITE),
    )  # fmt: skip


def _sweep_part(request: Request, caller: Caller, sweep_id: str) -> tuple[Markup, str]:
    with platform_of(request).database.read() as session:
        row = service.get_sweep(session, caller.tenant_id, sweep_id)
        found = show_sweep(row, service.trials_of(session, row.id), with_trials=True)
    trials = found.trials or []
    measured = [(trial.number, trial.parameters, trial.value) for trial in trials if trial.value is not None]
    objective = found.objective
    part = live(
        request, "sweep", f"/console/sweeps/{sweep_id}/part", "_sweep.html",
        is_live=found.state == SweepState.RUNNING, sweep=found, tone=SWEEP_TONES[SweepState(found.state)],
        trials=[
            (trial, TONES[JobState(trial.state)], progress_words(trial.progress or {}, JobState(trial.state)))
            for trial in trials
        ], names=varied(trials), picture=(
            picture.draw_parallel(measured, str(objective["metric"]), is_more_better=objective["goal"] == Goal.MAXIMIZE)
        ),
        size=(picture.WIDTH, picture.HEIGHT, picture.TOP, picture.HEIGHT - picture.BOTTOM),
        compare=_compared(found), can_write=allows(caller.scopes, JOBS_WRITE),
    )  # fmt: skip
    return part, found.name


def _compared(found: Sweep) -> str:
    """Return the query that puts the best trials side by side; empty with fewer than two."""
    sign = -1.0 if found.objective["goal"] == Goal.MAXIMIZE else 1.0
    measured = sorted((sign * trial.value, trial.job) for trial in found.trials or [] if trial.value is not None)
    return f"ids={','.join(job for _, job in measured[:COMPARED])}" if len(measured) > 1 else ""
