"""The worker's heartbeat: extends the leases of its attempts, and ends lost attempts."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import DBAPIError

from rdukit.interfaces import Clock
from rdukit_platform.db.engine import Database
from rdukit_platform.heartbeat_file import HeartbeatFile
from rdukit_platform.jobs.execution import FencingToken, beat
from rdukit_platform.services import beat_service, end_service

logger = logging.getLogger(__name__)

#: Seconds between heartbeats, and so the delay until a cancellation is noticed.
BEAT_S: Final = 0.5
SERVICE_BEAT_S: Final = 2.0


class LeaseHeartbeat:
    """Thread that keeps the leases of all attempts of a worker process."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        name: str,
        slots: int,
        lease_s: float,
        heartbeat_file: HeartbeatFile | None = None,
        walls: str = "",
        node: str = "",
    ) -> None:
        """``walls`` (how this worker isolates job boxes) and ``node`` are published with the heartbeat."""
        self._heartbeat_file, self._walls, self._node = heartbeat_file, walls, node
        self._database, self._clock, self._name, self._slots = database, clock, name, slots
        self.lease_s = lease_s
        self._lock = threading.Lock()
        #: Attempts that run here, each with a callback for when it is lost or must end.
        self._held: dict[FencingToken, Callable[[], None]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the leases of attempts still held run out."""
        self._stop.set()
        self._thread.join(5.0)

    def hold(self, fencing: FencingToken, on_lost: Callable[[], None]) -> None:
        """Extend the lease of an attempt until ``drop``.

        ``on_lost`` is called once, in the heartbeat's thread, when the attempt is lost or asked to end.
        """
        with self._lock:
            self._held[fencing] = on_lost

    def drop(self, fencing: FencingToken) -> None:
        """Stop extending the lease of an attempt."""
        with self._lock:
            self._held.pop(fencing, None)

    def _run(self) -> None:
        service_at, told = float("-inf"), set[FencingToken]()
        while not self._stop.wait(BEAT_S):
            with self._lock:
                held = dict(self._held)
            is_due = self._clock.monotonic() - service_at >= SERVICE_BEAT_S
            if not held and not is_due:
                continue
            if is_due and self._heartbeat_file is not None:
                self._heartbeat_file.touch()
            try:
                lost = self._beat(list(held), is_due)
            except DBAPIError as error:
                logger.warning("no heartbeat error=%s", error)
                continue
            if is_due:
                service_at = self._clock.monotonic()
            told &= held.keys()
            for fencing in lost:
                if fencing not in told:
                    logger.info("attempt is to end job=%s attempt=%s", fencing.job_id, fencing.attempt_id)
                    told.add(fencing)
                    held[fencing]()
        if self._heartbeat_file is not None:
            self._heartbeat_file.remove()
        end_service(self._database, self._name)

    def _beat(self, fencing_tokens: list[FencingToken], is_service_due: bool) -> list[FencingToken]:
        with self._database.write(is_durable=False) as session:
            now = self._clock.now()
            if is_service_due:
                beat_service(session, self._name, "worker", self._slots, now, self._walls, self._node)
            return beat(session, fencing_tokens, self.lease_s, now)
