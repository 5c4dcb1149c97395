"""Controller of a worker's replicas: claims wanted ones, sends heartbeats for its own, and drains unwanted ones."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import DBAPIError

from rdukit_platform.endpoints.replicas import ReplicaToken, beat, claim_next, has_unclaimed
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.replica import ReplicaRun

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.5
#: Seconds that replicas have for shutdown when the worker stops.
STOP_S: Final = 15.0


class ReplicaKeeper:
    """Thread of a worker process that controls its replicas; each replica has a thread of its own, too."""

    def __init__(self, context: WorkerContext, slots: int, may_claim: Callable[[], bool]) -> None:
        """``slots``: largest number of replicas; ``may_claim``: returns whether this node accepts more now."""
        self._context, self._slots, self._may_claim = context, slots, may_claim
        self._lock = threading.Lock()
        #: Replicas that run here, with their threads.
        self._held: dict[ReplicaToken, tuple[ReplicaRun, threading.Thread]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replicas", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End all replicas, and return when they have ended. The scheduler starts others elsewhere."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        with self._lock:
            held = list(self._held.values())
        for replica, _ in held:
            replica.interrupt()
        for _, thread in held:
            thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                self._beat()
                while self._claim():
                    pass
            except DBAPIError as error:
                logger.warning("replicas not kept error=%s", error)

    def _beat(self) -> None:
        with self._lock:
            held = dict(self._held)
        if not held:
            return
        context = self._context
        with context.database.write(is_durable=False) as session:
            states = beat(session, held, context.heartbeat.lease_s, context.clock.now())
        for fencing, state in states.items():
            replica, _ = held[fencing]
            if state is None:
                logger.info("replica is not ours any more replica=%s", fencing.replica_id)
                replica.give_up()
            elif state is ReplicaState.DRAINING:
                replica.drain()

    def _claim(self) -> bool:
        context = self._context
        with self._lock:
            if len(self._held) >= self._slots or self._stop.is_set() or not self._may_claim():
                return False
        with context.database.read() as session:
            if not has_unclaimed(session):
                return False
        with context.database.write() as session:
            lease_s = context.heartbeat.lease_s
            claimed = claim_next(session, context.name, lease_s, context.clock.now(), context.node)
        if claimed is None:
            return False
        replica = ReplicaRun(context, claimed)
        thread = threading.Thread(target=self._serve, args=(replica, claimed.fencing), name="replica", daemon=True)
        with self._lock:
            self._held[claimed.fencing] = (replica, thread)
        thread.start()
        return True

    def _serve(self, replica: ReplicaRun, fencing: ReplicaToken) -> None:
        try:
            replica.run()
        finally:
            with self._lock:
                self._held.pop(fencing, None)
            self._context.notifier.wake()
