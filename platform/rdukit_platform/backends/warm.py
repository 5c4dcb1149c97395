"""Warm boxes: processes forked from one that has imported all that a box and its operations need.

``rdukit box fork-server`` says what a fork is. A worker has one server for the boxes of all tenants: it is started
without the worker's environment and reads nothing of any job. Where it is not ready, a box is started anew.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from rdukit.interfaces import Clock, Closable
from rdukit.system.forks import ForkServer
from rdukit_platform.backends.box_variables import server_variables

logger = logging.getLogger(__name__)

#: The worker's own, which is its log: Celery puts an object without a descriptor in the place of ``sys.stderr``.
STDERR: Final = 2
#: A server that ended is not started again sooner.
RESTART_S: Final = 10.0
#: With less memory a box is started anew: in a fork lies all that was imported.
LEAST_MEMORY_BYTES: Final = 4 << 30


class WarmBoxes(Closable):
    """The fork server of a worker's boxes, started again when it has ended. Safe in any thread."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], clock: Clock) -> None:
        """Start it and return at once: it imports for some seconds.

        Args:
            command: what runs boxes.
            environment: variables of all boxes, which libraries may read when they are imported.
        """
        self._command, self._clock = (*command, "fork-server"), clock
        self._environment = server_variables(os.environ, environment)
        self._lock = threading.Lock()
        self._started_at = float("-inf")
        self._server: ForkServer | None = None
        self._start()

    def find(self) -> ForkServer | None:
        """Return the server; None: it is not ready, or has ended and is started again."""
        with self._lock:
            if self._server is None or self._server.is_ready():
                return self._server
            if self._server.has_ended() and self._clock.monotonic() - self._started_at > RESTART_S:
                logger.warning("fork server of boxes has ended, started again")
                self._server.close()
                self._start()
            return None

    def close(self) -> None:
        """End it, and the boxes that it forked."""
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None

    def _start(self) -> None:
        self._started_at = self._clock.monotonic()
        try:
            self._server = ForkServer.start(self._command, self._environment, STDERR)
        except (OSError, ValueError) as error:
            logger.warning("no fork server, so each box is started anew error=%s", error)
