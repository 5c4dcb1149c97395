"""Parts of an attempt whose members are on several nodes: this worker's one, its link to the others, and who tells why.

The first part's worker does all that an attempt's does. The others have a box of their own, whose success is nothing
but the end of their members; they hold on until the attempt ends.
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
from rdukit_platform.worker.inputs import AttemptFailure
from rdukit_platform.worker.walls import WallKind, Walls

#: Seconds for which a part waits for others that nobody has claimed: then its tiles are of use to somebody else.
CLAIM_S: Final = 60.0
POLL_S: Final = 0.1
#: Seconds beyond a lease for which a part whose box lost another waits for that one's worker to say why.
TELL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class AttemptPart:
    """Part of an attempt that a worker has; of an attempt on one node that is all of it."""

    number: int
    parts: int
    #: Rank of its first member, how many it has, and how many all parts have.
    first_rank: int
    members: int
    world: int
    #: Of the links between the parts.
    key: bytes = b""

    @property
    def is_first(self) -> bool:
        """Return whether it has the outputs, the progress and the answer of the whole."""
        return self.number == 0

    @property
    def is_spread(self) -> bool:
        """Return whether there are others."""
        return self.parts > 1


def part_of(places: Sequence[PartPlace], number: int, key: bytes = b"") -> AttemptPart:
    """Return a part of those at some places, in the order of its members' ranks (pure)."""
    firsts = [0, *accumulate(place.members for place in places)]
    return AttemptPart(number, len(places), firsts[number], places[number].members, firsts[-1], key)


def alone() -> AttemptPart:
    """Return the part of a job of one member (pure)."""
    return AttemptPart(0, 1, 0, 1, 1)


def read_own_part(session: Session, job: JobRow, fencing: FencingToken) -> AttemptPart:
    """Return the part that was claimed with a token, in the transaction that claimed it."""
    if job.members == 1:  # of most jobs nothing need be read
        return alone()
    attempt = session.get_one(AttemptRow, fencing.attempt_id)
    return part_of(list_places(session, attempt, job.members), fencing.part, link_key(attempt.id, attempt.token))


@contextmanager
def linked(
    context: WorkerContext, fencing: FencingToken, job: JobRow, part: AttemptPart, folder: Path, stop: threading.Event
) -> Iterator[LinkedPart | None]:
    """Have a bridge to the other parts while the block lasts, which begins when all are ready. Yields the box's place.

    ``None``: there are no others.

    Args:
        folder: the job's own.

    Raises:
        AttemptFailure: not all parts were claimed, this worker joins no boxes any more, or ``stop`` was set.
    """
    if not part.is_spread:
        yield None
        return
    if context.link_host is None:
        raise AttemptFailure(
            AttemptOutcome.NO_RESOURCES, NoResources(f"{NODE_LINK_HOST.name} is not set any more on {context.node}")
        )
    # Alone in its folder, of which its box sees all.
    socket = folder / "link" / "s"
    remove_tree(socket.parent)
    make_folder(socket.parent)
    socket.parent.chmod(0o755)  # inside of one that is this worker's only
    mode = 0o666 if os.geteuid() == 0 else 0o600  # a worker that is root runs its boxes as somebody else
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
    """Return where all parts' bridges answer, once each does: a claimed one that never does loses its lease."""
    until = time.monotonic() + CLAIM_S
    while not stop.is_set():
        places = read()
        addresses = [place.address for place in places if place.address is not None]
        if len(addresses) == len(places):
            return addresses
        late = [str(place.node) for place in places if not place.is_claimed]
        if late and time.monotonic() > until:
            error = NoResources(f"no worker of {', '.join(late)} took the members there within {CLAIM_S:g} s")
            raise AttemptFailure(AttemptOutcome.NO_RESOURCES, error)
        stop.wait(POLL_S)
    raise AttemptFailure(AttemptOutcome.INTERRUPTED, Cancelled("the attempt was stopped before its box"))


def await_reason(part: AttemptPart, code: object, lease_s: float, stop: threading.Event) -> None:
    """Let others tell first why they ended, whom this part's box only missed; returns early when the attempt ends.

    What a first member cancels, its worker writes down in its own time.
    """
    if part.is_spread and code == PeerLost.code:
        stop.wait(lease_s + TELL_S)
    elif not part.is_first and code == Cancelled.code:
        stop.wait()


def hold_on(box: RunningBox | None, stop: threading.Event) -> NoReturn:
    """Wait, with members that have done their work, until the first part ends the attempt.

    Raises:
        AttemptFailure: it has.
    """
    if box is not None:
        box.stop(0.0)
    stop.wait()
    raise AttemptFailure(AttemptOutcome.INTERRUPTED, Cancelled("the worker was stopped"))


def choose_link_host(host: str, backend: str, walls: Walls) -> str | None:
    """Return where a worker answers those of other nodes; ``None``: nowhere, it takes no part in jobs on several.

    Raises:
        InvalidArgument: ``host`` is set, and its boxes cannot be joined.
    """
    if not host:
        return None
    why = ""
    if backend != PROCESS or walls.kind is not WallKind.FENCE:
        why = f"boxes here are not fenced processes ({walls.description}, backend {backend})"
    elif missing := why_no_address():
        why = f"a fence here has no address of its own: {missing}"
    if why:
        raise InvalidArgument(f"{NODE_LINK_HOST.name} is {host!r}, and {why}; legal: no value")
    return host
