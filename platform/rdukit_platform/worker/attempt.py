"""Attempt from its message to its end: claim, tiles, box, verb, events, artifacts, verdict.

The worker holds the node's lease on its own connection, so the tiles are freed as soon as the worker or this attempt
ends. A job's folder outlives its attempts, so that the next one finds the checkpoint. Two boxes of one job cannot use
it at once: a box that is a process inherits its file lock, and every backend finds and ends boxes of earlier attempts.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf
from typing import Any, Final, TypeVar

from sqlalchemy.orm import Session

from rdukit.box.client import BoxClient
from rdukit.box.links import LinkedPart
from rdukit.errors import (
    BackendUnavailable,
    Cancelled,
    DiskFull,
    LeaseLost,
    NoResources,
    OutputRefused,
    QuotaExceeded,
    RdukitError,
    Unavailable,
)
from rdukit.files.atomic import remove_tree
from rdukit.files.home import make_folder
from rdukit.telemetry.logs import log_ids
from rdukit.telemetry.model import SpanKind
from rdukit.telemetry.spans import begin_span, collecting, end_span, format_traceparent, span, within
from rdukit_platform.audit.service import is_security_code
from rdukit_platform.backends.contract import BoxOwner, RunningBox
from rdukit_platform.backends.job_boxes import WITHOUT_GRPC, BoxPlace, OwnBox, spec_of
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.states import FINAL, MAX_RUN_LIMIT_S, JobState, WaitCode
from rdukit_platform.settings import BOX_DISK, PROCESSES
from rdukit_platform.worker import box_ends
from rdukit_platform.worker.carried import bring_work, keeping_work
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.inputs import (
    AttemptFailure,
    add_outputs,
    bring_box,
    bring_inputs,
    check_fenced,
    check_tiles,
    failure_of,
    find_fence,
    hide_places,
    named_outputs,
    record_refusal,
)
from rdukit_platform.worker.orphans import end_earlier, lock_folder
from rdukit_platform.worker.parts import AttemptPart, await_reason, hold_on, linked, read_own_part
from rdukit_platform.worker.patience import check_free, find_lack, patiently
from rdukit_platform.worker.pool import ANSWER_S, MAX_ANSWER_BYTES, BoxPool, PooledBox
from rdukit_platform.worker.tiles import (
    LeasedTiles,
    TileRequest,
    environment_of,
    is_withdrawn,
    lease_members,
)
from rdukit_platform.worker.tracing import AttemptTrace

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Shortest time in seconds between two writes of progress; the last progress is always written.
PROGRESS_S: Final = 0.25
STOP_S: Final = 8.0
#: Seconds to wait for the end of a box that broke its connection.
DYING_S: Final = 2.0
#: Largest number of log lines stored per attempt: a box may write without end.
MAX_LOG_LINES: Final = 10_000
MAX_LOG_CHARACTERS: Final = 4_000


class AttemptRun:
    """Attempt that this worker tries to claim and run."""

    def __init__(self, context: WorkerContext, fencing: FencingToken, is_stopping: threading.Event) -> None:
        self._context, self._fencing = context, fencing
        #: The worker is shutting down.
        self._is_stopping = is_stopping
        #: Set when the attempt must end: lost, cancelled or interrupted.
        self._stop = threading.Event()
        #: Set when the attempt is done: its pooled box may already serve another job, and must not be ended.
        self._is_done = threading.Event()
        self._box: RunningBox | None = None
        #: Pooled box in use, if any; it survives the attempt.
        self._pooled: PooledBox | None = None
        #: The box was ended because it exceeded its disk limit.
        self._has_hit_wall = False
        #: Leases of tiles, one per member.
        self._leases: list[dict[str, Any]] = []
        #: Begun when the attempt is claimed.
        self._trace: AttemptTrace
        self._owner = BoxOwner(fencing.job_id, 0)
        self._folder = context.home.work / fencing.job_id
        #: The box's output folder; a further part keeps no outputs.
        self._output = self._folder / ("part" if fencing.part else "out")
        #: Folder with everything that the box writes.
        self._scope = self._folder
        #: Set when the attempt is claimed.
        self._part: AttemptPart

    def run(self) -> None:
        """Run the attempt to its end. Does nothing if it cannot be claimed."""
        context, job = self._context, self._claim()
        if job is None:
            logger.info("message dropped job=%s attempt=%s", self._fencing.job_id, self._fencing.attempt_id)
            return
        with (
            log_ids(job=job.id, attempt=str(job.attempt), tenant=job.tenant_id),
            collecting() as spans,
        ):
            self._trace = AttemptTrace(job, spans, self._output, self._fencing.part)
            with within(self._trace.context):
                logger.info("attempt begins job=%s number=%d", job.id, job.attempt)
                context.heartbeat.hold(self._fencing, self.abort)
                try:
                    self._run_claimed(job)
                finally:
                    context.heartbeat.drop(self._fencing)
                    if job.tiles:
                        context.notifier.wake_node(context.node)
                    self._trace.end()

    def _claim(self) -> JobRow | None:
        context = self._context
        with context.database.write(is_durable=False) as session:
            now, lease_s = context.clock.now(), context.heartbeat.lease_s
            job = execution.claim(session, self._fencing, context.name, lease_s, now, context.node)
            if job is not None:
                self._part = read_own_part(session, job, self._fencing)
        return job

    def abort(self) -> None:
        """End the attempt from outside, unless it has succeeded. Thread-safe; returns at once."""
        if self._is_done.is_set():
            return
        self._stop.set()
        box = self._box
        if box is not None:
            # A thread of its own: a container engine may be slow, and the caller has other attempts.
            threading.Thread(target=box_ends.terminate, args=(box,), name="terminate", daemon=True).start()

    def _run_claimed(self, job: JobRow) -> None:
        with self._ending():
            self._work(job)
            remove_tree(self._folder)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the attempt by what is raised in the block."""
        try:
            yield
        except LeaseLost as lost:
            self._leave(lost)
        except AttemptFailure as failure:
            self._fail(failure.outcome, failure.error)
        except QuotaExceeded as over:
            self._fail(AttemptOutcome.BOX_FAILED, AttemptFailure(AttemptOutcome.BOX_FAILED, over).error)
        except Exception as error:
            lack = error if isinstance(error, BackendUnavailable | NoResources) else find_lack(error)
            if lack is not None:
                # Not counted as a failure: another attempt follows when the resources are there.
                self._fail(AttemptOutcome.NO_RESOURCES, AttemptFailure(AttemptOutcome.NO_RESOURCES, lack).error)
                return
            logger.exception("attempt broke job=%s", self._fencing.job_id)
            self._fail(AttemptOutcome.BOX_LOST, {"code": "internal", "message": f"the worker failed: {error!r}"})

    def _fail(self, outcome: AttemptOutcome, error: Mapping[str, object]) -> None:
        await_reason(self._part, error.get("code"), self._context.heartbeat.lease_s, self._stop)
        if self._stop.is_set():
            outcome, error = AttemptOutcome.INTERRUPTED, {"code": "unavailable", "message": "the worker was stopped"}
        context, spans = self._context, self._trace.end(str(error.get("code")))
        try:

            def fail(session: Session) -> JobState:
                now = context.clock.now()
                execution.keep_spans(session, self._fencing, spans)
                told = hide_places(error, self._folder, context.home.folder)
                state = execution.fail(session, self._fencing, outcome, told, context.backoff_s, now, kept)
                if self._has_hit_wall or is_security_code(error.get("code")):
                    record_refusal(session, self._fencing.job_id, error, now)
                return state

            with keeping_work(context, self._output) as kept:
                state = self._write(fail)
            logger.info("attempt ends job=%s outcome=%s state=%s", self._fencing.job_id, outcome, state)
            if state in FINAL:
                remove_tree(self._folder)
        except LeaseLost as lost:
            self._leave(lost)
        except DiskFull as full:
            logger.warning("end not written down, the lease runs out job=%s why=%s", self._fencing.job_id, full.message)

    def _leave(self, lost: LeaseLost) -> None:
        # The reason is already written. An ended job no longer needs its folder.
        logger.info("attempt ends, not ours any more job=%s why=%s", self._fencing.job_id, lost.message)
        with self._context.database.read() as session:
            job = session.get(JobRow, self._fencing.job_id)
        if job is not None and JobState(job.state) in FINAL:
            remove_tree(self._folder)
        elif self._part.is_spread and self._part.is_first:  # another part's worker has ended it
            with keeping_work(self._context, self._output) as kept:
                self._note(lambda session: execution.keep_lost(session, self._fencing, kept))

    def _work(self, job: JobRow) -> None:
        check_fenced(self._context)
        self._patiently(lambda: check_free(self._context.home.folder))
        if self._context.pool is not None and self._context.pool.takes(job):
            self._work_pooled(job, self._context.pool)
            return
        make_folder(self._folder)
        self._owner = BoxOwner(job.id, job.attempt)
        with ExitStack() as stack:
            # A box of an earlier attempt may hold the lock, and a former holder of the lock may have left a box.
            end_earlier(self._context.backend, self._owner)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            lock_folder(lock, job.id, self._stop)
            end_earlier(self._context.backend, self._owner)
            with span("bring inputs", {"rdukit.inputs": len(job.inputs)}):
                if self._part.is_first:
                    self._patiently(lambda: bring_work(self._context, job, self._output))
                else:
                    remove_tree(self._output)
                inputs = self._patiently(lambda: bring_inputs(self._context, job, self._folder / "in"))
                check_tiles(job, inputs)
                own = self._patiently(lambda: bring_box(self._context, job, self._folder / "box"))
            leases = list[LeasedTiles]()
            if job.tiles:
                with span("lease tiles", {"rdukit.tiles": job.tiles, "rdukit.members": self._part.members}):
                    leases = self._lease_tiles(stack, job)
            link = stack.enter_context(linked(self._context, self._fencing, job, self._part, self._folder, self._stop))
            stack.push(self._stop_box)
            operation = self._run_box(job, inputs, leases, lock, own, link)
            if self._part.is_first:
                self._keep(job, operation)
            else:
                hold_on(self._box, self._stop)

    def _work_pooled(self, job: JobRow, pool: BoxPool) -> None:
        context, name = self._context, f"{job.id}-{job.attempt}"
        with ExitStack() as stack:
            stack.push(partial(self._return_box, pool, name))
            fence = find_fence(context, job)
            work = begin_span(f"run {job.verb}", kind=SpanKind.CLIENT)
            try:
                with self._judging():
                    with span("take box", {"rdukit.backend": context.backend.name}):
                        lent = pool.lend(job.tenant_id, job.box, fence, context.box_start_s, self._stop)
                    self._pooled, self._box, self._scope, self._trace.file = lent, lent.box, lent.folder, lent.spans
                    incoming, self._output = lent.make_room(name)
                    inputs = dict[str, str]()
                    if job.inputs:
                        inputs = self._patiently(lambda: bring_inputs(context, job, incoming))
                        lent.show(incoming)
                    work.start_ns = time.time_ns()
                    operation = self._ask(lent.client, lent.box, job, inputs, format_traceparent(work.context))
            finally:
                end_span(work)
            self._keep(job, operation)

    def _return_box(self, pool: BoxPool, name: str, _: object, error: BaseException | None, __: object) -> None:
        lent = self._pooled
        if lent is None:
            return
        if error is None and not self._stop.is_set():
            lent.clear(name)
            pool.give_back(lent)
            return
        self._trace.read_box_spans()
        pool.end(lent, STOP_S)

    def _stop_box(self, _: object, error: BaseException | None, __: object) -> None:
        if self._box is None:
            return
        if self._stop.is_set() or isinstance(error, LeaseLost):
            box_ends.terminate(self._box)  # still alive; it may have been asked to end just now
        try:
            self._box.stop(STOP_S)
        except Unavailable as error:
            # The attempt ends now. Its box then counts as orphaned, and the reaper ends it.
            logger.warning("box not stopped job=%s id=%s error=%s", self._owner.id, self._box.id, error)

    def _lease_tiles(self, stack: ExitStack, job: JobRow) -> list[LeasedTiles]:
        limit_s = MAX_RUN_LIMIT_S if job.run_limit_s is None else job.run_limit_s
        asked = TileRequest(f"{job.box}-{job.verb}", job.tiles, job.tenant_id, job.id, run_limit_s=limit_s)
        try:
            members = lease_members(stack, self._context.home.snd_socket, asked, self._part.members, self._leases)
        except (NoResources, Unavailable) as cause:
            raise AttemptFailure(AttemptOutcome.NO_RESOURCES, cause) from cause
        tiles = [tile for lease in self._leases for tile in lease["tiles"]]
        self._note(lambda session: execution.hold_tiles(session, self._fencing, tiles))
        return members

    def _run_box(
        self, job: JobRow, inputs: Mapping[str, str], leases: Sequence[LeasedTiles], lock: int, own: OwnBox | None,
        link: LinkedPart | None,
    ) -> dict[str, Any]:  # fmt: skip
        context, output = self._context, self._output
        output.mkdir(exist_ok=True)
        fence = find_fence(context, job)
        work = begin_span(f"run {job.verb}", kind=SpanKind.CLIENT)
        wires = WITHOUT_GRPC if context.backend.name in PROCESSES else {}
        spec = spec_of(
            context.rules, job.box, self._owner, self._folder / f"attempt-{job.attempt}", self._folder / "in", output,
            {**wires, **environment_of(leases, link), **self._trace.environment(work.context)},
            [*(each.socket for each in leases), *([] if link is None else [link.socket])], [lock], own, fence,
            BoxPlace(job.tiles * len(leases), job.run_limit_s, self._say_wait), None if link is None else link.part,
        )  # fmt: skip
        try:
            with self._judging():
                with span("start box", {"rdukit.backend": context.backend.name}):
                    box = self._box = context.backend.start(spec, context.box_start_s, self._stop)
                work.start_ns = time.time_ns()
                with BoxClient(box.rest_url, ANSWER_S, max_bytes=MAX_ANSWER_BYTES) as client:
                    return self._ask(client, box, job, inputs)
        finally:
            end_span(work)

    def _ask(
        self, client: BoxClient, box: RunningBox, job: JobRow, inputs: Mapping[str, str], traceparent: str = ""
    ) -> dict[str, Any]:  # fmt: skip
        if self._stop.is_set() or self._is_stopping.is_set():
            raise Cancelled("the attempt was stopped before its box")
        running = client.run(
            job.verb, job.parameters, inputs, str(self._output), traceparent=traceparent,
            stop=self._stop, is_alive=box.is_alive,
        )  # fmt: skip
        with ExitStack() as stack:
            try:
                events = stack.enter_context(running)
            except Unavailable:
                raise
            except RdukitError as refused:
                raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused
            if self._part.is_first:
                described = {"backend": self._context.backend.name, "id": box.id, "limits": dict(box.limits)}
                now = self._context.clock.now()
                self._note(lambda session: execution.start(session, self._fencing, described, now))
            return self._follow(events)

    @contextmanager
    def _judging(self) -> Iterator[None]:
        """Map a failed call of the box inside the block to an attempt outcome.

        Raises:
            AttemptFailure: the call failed.
        """
        try:
            yield
        except BackendUnavailable:
            raise
        except OutputRefused as refused:
            raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused
        except (Cancelled, Unavailable) as error:
            if self._box is not None and not box_ends.is_timeout(error):
                box_ends.await_end(self._box, DYING_S, self._stop)
            self._record_logs(box_ends.tail_of(self._box))
            if box_ends.has_filled_disk(error, self._box):
                self._has_hit_wall = True
                limit = self._context.fences.limits.disk_bytes
                full = DiskFull(f"the box exceeded its disk limit ({BOX_DISK.name} is {limit})")
                raise AttemptFailure(AttemptOutcome.BOX_FAILED, full) from error
            if self._stop.is_set():
                raise AttemptFailure(AttemptOutcome.INTERRUPTED, error) from error
            outcome = box_ends.outcome_of(error, self._box, self._scope)
            raise AttemptFailure(outcome, box_ends.with_its_end(error, self._box)) from error

    def _patiently(self, action: Callable[[], T]) -> T:
        """Do an action that needs disk or bucket; while one is lacking, the job's wait reason says so."""
        return patiently(action, self._stop, tell=lambda why: self._say_wait({}, why, why and WaitCode.RESOURCES))

    def _say_wait(self, box: Mapping[str, object], why: str, code: str) -> None:
        self._note(lambda session: execution.wait_for_place(session, self._fencing, box, why, code))

    def _follow(self, events: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
        context = self._context
        written_at, pending, logged = float("-inf"), None, 0
        for event in events:
            kind = event.get("kind")
            if kind == "progress" and event.get("progress") and self._part.is_first:
                pending = event["progress"]
            if kind == "log" and event.get("log") is not None and logged < MAX_LOG_LINES:
                logged += 1
                is_last = logged == MAX_LOG_LINES
                self._record_logs(["further lines are not kept" if is_last else str(event["log"])[:MAX_LOG_CHARACTERS]])
            is_due, now = context.clock.monotonic() - written_at >= PROGRESS_S, context.clock.now()
            if pending is not None and (is_due or kind == "result"):
                self._note(partial(execution.record_progress, fencing=self._fencing, progress=pending, now=now))
                written_at, pending = context.clock.monotonic(), None
            if kind == "result":
                operation: dict[str, Any] = event.get("operation") or {}
                self._check_result(operation)
                return operation
        raise Unavailable("the box ended its stream without a result")

    def _check_result(self, operation: Mapping[str, Any]) -> None:
        if operation.get("state") == "succeeded":
            return
        if operation.get("state") == "cancelled":
            raise Cancelled("the box cancelled the operation")
        self._record_logs(box_ends.tail_of(self._box))
        socket = self._context.home.snd_socket
        raise failure_of(
            operation, self._box, self._scope, lambda: any(is_withdrawn(socket, lease) for lease in self._leases)
        )

    def _record_logs(self, lines: Sequence[str]) -> None:
        if lines:
            self._note(lambda session: execution.record_logs(session, self._fencing, lines, self._context.clock.now()))

    def _note(self, change: Callable[[Session], None]) -> None:
        """Write the attempt's progress. Not durable: attempts do not survive a power loss."""
        self._write(change, is_durable=False)

    def _write(
        self, change: Callable[[Session], T], *, is_durable: bool = True, on_commit: Callable[[], object] = lambda: None
    ) -> T:  # fmt: skip
        """Write to the database; wait while its disk is full."""

        def write() -> T:
            with self._context.database.write(is_durable=is_durable, on_commit=on_commit) as session:
                return change(session)

        return patiently(write, self._stop, inf)

    def _keep(self, job: JobRow, operation: Mapping[str, Any]) -> None:
        context = self._context
        assert self._box is not None
        if self._pooled is None:
            # The box has delivered everything, so it needs no time to shut down.
            self._box.stop(0.0)
        with ExitStack() as hold:
            add = partial(add_outputs, context, hold, self._output, named_outputs(operation))
            outputs, now = patiently(add, self._stop, inf), context.clock.now()
            result, spans = operation.get("result"), self._trace.end()
            logger.info("attempt done job=%s outputs=%s", job.id, ",".join(output.slot for output in outputs))
            succeed = partial(execution.succeed, outputs=outputs, result=result, now=now, spans=spans)
            self._write(partial(succeed, fencing=self._fencing), on_commit=self._is_done.set)
