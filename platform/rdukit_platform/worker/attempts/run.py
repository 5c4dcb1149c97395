"""Attempt from its message to its end: claim, phases, end.

The worker holds the node's lease on its own connection, so the tiles are freed as soon as the worker or this attempt
ends.
"""

import logging
import threading
from collections.abc import Mapping

from sqlalchemy.orm import Session

from rdukit.errors import DiskFull, LeaseLost
from rdukit.files.atomic import remove_tree
from rdukit.telemetry.logs import log_ids
from rdukit.telemetry.model import Span
from rdukit.telemetry.spans import collecting, within
from rdukit_platform.audit.service import is_security_code
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.worker import box_ends
from rdukit_platform.worker.attempts.carried import keeping_work
from rdukit_platform.worker.attempts.inputs import hide_places, record_refusal
from rdukit_platform.worker.attempts.phases import run_phases
from rdukit_platform.worker.attempts.state import AttemptState
from rdukit_platform.worker.attempts.tracing import AttemptTrace
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.parts import AttemptPart, await_reason, read_own_part
from rdukit_platform.worker.verdicts import AttemptFailure

logger = logging.getLogger(__name__)


class AttemptRun:
    """Attempt that this worker tries to claim and run."""

    def __init__(self, context: WorkerContext, fencing: FencingToken, is_stopping: threading.Event) -> None:
        self._context, self._fencing = context, fencing
        #: The worker is shutting down.
        self._is_stopping = is_stopping
        self._stop = threading.Event()
        self._is_done = threading.Event()
        #: Set when the attempt is claimed.
        self._state: AttemptState | None = None

    def run(self) -> None:
        """Run the attempt to its end. Does nothing if it cannot be claimed."""
        context, claimed = self._context, self._claim()
        if claimed is None:
            logger.info("message dropped job=%s attempt=%s", self._fencing.job_id, self._fencing.attempt_id)
            return
        job, part = claimed
        with log_ids(job=job.id, attempt=str(job.attempt), tenant=job.tenant_id), collecting() as spans:
            attempt = self._state = self._begin(job, part, spans)
            with within(attempt.trace.context):
                logger.info("attempt begins job=%s number=%d", job.id, job.attempt)
                context.heartbeat.hold(self._fencing, self.abort)
                try:
                    _run_to_its_end(attempt)
                finally:
                    context.heartbeat.drop(self._fencing)
                    if job.tiles:
                        context.notifier.wake_node(context.node)
                    attempt.trace.end()

    def _claim(self) -> tuple[JobRow, AttemptPart] | None:
        context = self._context
        with context.database.write(is_durable=False) as session:
            now, lease_s = context.clock.now(), context.heartbeat.lease_s
            job = execution.claim(session, self._fencing, context.name, lease_s, now, context.node)
            return None if job is None else (job, read_own_part(session, job, self._fencing))

    def _begin(self, job: JobRow, part: AttemptPart, spans: list[Span]) -> AttemptState:
        folder = self._context.home.work / job.id
        output = folder / ("part" if self._fencing.part else "out")
        return AttemptState(
            self._context, self._fencing, job, part, self._stop, self._is_stopping, self._is_done,
            AttemptTrace(job, spans, output, self._fencing.part), folder, output, scope=folder,
        )  # fmt: skip

    def abort(self) -> None:
        """End the attempt from outside, unless it has succeeded. Thread-safe; returns at once."""
        if self._is_done.is_set():
            return
        self._stop.set()
        box = None if self._state is None else self._state.box
        if box is not None:
            # A thread of its own: a container engine may be slow, and the caller has other attempts.
            threading.Thread(target=box_ends.terminate, args=(box,), name="terminate", daemon=True).start()


def _run_to_its_end(attempt: AttemptState) -> None:
    try:
        run_phases(attempt)
        remove_tree(attempt.folder)
    except LeaseLost as lost:
        _leave(attempt, lost)
    except AttemptFailure as failure:
        _fail(attempt, failure.outcome, failure.error)
    except Exception as error:
        logger.exception("attempt broke job=%s", attempt.job.id)
        _fail(attempt, AttemptOutcome.BOX_LOST, {"code": "internal", "message": f"the worker failed: {error!r}"})


def _fail(attempt: AttemptState, outcome: AttemptOutcome, error: Mapping[str, object]) -> None:
    context, fencing = attempt.context, attempt.fencing
    await_reason(attempt.part, error.get("code"), context.heartbeat.lease_s, attempt.stop)
    if attempt.stop.is_set():
        outcome, error = AttemptOutcome.INTERRUPTED, {"code": "unavailable", "message": "the worker was stopped"}
    spans = attempt.trace.end(str(error.get("code")))
    try:

        def fail(session: Session) -> JobState:
            now = context.clock.now()
            execution.keep_spans(session, fencing, spans)
            told = hide_places(error, attempt.folder, context.home.folder)
            state = execution.fail(session, fencing, outcome, told, context.backoff_s, now, kept)
            if attempt.has_hit_wall or is_security_code(error.get("code")):
                record_refusal(session, fencing.job_id, error, now)
            return state

        with keeping_work(context, attempt.output) as kept:
            state = attempt.write(fail)
        logger.info("attempt ends job=%s outcome=%s state=%s", fencing.job_id, outcome, state)
        if state in FINAL:
            remove_tree(attempt.folder)
    except LeaseLost as lost:
        _leave(attempt, lost)
    except DiskFull as full:
        logger.warning("end not written down, the lease runs out job=%s why=%s", fencing.job_id, full.message)


def _leave(attempt: AttemptState, lost: LeaseLost) -> None:
    # The reason is already written. An ended job no longer needs its folder.
    logger.info("attempt ends, not ours any more job=%s why=%s", attempt.job.id, lost.message)
    with attempt.context.database.read() as session:
        job = session.get(JobRow, attempt.job.id)
    if job is not None and JobState(job.state) in FINAL:
        remove_tree(attempt.folder)
    elif attempt.part.is_spread and attempt.part.is_first:  # another part's worker has ended it
        with keeping_work(attempt.context, attempt.output) as kept:
            attempt.note(lambda session: execution.keep_lost(session, attempt.fencing, kept))
