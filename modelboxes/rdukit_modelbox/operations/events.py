"""The event log of one operation that has not ended, and how it is followed. In memory, one thread."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from rdukit.errors import Conflict
from rdukit.interfaces import Clock
from rdukit_modelbox.context import Progress
from rdukit_modelbox.operations.values import MAX_LOG_CHARACTERS, EventKind, Operation, OperationEvent

#: Log and progress events kept for each operation; the oldest go first, states and results never.
KEPT_EVENTS: Final = 2000
#: Added to the sequence when an operation outlives its box: events that were told a moment before a kill may not have
#: been written, and their numbers must not come again.
SEQUENCE_GAP: Final = 1_000_000


class OperationEventLog:
    """Events of one operation. Ends with a ``result``; nothing comes after it."""

    def __init__(self, clock: Clock, known: list[OperationEvent] | None = None) -> None:
        """``known``: what an earlier process of the box wrote, in order."""
        self._clock = clock
        self._sequence = known[-1].sequence + SEQUENCE_GAP if known else 0
        #: States and the result: at most four for each run.
        self._kept: list[OperationEvent] = []
        #: Progress and log.
        self._passing: deque[OperationEvent] = deque(maxlen=KEPT_EVENTS)
        self._changed = asyncio.Event()
        for event in known or ():
            self._append(event)

    @property
    def is_closed(self) -> bool:
        """The result is there."""
        return bool(self._kept) and self._kept[-1].kind == "result"

    @property
    def oldest_passing(self) -> int:
        """Sequence number of the oldest progress or log event that is kept; 0 if there is none."""
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
            Conflict: the log has its result already.
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

    def _append(self, event: OperationEvent) -> None:
        (self._kept if event.kind in {"state", "result"} else self._passing).append(event)
