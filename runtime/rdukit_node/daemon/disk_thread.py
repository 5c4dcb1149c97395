"""A thread for work that may wait for a disk: the daemon's own thread requests it, continues, and is woken at its end.

Source: ours; a frozen file system, or a foreign lock of a database, must not stop a node.
"""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)


class DiskThread:
    """Thread that repeats one job on request; requests during a run share the next one."""

    def __init__(self, name: str, job: Callable[[], object]) -> None:
        """Start the thread. ``job`` handles disk errors itself; its exceptions are logged as bugs."""
        self._job = job
        self._asked = self._done = 0
        self._is_stopping = False
        self._finish: Callable[[], object] | None = None
        #: Monotonic time of the present run's begin; ``None``: idle.
        self._began: float | None = None
        self._changed = threading.Condition()
        #: Called in the thread after each run.
        self.wake: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def request(self) -> int:
        """Request a run that begins after this call. Returns its number: it is over once ``done`` has reached it."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    @property
    def done(self) -> int:
        """Return the number of the newest request whose run is over."""
        return self._done

    @property
    def busy_s(self) -> float:
        """Return the seconds of the present run so far; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def wait_for(self, number: int, timeout_s: float) -> bool:
        """Wait until ``done`` has reached ``number``, or for ``timeout_s``. Returns whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= number, timeout_s)

    def stop(self, finish: Callable[[], object], timeout_s: float) -> bool:
        """Finish requested runs, then call ``finish`` in the thread and end it. Returns whether that was in time.

        A thread that is still blocked by a disk ends with the process.
        """
        with self._changed:
            self._finish = finish
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._asked > self._done)
                number, is_last = self._asked, self._is_stopping
                self._began = time.monotonic()
            if number > self._done:
                self._try(self._job)
            if is_last and self._finish is not None:
                self._try(self._finish)
            with self._changed:
                self._began = None
                self._done = number
                self._changed.notify_all()
            if self.wake is not None:
                self.wake()
            if is_last:
                return

    def _try(self, job: Callable[[], object]) -> None:
        try:
            job()
        except Exception:  # the thread's boundary: the next request must be served
            logger.exception("event=bug thread=%s", self._thread.name)
