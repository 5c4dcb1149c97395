"""A box's answers: its progress and logs, its result, or its silence."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from rdukit.box.client import BoxClient
from rdukit.errors import Cancelled, DiskFull, OutputRefused, RdukitError, Unavailable
from rdukit_platform.backends.contract import RunningBox
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.settings import BOX_DISK
from rdukit_platform.worker import box_ends
from rdukit_platform.worker.attempts.state import AttemptState
from rdukit_platform.worker.tiles import is_withdrawn
from rdukit_platform.worker.verdicts import AttemptFailure, failure_of

logger = logging.getLogger(__name__)

#: Shortest time in seconds between two writes of progress; the last progress is always written.
PROGRESS_S: Final = 0.25
#: Seconds to wait for the end of a box that broke its connection.
DYING_S: Final = 2.0
#: Largest number of log lines stored per attempt: a box may write without end.
MAX_LOG_LINES: Final = 10_000
MAX_LOG_CHARACTERS: Final = 4_000


def ask(attempt: AttemptState, client: BoxClient, box: RunningBox, traceparent: str = "") -> dict[str, Any]:
    """Have the box run the job's verb, and follow it. Returns the operation, which succeeded.

    Raises:
        AttemptFailure: the box refused the request, or the operation failed.
        Cancelled: the attempt was stopped, or the operation cancelled. Unavailable: the box gave no result.
    """
    job = attempt.job
    if attempt.stop.is_set() or attempt.is_stopping.is_set():
        raise Cancelled("the attempt was stopped before its box")
    running = client.run(
        job.verb, job.parameters, attempt.inputs, str(attempt.output), traceparent=traceparent,
        profile=job.profile and attempt.part.is_first, stop=attempt.stop, is_alive=box.is_alive,
    )  # fmt: skip
    with ExitStack() as stack:
        try:
            events = stack.enter_context(running)
        except Unavailable as silent:
            if type(silent) is Unavailable:
                raise
            raise _as_silence(silent) from silent
        except RdukitError as refused:
            raise AttemptFailure(AttemptOutcome.BOX_FAILED, refused) from refused
        if attempt.part.is_first:
            described = {"backend": attempt.context.backend.name, "id": box.id, "limits": dict(box.limits)}
            now = attempt.context.clock.now()
            attempt.note(lambda session: execution.start(session, attempt.fencing, described, now))
        return _follow(attempt, _told_by_box(events))


def _told_by_box(events: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the box's events. A box's named error is not a statement about this attempt, such as a lost lease or full
    disk.
    """
    try:
        yield from events
    except (Cancelled, OutputRefused):
        raise
    except RdukitError as named:
        if type(named) is Unavailable:
            raise
        raise _as_silence(named) from named


def _as_silence(named: RdukitError) -> Unavailable:
    """Return an error of a box that has the code of our own error as the error of a silent box."""
    return Unavailable(f"the box broke off its answer: {named.message}")


def _follow(attempt: AttemptState, events: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    context = attempt.context
    written_at, pending, logged = float("-inf"), None, 0
    for event in events:
        kind = event.get("kind")
        if kind == "progress" and event.get("progress") and attempt.part.is_first:
            pending = event["progress"]
        if kind == "log" and event.get("log") is not None and logged < MAX_LOG_LINES:
            logged += 1
            is_last = logged == MAX_LOG_LINES
            attempt.record_logs(["further lines are discarded" if is_last else str(event["log"])[:MAX_LOG_CHARACTERS]])
        is_due, now = context.clock.monotonic() - written_at >= PROGRESS_S, context.clock.now()
        if pending is not None and (is_due or kind == "result"):
            attempt.note(partial(execution.record_progress, fencing=attempt.fencing, progress=pending, now=now))
            written_at, pending = context.clock.monotonic(), None
        if kind == "result":
            operation: dict[str, Any] = event.get("operation") or {}
            _check_result(attempt, operation)
            return operation
    raise Unavailable("the box ended its stream without a result")


def _check_result(attempt: AttemptState, operation: Mapping[str, Any]) -> None:
    if operation.get("state") == "succeeded":
        return
    if operation.get("state") == "cancelled":
        raise Cancelled("the box cancelled the operation")
    attempt.record_logs(box_ends.tail_of(attempt.box))
    socket = attempt.context.home.snd_socket
    raise failure_of(
        operation, attempt.box, attempt.scope, lambda: any(is_withdrawn(socket, lease) for lease in attempt.leases)
    )


def judge_silence(attempt: AttemptState, error: Cancelled | Unavailable) -> AttemptFailure:
    """Return the meaning of a box that gave no result, from its end. Keeps the last lines of its log."""
    box = attempt.box
    if box is not None and not box_ends.is_timeout(error):
        box_ends.await_end(box, DYING_S, attempt.stop)
    attempt.record_logs(box_ends.tail_of(box))
    if box_ends.has_filled_disk(error, box):
        attempt.has_hit_wall = True
        limit = attempt.context.fences.limits.disk_bytes
        full = DiskFull(f"the box exceeded its disk limit ({BOX_DISK.name} is {limit})")
        return AttemptFailure(AttemptOutcome.BOX_FAILED, full)
    if attempt.stop.is_set():
        return AttemptFailure(AttemptOutcome.INTERRUPTED, error)
    return AttemptFailure(box_ends.outcome_of(error, box, attempt.scope), box_ends.with_its_end(error, box))
