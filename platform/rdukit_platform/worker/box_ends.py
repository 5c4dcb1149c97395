"""Ends of boxes that gave no answer: whether one only is slow, has ended, or was killed, and whose doing that is."""

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
#: Ends of boxes that are their backend's doing.
TAKEN: Final = frozenset({BoxEnd.WITHDRAWN, BoxEnd.PREEMPTED, BoxEnd.TIMED_OUT})
OUTCOMES: Final[Mapping[str, AttemptOutcome]] = {
    BoxEnd.LATE: AttemptOutcome.BOX_SLOW,
    BoxEnd.KILLED: AttemptOutcome.BOX_KILLED,
    BoxEnd.WITHDRAWN: AttemptOutcome.WITHDRAWN,
    BoxEnd.PREEMPTED: AttemptOutcome.PREEMPTED,
    BoxEnd.TIMED_OUT: AttemptOutcome.RUN_LIMIT_EXCEEDED,
}


def is_timeout(error: RdukitError) -> bool:
    """Return whether a box kept its connection and gave no answer in time: it is slow, and does not die."""
    return isinstance(error.__cause__, urllib3.exceptions.ReadTimeoutError)


def await_end(box: RunningBox, seconds: float, stop: threading.Event) -> None:
    """Wait until a box has ended, for so long at most: the connections of a process that dies close before it is gone.

    ``stop`` ends the wait.
    """
    until = time.monotonic() + seconds
    while box.is_alive() and time.monotonic() < until and not stop.wait(0.02):
        pass


def tail_of(box: RunningBox | None) -> list[str]:
    """Return the last lines of a box's log, as far as there are any."""
    with suppress(Unavailable):
        return [] if box is None else box.logs(LOG_TAIL_LINES).splitlines()
    return []


def has_filled_disk(error: RdukitError, box: RunningBox | None) -> bool:
    """Return whether a box was ended for filling more of the disk than it may."""
    return BoxEnd.DISK_FULL in ([error.detail.get("end")] if box is None else [event.end for event in box.events()])


def with_its_end(error: RdukitError, box: RunningBox | None) -> RdukitError:
    """Return the error with what is known of a box's end; where its place was taken, that only."""
    if (taken := find_taken(box)) is not None:
        return Unavailable(taken[1])
    ended = list[str]()
    with suppress(Unavailable):
        if box is not None:
            ends = {BoxEventKind.OUT_OF_MEMORY, BoxEventKind.ENDED}
            ended = [event.detail for event in box.events() if event.kind in ends]
    return type(error)(f"{error.message}: {', '.join(ended)}") if ended else error


def outcome_of_error(code: str, detail: Mapping[str, object], folder: Path) -> AttemptOutcome:
    """Derive whose doing an error is that a box told; ``folder`` is its job's."""
    if code == ChildDied.code and detail.get("end") == BoxEnd.KILLED:
        return AttemptOutcome.BOX_KILLED  # its process was killed from outside, as the whole box may be
    if code == DiskFull.code and is_below(str(detail.get("path") or folder), folder) and is_low(folder):
        return AttemptOutcome.DISK_FULL
    return AttemptOutcome.NODE_FAILED if code in NODE_CODES else AttemptOutcome.BOX_FAILED


def is_below(path: str, folder: Path) -> bool:
    """Return whether a box means something in its job's folder (pure): what else it sees is of its own limits."""
    return not Path(path).is_absolute() or folder in (Path(path), *Path(path).parents)


def outcome_of(error: RdukitError, box: RunningBox | None, folder: Path) -> AttemptOutcome:
    """Derive whose doing it is that a box, if there is one yet, gave no answer; ``folder`` is its job's."""
    if not has_room(folder):
        return AttemptOutcome.DISK_FULL
    if box is None:
        end = error.detail.get("end")
    else:
        # What runs boxes may have taken one's place, which then is still ending.
        end = _end_of(box) or (BoxEnd.LATE if box.is_alive() else _end_of(box))
    return OUTCOMES.get(str(end), AttemptOutcome.BOX_LOST)


def terminate(box: RunningBox) -> None:
    """Ask a box to end; one that cannot be asked is ended with its attempt."""
    try:
        box.terminate()
    except Unavailable as error:
        logger.warning("box not asked to end id=%s error=%s", box.id, error)


def find_taken(box: RunningBox | None) -> tuple[AttemptOutcome, str] | None:
    """Return the outcome where what runs boxes took a box's place, and its words: then no failure is the box's own."""
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
