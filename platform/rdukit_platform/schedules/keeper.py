"""Submission of pipelines at their due times, in a thread of the scheduler, because it may wait for the boxes'
descriptions.

One transaction, which locks the schedule, writes the run and its pipeline. So only one scheduler writes it, and a
killed one has written both or nothing.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from rdukit.errors import RdukitError, Unavailable
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit.telemetry.spans import span
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.catalog.model import Boxes
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow, ScheduledRunRow, ScheduleRow
from rdukit_platform.jobs.pipelines import submit_pipeline, with_step_tiles, with_steps_expanded
from rdukit_platform.jobs.schemas import MAX_LABELS, PipelineRequest
from rdukit_platform.schedules.service import KEPT_RUNS, lock_schedule, runs_of
from rdukit_platform.schedules.timing import Missed, Overlap, RunState, decide_run, find_due
from rdukit_platform.settings import SCHEDULE_LATE_S

logger = logging.getLogger(__name__)

POLL_S: Final = 1.0
#: Seconds that shutdown waits for a step that is under way.
STOP_S: Final = 5.0
#: Label of a schedule's jobs.
LABEL: Final = "schedule"

#: Pipeline that a schedule submits now, or the error if it is no longer legal.
_Prepared = PipelineRequest | RdukitError


class ScheduleKeeper:
    """Thread that submits due pipelines. Concurrent ones are harmless."""

    def __init__(
        self, database: Database, store: BlobStore, boxes: Callable[[], Boxes], clock: Clock, wake: Callable[[], object]
    ) -> None:
        self._database, self._store, self._boxes, self._clock, self._wake = database, store, boxes, clock, wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="schedules", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            try:
                if advance_schedules(self._database, self._store, self._boxes, self._clock.now()):
                    self._wake()
            except (DBAPIError, RdukitError, OSError) as error:
                logger.warning("schedules wait error=%s", error)


def advance_schedules(database: Database, store: BlobStore, boxes: Callable[[], Boxes], now: float) -> int:
    """Submit due pipelines, and waiting ones whose time has come. Returns the number of submitted pipelines.

    Raises:
        Unavailable: the boxes' descriptions cannot be read; due pipelines stay due.
    """
    waits = select(ScheduledRunRow.schedule_id).where(ScheduledRunRow.state == str(RunState.WAITING))
    with database.read() as session:
        is_due = (ScheduleRow.next_at <= now) | ScheduleRow.id.in_(waits)
        found = session.scalars(select(ScheduleRow.id).where(ScheduleRow.paused_at.is_(None), is_due)).all()
    begun = 0
    for schedule_id in found:
        try:
            begun += _advance(database, store, boxes, schedule_id, now)
        except (DataError, IntegrityError) as error:  # the error belongs to this schedule; others continue
            logger.warning("schedule waits schedule=%s error=%s", schedule_id, error)
    return begun


def _advance(database: Database, store: BlobStore, boxes: Callable[[], Boxes], schedule_id: str, now: float) -> int:
    # The store is read before the transaction, which blocks others.
    with database.read() as session:
        row = session.get(ScheduleRow, schedule_id)
        is_due = row is not None and row.next_at is not None and row.next_at <= now
        if row is None or (not is_due and _find_open(session, schedule_id)):
            return 0
        request = _prepare(session, store, row)
    known = boxes()
    with database.write() as session:
        row = lock_schedule(session, schedule_id)
        if row is None or row.paused_at is not None:
            return 0
        return _start_waiting(session, row, request, known, now) + _start_due(session, row, request, known, now)


def _prepare(session: Session, store: BlobStore, row: ScheduleRow) -> _Prepared:
    try:
        request = with_steps_expanded(PipelineRequest.model_validate(row.request))
        steps = with_step_tiles(store, session, row.tenant_id, request.steps)
    except Unavailable:
        raise
    except RdukitError as error:
        return error
    labelled = [
        step.model_copy(update={"labels": {LABEL: row.name, **step.labels}}) if len(step.labels) < MAX_LABELS else step
        for step in steps
    ]
    return request.model_copy(update={"steps": labelled})


def _start_due(session: Session, row: ScheduleRow, request: _Prepared, boxes: Boxes, now: float) -> int:
    due = None if row.next_at is None else find_due(row.cron, row.zone, row.next_at, now)
    if due is None:
        return 0
    missed, overlap, max_s = Missed(row.missed), Overlap(row.overlap), resolve(SCHEDULE_LATE_S)
    if due.has_earlier:
        why = "a later due time also passed before a scheduler was up"
        _add_run(session, row, row.next_at or now, RunState.MISSED, why, now)
    waiting = sum(run.state == RunState.WAITING for run in runs_of(session, row.id, KEPT_RUNS))
    state, said = decide_run(now - due.latest, max_s, missed, overlap, _find_open(session, row.id), waiting)
    run = _add_run(session, row, due.latest, state, said, now)
    row.next_at = due.next_at
    _forget_old(session, row.id)
    return _submit(session, row, run, request, boxes, now) if state is RunState.STARTED else 0


def _start_waiting(session: Session, row: ScheduleRow, request: _Prepared, boxes: Boxes, now: float) -> int:
    waiting = select(ScheduledRunRow).where(
        ScheduledRunRow.schedule_id == row.id, ScheduledRunRow.state == str(RunState.WAITING)
    )
    run = session.scalars(waiting.order_by(ScheduledRunRow.due_at).limit(1)).one_or_none()
    if run is None or _find_open(session, row.id):
        return 0
    run.state, run.why, run.at = str(RunState.STARTED), None, now
    return _submit(session, row, run, request, boxes, now)


def _submit(
    session: Session, row: ScheduleRow, run: ScheduledRunRow, request: _Prepared, boxes: Boxes, now: float
) -> int:
    try:
        if isinstance(request, RdukitError):
            raise request
        with span("scheduled run", {"rdukit.schedule": row.id}):
            pipeline, _ = submit_pipeline(session, boxes, row.tenant_id, request, now, row.submitted_by)
        run.pipeline_id = pipeline.id
    except RdukitError as error:  # refused before anything of it was written
        run.state, run.why = str(RunState.FAILED), error.message
    session.flush()
    logger.info(
        "schedule due schedule=%s due=%.0f state=%s pipeline=%s", row.id, run.due_at, run.state, run.pipeline_id
    )
    return int(run.pipeline_id is not None)


def _add_run(
    session: Session, row: ScheduleRow, due_at: float, state: RunState, why: str | None, now: float
) -> ScheduledRunRow:
    run = ScheduledRunRow(schedule_id=row.id, due_at=due_at, state=str(state), why=why, pipeline_id=None, at=now)
    session.add(run)
    session.flush()
    return run


def _find_open(session: Session, schedule_id: str) -> str | None:
    """Return an open pipeline of the schedule; ``None``: there is no open one."""
    begun = select(ScheduledRunRow.pipeline_id).where(
        ScheduledRunRow.schedule_id == schedule_id, ScheduledRunRow.pipeline_id.is_not(None)
    )
    open_jobs = select(JobRow.pipeline_id).where(JobRow.pipeline_id.in_(begun), JobRow.ended_at.is_(None))
    return session.scalars(open_jobs.limit(1)).one_or_none()


def _forget_old(session: Session, schedule_id: str) -> None:
    """Delete runs beyond the stored number, even if pipelines of old ones are still open."""
    kept = runs_of(session, schedule_id, KEPT_RUNS)
    if len(kept) == KEPT_RUNS:
        old = (ScheduledRunRow.schedule_id == schedule_id, ScheduledRunRow.due_at < kept[-1].due_at)
        session.execute(delete(ScheduledRunRow).where(*old))
