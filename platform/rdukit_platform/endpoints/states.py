"""States of a replica, reasons of its end, and the table of transitions."""

from enum import StrEnum
from typing import Final

from rdukit.errors import InvalidTransition


class ReplicaState(StrEnum):
    """States of a replica. Only ready ones get requests."""

    STARTING = "starting"
    READY = "ready"
    #: It finishes its requests and gets no new ones.
    DRAINING = "draining"
    ENDED = "ended"


class ReplicaEvent(StrEnum):
    """Events of a replica."""

    READY = "ready"
    DRAIN = "drain"
    END = "end"


class ReplicaReason(StrEnum):
    """Reasons for which a replica has ended."""

    #: It was surplus or of another revision, and has finished its requests.
    DRAINED = "drained"
    #: The replica was no longer wanted before it was ready.
    NOT_WANTED = "not-wanted"
    #: Its worker sent no heartbeat within its lease.
    LOST = "lost"
    #: Its tiles were withdrawn: at a drain's deadline, or by an administrator.
    WITHDRAWN = "withdrawn"
    #: Its worker was stopped.
    INTERRUPTED = "interrupted"
    #: Its box ended, or was killed.
    BOX_LOST = "box-lost"
    #: Its box did not become ready, or no longer answers.
    NOT_READY = "not-ready"
    #: Its PEF, checkpoint or box is not in the store.
    INPUT_LOST = "input-lost"
    #: Its box may not run here.
    REFUSED = "refused"


TRANSITIONS: Final = {
    (ReplicaState.STARTING, ReplicaEvent.READY): ReplicaState.READY,
    (ReplicaState.STARTING, ReplicaEvent.END): ReplicaState.ENDED,
    (ReplicaState.READY, ReplicaEvent.DRAIN): ReplicaState.DRAINING,
    (ReplicaState.READY, ReplicaEvent.END): ReplicaState.ENDED,
    (ReplicaState.DRAINING, ReplicaEvent.END): ReplicaState.ENDED,
}
#: States of live replicas.
LIVE: Final = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)
#: Reasons that count as failures of the revision; each further one lengthens the pause before the next replica.
FAILURES: Final = frozenset(
    {ReplicaReason.BOX_LOST, ReplicaReason.NOT_READY, ReplicaReason.INPUT_LOST, ReplicaReason.REFUSED}
)


def next_state(replica_id: str, state: ReplicaState, event: ReplicaEvent) -> ReplicaState:
    """Return the state after an event (pure).

    Raises:
        InvalidTransition: the event cannot happen in this state.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise InvalidTransition(f"replica {replica_id} is {state}, where {event} cannot happen")
    return after


def states_before(event: ReplicaEvent) -> list[str]:
    """Return the states in which an event can happen, as the database has them."""
    return [str(state) for state, known in TRANSITIONS if known is event]
