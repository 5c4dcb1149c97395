"""Warm boxes: processes forked from one that has imported everything a box needs.

``rdukit box fork-server`` describes forks. A worker has one server for the boxes of all tenants: it starts without the
worker's environment and reads nothing of any job. If the server is not ready, a box is started without it.
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

#: The worker's stderr, which is its log: Celery replaces ``sys.stderr`` by an object without a descriptor.
STDERR: Final = 2
#: Shortest time in seconds before an ended server is started again.
RESTART_S: Final = 10.0
#: Smallest memory limit of a forked box, since a fork contains everything that was imported.
LEAST_MEMORY_BYTES: Final = 4 << 30


class WarmBoxes(Closable):
    """The fork server of a worker's boxes, started again when it has ended. Thread-safe."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], clock: Clock) -> None:
        """Start the server and return at once; its imports take some seconds.

        Args:
            command: command that runs boxes.
            environment: variables of all boxes, which libraries may read on import.
        """
        self._command, self._clock = (*command, "fork-server"), clock
        self._environment = server_variables(os.environ, environment)
        self._lock = threading.Lock()
        self._started_at = float("-inf")
        self._server: ForkServer | None = None
        self._start()

    def find(self) -> ForkServer | None:
        """Return the server; ``None``: it is not ready, or is restarting."""
        with self._lock:
            if self._server is None or self._server.is_ready():
                return self._server
            if self._server.has_ended() and self._clock.monotonic() - self._started_at > RESTART_S:
                logger.warning("fork server of boxes has ended and was restarted")
                self._server.close()
                self._start()
            return None

    def close(self) -> None:
        """End the server, and the boxes that it forked."""
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None

    def _start(self) -> None:
        self._started_at = self._clock.monotonic()
        try:
            self._server = ForkServer.start(self._command, self._environment, STDERR)
        except (OSError, ValueError) as error:
            logger.warning("no fork server, so each box starts as a new process error=%s", error)
