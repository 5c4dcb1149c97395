"""Ends of boxes that gave no answer: slow, ended or killed, and the outcome for the attempt."""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import urllib3

from rdukit.box.image import BoxEnd
from rdukit.errors import ChildDied, DiskFull, RdukitError, Unavailable
from rdukit_platform.backends.contract import BoxEventKind, RunningBox
from rdukit_platform.jobs.attempts import NODE_CODES, AttemptOutcome
from rdukit_platform.worker.patience import has_room, is_low

logger = logging.getLogger(__name__)

LOG_TAIL_LINES: Final = 20
#: Ends of boxes that the backend causes.
TAKEN: Final = frozenset({BoxEnd.WITHDRAWN, BoxEnd.PREEMPTED, BoxEnd.TIMED_OUT})
OUTCOMES: Final[Mapping[str, AttemptOutcome]] = {
    BoxEnd.LATE: AttemptOutcome.BOX_SLOW,
    BoxEnd.KILLED: AttemptOutcome.BOX_KILLED,
    BoxEnd.WITHDRAWN: AttemptOutcome.WITHDRAWN,
    BoxEnd.PREEMPTED: AttemptOutcome.PREEMPTED,
    BoxEnd.TIMED_OUT: AttemptOutcome.RUN_LIMIT_EXCEEDED,
}


def is_timeout(error: RdukitError) -> bool:
    """Return whether a box kept its connection but did not answer in time: it is slow, not dying."""
    return isinstance(error.__cause__, urllib3.exceptions.ReadTimeoutError)


def await_end(box: RunningBox, seconds: float, stop: threading.Event) -> None:
    """Wait up to ``seconds`` until a box has ended: a dying process closes its connections first.

    ``stop`` ends the wait.
    """
    until = time.monotonic() + seconds
    while box.is_alive() and time.monotonic() < until and not stop.wait(0.02):
        pass


def tail_of(box: RunningBox | None) -> list[str]:
    """Return the last lines of a box's log; empty without a box or an answer."""
    with suppress(Unavailable):
        return [] if box is None else box.logs(LOG_TAIL_LINES).splitlines()
    return []


def has_filled_disk(error: RdukitError, box: RunningBox | None) -> bool:
    """Return whether a box was ended because it exceeded its disk limit."""
    return BoxEnd.DISK_FULL in ([error.detail.get("end")] if box is None else [event.end for event in box.events()])


def with_its_end(error: RdukitError, box: RunningBox | None) -> RdukitError:
    """Return the error with details of the box's end; if the backend took the box's place, only that."""
    if (taken := find_taken(box)) is not None:
        return Unavailable(taken[1])
    ended = list[str]()
    with suppress(Unavailable):
        if box is not None:
            ends = {BoxEventKind.OUT_OF_MEMORY, BoxEventKind.ENDED}
            ended = [event.detail for event in box.events() if event.kind in ends]
    return type(error)(f"{error.message}: {', '.join(ended)}") if ended else error


def outcome_of_error(code: str, detail: Mapping[str, object], folder: Path) -> AttemptOutcome:
    """Derive the outcome of an error that a box reported; ``folder`` is its job's."""
    if code == ChildDied.code and detail.get("end") == BoxEnd.KILLED:
        return AttemptOutcome.BOX_KILLED  # the verb's process was killed from outside
    if code == DiskFull.code and is_below(str(detail.get("path") or folder), folder) and is_low(folder):
        return AttemptOutcome.DISK_FULL
    return AttemptOutcome.NODE_FAILED if code in NODE_CODES else AttemptOutcome.BOX_FAILED


def is_below(path: str, folder: Path) -> bool:
    """Return whether a path of a box lies in its job's folder (pure); other paths are below its own limits."""
    return not Path(path).is_absolute() or folder in (Path(path), *Path(path).parents)


def outcome_of(error: RdukitError, box: RunningBox | None, folder: Path) -> AttemptOutcome:
    """Derive the outcome when a box, if it exists yet, gave no answer; ``folder`` is its job's."""
    if not has_room(folder):
        return AttemptOutcome.DISK_FULL
    if box is None:
        end = error.detail.get("end")
    else:
        # The backend may have taken the box's place while the box is still ending.
        end = _end_of(box) or (BoxEnd.LATE if box.is_alive() else _end_of(box))
    return OUTCOMES.get(str(end), AttemptOutcome.BOX_LOST)


def terminate(box: RunningBox) -> None:
    """Ask a box to end; an unreachable one is ended with its attempt."""
    try:
        box.terminate()
    except Unavailable as error:
        logger.warning("box not asked to end id=%s error=%s", box.id, error)


def find_taken(box: RunningBox | None) -> tuple[AttemptOutcome, str] | None:
    """Return outcome and message if the backend took the box's place; the box then has not failed itself."""
    if box is None:
        return None
    with suppress(Unavailable):
        for event in box.events():
            if event.end in TAKEN:
                return OUTCOMES[str(event.end)], event.detail
    return None


def _end_of(box: RunningBox) -> BoxEnd | None:
    events = box.events()
    return events[-1].end if events else None
