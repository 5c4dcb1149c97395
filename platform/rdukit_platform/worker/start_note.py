"""The note that a box has an attempt's verb, by which its job runs: written soon, or with what there is to tell sooner.

Of a quick job that would be a transaction of its own, which the one of its end follows at once. What is over before it
is due is written with its end (``execution.succeed`` and ``fail`` take what ``begun`` says).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from rdukit.errors import LeaseLost, Unavailable
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.execution import Begun, FencingToken

logger = logging.getLogger(__name__)

#: Seconds after which it is written, unless there is more to tell before.
START_S: Final = 0.05


class StartNote:
    """Note of one attempt. A start that two threads write at once is written once."""

    def __init__(
        self, fencing: FencingToken, write: Callable[[Callable[[Session], None]], None], late: "LateNotes"
    ) -> None:
        """
        Args:
            write: makes a change in a transaction of its own.
            late: writes it when it is due.
        """
        self._fencing, self._write, self._late = fencing, write, late
        #: What is to be written; ``None``: no box has the verb.
        self.begun: Begun | None = None
        #: Whether it is written.
        self.is_told = False
        #: Its attempt is past what it tells.
        self.is_over = False

    @contextmanager
    def due_soon(self, begun: Begun) -> Iterator[None]:
        """Have it written in ``START_S`` seconds, unless the block ends before."""
        self.begun = begun
        self._late.add(self)
        try:
            yield
        finally:
            self.is_over = True

    def tell(self) -> None:
        """Write it now, if there is anything to write.

        Raises:
            LeaseLost: the attempt is no longer the caller's.
        """
        if (begun := self.begun) is not None and not self.is_told:
            self._write(lambda session: execution.start(session, self._fencing, begun.box, begun.at))
            self.is_told = True

    def tell_late(self) -> None:
        """Write it now; its attempt comes upon it, too, if that cannot be."""
        try:
            self.tell()
        except (LeaseLost, Unavailable, DBAPIError) as error:
            logger.info("start not written yet job=%s why=%s", self._fencing.job_id, error)


class LateNotes:
    """Notes of a worker that are written when they are due, by one thread. Safe in any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: Each with the monotonic time at which it is due; the first one is due first.
        self._waiting = deque[tuple[float, StartNote]]()
        self._thread = threading.Thread(target=self._run, name="notes", daemon=True)

    def add(self, note: StartNote) -> None:
        """Write a note in ``START_S`` seconds, unless it is over by then."""
        with self._changed:
            if self._thread.ident is None:
                self._thread.start()
            self._waiting.append((time.monotonic() + START_S, note))
            if len(self._waiting) == 1:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                due, note = self._waiting[0]
                if not note.is_over and (left_s := due - time.monotonic()) > 0:
                    self._changed.wait(left_s)
                    continue
                self._waiting.popleft()
            if not note.is_over:
                note.tell_late()
