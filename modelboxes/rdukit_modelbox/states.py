"""States of an operation, the events that move it, and the table."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from rdukit.errors import InvalidTransition


class OperationState(StrEnum):
    """Where an operation is. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """No event moves it any more."""
        return self in FINAL_STATES


class StateEvent(StrEnum):
    """What happens to an operation. ``resume``: its box was killed, is back, and queues it once more."""

    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    RESUME = "resume"


FINAL_STATES: Final = frozenset({OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED})

TRANSITIONS: Final[Mapping[tuple[OperationState, StateEvent], OperationState]] = {
    (OperationState.QUEUED, StateEvent.START): OperationState.RUNNING,
    (OperationState.QUEUED, StateEvent.FAIL): OperationState.FAILED,
    (OperationState.QUEUED, StateEvent.CANCEL): OperationState.CANCELLED,
    (OperationState.QUEUED, StateEvent.RESUME): OperationState.QUEUED,
    (OperationState.RUNNING, StateEvent.SUCCEED): OperationState.SUCCEEDED,
    (OperationState.RUNNING, StateEvent.FAIL): OperationState.FAILED,
    (OperationState.RUNNING, StateEvent.CANCEL): OperationState.CANCELLED,
    (OperationState.RUNNING, StateEvent.RESUME): OperationState.QUEUED,
}


def next_state(state: OperationState, event: StateEvent, subject: str) -> OperationState:
    """The state after ``event``.

    Raises:
        InvalidTransition: the table has no such pair.
    """
    try:
        return TRANSITIONS[(state, event)]
    except KeyError:
        legal = sorted(e for s, e in TRANSITIONS if s is state)
        raise InvalidTransition(f"{subject} is {state}: event {event} is not legal; legal: {legal}") from None
