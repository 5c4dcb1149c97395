"""Operations: the table of what was asked, where it is, and an event log for each. In memory, one thread.

States are in ``states.py``. The table decides nothing about processes; ``supervisor.py`` runs them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from rdukit.clock import Clock
from rdukit.errors import Conflict, NotFound
from rdukit_modelbox.box import Verb
from rdukit_modelbox.context import Progress
from rdukit_modelbox.states import Event, OperationState, next_state

#: Log and progress events kept for each operation; the oldest go first, states and results never.
KEPT_EVENTS: Final = 2000
#: Finished operations kept; the oldest go first.
KEPT_OPERATIONS: Final = 1000

EventKind = Literal["state", "progress", "log", "result"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an operation failed: an error's code, message and what else it tells, such as a failed component."""

    code: str
    message: str
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """One asked verb. ``result`` and ``outputs`` are set when it succeeded, ``failure`` when it failed."""

    id: str
    verb: Verb
    state: OperationState
    created_at: float
    ended_at: float | None = None
    failure: Failure | None = None
    result: Mapping[str, object] | None = None
    outputs: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, object]:
        """``Operation`` of ``docs/design/wire.md``."""
        value: dict[str, object] = {
            "id": self.id,
            "verb": str(self.verb),
            "state": str(self.state),
            "created_at": self.created_at,
        }
        if self.ended_at is not None:
            value["ended_at"] = self.ended_at
        if self.failure is not None:
            failure = self.failure
            value["error"] = {"code": failure.code, "message": failure.message, "detail": dict(failure.detail)}
        if self.result is not None:
            value["result"] = dict(self.result)
        if self.outputs is not None:
            value["outputs"] = dict(self.outputs)
        return value


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """One thing that happened to an operation. Sequence numbers count from 1 and may skip what was dropped."""

    sequence: int
    kind: EventKind
    at: float
    operation: Operation | None = None
    progress: Progress | None = None
    log: str | None = None

    def to_json(self) -> dict[str, object]:
        """``OperationEvent`` of ``docs/design/wire.md``."""
        value: dict[str, object] = {"sequence": self.sequence, "kind": self.kind, "at": self.at}
        if self.operation is not None:
            value["operation"] = self.operation.to_json()
        if self.progress is not None:
            value["progress"] = self.progress.to_json()
        if self.log is not None:
            value["log"] = self.log
        return value


class EventLog:
    """Events of one operation. Ends with a ``result``; nothing comes after it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sequence = 0
        #: States and the result: at most four.
        self._kept: list[OperationEvent] = []
        #: Progress and log.
        self._passing: deque[OperationEvent] = deque(maxlen=KEPT_EVENTS)
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """The result is there."""
        return bool(self._kept) and self._kept[-1].kind == "result"

    def add(
        self,
        kind: EventKind,
        *,
        operation: Operation | None = None,
        progress: Progress | None = None,
        log: str | None = None,
    ) -> OperationEvent:
        """Append an event and wake those who wait.

        Raises:
            Conflict: the log has its result already.
        """
        if self.is_closed:
            raise Conflict(f"the operation has ended; no {kind} event may follow its result")
        self._sequence += 1
        event = OperationEvent(self._sequence, kind, self._clock.now(), operation, progress, log)
        (self._kept if kind in {"state", "result"} else self._passing).append(event)
        self._changed.set()
        self._changed = asyncio.Event()
        return event

    def after(self, sequence: int) -> list[OperationEvent]:
        """Events with higher numbers, in order."""
        events = [e for e in (*self._kept, *self._passing) if e.sequence > sequence]
        return sorted(events, key=lambda event: event.sequence)

    async def follow(self, sequence: int = 0) -> AsyncIterator[OperationEvent]:
        """Events after ``sequence`` as they come; ends after the result."""
        while True:
            changed = self._changed
            for event in self.after(sequence):
                sequence = event.sequence
                yield event
            if self.is_closed and not self.after(sequence):
                return
            if changed is self._changed:
                await changed.wait()


class OperationTable:
    """All operations of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._operations: dict[str, Operation] = {}
        self._logs: dict[str, EventLog] = {}
        #: Idempotency key -> operation id and what was asked under it.
        self._keys: dict[str, tuple[str, str]] = {}

    def find_by_key(self, key: str, asked: str) -> Operation | None:
        """The operation that the idempotency key ``key`` stands for; ``asked`` is the request in a comparable form.

        Raises:
            Conflict: the key was used for another request.
        """
        if key not in self._keys:
            return None
        known, known_asked = self._keys[key]
        if known_asked != asked:
            raise Conflict(
                f"idempotency key {key!r} stands for another request (operation {known}); use a new key",
                operation=known,
            )
        return self._operations[known]

    def add(self, operation_id: str, verb: Verb, key: str = "", asked: str = "") -> Operation:
        """A new queued operation; ``key``, unless empty, stands for it from now on."""
        operation = Operation(operation_id, verb, OperationState.QUEUED, self._clock.now())
        self._operations[operation_id] = operation
        self._logs[operation_id] = EventLog(self._clock)
        if key:
            self._keys[key] = (operation_id, asked)
        self._logs[operation_id].add("state", operation=operation)
        self._forget_oldest()
        return operation

    def get(self, operation_id: str) -> Operation:
        """The operation as it is now.

        Raises:
            NotFound: no such operation in this process.
        """
        try:
            return self._operations[operation_id]
        except KeyError:
            raise NotFound(f"no operation {operation_id!r}; this box knows {len(self._operations)}") from None

    def log_of(self, operation_id: str) -> EventLog:
        """Its events.

        Raises:
            NotFound: as ``get``.
        """
        self.get(operation_id)
        return self._logs[operation_id]

    def all(self) -> list[Operation]:
        """Every operation, oldest first."""
        return list(self._operations.values())

    def apply(
        self,
        operation_id: str,
        event: Event,
        *,
        failure: Failure | None = None,
        result: Mapping[str, object] | None = None,
        outputs: Mapping[str, str] | None = None,
    ) -> Operation:
        """Move an operation, record it, and close its log when the new state is final.

        Raises:
            NotFound: no such operation.
            InvalidTransition: the event is not legal in its state.
        """
        old = self.get(operation_id)
        state = next_state(old.state, event, f"operation {operation_id}")
        ended_at = self._clock.now() if state.is_final else None
        new = replace(old, state=state, ended_at=ended_at, failure=failure, result=result, outputs=outputs)
        self._operations[operation_id] = new
        log = self._logs[operation_id]
        log.add("state", operation=new)
        if state.is_final:
            log.add("result", operation=new)
        return new

    def validate(self) -> None:
        """Re-derive what must always hold; for tests."""
        assert set(self._operations) == set(self._logs)
        for operation in self._operations.values():
            log = self._logs[operation.id]
            assert operation.state.is_final == log.is_closed == (operation.ended_at is not None)
            assert (operation.failure is not None) == (operation.state is OperationState.FAILED)
            numbers = [event.sequence for event in log.after(0)]
            assert numbers == sorted(set(numbers))
        assert all(known in self._operations for known, _ in self._keys.values())

    def _forget_oldest(self) -> None:
        surplus = len(self._operations) - KEPT_OPERATIONS
        for operation in [o for o in self._operations.values() if o.state.is_final][: max(0, surplus)]:
            del self._operations[operation.id]
            del self._logs[operation.id]
            self._keys = {k: v for k, v in self._keys.items() if v[0] != operation.id}
