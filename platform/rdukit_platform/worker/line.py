"""The line of jobs that a worker has taken ahead, and the ends of jobs that it has not written yet.

A quick job costs more to write down than to run: its end and the next one's beginning are eleven statements, which
for twenty jobs are hardly more. So a slot whose job has ended goes on with the next of the line, and ends are written
together: when the line is empty, and ``GROUP_S`` after the first of them at the latest. As many jobs are taken as have
ended since, and as many again as were quick: a worker of long jobs takes none ahead, and one of quick jobs what it runs
in about two such times. What no slot takes for ``STALE_S``, because long ones came before it, is queued again.

Whatever is killed, the database has the truth: a job whose end is not written, or that was not begun, has an attempt
whose lease runs out, and is tried again.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from sqlalchemy.exc import DBAPIError

from rdukit.errors import LeaseLost, RdukitError
from rdukit.interfaces import Closable
from rdukit_platform.artifacts.store import PendingContent
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.execution import FencingToken, Success
from rdukit_platform.jobs.succession import Taken, take_next
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.patience import patiently

logger = logging.getLogger(__name__)

#: Seconds that the end of a job waits for others at most.
GROUP_S: Final = 0.1
#: Seconds without a slot that takes a job, after which those of the line are queued again.
STALE_S: Final = 0.25
#: Jobs that wait in the line at most.
MAX_AHEAD: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class DoneJob:
    """Job whose end is to be written."""

    success: Success
    #: What it made. The store keeps it before its end is written.
    added: PendingContent
    #: It was over before anybody was told that it had begun.
    is_quick: bool
    #: Called once: with nothing when the end is written, or with why it cannot be.
    settle: Callable[[Exception | None], None]


def choose_ahead(slow: int, quick: int, waiting: int) -> int:
    """Return how many jobs to take when so many have ended, and so many wait in the line (pure)."""
    return max(0, min(slow + 2 * quick, MAX_AHEAD) - waiting)


class JobLine(Closable):
    """Line of one worker. Safe in any thread."""

    def __init__(self, context: WorkerContext, is_stopping: threading.Event) -> None:
        """``is_stopping``: the worker begins no more jobs."""
        self._context, self._is_stopping = context, is_stopping
        self._changed = threading.Condition()
        self._done = list[DoneJob]()
        self._taken = deque[Taken]()
        #: What is being written; others wait, or go on with the line.
        self._writing: Sequence[DoneJob] | None = None
        #: On the monotonic clock: the first end of those that are not written, and the last that a slot took.
        self._done_since = self._moved_at = 0.0
        self._is_closed = threading.Event()
        self._watch = threading.Thread(target=self._run, name="line", daemon=True)

    def start(self) -> None:
        """Begin to look after what no slot comes by to do."""
        self._watch.start()

    def close(self) -> None:
        """Write what is left, and queue the others again."""
        with self._changed:
            self._is_closed.set()
            self._changed.notify_all()
        self.write()
        self._give_back()

    def end(self, done: DoneJob) -> None:
        """Have a job's end written soon. Its slot asks for the next one then."""
        with self._changed:
            if not self._done:
                self._done_since = self._context.clock.monotonic()
            self._done.append(done)
            self._changed.notify_all()

    def next(self) -> Taken | None:
        """Return the job that a free slot is to run; ``None``: the scheduler has the slot."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._taken or self._writing is None)
                is_going = not self._is_stopping.is_set()
                if self._taken and is_going and (self._writing is not None or not self._is_due()):
                    self._moved_at = self._context.clock.monotonic()
                    return self._taken.popleft()
                if not self._done:
                    break
            self.write()
        self._give_back()
        return None

    def write(self) -> None:
        """Write the ends that are not written, and take as many jobs as there is use for."""
        with self._changed:
            self._changed.wait_for(lambda: self._writing is None)
            done, self._done = self._done, []
            if not done:
                return
            self._writing = done
            quick = sum(each.is_quick for each in done)
            most = 0 if self._is_stopping.is_set() else choose_ahead(len(done) - quick, quick, len(self._taken))
        try:
            ended = patiently(lambda: self._end_all(done, most), self._is_stopping, inf)
        except (RdukitError, DBAPIError, OSError) as error:
            logger.warning("ends not written together jobs=%d error=%s", len(done), error)
            ended = self._end_each(done)
        finally:
            self._free(done, [])
        for each in done:
            try:
                each.settle(ended.get(each.success.fencing, _lost(each)))
            except Exception:
                logger.exception("end not written job=%s", each.success.fencing.job_id)

    def _end_each(self, done: Sequence[DoneJob]) -> dict[FencingToken, Exception | None]:
        """End each by itself, as one of them is at fault, or nothing can be written."""
        ended: dict[FencingToken, Exception | None] = {}
        for each in done:
            try:
                ended |= self._end_all([each], 0)
            except (RdukitError, DBAPIError, OSError) as error:
                ended[each.success.fencing] = error
        return ended

    def _end_all(self, done: Sequence[DoneJob], most: int) -> dict[FencingToken, Exception | None]:
        """End jobs and take the next ones. Returns those that have ended; the others are not the worker's any more."""
        context, taken = self._context, list[Taken]()
        context.store.keep([each.added for each in done])
        with context.database.write(on_commit=lambda: self._free(done, taken)) as session:
            now, lease_s = context.clock.now(), context.heartbeat.lease_s
            ended = execution.succeed_all(session, [each.success for each in done], now)
            taken += take_next(session, ended.values(), most, context.name, context.node, lease_s, now)
        return dict.fromkeys(ended)

    def _free(self, done: Sequence[DoneJob], taken: Sequence[Taken]) -> None:
        """Let others write after what was written, unless they do already, and run what was taken."""
        with self._changed:
            if self._writing is done:
                self._writing = None
                self._taken += taken
                self._moved_at = self._context.clock.monotonic()
                self._changed.notify_all()

    def _is_due(self) -> bool:
        return bool(self._done) and self._context.clock.monotonic() - self._done_since >= GROUP_S

    def _give_back(self) -> None:
        with self._changed:
            taken, self._taken = self._taken, deque()
        if not taken:
            return
        with self._context.database.write(is_durable=False) as session:
            execution.give_back(session, [fencing for fencing, _ in taken], self._context.clock.now())
        self._context.notifier.wake()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._done or self._taken or self._is_closed.is_set())
            if self._is_closed.wait(GROUP_S):
                return
            with self._changed:
                is_due = self._is_due()
                is_stale = bool(self._taken) and self._context.clock.monotonic() - self._moved_at >= STALE_S
            try:
                if is_due:
                    self.write()
                if is_stale:
                    self._give_back()
            except DBAPIError as error:  # their leases run out
                logger.warning("jobs taken ahead not queued again error=%s", error)


def _lost(done: DoneJob) -> LeaseLost:
    fencing = done.success.fencing
    return LeaseLost(f"attempt {fencing.attempt_id} of job {fencing.job_id} has ended")
