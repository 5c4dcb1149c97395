"""The table of operations and their events, in memory: it begins empty with each process of a box.

States are in ``values.py``. The table decides nothing about processes; ``runner.py`` runs them. One thread.
"""

import asyncio
import base64
import binascii
import json
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.interfaces import Clock
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations.values import (
    MAX_LOG_CHARACTERS,
    EventKind,
    Operation,
    OperationEvent,
    OperationFailure,
    OperationState,
    StateEvent,
    next_state,
)
from rdukit_modelbox.verbs.context import Progress

#: Largest number of log and progress events per operation; the oldest are dropped first, states and results never.
KEPT_EVENTS: Final = 2000
#: Largest number of finished operations; the oldest are deleted first.
KEPT_OPERATIONS: Final = 1000
#: Memory in bytes of finished operations above which the oldest are deleted, but never the last that ended.
KEPT_BYTES: Final = 64 << 20
#: Estimated memory of an event without its log line.
_EVENT_BYTES: Final = 400


class OperationEventLog:
    """Events of one operation. The last event is the ``result``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sequence = 0
        #: States and the result: at most four events.
        self._kept: list[OperationEvent] = []
        #: Progress and log events.
        self._passing: deque[OperationEvent] = deque(maxlen=KEPT_EVENTS)
        self._changed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Return whether the result is there."""
        return bool(self._kept) and self._kept[-1].kind == "result"

    @property
    def size_bytes(self) -> int:
        """Return the memory of the stored events in bytes, estimated."""
        lines = sum(sys.getsizeof(event.log) for event in self._passing if event.log)
        return lines + _EVENT_BYTES * (len(self._kept) + len(self._passing))

    def add(
        self,
        kind: EventKind,
        *,
        operation: Operation | None = None,
        progress: Progress | None = None,
        log: str | None = None,
    ) -> OperationEvent:
        """Append an event and wake its followers.

        Raises:
            Conflict: the log already has its result.
        """
        if self.is_closed:
            raise Conflict(f"the operation has ended; no {kind} event may follow its result")
        self._sequence += 1
        line = log if log is None or len(log) <= MAX_LOG_CHARACTERS else log[:MAX_LOG_CHARACTERS] + " …"
        event = OperationEvent(self._sequence, kind, self._clock.now(), operation, progress, line)
        (self._kept if kind in {"state", "result"} else self._passing).append(event)
        self._changed.set()
        self._changed = asyncio.Event()
        return event

    def after(self, sequence: int) -> list[OperationEvent]:
        """Return the events with higher numbers, in order."""
        events = [e for e in (*self._kept, *self._passing) if e.sequence > sequence]
        return sorted(events, key=lambda event: event.sequence)

    async def follow(self, sequence: int = 0) -> AsyncIterator[OperationEvent]:
        """Yield events after ``sequence`` as they come; end after the result."""
        while True:
            changed = self._changed
            for event in self.after(sequence):
                sequence = event.sequence
                yield event
            if self.is_closed and not self.after(sequence):
                return
            if changed is self._changed:
                await changed.wait()


@dataclass(frozen=True, slots=True)
class OperationPage:
    """A part of a list, newest first; ``cursor`` gets the next part, empty at the end."""

    operations: list[Operation]
    cursor: str


