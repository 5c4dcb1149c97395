"""State of a claimed attempt: its phases share it, and write it down."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy.orm import Session

from rdukit.box.links import LinkedPart
from rdukit.telemetry.model import Span, SpanKind
from rdukit.telemetry.spans import begin_span, end_span
from rdukit_platform.backends.contract import BoxOwner, RunningBox
from rdukit_platform.backends.job_boxes import OwnBox
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.worker.attempts.tracing import AttemptTrace
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.parts import AttemptPart
from rdukit_platform.worker.patience import patiently
from rdukit_platform.worker.pool import PooledBox
from rdukit_platform.worker.tiles import LeasedTiles

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that a box may take to end itself.
STOP_S: Final = 8.0


@dataclass(slots=True)
class AttemptState:
    """Claimed attempt: its message, the results of its phases so far, and its writes to the database."""

    context: WorkerContext
    fencing: FencingToken
    job: JobRow
    part: AttemptPart
    #: Set when the attempt must end: lost, cancelled or interrupted.
    stop: threading.Event
    #: The worker is shutting down.
    is_stopping: threading.Event
    #: Set when the attempt is done: its pooled box may already serve another job, and must not be ended.
    is_done: threading.Event
    trace: AttemptTrace
    #: The job's folder. It outlives attempts, so that the next one finds the checkpoint.
    folder: Path
    #: Folder for the box's outputs; a further part keeps none.
    output: Path
    #: Folder with everything that the box writes.
    scope: Path
    #: Closed when the phases are over, latest first: the box, the bridge, the leases, the folder's lock.
    held: ExitStack = field(default_factory=ExitStack)
    lock: int = -1
    inputs: dict[str, str] = field(default_factory=dict)
    own: OwnBox | None = None
    #: Leases of tiles, one per member, in the node's form and in the box's form.
    leases: list[dict[str, Any]] = field(default_factory=list)
    tiles: Sequence[LeasedTiles] = ()
    link: LinkedPart | None = None
    box: RunningBox | None = None
    #: Pooled box in use, if any; it survives the attempt.
    pooled: PooledBox | None = None
    #: The box was ended because it exceeded its disk limit.
    has_hit_wall: bool = False
    operation: dict[str, Any] = field(default_factory=dict)
    work_span: Span | None = None

    @property
    def name(self) -> str:
        """Return the name of the attempt's folders in a pooled box."""
        return f"{self.job.id}-{self.job.attempt}"

    @property
    def owner(self) -> BoxOwner:
        """Return the owner of the attempt's own box."""
        return BoxOwner(self.job.id, self.job.attempt)

    def begin_work(self) -> Span:
        """Begin the span of the box's work; ``end_work`` ends it, at the latest when the phases are over."""
        self.work_span = begin_span(f"run {self.job.verb}", kind=SpanKind.CLIENT)
        self.held.callback(self.end_work)
        return self.work_span

    def end_work(self) -> None:
        """End the span of the box's work, unless it has ended."""
        begun, self.work_span = self.work_span, None
        if begun is not None:
            end_span(begun)

    # -- writing down ------------------------------------------------------------------------------------------------

    def write(
        self, change: Callable[[Session], T], *, is_durable: bool = True, on_commit: Callable[[], object] = lambda: None
    ) -> T:  # fmt: skip
        """Write to the database; wait while its disk is full."""

        def write() -> T:
            with self.context.database.write(is_durable=is_durable, on_commit=on_commit) as session:
                return change(session)

        return patiently(write, self.stop, inf)

    def note(self, change: Callable[[Session], None]) -> None:
        """Write the attempt's progress. Not durable: attempts do not survive a power loss."""
        self.write(change, is_durable=False)

    def record_logs(self, lines: Sequence[str]) -> None:
        """Add lines to the job's log."""
        if lines:
            self.note(lambda session: execution.record_logs(session, self.fencing, lines, self.context.clock.now()))

    def say_wait(self, box: Mapping[str, object], why: str, code: str) -> None:
        """Set the job's wait reason; empty: it waits no longer."""
        self.note(lambda session: execution.wait_for_place(session, self.fencing, box, why, code))

    def patiently(self, action: Callable[[], T]) -> T:
        """Run an action that needs disk or bucket; while one is unavailable, the job's wait reason names it."""
        return patiently(action, self.stop, tell=lambda why: self.say_wait({}, why, why and WaitCode.RESOURCES))
