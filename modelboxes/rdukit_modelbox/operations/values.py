"""Operations as values: the request, states and their transitions, and events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from rdukit.errors import InvalidTransition
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.verbs.context import Progress


class OperationState(StrEnum):
    """State of an operation. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Return whether no event moves the operation any more."""
        return self in FINAL_STATES


class StateEvent(StrEnum):
    """An event in an operation's life."""

    START = "start"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"


FINAL_STATES: Final = frozenset({OperationState.SUCCEEDED, OperationState.FAILED, OperationState.CANCELLED})

TRANSITIONS: Final[Mapping[tuple[OperationState, StateEvent], OperationState]] = {
    (OperationState.QUEUED, StateEvent.START): OperationState.RUNNING,
    (OperationState.QUEUED, StateEvent.FAIL): OperationState.FAILED,
    (OperationState.QUEUED, StateEvent.CANCEL): OperationState.CANCELLED,
    (OperationState.RUNNING, StateEvent.SUCCEED): OperationState.SUCCEEDED,
    (OperationState.RUNNING, StateEvent.FAIL): OperationState.FAILED,
    (OperationState.RUNNING, StateEvent.CANCEL): OperationState.CANCELLED,
}


def next_state(state: OperationState, event: StateEvent, subject: str) -> OperationState:
    """Return the state after ``event``.

    Raises:
        InvalidTransition: the table has no such pair.
    """
    try:
        return TRANSITIONS[(state, event)]
    except KeyError:
        legal = sorted(e for s, e in TRANSITIONS if s is state)
        raise InvalidTransition(f"{subject} is {state}: event {event} is not valid; expected {legal}") from None


EventKind = Literal["state", "progress", "log", "result"]
#: Longest line of an operation's log; longer ones are cut.
MAX_LOG_CHARACTERS: Final = 4096

#: Fields of a verb's request in 0.1.0 -> the platform's replacement. Requests with such a field are refused.
REMOVED_FIELDS: Final[Mapping[str, str]] = {
    "idempotency_key": "a box runs every request; for idempotency submit a job to the platform with idempotency_key "
    "(rdukit job submit --key)",
    "resume": "operations end with their box; submit a job to the platform, which retries and resumes jobs (rdukit "
    "job submit, rdukit job resume, rdukit job clone)",
    "webhook": "a box sends no notifications; submit a job to the platform, which has webhooks (rdukit webhook add)",
}


@dataclass(frozen=True, slots=True)
class VerbCall:
    """A caller's request for a verb.

    ``timeout_s`` counts from the box's acceptance of the request; 0: no limit. ``profile``: record where the verb's
    time goes, as a further output.
    """

    parameters: Mapping[str, object] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    timeout_s: float = 0.0
    profile: bool = False


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """An operation's failure: an error's code, message and detail, such as a failed component."""

    code: str
    message: str
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """A verb's run in a box. ``result`` and ``outputs`` are set when it succeeded, ``failure`` when it failed.

    ``number`` counts the operations of this process of the box.
    """

    id: str
    verb: Verb
    state: OperationState
    created_at: float
    number: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    failure: OperationFailure | None = None
    result: Mapping[str, object] | None = None
    outputs: Mapping[str, str] | None = None
    progress: Progress | None = None
    peak_memory_bytes: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the ``Operation`` of ``docs/design/wire.md``."""
        value: dict[str, object] = {
            "id": self.id,
            "verb": str(self.verb),
            "state": str(self.state),
            "created_at": self.created_at,
        }
        if self.started_at is not None:
            value["started_at"] = self.started_at
        if self.ended_at is not None:
            value["ended_at"] = self.ended_at
        if self.progress is not None:
            value["progress"] = self.progress.to_json()
        if self.failure is not None:
            failure = self.failure
            value["error"] = {"code": failure.code, "message": failure.message, "detail": dict(failure.detail)}
        if self.result is not None:
            value["result"] = dict(self.result)
        if self.outputs is not None:
            value["outputs"] = dict(self.outputs)
        if self.peak_memory_bytes is not None:
            value["peak_memory_bytes"] = self.peak_memory_bytes
        return value


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """An event of an operation. Sequence numbers count from 1 and may have gaps."""

    sequence: int
    kind: EventKind
    at: float
    operation: Operation | None = None
    progress: Progress | None = None
    log: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the ``OperationEvent`` of ``docs/design/wire.md``."""
        value: dict[str, object] = {"sequence": self.sequence, "kind": self.kind, "at": self.at}
        if self.operation is not None:
            value["operation"] = self.operation.to_json()
        if self.progress is not None:
            value["progress"] = self.progress.to_json()
        if self.log is not None:
            value["log"] = self.log
        return value
