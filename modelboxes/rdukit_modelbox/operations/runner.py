"""Runs operations: each waits for its turn, then a child runs it; the table records the progress.

Work on the device runs one after another; preprocess needs no device, so it does not wait for the others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rdukit.errors import DeadlineExceeded
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations.supervisor import ChildLimits, ChildOutcome, Listener, run_child
from rdukit_modelbox.operations.table import OperationTable
from rdukit_modelbox.operations.values import Operation, OperationFailure, StateEvent
from rdukit_modelbox.settings import CANCEL_GRACE_S, CHILD_MEMORY_BYTES, STALL_S
from rdukit_modelbox.verbs.context import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerbWork:
    """A child's work: its request and the service's record. ``timeout_s`` 0: no limit."""

    verb: Verb
    request: Mapping[str, object]
    inputs: Mapping[str, Path]
    timeout_s: float = 0.0


class OperationRunner:
    """Tasks of operations that have not ended."""

    def __init__(
        self,
        table: OperationTable,
        clock: Clock,
        logs: Path,
        memory_bytes: int,
        before: Callable[[Verb], Awaitable[object]],
        after: Callable[[Operation, VerbWork], object],
    ) -> None:
        """
        Args:
            logs: folder of the children's output. memory_bytes: memory limit of a child; 0: no limit.
            before: awaited before an operation's child starts.
            after: called when an operation has ended.
        """
        self._table = table
        self._clock = clock
        self._logs = logs
        self._memory_bytes = memory_bytes
        self._before = before
        self._after = after
        self._cancels: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._device = asyncio.Semaphore(1)
        self._host = asyncio.Semaphore(1)
        #: Reason why the last child could not start; empty after a successful start.
        self.broken = ""

    @property
    def unended(self) -> int:
        """Return the number of waiting and running operations."""
        return len(self._tasks)

    def start(self, operation: Operation, work: VerbWork) -> None:
        """Start a task for a queued operation; returns at once."""
        self._cancels[operation.id] = asyncio.Event()
        self._tasks[operation.id] = asyncio.create_task(self._run(operation, work))

    async def cancel(self, operation_id: str) -> None:
        """Cancel an operation and wait for its end; does nothing if it has ended."""
        task = self._tasks.get(operation_id)
        if task is not None:
            self._cancels[operation_id].set()
            await asyncio.wait({task})

    async def close(self) -> None:
        """Cancel all operations, and wait until no child runs."""
        for cancel in self._cancels.values():
            cancel.set()
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def _run(self, operation: Operation, work: VerbWork) -> None:
        try:
            outcome = await self._queue_and_run(operation, work)
        except Exception as error:
            logger.exception("operation broke operation=%s", operation.id)
            outcome = ChildOutcome(failed=OperationFailure("internal", f"{type(error).__name__}: {error}"))
        try:
            ended = self._end(operation.id, outcome)
            self._after(ended, work)
            logger.info("operation ended operation=%s verb=%s state=%s", operation.id, work.verb, ended.state)
        finally:
            del self._tasks[operation.id], self._cancels[operation.id]

    async def _queue_and_run(self, operation: Operation, work: VerbWork) -> ChildOutcome:
        semaphore = self._host if work.verb is Verb.PREPROCESS else self._device
        cancel = self._cancels[operation.id]
        end = operation.created_at + work.timeout_s if work.timeout_s else 0.0
        if not await _acquire_unless(semaphore, cancel, end - self._clock.now() if end else None):
            return ChildOutcome(is_cancelled=True) if cancel.is_set() else _late(work)
        try:
            self._table.apply(operation.id, StateEvent.START)
            await self._before(work.verb)
            left_s = max(end - self._clock.now(), 0.01) if end else 0.0
            limits = ChildLimits(
                resolve(CANCEL_GRACE_S), left_s, work.timeout_s, resolve(STALL_S),
                resolve(CHILD_MEMORY_BYTES) or self._memory_bytes,
            )  # fmt: skip
            outcome = await run_child(
                work.request, self._logs / f"{operation.id}.log", self._listener(operation.id), cancel, limits
            )
        finally:
            semaphore.release()
        if outcome.has_started:
            self.broken = ""
        elif outcome.failed is not None:
            self.broken = outcome.failed.message
        return outcome

    def _listener(self, operation_id: str) -> Listener:
        def progress(latest: Progress) -> None:
            self._table.publish_progress(operation_id, latest)

        def log(line: str) -> None:
            self._table.tell_log(operation_id, line)

        return Listener(progress, log)

    def _end(self, operation_id: str, outcome: ChildOutcome) -> Operation:
        peak = outcome.peak_memory_bytes
        if outcome.succeeded is not None:
            result, outputs = outcome.succeeded
            return self._table.apply(
                operation_id, StateEvent.SUCCEED, result=result, outputs=outputs, peak_memory_bytes=peak
            )
        if outcome.failed is not None:
            return self._table.apply(operation_id, StateEvent.FAIL, failure=outcome.failed, peak_memory_bytes=peak)
        return self._table.apply(operation_id, StateEvent.CANCEL, peak_memory_bytes=peak)


def _late(work: VerbWork) -> ChildOutcome:
    message = f"the operation waited in the queue for all of timeout_s = {work.timeout_s:g} s"
    return ChildOutcome(failed=OperationFailure(DeadlineExceeded.code, message, {"timeout_s": work.timeout_s}))


async def _acquire_unless(semaphore: asyncio.Semaphore, cancel: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for the semaphore; Returns false if ``cancel`` is set or the time is over first."""
    acquiring = asyncio.create_task(semaphore.acquire())
    cancelling = asyncio.create_task(cancel.wait())
    timeout_s = None if timeout_s is None else max(timeout_s, 0.0)
    await asyncio.wait({acquiring, cancelling}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    cancelling.cancel()
    if acquiring.done() and not cancel.is_set():
        return True
    if acquiring.done():
        semaphore.release()
    else:
        acquiring.cancel()
    return False
