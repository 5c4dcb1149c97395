"""Parts of an attempt on several nodes: this worker's part, its links to the others, and the reason of an end.

The first part's worker does everything that the worker of a single attempt does. Each further part has a box of its
own. Its success only means that its members ended; its worker waits until the attempt ends.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Final, NoReturn

from sqlalchemy.orm import Session

from rdukit.box.links import LinkedPart, link_key
from rdukit.errors import Cancelled, InvalidArgument, LeaseLost, NoResources, PeerLost, RdukitError
from rdukit.fence.probe import why_no_address
from rdukit.files.atomic import remove_tree
from rdukit.files.home import make_folder
from rdukit_platform.audit.service import WORKER, Act, AuditOutcome, AuditRecord
from rdukit_platform.backends.contract import RunningBox
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.fencing import PartPlace, list_places
from rdukit_platform.settings import NODE_LINK_HOST, PROCESS
from rdukit_platform.worker.bridge import bridging
from rdukit_platform.worker.context import WorkerContext
from rdukit_platform.worker.verdicts import AttemptFailure
from rdukit_platform.worker.walls import WallKind, Walls

#: Seconds that a part waits for unclaimed parts, before it releases its tiles.
CLAIM_S: Final = 60.0
POLL_S: Final = 0.1
#: Seconds beyond a lease that a part, whose box lost a peer, waits for the peer's worker to report the reason.
TELL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class AttemptPart:
    """Part of an attempt that a worker has; on one node, the whole attempt."""

    number: int
    parts: int
    #: Rank of its first member, number of its members, and number of all parts' members.
    first_rank: int
    members: int
    world: int
    #: Key of the links between the parts.
    key: bytes = b""

    @property
    def is_first(self) -> bool:
        """Return whether it delivers the attempt's outputs, progress and result."""
        return self.number == 0

    @property
    def is_spread(self) -> bool:
        """Return whether the attempt has further parts."""
        return self.parts > 1


def part_of(places: Sequence[PartPlace], number: int, key: bytes = b"") -> AttemptPart:
    """Return part ``number`` of the parts at ``places``, which are in the order of ranks (pure)."""
    firsts = [0, *accumulate(place.members for place in places)]
    return AttemptPart(number, len(places), firsts[number], places[number].members, firsts[-1], key)


def alone() -> AttemptPart:
    """Return the part of a job of one member (pure)."""
    return AttemptPart(0, 1, 0, 1, 1)


def read_own_part(session: Session, job: JobRow, fencing: FencingToken) -> AttemptPart:
    """Return the part that a token has claimed; call it in the claiming transaction."""
    if job.members == 1:  # most jobs need no query
        return alone()
    attempt = session.get_one(AttemptRow, fencing.attempt_id)
    return part_of(list_places(session, attempt, job.members), fencing.part, link_key(attempt.id, attempt.token))


@contextmanager
def linked(
    context: WorkerContext, fencing: FencingToken, job: JobRow, part: AttemptPart, folder: Path, stop: threading.Event
) -> Iterator[LinkedPart | None]:
    """Run a bridge to the other parts while the block lasts. The block begins when all are ready. Yields the box's
    place.

    ``None``: there are no other parts.

    Args:
        folder: the job's own.

    Raises:
        AttemptFailure: a part was not claimed, this worker no longer joins boxes, or ``stop`` was set.
    """
    if not part.is_spread:
        yield None
        return
    if context.link_host is None:
        raise AttemptFailure(
            AttemptOutcome.NO_RESOURCES, NoResources(f"{NODE_LINK_HOST.name} is no longer set on {context.node}")
        )
    # Alone in its folder, because the box sees everything there.
    socket = folder / "link" / "s"
    remove_tree(socket.parent)
    make_folder(socket.parent)
    socket.parent.chmod(0o755)  # inside a folder that only this worker can enter
    mode = 0o666 if os.geteuid() == 0 else 0o600  # a worker that is root runs its boxes as other users
    refused = partial(_record_refusal, context, job, part)
    with bridging(part.key, part.number, socket, context.link_host, mode, refused) as bridge:
        with context.database.write(is_durable=False) as session:
            execution.tell_address(session, fencing, bridge.address)
        bridge.meet(_await_all(lambda: _read_places(context, fencing, job), stop))
        yield LinkedPart(part.number, part.parts, part.first_rank, part.world, socket)


def _record_refusal(context: WorkerContext, job: JobRow, part: AttemptPart, address: str, error: RdukitError) -> None:
    target = f"{job.id} attempt {job.attempt} part {part.number}"
    context.audit.note(
        AuditRecord(
            context.clock.now(), Act.ATTEMPT, AuditOutcome.REFUSED, WORKER, job.tenant_id, target, error.code,
            error.message, address,
        )
    )  # fmt: skip


def _read_places(context: WorkerContext, fencing: FencingToken, job: JobRow) -> Sequence[PartPlace]:
    with context.database.read() as session:
        attempt = session.get_one(AttemptRow, fencing.attempt_id)
        if attempt.ended_at is not None:
            raise LeaseLost(f"attempt {attempt.id} of job {job.id} has ended")
        return list_places(session, attempt, job.members)


def _await_all(read: Callable[[], Sequence[PartPlace]], stop: threading.Event) -> list[str]:
    """Return the addresses of all parts' bridges, once all are known. A part that never answers loses its lease."""
    until = time.monotonic() + CLAIM_S
    while not stop.is_set():
        places = read()
        addresses = [place.address for place in places if place.address is not None]
        if len(addresses) == len(places):
            return addresses
        late = [str(place.node) for place in places if not place.is_claimed]
        if late and time.monotonic() > until:
            error = NoResources(f"no worker of {', '.join(late)} claimed the members there within {CLAIM_S:g} s")
            raise AttemptFailure(AttemptOutcome.NO_RESOURCES, error)
        stop.wait(POLL_S)
    raise AttemptFailure(AttemptOutcome.INTERRUPTED, Cancelled("the attempt was stopped before its box"))


def await_reason(part: AttemptPart, code: object, lease_s: float, stop: threading.Event) -> None:
    """Let the lost part's worker report its reason first; returns early when the attempt ends.

    A cancellation by the first part is recorded by that part's worker.
    """
    if part.is_spread and code == PeerLost.code:
        stop.wait(lease_s + TELL_S)
    elif not part.is_first and code == Cancelled.code:
        stop.wait()


def hold_on(box: RunningBox | None, stop: threading.Event) -> NoReturn:
    """Stop the box of finished members, and wait until the first part ends the attempt.

    Raises:
        AttemptFailure: the first part has ended the attempt.
    """
    if box is not None:
        box.stop(0.0)
    stop.wait()
    raise AttemptFailure(AttemptOutcome.INTERRUPTED, Cancelled("the worker was stopped"))


def choose_link_host(host: str, backend: str, walls: Walls) -> str | None:
    """Return the address for workers of other nodes; ``None``: this worker runs no jobs on several nodes.

    Raises:
        InvalidArgument: ``host`` is set, but boxes here cannot be linked.
    """
    if not host:
        return None
    why = ""
    if backend != PROCESS or walls.kind is not WallKind.FENCE:
        why = f"job boxes here are not fenced processes ({walls.description}, backend {backend})"
    elif missing := why_no_address():
        why = f"fences here have no separate network addresses: {missing}"
    if why:
        raise InvalidArgument(f"{NODE_LINK_HOST.name} is {host!r}, and {why}; expected no value")
    return host
