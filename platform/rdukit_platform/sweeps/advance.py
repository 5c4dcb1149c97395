"""Advance sweeps: record ended trials, end hopeless ones, begin the next. The scheduler calls it between passes.

``sweeps.decide`` makes the decisions from the database, without a lock. A decision about an outdated version of the
sweep is not written.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import RdukitError
from rdukit.strict_json import find_number
from rdukit.telemetry.spans import span
from rdukit_platform.catalog.model import BoxDescription, read_selector
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow, SweepRow, TrialRow
from rdukit_platform.jobs.changes import apply_event, lock_job
from rdukit_platform.jobs.metrics import iterate_progress_events, points_of
from rdukit_platform.jobs.schemas import MAX_LABELS
from rdukit_platform.jobs.service import add_jobs, cancel_job, new_job
from rdukit_platform.jobs.states import FINAL, JobEvent, JobState
from rdukit_platform.sweeps.decide import find_end, find_stops, next_trials
from rdukit_platform.sweeps.model import Stop, SweepRequest, SweepState, Trial
from rdukit_platform.sweeps.service import as_trial, end_sweep, lock_sweep, read_request, trials_of

logger = logging.getLogger(__name__)

#: Largest number of points stored of a trial's curve.
CURVE_POINTS: Final = 200
#: Label of a sweep's jobs.
LABEL: Final = "sweep"


def advance_sweeps(database: Database, now: float) -> int:
    """Advance all sweeps that run. Returns the number of trials that were begun or ended."""
    with database.read() as session:
        running = session.scalars(select(SweepRow.id).where(SweepRow.state == str(SweepState.RUNNING))).all()
    return sum(_advance(database, sweep_id, now) for sweep_id in running)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Next steps of a sweep, decided for a version of it."""

    version: int
    #: Trials that have ended since the last step.
    news: Sequence[Trial] = ()
    end: tuple[SweepState, str] | None = None
    stops: Sequence[Stop] = ()
    #: Number of the first trial to begin, and the parameters of all.
    first: int = 0
    following: Sequence[dict[str, object]] = ()


def _advance(database: Database, sweep_id: str, now: float) -> int:
    with database.read() as session:
        plan = _plan(session, session.get_one(SweepRow, sweep_id))
    if not (plan.news or plan.end or plan.stops or plan.following):
        return 0
    with database.write() as session:
        row = lock_sweep(session, sweep_id)
        if row.version != plan.version or row.state != SweepState.RUNNING:
            return 0
        row.version += 1
        _note_ends(session, sweep_id, plan.news)
        if plan.end is not None:
            end_sweep(session, row, *plan.end, now)
        for stop in plan.stops:
            _stop(session, sweep_id, stop, now)
        for number, parameters in enumerate(plan.following, start=plan.first):
            _begin(session, row, number, parameters, now)
    logger.info(
        "sweep advanced sweep=%s begun=%d stopped=%d end=%s", sweep_id, len(plan.following), len(plan.stops), plan.end
    )
    return len(plan.following) + len(plan.stops)


def _plan(session: Session, row: SweepRow) -> _Plan:
    try:
        sweep = read_request(row)
        trials, news = _read_trials(session, sweep, row.id)
        end = find_end(sweep, trials)
        if end is not None:
            return _Plan(row.version, news, end)
        stops = find_stops(sweep.early_stopping, trials) if sweep.early_stopping else []
        return _Plan(row.version, news, None, stops, len(trials), next_trials(sweep, trials))
    except (RdukitError, ValidationError) as error:  # the error belongs to this sweep; others continue
        logger.warning("sweep failed sweep=%s error=%s", row.id, error)
        return _Plan(row.version, end=(SweepState.FAILED, str(error)))


def _read_trials(session: Session, sweep: SweepRequest, sweep_id: str) -> tuple[list[Trial], list[Trial]]:
    """Return all trials, and those that have ended since the last step."""
    metric = None if sweep.early_stopping is None else sweep.early_stopping.metric
    found, news = [], []
    for row, job in trials_of(session, sweep_id):
        curve: Sequence[tuple[float, float]] = ()
        if metric is not None and row.curve is None and job.progress is not None:
            curve = points_of((event.values for event in iterate_progress_events(session, job.id)), metric)
        trial = as_trial(row, job, curve)
        if row.curve is None and trial.state in FINAL:
            if trial.state is JobState.SUCCEEDED:
                trial = replace(trial, value=objective_of(job.result, job.progress, sweep.objective.metric))
            news.append(trial)
        found.append(trial)
    return found, news


def objective_of(result: dict[str, object] | None, progress: dict[str, object] | None, metric: str) -> float | None:
    """Return a metric's value from the result, else from the last progress; ``None``: no finite number (pure)."""
    for values in (result, progress):
        value = find_number((values or {}).get(metric))
        if value is not None:
            return value if math.isfinite(value) else None
    return None


def thin_out(curve: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return at most ``CURVE_POINTS`` of a curve's points, with the first and the last (pure)."""
    if len(curve) <= CURVE_POINTS:
        return [[step, value] for step, value in curve]
    last = len(curve) - 1
    places = sorted({round(number * last / (CURVE_POINTS - 1)) for number in range(CURVE_POINTS)})
    return [[*curve[place]] for place in places]


def _note_ends(session: Session, sweep_id: str, news: Sequence[Trial]) -> None:
    for trial in news:
        row = session.get_one(TrialRow, (sweep_id, trial.number))
        row.value, row.curve = trial.value, thin_out(trial.curve)


def _stop(session: Session, sweep_id: str, stop: Stop, now: float) -> None:
    job = lock_job(session, session.get_one(TrialRow, (sweep_id, stop.number)).job_id)
    if JobState(job.state) not in FINAL:
        cancel_job(session, job, now, stopped_early=stop.why)


def _begin(session: Session, sweep: SweepRow, number: int, parameters: dict[str, object], now: float) -> JobRow:
    common = read_request(sweep).job
    asked = read_selector(common.box)
    box = BoxDescription(asked.name, asked.name, (), {}, asked.version)
    labels = {LABEL: sweep.id, **common.labels}
    changes = {
        "name": f"{sweep.name[:120]} #{number}",
        "parameters": {**common.parameters, **parameters},
        "labels": labels if len(labels) <= MAX_LABELS else common.labels,
    }
    # A microsecond apart, so that listing them keeps their order.
    request, at = common.model_copy(update=changes), now + number * 1e-6
    with span("trial", {"rdukit.sweep": sweep.id, "rdukit.trial": number}):
        job = new_job(sweep.tenant_id, request, box, at, by=sweep.submitted_by)
    add_jobs(session, [job], at)
    apply_event(session, job, JobEvent.READY, now)
    session.add(TrialRow(sweep_id=sweep.id, number=number, job_id=job.id, parameters=parameters))
    session.flush()
    return job
