"""Writing down what the daemon decides: the shell between ``NodeDaemon`` and the fault database.

A write that fails (a full disk, a read-only one) stops nothing: rows stay in memory and are tried again, and the
daemon's ``status``, its log and the exporter say so.
"""

import logging
import threading
from dataclasses import replace
from typing import Final

from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.events import NodeEventKind
from rdukit_node.faults.store import FaultStore

logger = logging.getLogger(__name__)

#: Seconds until a failed write is tried again, and between two checkpoints of the write-ahead log.
_RETRY_S: Final = 1.0
_CHECKPOINT_S: Final = 5.0
#: Leases come and go faster than anybody reads of it: their rows may wait this long to be written together.
_GATHER_S: Final = 0.05


class DatabaseWriter:
    """Writes one daemon's rows into one database."""

    def __init__(self, daemon: NodeDaemon, store: FaultStore) -> None:
        self._daemon = daemon
        self._store = store
        self._written_at = 0.0
        #: Nothing was written by this daemon yet.
        self._is_new = True
        self._stopping = threading.Event()
        self._was_writable = store.is_writable
        self._say()
        # A checkpoint waits for the disk; the daemon's own thread never does.
        self._thread = threading.Thread(target=self._checkpoints, name="checkpoints", daemon=True)
        self._thread.start()

    def write(self, now: float, must: bool = True) -> None:
        """Write what has gathered. Never raises for what the disk does.

        Args:
            must: now; else only if the last time is long enough ago.
        """
        if not must and self.due_in(now) != 0.0:
            return
        daemon = self._daemon
        changes = replace(
            daemon.administration.faults.take_changes(), maintenance=daemon.maintenance.board.take_changes()
        )
        events = [event.as_json() for event in daemon.events.take_unwritten()]
        applications, daemon.ended_rows[:] = list(daemon.ended_rows), []
        if not (changes or events or applications or self._store.pending or self._is_new):
            return
        # What tools read while no daemon runs must say what is broken.
        inventory = daemon.administration.inventory() if self._is_new or changes.faults or changes.op_states else None
        self._is_new = False
        self._store.write(changes, events, applications, inventory=inventory, now_ns=int(now * 1e9))
        self._written_at = now
        self._say(now)

    def due_in(self, now: float) -> float | None:
        """Return seconds until ``write`` should be called if nothing more happens; ``None``: there is
        nothing to write.
        """
        if not self._store.is_writable:
            return max(0.0, self._written_at + _RETRY_S - now)
        if self._is_new or self._daemon.events.has_unwritten or self._daemon.ended_rows:
            return max(0.0, self._written_at + _GATHER_S - now)
        return None

    def clock_stepped(self, seconds: float) -> None:
        """Shift the next write by ``seconds``, by which the wall clock was set."""
        self._written_at += seconds

    def close(self, now: float) -> None:
        """Write the rest and close the database, marked as closed in order."""
        self._stopping.set()
        self._thread.join()
        self.write(now)
        self._store.close()

    def _say(self, now: float | None = None) -> None:
        store, state = self._store, self._daemon.administration.database
        state.update(path=str(store.path), is_writable=store.is_writable, reason=store.reason, pending=store.pending)
        if store.is_writable == self._was_writable or now is None:
            return
        self._was_writable = store.is_writable
        if store.is_writable:
            logger.warning("event=database-writable path=%s", store.path)
            reason = "the database can be written again"
        else:
            logger.error("event=database-not-writable path=%s reason=%s", store.path, store.reason)
            reason = f"the database cannot be written: {store.reason}"
        self._daemon.events.record_component(NodeEventKind.DATABASE, now, None, reason)

    def _checkpoints(self) -> None:
        while not self._stopping.wait(_CHECKPOINT_S):
            self._store.checkpoint()
