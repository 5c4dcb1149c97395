"""The node's log of what happened: a ring with sequence numbers."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit_runtime.allocator import Lease

#: Events kept, and events in one answer at most (an answer stays well below the client's longest line).
_CAPACITY: Final = 4096
PAGE: Final = 100


class EventKind(StrEnum):
    """What can happen to a lease. ``death``: it ended because its last connection closed without a release."""

    GRANT = "grant"
    REFUSE = "refuse"
    ATTACH = "attach"
    DETACH = "detach"
    RELEASE = "release"
    DEATH = "death"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event. ``seq`` counts from 1 without gaps; ``time`` is in seconds since the epoch."""

    seq: int
    time: float
    kind: EventKind
    lease: str | None
    application: str
    tenant: str | None
    job: str | None
    pid: int | None
    tiles: tuple[str, ...]
    reason: str

    def as_json(self) -> dict[str, object]:
        """Plain containers; never a token."""
        return {
            "seq": self.seq, "time": self.time, "kind": str(self.kind), "lease": self.lease,
            "application": self.application, "tenant": self.tenant, "job": self.job, "pid": self.pid,
            "tiles": list(self.tiles), "reason": self.reason,
        }  # fmt: skip


class EventLog:
    """The newest events of a node."""

    def __init__(self) -> None:
        #: Consecutive sequence numbers, oldest first; the newest is ``last``.
        self._events: Final[deque[NodeEvent]] = deque(maxlen=_CAPACITY)
        #: Sequence number of the newest event; 0 before the first.
        self.last = 0

    def record(
        self, kind: EventKind, now: float, lease: Lease, tiles: tuple[str, ...], pid: int | None, reason: str = ""
    ) -> NodeEvent:
        """Append an event about ``lease``."""
        request = lease.request
        return self._append(
            NodeEvent(
                self.last + 1, now, kind, lease.id, request.application, request.tenant, request.job, pid, tiles, reason
            )
        )

    def record_refusal(
        self, now: float, application: str, tenant: str | None, job: str | None, pid: int | None, reason: str
    ) -> NodeEvent:
        """Append the refusal of a request that got no lease."""
        return self._append(
            NodeEvent(self.last + 1, now, EventKind.REFUSE, None, application, tenant, job, pid, (), reason)
        )

    def page(self, since: int) -> list[NodeEvent]:
        """Events with a sequence number above ``since``, oldest first, ``PAGE`` at most.

        Events that the ring has dropped are missing: the first one's number tells.
        """
        if not self._events or since >= self.last:
            return []
        start = max(0, since + 1 - self._events[0].seq)
        return [self._events[i] for i in range(start, min(start + PAGE, len(self._events)))]

    def _append(self, event: NodeEvent) -> NodeEvent:
        self._events.append(event)
        self.last = event.seq
        return event
