"""Logging that waits for no disk and no reader: lines are handed to a thread, which writes them.

Source: ours; a log on a frozen file system, or a full pipe as stderr, must not stop a node.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

#: Records that may wait; of more, the newest are dropped and counted.
MAX_WAITING: Final = 50_000
#: Seconds that the end waits for unwritten lines.
_END_S: Final = 5.0


class QueuedHandler(logging.Handler):
    """Hands records to other handlers in a thread."""

    def __init__(self, handlers: list[logging.Handler], max_waiting: int = MAX_WAITING) -> None:
        super().__init__(min((each.level for each in handlers), default=logging.NOTSET))
        self._handlers: Final = handlers
        self._max_waiting: Final = max_waiting
        self._waiting: Final[deque[logging.LogRecord]] = deque()
        #: Number of dropped records, and number of those that a line has reported.
        self.dropped = self._reported = 0
        self._has_more = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, name="logs", daemon=True)
        self._thread.start()

    def createLock(self) -> None:
        """Need no lock: appending to the queue is atomic, and a signal handler may log in the middle."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record."""
        if len(self._waiting) >= self._max_waiting:
            self.dropped += 1
            return
        self._waiting.append(record)
        self._has_more.set()

    def close(self) -> None:
        """Write pending lines, and end the thread, unless a disk blocks it."""
        self._is_closed = True
        self._has_more.set()
        self._thread.join(_END_S)
        super().close()

    def _write(self) -> None:
        while not self._is_closed or self._waiting:
            self._has_more.wait()
            self._has_more.clear()
            while self._waiting:
                self._hand_over(self._waiting.popleft())
                if self.dropped > self._reported:
                    self._report()

    def _report(self) -> None:
        count, self._reported = self.dropped - self._reported, self.dropped
        text = "event=log-lines-dropped lines=%s reason=the log was not writable for too long"
        self._hand_over(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (count,), None, "_report"))

    def _hand_over(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


@contextlib.contextmanager
def queued_logging() -> Iterator[QueuedHandler]:
    """Put a queue before the root logger's handlers within the block."""
    root = logging.getLogger()
    direct = root.handlers[:]
    queued = QueuedHandler(direct)
    root.handlers[:] = [queued]
    try:
        yield queued
    finally:
        queued.close()
        root.handlers[:] = direct
