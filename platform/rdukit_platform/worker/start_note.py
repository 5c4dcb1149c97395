"""The note that a box has an attempt's verb, by which its job runs: written soon, or with what there is to tell sooner.

Of a quick job that would be a transaction of its own, which the one of its end follows at once. What is over before it
is due is written with its end (``execution.succeed`` and ``fail`` take what ``begun`` says).
"""

import logging
import threading
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

    def __init__(self, fencing: FencingToken, write: Callable[[Callable[[Session], None]], None]) -> None:
        """``write``: makes a change in a transaction of its own."""
        self._fencing, self._write = fencing, write
        #: What is to be written; ``None``: no box has the verb.
        self.begun: Begun | None = None
        #: Whether it is written.
        self.is_told = False

    @contextmanager
    def due_soon(self, begun: Begun) -> Iterator[None]:
        """Have it written in ``START_S`` seconds, unless the block ends before."""
        self.begun = begun
        soon = threading.Timer(START_S, self._write_late)
        soon.daemon = True
        soon.start()
        try:
            yield
        finally:
            soon.cancel()

    def tell(self) -> None:
        """Write it now, if there is anything to write.

        Raises:
            LeaseLost: the attempt is no longer the caller's.
        """
        if (begun := self.begun) is not None and not self.is_told:
            self._write(lambda session: execution.start(session, self._fencing, begun.box, begun.at))
            self.is_told = True

    def _write_late(self) -> None:
        try:
            self.tell()
        except (LeaseLost, Unavailable, DBAPIError) as error:  # the attempt's own thread comes upon it, too
            logger.info("start not written yet job=%s why=%s", self._fencing.job_id, error)
