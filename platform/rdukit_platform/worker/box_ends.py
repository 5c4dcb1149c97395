"""Ends of boxes that gave no answer: whether one only is slow, has ended, or was killed, and whose doing that is."""

import threading
import time

import httpx

from rdukit.box.image import BoxEnd
from rdukit.errors import RdukitError
from rdukit_platform.backends.contract import RunningBox
from rdukit_platform.jobs.attempts import AttemptOutcome


def is_timeout(error: RdukitError) -> bool:
    """Return whether a box kept its connection and gave no answer in time: it is slow, and does not die."""
    return isinstance(error.__cause__, httpx.TimeoutException)


def await_end(box: RunningBox, seconds: float, stop: threading.Event) -> None:
    """Wait until a box has ended, for so long at most: the connections of a process that dies close before it is gone.

    ``stop`` ends the wait.
    """
    until = time.monotonic() + seconds
    while box.is_alive() and time.monotonic() < until and not stop.wait(0.02):
        pass


def outcome_of(error: RdukitError, box: RunningBox | None) -> AttemptOutcome:
    """Derive whose doing it is that a box, if there is one yet, gave no answer."""
    if box is None:
        end = error.detail.get("end")
    else:
        end = BoxEnd.LATE if box.is_alive() else box.events()[-1].end
    if end == BoxEnd.LATE:
        return AttemptOutcome.BOX_SLOW
    return AttemptOutcome.BOX_KILLED if end == BoxEnd.KILLED else AttemptOutcome.BOX_LOST