class OperationTable:
    """Operations of one process of a box."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Name of this table in cursors: cursors of an earlier process are refused.
        self._name = secrets.token_hex(4)
        self._operations: dict[str, Operation] = {}
        self._logs: dict[str, OperationEventLog] = {}
        #: Memory of each ended operation in bytes, in the order of their ends.
        self._ended_bytes: dict[str, int] = {}
        self._count = 0

    def add(self, operation_id: str, verb: Verb) -> Operation:
        """Return a new queued operation."""
        self._count += 1
        operation = Operation(operation_id, verb, OperationState.QUEUED, self._clock.now(), self._count)
        self._operations[operation_id] = operation
        log = self._logs[operation_id] = OperationEventLog(self._clock)
        log.add("state", operation=operation)
        return operation

    def get(self, operation_id: str) -> Operation:
        """Return the operation's present state.

        Raises:
            NotFound: no such operation.
        """
        try:
            return self._operations[operation_id]
        except KeyError:
            raise NotFound(
                f"no operation {operation_id!r} among the {len(self._operations)} of this box; a box keeps operations "
                f"only in memory, so it may belong to an earlier process or precede the last {KEPT_OPERATIONS} ended "
                "ones",
                field="id",
            ) from None

    def events_after(self, operation_id: str, sequence: int = 0) -> list[OperationEvent]:
        """Return the operation's events so far with numbers above ``sequence``.

        Raises:
            NotFound: as ``get``.
        """
        self.get(operation_id)
        return self._logs[operation_id].after(sequence)

    async def follow(self, operation_id: str, sequence: int = 0) -> AsyncIterator[OperationEvent]:
        """Yield the operation's events after ``sequence`` as they come; end after the result.

        Raises:
            NotFound: as ``get``.
        """
        self.get(operation_id)
        async for event in self._logs[operation_id].follow(sequence):
            yield event

    def all(self) -> list[Operation]:
        """Return every operation, oldest first."""
        return list(self._operations.values())

    def page(self, state: OperationState | None, verb: Verb | None, limit: int, cursor: str = "") -> OperationPage:
        """List at most ``limit`` operations in that state and of that verb, newest first, from ``cursor`` on.

        Raises:
            InvalidArgument: the cursor is not of a page of this process.
        """
        below = self._number_of(cursor) if cursor else None
        found = [
            operation
            for operation in reversed(self._operations.values())
            if (below is None or operation.number < below)
            and (state is None or operation.state is state)
            and (verb is None or operation.verb is verb)
        ]
        more = len(found) > limit
        return OperationPage(found[:limit], self._cursor_of(found[limit - 1].number) if more else "")

    def apply(
        self,
        operation_id: str,
        event: StateEvent,
        *,
        failure: OperationFailure | None = None,
        result: Mapping[str, object] | None = None,
        outputs: Mapping[str, str] | None = None,
        peak_memory_bytes: int | None = None,
    ) -> Operation:
        """Move an operation, and close its log when the new state is final.

        Raises:
            NotFound: no such operation.
            InvalidTransition: the event is not valid in its state.
        """
        old = self.get(operation_id)
        state = next_state(old.state, event, f"operation {operation_id}")
        now = self._clock.now()
        new = replace(
            old, state=state, ended_at=now if state.is_final else None, failure=failure, result=result,
            outputs=outputs, peak_memory_bytes=peak_memory_bytes,
        )  # fmt: skip
        if event is StateEvent.START:
            new = replace(new, started_at=now)
        self._operations[operation_id] = new
        log = self._logs[operation_id]
        log.add("state", operation=new)
        if state.is_final:
            log.add("result", operation=new)
            self._ended_bytes[operation_id] = log.size_bytes + len(json.dumps(new.to_json(), default=repr))
            self._forget_oldest()
        return new

    def publish_progress(self, operation_id: str, progress: Progress) -> None:
        """Add a progress event; after the end, nothing."""
        if (log := self._logs.get(operation_id)) is not None and not log.is_closed:
            self._operations[operation_id] = replace(self._operations[operation_id], progress=progress)
            log.add("progress", progress=progress)

    def tell_log(self, operation_id: str, line: str) -> None:
        """Add a log event; after the end, nothing."""
        if (log := self._logs.get(operation_id)) is not None and not log.is_closed:
            log.add("log", log=line)

    def validate(self) -> None:
        """Check the invariants; for tests."""
        ended = {o.id for o in self._operations.values() if o.state.is_final}
        assert set(self._operations) == set(self._logs)
        assert set(self._ended_bytes) == ended
        for operation in self._operations.values():
            assert operation.state.is_final == (operation.ended_at is not None)
            assert (operation.failure is not None) == (operation.state is OperationState.FAILED)
            events = self.events_after(operation.id)
            assert operation.state.is_final == (events[-1].kind == "result")
            numbers = [event.sequence for event in events]
            assert numbers == sorted(set(numbers))

    def _forget_oldest(self) -> None:
        """Delete the finished operations that ended first, while there are too many or they are too large."""
        surplus, excess = len(self._ended_bytes) - KEPT_OPERATIONS, sum(self._ended_bytes.values()) - KEPT_BYTES
        for operation_id in list(self._ended_bytes)[:-1]:
            if surplus <= 0 and excess <= 0:
                return
            surplus, excess = surplus - 1, excess - self._ended_bytes.pop(operation_id)
            del self._operations[operation_id], self._logs[operation_id]

    def _cursor_of(self, number: int) -> str:
        return base64.urlsafe_b64encode(f"{self._name}:{number}".encode()).decode().rstrip("=")

    def _number_of(self, cursor: str) -> int:
        try:
            text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
            word, _, number = text.partition(":")
            if word == self._name and number.isascii() and number.isdigit():
                return int(number)
        except (binascii.Error, ValueError):
            pass
        raise InvalidArgument(
            f"cursor {cursor[:80]!r} comes from no list since the box started; leave it out to get the first page",
            field="cursor",
        )
