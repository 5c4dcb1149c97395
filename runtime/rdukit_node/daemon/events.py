"""The node's event log: a ring with sequence numbers."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit_node.leases.allocator import Lease

#: Largest number of stored events, and of events in one answer (far below the client's longest line).
_CAPACITY: Final = 16384
PAGE: Final = 100


class NodeEventKind(StrEnum):
    """Events of leases and components.

    ``death``: a lease ended because its last connection closed without a release.
    """

    GRANT = "grant"
    REFUSE = "refuse"
    ATTACH = "attach"
    #: A lease of the previous daemon is kept for its program.
    RESTORE = "restore"
    DETACH = "detach"
    RELEASE = "release"
    DEATH = "death"
    STOP = "stop"
    WAIT = "wait"
    #: A row of the fault database, not a repeat of one.
    ERROR = "error"
    FAULT = "fault"
    CLEAR = "clear"
    REPAIR = "repair"
    REPLACE = "replace"
    RESET = "reset"
    STATE = "state"
    POLICY = "policy"
    #: A lease's application gets an exception.
    INTERRUPT = "interrupt"
    #: A lease ended because an administrator released it, or at a drain's deadline.
    EVICT = "evict"
    #: A part of the node is cordoned or uncordoned; leases on it may have to end.
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    #: A maintenance window was planned, began or ended.
    MAINTENANCE = "maintenance"
    #: The fault database cannot be written, or can again.
    DATABASE = "database"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event. ``seq`` counts from 1 without gaps; ``time`` is in seconds since the epoch."""

    seq: int
    time: float
    kind: NodeEventKind
    lease: str | None
    application: str
    tenant: str | None
    job: str | None
    pid: int | None
    tiles: tuple[str, ...]
    reason: str
    component: str | None = None
    error_uuid: str | None = None
    fault_uuid: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return plain containers; never a token."""
        return {
            "seq": self.seq, "time": self.time, "kind": str(self.kind), "lease": self.lease,
            "application": self.application, "tenant": self.tenant, "job": self.job, "pid": self.pid,
            "tiles": list(self.tiles), "reason": self.reason, "component": self.component,
            "error_uuid": self.error_uuid, "fault_uuid": self.fault_uuid,
        }  # fmt: skip


class NodeEventLog:
    """The newest events of a node."""

    def __init__(self) -> None:
        #: Consecutive sequence numbers, oldest first; the newest is ``last``.
        self._events: Final[deque[NodeEvent]] = deque(maxlen=_CAPACITY)
        #: Sequence number of the newest event; 0 before the first.
        self.last = 0
        #: Events that are not stored yet, oldest first.
        self._unwritten: Final[deque[NodeEvent]] = deque(maxlen=_CAPACITY)

    @property
    def has_unwritten(self) -> bool:
        """True if ``take_unwritten`` has any events."""
        return bool(self._unwritten)

    def take_unwritten(self) -> list[NodeEvent]:
        """Return the events since the last call, for storage."""
        taken = list(self._unwritten)
        self._unwritten.clear()
        return taken

    def record(
        self, kind: NodeEventKind, now: float, lease: Lease, tiles: tuple[str, ...], pid: int | None, reason: str = ""
    ) -> NodeEvent:
        """Append an event about ``lease``."""
        request = lease.request
        return self._append(
            NodeEvent(
                self.last + 1, now, kind, lease.id, request.application, request.tenant, request.job, pid, tiles, reason
            )
        )

    def record_refusal(
        self,
        now: float,
        application: str,
        tenant: str | None,
        job: str | None,
        pid: int | None,
        reason: str,
        kind: NodeEventKind = NodeEventKind.REFUSE,
    ) -> NodeEvent:
        """Append the refusal of a lease, or the wait for one."""
        return self._append(NodeEvent(self.last + 1, now, kind, None, application, tenant, job, pid, (), reason))

    def record_component(
        self,
        kind: NodeEventKind,
        now: float,
        component: str | None,
        reason: str,
        error_uuid: str | None = None,
        fault_uuid: str | None = None,
    ) -> NodeEvent:
        """Append an event of a component, or of the node itself."""
        event = NodeEvent(
            self.last + 1, now, kind, None, "", None, None, None, (), reason, component, error_uuid, fault_uuid
        )
        return self._append(event)

    def record_interrupt(
        self, now: float, lease: Lease, tiles: tuple[str, ...], component: str, error: str, fault: str | None, why: str
    ) -> NodeEvent:
        """Append that a lease's application gets an exception for ``component``."""
        request = lease.request
        event = NodeEvent(
            self.last + 1, now, NodeEventKind.INTERRUPT, lease.id, request.application, request.tenant, request.job,
            None, tiles, why, component, error, fault,
        )  # fmt: skip
        return self._append(event)

    def page(self, since: int) -> list[NodeEvent]:
        """Return events with a sequence number above ``since``, oldest first, ``PAGE`` at most.

        Events that the ring has dropped are missing, as the first number shows.
        """
        if not self._events or since >= self.last:
            return []
        start = max(0, since + 1 - self._events[0].seq)
        return [self._events[i] for i in range(start, min(start + PAGE, len(self._events)))]

    def _append(self, event: NodeEvent) -> NodeEvent:
        self._events.append(event)
        self._unwritten.append(event)
        self.last = event.seq
        return event
