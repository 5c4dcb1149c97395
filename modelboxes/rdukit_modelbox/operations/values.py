"""Operations as values: the request, states and their transitions, events and deliveries."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal

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
    """An event in an operation's life. ``resume``: its box was restarted after a kill, and queues it again."""

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
    """Return the state after ``event``.

    Raises:
        InvalidTransition: the table has no such pair.
    """
    try:
        return TRANSITIONS[(state, event)]
    except KeyError:
        legal = sorted(e for s, e in TRANSITIONS if s is state)
        raise InvalidTransition(f"{subject} is {state}: event {event} is not legal; legal: {legal}") from None


EventKind = Literal["state", "progress", "log", "result"]
DeliveryState = Literal["pending", "delivered", "failed"]

#: Longest line of an operation's log; longer ones are cut.
MAX_LOG_CHARACTERS: Final = 4096
#: Default events of a webhook.
DEFAULT_WEBHOOK_EVENTS: Final = tuple(sorted(str(state) for state in FINAL_STATES))


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL to notify about an operation. ``events`` are names of states."""

    url: str
    events: tuple[str, ...] = DEFAULT_WEBHOOK_EVENTS


@dataclass(frozen=True, slots=True)
class VerbCall:
    """A caller's request for a verb.

    ``timeout_s`` counts from the moment that the box takes the request; 0: no limit. With ``resume``, a box that is
    restarted after a kill queues the operation again.
    """

    parameters: Mapping[str, object] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    output: str = ""
    idempotency_key: str = ""
    timeout_s: float = 0.0
    resume: bool = False
    webhook: Webhook | None = None

    def asked(self, verb: Verb) -> str:
        """Return a text that is equal for equal requests, regardless of their key and wire."""
        return json.dumps([verb, _as_numbers(self.to_json())], sort_keys=True, default=repr)

    def to_json(self) -> dict[str, object]:
        """Return all but the key."""
        webhook = {"url": self.webhook.url, "events": list(self.webhook.events)} if self.webhook else None
        return {
            "parameters": dict(self.parameters),
            "inputs": dict(self.inputs),
            "output": self.output,
            "timeout_s": self.timeout_s,
            "resume": self.resume,
            "webhook": webhook,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], idempotency_key: str) -> "VerbCall":
        """Return the inverse of ``to_json``."""
        given = value["webhook"]
        webhook = Webhook(given["url"], tuple(given["events"])) if given else None
        return cls(
            value["parameters"], value["inputs"], value["output"], idempotency_key, value["timeout_s"],
            value["resume"], webhook,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """An operation's failure: an error's code, message and detail, such as a failed component."""

    code: str
    message: str
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery to a webhook: its attempts, and the last answer.

    ``status`` is the HTTP status of the last answer, 0 if there was none.
    """

    id: str
    event: str
    state: DeliveryState = "pending"
    attempts: int = 0
    status: int = 0
    error: str = ""
    at: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return the ``Delivery`` of ``docs/design/wire.md``."""
        return {
            "id": self.id,
            "event": self.event,
            "state": self.state,
            "attempts": self.attempts,
            "status": self.status,
            "error": self.error,
            "at": self.at,
        }


@dataclass(frozen=True, slots=True)
class Operation:
    """A verb's run in a box. ``result`` and ``outputs`` are set when it succeeded, ``failure`` when it failed.

    ``number`` counts the operations of a state folder. ``runs`` is the number of starts, above 1 after a resume.
    """

    id: str
    verb: Verb
    state: OperationState
    created_at: float
    number: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    runs: int = 0
    failure: OperationFailure | None = None
    result: Mapping[str, object] | None = None
    outputs: Mapping[str, str] | None = None
    progress: Progress | None = None
    peak_memory_bytes: int | None = None
    deliveries: tuple[Delivery, ...] = ()

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
            value["runs"] = self.runs
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
        if self.deliveries:
            value["deliveries"] = [delivery.to_json() for delivery in self.deliveries]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any], number: int) -> "Operation":
        """Return the inverse of ``to_json``."""
        error = value.get("error")
        return cls(
            value["id"], Verb(value["verb"]), OperationState(value["state"]), value["created_at"], number,
            value.get("started_at"), value.get("ended_at"), value.get("runs", 0),
            OperationFailure(error["code"], error["message"], error["detail"]) if error else None,
            value.get("result"), value.get("outputs"),
            Progress.from_json(value["progress"]) if "progress" in value else None,
            value.get("peak_memory_bytes"),
            tuple(Delivery(**delivery) for delivery in value.get("deliveries", ())),
        )  # fmt: skip


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

    @classmethod
    def from_json(cls, value: Mapping[str, Any], number: int) -> "OperationEvent":
        """Return the inverse of ``to_json``; ``number`` is that of the operation."""
        return cls(
            value["sequence"], value["kind"], value["at"],
            Operation.from_json(value["operation"], number) if "operation" in value else None,
            Progress.from_json(value["progress"]) if "progress" in value else None,
            value.get("log"),
        )  # fmt: skip


def _as_numbers(value: object) -> object:
    """Convert whole floats to ints, because protobuf has only doubles."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _as_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_numbers(item) for item in value]
    return value
