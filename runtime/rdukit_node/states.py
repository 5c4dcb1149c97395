"""States of leases and tiles, why a lease ends, and which step follows which, as data.

A tile is ``free`` or ``leased``. A lease is ``active`` from its grant on and ends exactly once.

Source: ours. The runtime's exclusive grants and its setup, run and teardown phases are the vendor's (runtime reference
3.1, 3.2); the words for a lease's end are not public.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rdukit.errors import InvalidTransition

#: Counters of ``report``. Each number is a total since the lease was opened by the reporting holder.
COUNTER_NAMES: Final = ("runs", "sections", "cycles", "flops", "bytes", "host_seconds")


class TileState(StrEnum):
    """States of a tile."""

    FREE = "free"
    LEASED = "leased"


class TileEvent(StrEnum):
    """Events of a tile."""

    GRANT = "grant"
    END = "end"


class LeaseState(StrEnum):
    """States of a lease. All but ``active`` are final."""

    ACTIVE = "active"
    RELEASED = "released"
    LOST = "lost"


class LeaseEvent(StrEnum):
    """Events of a lease after its grant."""

    ATTACH = "attach"
    DETACH = "detach"
    RELEASE = "release"
    HOLDERS_GONE = "holders-gone"
    NODE_STOP = "node-stop"
    #: An administrator ended it.
    EVICT = "evict"
    #: The lease still existed at the deadline of a drain.
    DRAIN = "drain"


class EndReason(StrEnum):
    """Reasons why a lease ended. Each reason has its final state."""

    RELEASED = "released by a holder"
    HOLDERS_GONE = "the last connection that held it closed"
    NODE_STOPPED = "the node daemon stopped"
    EVICTED = "released by an administrator"
    DRAINED = "its tiles were drained, and the deadline passed"

    @property
    def is_withdrawn(self) -> bool:
        """Return whether the lease was taken from a program that did nothing wrong, and whose hardware works."""
        return self in (EndReason.EVICTED, EndReason.DRAINED)

    @property
    def final_state(self) -> LeaseState:
        return LeaseState.RELEASED if self is EndReason.RELEASED else LeaseState.LOST


class Phase(StrEnum):
    """Phases of an application, as it reports them.

    Source: runtime reference 3.1: the three phases, and the sub-phases of ``run`` that sntilestat distinguishes.
    """

    SETUP = "setup"
    RUN = "run"
    PROGRAM_LOAD = "pload"
    ARGUMENT_LOAD = "aload"
    EXECUTE = "exec"
    CHECKPOINT = "chkpt"
    QUIESCE = "quiesce"
    TEARDOWN = "teardown"


TILE_TRANSITIONS: Final = {
    (TileState.FREE, TileEvent.GRANT): TileState.LEASED,
    (TileState.LEASED, TileEvent.END): TileState.FREE,
}

#: The step has a reason if it ends the lease.
LEASE_TRANSITIONS: Final[dict[tuple[LeaseState, LeaseEvent], tuple[LeaseState, EndReason | None]]] = {
    (LeaseState.ACTIVE, LeaseEvent.ATTACH): (LeaseState.ACTIVE, None),
    (LeaseState.ACTIVE, LeaseEvent.DETACH): (LeaseState.ACTIVE, None),
    (LeaseState.ACTIVE, LeaseEvent.RELEASE): (LeaseState.RELEASED, EndReason.RELEASED),
    (LeaseState.ACTIVE, LeaseEvent.HOLDERS_GONE): (LeaseState.LOST, EndReason.HOLDERS_GONE),
    (LeaseState.ACTIVE, LeaseEvent.NODE_STOP): (LeaseState.LOST, EndReason.NODE_STOPPED),
    (LeaseState.ACTIVE, LeaseEvent.EVICT): (LeaseState.LOST, EndReason.EVICTED),
    (LeaseState.ACTIVE, LeaseEvent.DRAIN): (LeaseState.LOST, EndReason.DRAINED),
}


@dataclass(frozen=True, slots=True)
class LeaseStep:
    """An entry of a lease's history."""

    at: float
    event: str
    state: LeaseState


def next_tile_state(path: str, state: TileState, event: TileEvent) -> TileState:
    """Return the state of the tile ``path`` after ``event``.

    Raises:
        InvalidTransition: the tile cannot do that in this state.
    """
    try:
        return TILE_TRANSITIONS[state, event]
    except KeyError:
        raise InvalidTransition(
            f"tile {path} is {state}: {event} is not possible; possible: {_events_from(TILE_TRANSITIONS, state)}",
            subject=path,
            state=str(state),
            event=str(event),
        ) from None


def next_lease_state(
    lease: str, state: LeaseState, event: LeaseEvent, history: Sequence[LeaseStep]
) -> tuple[LeaseState, EndReason | None]:
    """Return the state of ``lease`` after ``event``, and the reason if that ends it.

    Raises:
        InvalidTransition: the lease cannot do that in this state. Carries ``history``, oldest first.
    """
    try:
        return LEASE_TRANSITIONS[state, event]
    except KeyError:
        last = f", since {history[-1].event!r}" if history else ""
        legal = _events_from(LEASE_TRANSITIONS, state) or "nothing: the state is final"
        raise InvalidTransition(
            f"lease {lease} is {state}{last}: {event} is not possible; possible: {legal}",
            subject=lease,
            state=str(state),
            event=str(event),
            history=[{"at": step.at, "event": step.event, "state": str(step.state)} for step in history],
        ) from None


def _events_from(table: object, state: object) -> list[str]:
    assert isinstance(table, dict)
    return [str(event) for start, event in table if start == state]
