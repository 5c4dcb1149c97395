"""The words of fault management, and the operational states of an RDU with their table.

Source: runtime reference 1.4 (operational states, events and outcomes of the hang-recovery log; the table is ours),
4.2, 4.3; severities, fault states and actions are ours.
"""

from enum import StrEnum
from typing import Final

from rdukit.errors import InvalidTransition


class FaultSeverity(StrEnum):
    """Severities of faults: plan, act, act now."""

    MINOR = "Minor"
    MAJOR = "Major"
    CRITICAL = "Critical"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return list(FaultSeverity).index(self)


class FaultState(StrEnum):
    """States of a fault."""

    ACTIVE = "ACTIVE"
    CLEARED = "CLEARED"


class Action(StrEnum):
    """Actions at a fault. A reset is tried at every error; the fault comes when it fails or at the count."""

    NONE = "none"
    RESET_TILE = "reset-tile"
    EXCLUDE_TILE = "exclude-tile"
    RETIRE_CHANNEL = "retire-channel"
    REROUTE = "reroute"
    RESET_RDU = "reset-rdu"
    RETIRE_RDU = "retire-rdu"
    RETIRE_NODE = "retire-node"


class HangEvent(StrEnum):
    """Attempts to end a hang."""

    TILE_RESET = "TILE_RESET"
    CHIP_RESET = "CHIP_RESET"
    OTHER = "OTHER"


class HangOutcome(StrEnum):
    """Outcomes of an attempt to end a hang."""

    IN_PROGRESS = "IN_PROGRESS"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    PENDING = "PENDING"


class RduState(StrEnum):
    """Operational states of an RDU: whether applications may run on it."""

    FUNCTIONAL = "FUNCTIONAL"
    PENDING = "PENDING"
    DEGRADED = "DEGRADED"
    UNAVAILABLE = "UNAVAILABLE"


class RduEvent(StrEnum):
    """Events of an RDU's operational state."""

    INIT_PASSED = "init passed"
    INIT_PASSED_WITH_LOSSES = "init passed, parts are out of service"
    INIT_FAILED = "init failed"
    PART_LOST = "a part was taken out of service"
    ALL_LOST = "the RDU was taken out of service"
    RESET = "reset"
    PART_RETURNED = "a part is back in service, others are not"
    ALL_RETURNED = "everything is back in service"
    NOTHING_RETURNED = "the cause remains"


_S, _E = RduState, RduEvent
#: A pair that is missing cannot happen.
RDU_TRANSITIONS: Final = {
    (_S.PENDING, _E.INIT_PASSED): _S.FUNCTIONAL,
    (_S.PENDING, _E.INIT_PASSED_WITH_LOSSES): _S.DEGRADED,
    (_S.PENDING, _E.INIT_FAILED): _S.UNAVAILABLE,
    (_S.PENDING, _E.PART_LOST): _S.PENDING,
    (_S.PENDING, _E.ALL_LOST): _S.UNAVAILABLE,
    (_S.FUNCTIONAL, _E.PART_LOST): _S.DEGRADED,
    (_S.FUNCTIONAL, _E.ALL_LOST): _S.UNAVAILABLE,
    (_S.FUNCTIONAL, _E.RESET): _S.PENDING,
    (_S.DEGRADED, _E.PART_LOST): _S.DEGRADED,
    (_S.DEGRADED, _E.ALL_LOST): _S.UNAVAILABLE,
    (_S.DEGRADED, _E.RESET): _S.PENDING,
    (_S.DEGRADED, _E.PART_RETURNED): _S.DEGRADED,
    (_S.DEGRADED, _E.ALL_RETURNED): _S.FUNCTIONAL,
    (_S.DEGRADED, _E.NOTHING_RETURNED): _S.DEGRADED,
    (_S.UNAVAILABLE, _E.PART_LOST): _S.UNAVAILABLE,
    (_S.UNAVAILABLE, _E.ALL_LOST): _S.UNAVAILABLE,
    (_S.UNAVAILABLE, _E.RESET): _S.PENDING,
    (_S.UNAVAILABLE, _E.PART_RETURNED): _S.DEGRADED,
    (_S.UNAVAILABLE, _E.ALL_RETURNED): _S.FUNCTIONAL,
    (_S.UNAVAILABLE, _E.NOTHING_RETURNED): _S.UNAVAILABLE,
}


def next_rdu_state(path: str, state: RduState, event: RduEvent) -> RduState:
    """Return the operational state of the RDU ``path`` after ``event``.

    Raises:
        InvalidTransition: the event cannot happen in this state.
    """
    try:
        return RDU_TRANSITIONS[state, event]
    except KeyError:
        possible = [str(other) for start, other in RDU_TRANSITIONS if start is state]
        raise InvalidTransition(
            f"{path} is {state}: {event!s} is not possible; possible: {', '.join(possible)}",
            subject=path, state=str(state), event=str(event),
        ) from None  # fmt: skip
