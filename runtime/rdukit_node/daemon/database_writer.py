"""Writer of the daemon's decisions: the shell between ``NodeDaemon`` and the fault database.

Rows are collected in the daemon's own thread and written in another. A failed write (a full or read-only disk, a
foreign lock) or an endless one (a frozen file system) does not stop the daemon. Rows stay in memory and are tried
again; the daemon's ``status``, its log and the exporter report it.
"""

import logging
import threading
from dataclasses import replace
from typing import Final

from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.disk_thread import DiskThread
from rdukit_node.daemon.events import NodeEventKind
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.store import FaultStore

logger = logging.getLogger(__name__)

#: Seconds until a failed write is tried again, and between two checkpoints of the write-ahead log.
_RETRY_S: Final = 1.0
_CHECKPOINT_S: Final = 5.0
#: Seconds that rows of leases may wait, so that many are written together.
_GATHER_S: Final = 0.05


#: Duration of a write in seconds from which on it is reported; answers wait less long.
_LONG_WRITE_S: Final = 0.25
#: Seconds that shutdown waits for the disk.
_CLOSE_S: Final = 10.0


class DatabaseWriter:
    """Writes one daemon's rows into one database."""

    def __init__(self, daemon: NodeDaemon, store: FaultStore) -> None:
        self._daemon = daemon
        self._store = store
        self._written_at = 0.0
        #: Whether this daemon has not written yet.
        self._is_new = True
        self._stopping = threading.Event()
        self._was_writable = store.is_writable
        self._was_dropped = self._was_restored = 0
        #: Wall clock of the last request, for the next run of the thread.
        self._now_ns = 0
        self.thread: Final = DiskThread("database", lambda: self._store.flush(self._now_ns))
        self.settle(None)
        # A thread of its own: checkpoints wait for the disk, and writes must not wait for checkpoints.
        self._checkpointing = threading.Thread(target=self._checkpoints, name="checkpoints", daemon=True)
        self._checkpointing.start()

    def write(self, now: float, must: bool = True) -> int:
        """Let the thread write the collected rows. Never waits for a disk.

        Args:
            must: write now; otherwise only if the last write is long enough ago.
        Returns:
            The request's number: the rows are written, or have failed, once ``thread.done`` has reached it. 0: nothing
            to write.
        """
        if not must and self.due_in(now) != 0.0:
            return 0
        daemon = self._daemon
        changes = replace(
            daemon.administration.faults.take_changes(), maintenance=daemon.maintenance.board.take_changes()
        )
        events = [event.as_json() for event in daemon.events.take_unwritten()]
        applications, daemon.ended_rows[:] = list(daemon.ended_rows), []
        if not (changes or events or applications or self._store.pending or self._is_new):
            return 0
        # Tools read it while no daemon runs, so it must have the broken parts.
        inventory = (
            daemon.administration.inventory()
            if self._is_new or changes.faults or changes.op_states or changes.replaced
            else None
        )
        self._is_new = False
        self._now_ns = int(now * 1e9)
        self._store.add(NewRows(changes, events, applications, inventory=inventory), now_ns=self._now_ns)
        self._written_at = now
        return self.thread.request()

    def due_in(self, now: float) -> float | None:
        """Return seconds until ``write`` should be called without further events; ``None``: no rows wait."""
        if not self._store.is_writable or self.thread.busy_s > 0:
            return max(0.0, self._written_at + _RETRY_S - now)
        if self._is_new or self._daemon.events.has_unwritten or self._daemon.ended_rows:
            return max(0.0, self._written_at + _GATHER_S - now)
        return None

    @property
    def unwritten_reason(self) -> str:
        """Reason why rows are not in the database at present; empty if the last write worked."""
        busy_s = self.thread.busy_s
        if busy_s > _LONG_WRITE_S:
            return f"the disk has not taken a write for {busy_s:.0f} s" if busy_s >= 1 else "the disk is slow"
        return self._store.reason

    def clock_stepped(self, seconds: float) -> None:
        """Shift the next write by ``seconds``, by which the wall clock was set."""
        self._written_at += seconds

    def close(self, now: float) -> None:
        """Write the rest and close the database, marked as closed cleanly; the wait for a blocked disk is bounded."""
        self._stopping.set()
        self.write(now)
        if not self.thread.stop(self._store.close, _CLOSE_S):
            logger.error(
                "event=database-rows-lost path=%s rows=%s reason=%s",
                self._store.path, self._store.pending, self.unwritten_reason,
            )  # fmt: skip
        self._checkpointing.join(_GATHER_S)

    def settle(self, now: float | None) -> None:
        """Report in the daemon's status and events whether rows can be written. ``now`` is ``None`` before its loop."""
        store, state, reason = self._store, self._daemon.administration.database, self.unwritten_reason
        state.update(
            path=str(store.path), is_writable=not reason, reason=reason, pending=store.pending, dropped=store.dropped
        )
        if store.dropped > self._was_dropped:
            logger.error("event=database-rows-dropped path=%s rows=%s", store.path, store.dropped)
            self._was_dropped = store.dropped
        if store.restored > self._was_restored and now is not None:
            self._was_restored = store.restored
            text = "the database was deleted; it was written again with all its rows"
            self._daemon.events.record_component(NodeEventKind.DATABASE, now, None, text)
        if (not reason) == self._was_writable or now is None:
            return
        self._was_writable = not reason
        if self._was_writable:
            logger.warning("event=database-writable path=%s", store.path)
            text = "the database can be written again"
        else:
            logger.error("event=database-not-writable path=%s reason=%s", store.path, reason)
            text = f"the database cannot be written: {reason}"
        self._daemon.events.record_component(NodeEventKind.DATABASE, now, None, text)

    def _checkpoints(self) -> None:
        while not self._stopping.wait(_CHECKPOINT_S):
            if self._store.is_in_place:
                self._store.checkpoint()
            else:
                self.thread.request()
