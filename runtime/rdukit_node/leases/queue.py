"""The queue of lease requests. Pure: times are arguments, connections are numbers.

First come, first served, without overtaking, so a large request at the head is not starved by small ones behind it.

Source: ours; the vendor's runtime refuses, and sites queue with Slurm.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rdukit.errors import NoResources, RdukitError
from rdukit_node.leases.allocator import LeaseRequest

#: Requests that may wait at once.
MAX_WAITING: Final = 256


@dataclass(frozen=True, slots=True)
class PendingLease:
    """A request in the queue. ``reason``: why it did not fit at the last check."""

    connection: int
    request: LeaseRequest
    since: float
    deadline: float
    reason: NoResources
    command: str | None = None


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """A request that left the queue: granted, or refused with its reason."""

    connection: int
    request: LeaseRequest
    refusal: RdukitError | None


class LeaseQueue:
    """The queue of one node."""

    def __init__(self) -> None:
        #: By connection; a connection has at most one waiting request.
        self._line: Final[OrderedDict[int, PendingLease]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, connection: int) -> bool:
        return connection in self._line

    @property
    def waiting(self) -> tuple[PendingLease, ...]:
        """Queued requests in order of their turn."""
        return tuple(self._line.values())

    def join(self, waiting: PendingLease) -> None:
        """Wait at the end of the line.

        Raises:
            NoResources: the line is full.
        """
        if len(self._line) >= MAX_WAITING:
            raise NoResources(
                f"{len(self._line)} requests already wait, which is the limit; try again later",
                waiting=len(self._line),
                fits_when_empty=True,
            )
        self._line[waiting.connection] = waiting

    def leave(self, connection: int) -> PendingLease | None:
        """Remove and return the request of a connection; None if it has none."""
        return self._line.pop(connection, None)

    def settle(self, acquire: Callable[[LeaseRequest, int], None], now: float) -> list[SettledRequest]:
        """Grant requests from the head, and refuse those that waited too long or can never fit.

        Args:
            acquire: grants to the request of a connection; raises as ``Allocator.acquire`` does.
        """
        settled: list[SettledRequest] = []
        blocker: int | None = None
        for connection in list(self._line):
            waiting = self._line[connection]
            refusal: RdukitError | None = None
            is_granted = False
            if blocker is None:
                try:
                    acquire(waiting.request, connection)
                    is_granted = True
                except NoResources as error:
                    error.__traceback__ = None  # it is kept, and must not keep the frames it came through
                    if error.detail.get("fits_when_empty"):
                        blocker = connection
                        waiting = self._line[connection] = replace(waiting, reason=error)
                    else:
                        refusal = error
                except RdukitError as error:
                    refusal = error.with_traceback(None)
            if not is_granted and refusal is None and now >= waiting.deadline:
                refusal = _timed_out(waiting, now)
                blocker = None if blocker == connection else blocker
            if is_granted or refusal is not None:
                del self._line[connection]
                settled.append(SettledRequest(connection, waiting.request, refusal))
        return settled

    def shift(self, seconds: float) -> None:
        """Shift all waiting times by ``seconds``, by which the wall clock was set."""
        for connection, waiting in self._line.items():
            self._line[connection] = replace(
                waiting, since=waiting.since + seconds, deadline=waiting.deadline + seconds
            )

    def next_deadline(self) -> float | None:
        """Return when the next request times out; ``None`` if the queue is empty."""
        return min((waiting.deadline for waiting in self._line.values()), default=None)

    def validate(self) -> None:
        """Raise ``AssertionError`` if the state contradicts itself."""
        assert all(connection == waiting.connection for connection, waiting in self._line.items())
        assert len(self._line) <= MAX_WAITING


def _timed_out(waiting: PendingLease, now: float) -> NoResources:
    reason = waiting.reason
    return NoResources(
        f"waited {now - waiting.since:.1f} s in vain for {waiting.request.tiles} tiles; last reason: {reason.message}",
        **{**reason.detail, "waited_s": now - waiting.since},
    )
