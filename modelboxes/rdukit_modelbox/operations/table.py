"""The table of operations, with an event log for each that has not ended; its journal outlives the process.

States are in ``values.py``. The table decides nothing about processes; ``runner.py`` runs them. One thread.
"""

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rdukit.errors import Conflict, Interrupted, InvalidArgument, NotFound
from rdukit.interfaces import Clock
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations.journal import OperationJournal
from rdukit_modelbox.operations.values import (
    MAX_LOG_CHARACTERS,
    Delivery,
    EventKind,
    Operation,
    OperationEvent,
    OperationFailure,
    OperationState,
    StateEvent,
    VerbCall,
    next_state,
)
from rdukit_modelbox.verbs.context import Progress

#: Largest number of log and progress events per operation; the oldest are dropped first, states and results never.
KEPT_EVENTS: Final = 2000
#: Added to the sequence when an operation outlives its box: events sent just before a kill may be unwritten, and their
#: numbers must not be reused.
SEQUENCE_GAP: Final = 1_000_000


class OperationEventLog:
    """Events of one operation. The last event is the ``result``."""

    def __init__(self, clock: Clock, known: list[OperationEvent] | None = None) -> None:
        """``known``: events of an earlier process of the box, in order."""
        self._clock = clock
        self._sequence = known[-1].sequence + SEQUENCE_GAP if known else 0
        #: States and the result, at most four per run.
        self._kept: list[OperationEvent] = []
        #: Progress and log events.
        self._passing: deque[OperationEvent] = deque(maxlen=KEPT_EVENTS)
        self._changed = asyncio.Event()
        for event in known or ():
            self._append(event)

    @property
    def is_closed(self) -> bool:
        """Return whether the result is there."""
        return bool(self._kept) and self._kept[-1].kind == "result"

    @property
    def oldest_passing(self) -> int:
        """Return the sequence number of the oldest stored progress or log event; 0 if there is none."""
        return self._passing[0].sequence if self._passing else 0

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
            Conflict: the log already has its result.
        """
        if self.is_closed:
            raise Conflict(f"the operation has ended; no {kind} event may follow its result")
        self._sequence += 1
        line = log if log is None or len(log) <= MAX_LOG_CHARACTERS else log[:MAX_LOG_CHARACTERS] + " …"
        event = OperationEvent(self._sequence, kind, self._clock.now(), operation, progress, line)
        self._append(event)
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

    def _append(self, event: OperationEvent) -> None:
        (self._kept if event.kind in {"state", "result"} else self._passing).append(event)


#: Largest number of finished operations; the oldest are deleted first.
KEPT_OPERATIONS: Final = 1000
#: Size of the journal in bytes above which the oldest finished operations are deleted.
KEPT_BYTES: Final = 64 << 20
#: Number of starts after which an unfinished operation is not resumed, because it may be killing the box.
MAX_RUNS: Final = 5

#: The highest number that SQLite has.
_LAST_SEQUENCE: Final = (1 << 63) - 1
_INTERRUPTED: Final = "the box ended while this operation was {state}; ask again, or ask with resume"
_TOO_OFTEN: Final = "the box ended {runs} times while this operation was running; it is not resumed once more"


@dataclass(frozen=True, slots=True)
class OperationPage:
    """A part of a list, newest first; ``cursor`` gets the next part, empty at the end."""

    operations: list[Operation]
    cursor: str


class OperationTable:
    """Operations of a state folder."""

    def __init__(
        self,
        clock: Clock,
        journal: OperationJournal | None = None,
        on_state: Callable[[Operation], object] = lambda operation: None,
    ) -> None:
        """``on_state`` is called with each operation that changes its state."""
        self._clock = clock
        self._journal = journal or OperationJournal()
        self._on_state = on_state
        self._operations: dict[str, Operation] = {}
        self._calls: dict[str, VerbCall] = {}
        #: Logs of open operations; those of ended ones are only in the journal.
        self._logs: dict[str, OperationEventLog] = {}
        #: Idempotency key -> operation id and its request.
        self._keys: dict[str, tuple[str, str]] = {}
        #: Progress and log events since old ones were last dropped from the journal.
        self._passed: dict[str, int] = {}

    def recover(self) -> list[tuple[Operation, VerbCall]]:
        """Take over the operations of an earlier process of the box. Returns those queued again, oldest first.

        Open operations without ``resume`` fail as ``interrupted``.
        """
        resumed = []
        for entry in self._journal.entries():
            operation, call = entry.operation, entry.call
            self._operations[operation.id], self._calls[operation.id] = operation, call
            if call.idempotency_key:
                self._keys[call.idempotency_key] = (operation.id, entry.asked)
            if operation.state.is_final:
                continue
            self._logs[operation.id] = OperationEventLog(self._clock, self._journal.events_of(operation.number))
            if call.resume and operation.runs < MAX_RUNS:
                resumed.append((self.apply(operation.id, StateEvent.RESUME), call))
                continue
            words = _TOO_OFTEN if call.resume else _INTERRUPTED
            message = words.format(state=operation.state, runs=operation.runs)
            self.apply(operation.id, StateEvent.FAIL, failure=OperationFailure(Interrupted.code, message))
        return resumed

    def find_by_key(self, key: str, asked: str) -> Operation | None:
        """Find the operation that the idempotency key ``key`` stands for; ``asked`` is the request, to be compared.

        Raises:
            Conflict: the key was used for another request.
        """
        if key not in self._keys:
            return None
        known, known_asked = self._keys[key]
        if known_asked != asked:
            raise Conflict(
                f"idempotency key {key!r} stands for another request (operation {known}); use a new key",
                operation=known, field="idempotency_key",
            )  # fmt: skip
        return self._operations[known]

    def add(self, operation_id: str, verb: Verb, call: VerbCall | None = None) -> Operation:
        """Return a new queued operation; its key, unless empty, identifies it from now on.

        Raises:
            Unavailable: it cannot be written.
        """
        call = call or VerbCall()
        queued = Operation(operation_id, verb, OperationState.QUEUED, self._clock.now())
        queued = _with_delivery(queued, call)
        asked = call.asked(verb)
        operation = replace(queued, number=self._journal.add(queued, call, asked))
        self._operations[operation_id], self._calls[operation_id] = operation, call
        log = self._logs[operation_id] = OperationEventLog(self._clock)
        if call.idempotency_key:
            self._keys[call.idempotency_key] = (operation_id, asked)
        self._journal.save(operation, [log.add("state", operation=operation)])
        self._forget_oldest()
        self._on_state(operation)
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
                f"no operation {operation_id!r}; this box knows {len(self._operations)}", field="id"
            ) from None

    def find(self, operation_id: str) -> Operation | None:
        """Return the operation's present state; ``None``: there is none, or it was deleted."""
        return self._operations.get(operation_id)

    def call_of(self, operation_id: str) -> VerbCall:
        """Return the operation's request.

        Raises:
            NotFound: as ``get``.
        """
        self.get(operation_id)
        return self._calls[operation_id]

    def events_after(self, operation_id: str, sequence: int = 0) -> list[OperationEvent]:
        """Return the operation's events so far with numbers above ``sequence``.

        Raises:
            NotFound: as ``get``.
        """
        operation = self.get(operation_id)
        sequence = min(sequence, _LAST_SEQUENCE)
        log = self._logs.get(operation_id)
        return log.after(sequence) if log is not None else self._journal.events_of(operation.number, sequence)

    async def follow(self, operation_id: str, sequence: int = 0) -> AsyncIterator[OperationEvent]:
        """Yield the operation's events after ``sequence`` as they come; end after the result.

        Raises:
            NotFound: as ``get``.
        """
        self.get(operation_id)
        log = self._logs.get(operation_id)
        if log is None:
            for event in self.events_after(operation_id, sequence):
                yield event
            return
        async for event in log.follow(sequence):
            yield event

    def all(self) -> list[Operation]:
        """Return every operation, oldest first."""
        return list(self._operations.values())

    def page(self, state: OperationState | None, verb: Verb | None, limit: int, cursor: str = "") -> OperationPage:
        """List at most ``limit`` operations in that state and of that verb, newest first, from ``cursor`` on.

        Raises:
            InvalidArgument: the cursor is of no page.
        """
        below = _number_of(cursor) if cursor else None
        found = [
            operation
            for operation in reversed(self._operations.values())
            if (below is None or operation.number < below)
            and (state is None or operation.state is state)
            and (verb is None or operation.verb is verb)
        ]
        more = len(found) > limit
        return OperationPage(found[:limit], _cursor_of(found[limit - 1].number) if more else "")

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
        """Move an operation, record it, and close its log when the new state is final.

        Raises:
            NotFound: no such operation.
            InvalidTransition: the event is not legal in its state.
        """
        old = self.get(operation_id)
        state = next_state(old.state, event, f"operation {operation_id}")
        now = self._clock.now()
        new = replace(
            old, state=state, ended_at=now if state.is_final else None, failure=failure, result=result,
            outputs=outputs, peak_memory_bytes=peak_memory_bytes,
        )  # fmt: skip
        if event is StateEvent.START:
            new = replace(new, started_at=now, runs=old.runs + 1, progress=None)
        new = self._operations[operation_id] = _with_delivery(new, self._calls[operation_id])
        log = self._logs[operation_id]
        events = [log.add("state", operation=new)]
        if state.is_final:
            events.append(log.add("result", operation=new))
        self._journal.save(new, events)
        if state.is_final:
            if self._passed.pop(operation_id, 0) > KEPT_EVENTS:
                self._journal.drop_passing(new.number, log.oldest_passing)
            del self._logs[operation_id]
        self._on_state(new)
        return new

    def publish_progress(self, operation_id: str, progress: Progress) -> None:
        """Add a progress event; after the end, nothing."""
        if (log := self._logs.get(operation_id)) is not None:
            operation = self._operations[operation_id] = replace(self._operations[operation_id], progress=progress)
            self._pass(operation, log.add("progress", progress=progress), log)

    def tell_log(self, operation_id: str, line: str) -> None:
        """Add a log event; after the end, nothing."""
        if (log := self._logs.get(operation_id)) is not None:
            self._pass(self._operations[operation_id], log.add("log", log=line), log)

    def set_delivery(self, operation_id: str, delivery: Delivery) -> None:
        """Record the state of a delivery; does nothing if the operation was deleted."""
        old = self._operations.get(operation_id)
        if old is None:
            return
        deliveries = tuple(delivery if known.id == delivery.id else known for known in old.deliveries)
        new = self._operations[operation_id] = replace(old, deliveries=deliveries)
        self._journal.save(new)

    def flush(self) -> None:
        """Write the buffered progress and log events."""
        self._journal.flush()

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def validate(self) -> None:
        """Check the invariants; for tests."""
        assert set(self._operations) == set(self._calls)
        assert set(self._logs) == {o.id for o in self._operations.values() if not o.state.is_final}
        for operation in self._operations.values():
            assert operation.state.is_final == (operation.ended_at is not None)
            assert (operation.failure is not None) == (operation.state is OperationState.FAILED)
            events = self.events_after(operation.id)
            assert operation.state.is_final == (events[-1].kind == "result")
            numbers = [event.sequence for event in events]
            assert numbers == sorted(set(numbers))
        assert all(known in self._operations for known, _ in self._keys.values())
        written = {entry.operation.id: entry.operation for entry in self._journal.entries()}
        assert list(written) == list(self._operations)
        assert all(written[o.id] == o for o in self._operations.values() if o.state.is_final)

    def _pass(self, operation: Operation, event: OperationEvent, log: OperationEventLog) -> None:
        self._journal.gather(operation.number, event)
        passed = self._passed[operation.id] = self._passed.get(operation.id, 0) + 1
        if passed > 2 * KEPT_EVENTS:
            self._journal.flush()
            self._journal.drop_passing(operation.number, log.oldest_passing)
            self._passed[operation.id] = KEPT_EVENTS

    def _forget_oldest(self) -> None:
        surplus = len(self._operations) - KEPT_OPERATIONS
        if surplus <= 0:
            if self._journal.size_bytes() <= KEPT_BYTES:
                return
            surplus = max(1, len(self._operations) // 10)
        oldest = [o for o in self._operations.values() if o.state.is_final][:surplus]
        for operation in oldest:
            call = self._calls.pop(operation.id)
            del self._operations[operation.id]
            if self._keys.get(call.idempotency_key, ("", ""))[0] == operation.id:
                del self._keys[call.idempotency_key]
        self._journal.forget(operation.number for operation in oldest)


def _with_delivery(operation: Operation, call: VerbCall) -> Operation:
    """Return the operation with an announcement of its state due, if its request asks for one."""
    if call.webhook is None or str(operation.state) not in call.webhook.events:
        return operation
    delivery = Delivery(f"{operation.id}.{len(operation.deliveries) + 1}", f"operation.{operation.state}")
    return replace(operation, deliveries=(*operation.deliveries, delivery))


def _cursor_of(number: int) -> str:
    return base64.urlsafe_b64encode(f"before:{number}".encode()).decode().rstrip("=")


def _number_of(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        word, _, number = text.partition(":")
        if word == "before" and number.isascii() and number.isdigit():
            return int(number)
    except (binascii.Error, ValueError):
        pass
    raise InvalidArgument(f"cursor {cursor[:80]!r} is not one that a list gave; leave it out to begin", field="cursor")
