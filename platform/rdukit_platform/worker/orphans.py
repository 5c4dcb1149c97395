"""Orphans: boxes and folders that outlived their attempts. Their recorded owners identify them; they are ended or
removed.

The database names the open attempts of a job; boxes of other attempts are terminated. So the next worker ends the box
that a killed worker left, and keeps boxes of live attempts.
"""

import fcntl
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from rdukit.errors import BackendUnavailable, RdukitError, Unavailable
from rdukit.files.atomic import remove_tree
from rdukit_platform.backends.contract import BoxBackend, BoxOwner, OwnedBox
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AttemptRow, EndpointReplicaRow, JobRow
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.states import FINAL
from rdukit_platform.worker.pool import clear_pools
from rdukit_platform.worker.verdicts import AttemptFailure

logger = logging.getLogger(__name__)

SWEEP_S: Final = 5.0
GONE_S: Final = 10.0
#: Seconds that an attempt waits until an earlier one releases the job's folder.
LOCK_WAIT_S: Final = 3.0
#: Seconds after a replica's end during which only its worker removes its folder.
FOLDER_S: Final = 30.0


def choose_orphans(boxes: Iterable[OwnedBox], open_attempts: Mapping[str, Collection[int]]) -> list[OwnedBox]:
    """Choose the boxes whose attempt is over (pure).

    Args:
        open_attempts: numbers of the open attempts of each known job. Boxes of other jobs are not ours. Read it after
            ``boxes``, since attempts begin before their boxes.
    """
    return [
        box
        for box in boxes
        if (numbers := open_attempts.get(box.owner.id)) is not None and box.owner.epoch not in numbers
    ]


def read_open_attempts(database: Database, job_ids: Collection[str]) -> dict[str, list[int]]:
    """Read the numbers of the open attempts of each job that exists."""
    with database.read() as session:
        found: dict[str, list[int]] = {
            id: [] for id in session.scalars(select(JobRow.id).where(JobRow.id.in_(job_ids)))
        }
        rows = session.execute(
            select(AttemptRow.job_id, AttemptRow.number).where(
                AttemptRow.job_id.in_(job_ids), AttemptRow.ended_at.is_(None)
            )
        )
        for job_id, number in rows:
            found[job_id].append(number)
        # A replica has one box only, so one attempt.
        columns = (EndpointReplicaRow.id, EndpointReplicaRow.state)
        for replica_id, state in session.execute(select(*columns).where(EndpointReplicaRow.id.in_(job_ids))):
            found[replica_id] = [] if state == ReplicaState.ENDED else [1]
    return found


def reap_orphans(backend: BoxBackend, database: Database) -> int:
    """End every box whose attempt is over. Returns how many.

    Raises:
        Unavailable: the backend does not answer.
    """
    boxes = backend.owned()
    if not boxes:
        return 0
    left = choose_orphans(boxes, read_open_attempts(database, {box.owner.id for box in boxes}))
    for box in left:
        reap(backend, box)
    return len(left)


def clear_folders(work: Path, database: Database) -> int:
    """Remove the folders of jobs that have ended; a killed worker leaves them. Returns how many."""
    folders = {path.name: path for path in work.iterdir()} if work.is_dir() else {}
    if not folders:
        return 0
    states = [str(state) for state in FINAL]
    with database.read() as session:
        ended = list(session.scalars(select(JobRow.id).where(JobRow.id.in_(folders), JobRow.state.in_(states))))
        # A live worker has some seconds to end the box and remove the folder itself.
        is_over = EndpointReplicaRow.ended_at < time.time() - FOLDER_S
        ended += session.scalars(select(EndpointReplicaRow.id).where(EndpointReplicaRow.id.in_(folders), is_over))
    for name in ended:
        remove_tree(folders[name])
    return len(ended)


def reap_earlier(backend: BoxBackend, owner: BoxOwner, wait_s: float = GONE_S) -> None:
    """End the boxes of a job's earlier attempts, so that no other box uses the job's folder.

    Args:
        wait_s: seconds to wait for their end: the orphan reaper may be ending one at the same time.

    Raises:
        Unavailable: the backend does not answer, or a box does not end.
    """
    left = backend.orphans(owner)
    for box in left:
        reap(backend, box)
    deadline = time.monotonic() + wait_s
    while left := left and backend.orphans(owner):
        if time.monotonic() > deadline:
            raise Unavailable(f"box {left[0].id} of attempt {left[0].owner.epoch} of job {owner.id} does not end")
        time.sleep(0.1)


def reap(backend: BoxBackend, box: OwnedBox) -> None:
    """Terminate a box, and log it."""
    logger.warning("box left behind job=%s attempt=%d box=%s id=%s", box.owner.id, box.owner.epoch, box.box, box.id)
    backend.reap(box)


def end_earlier(backend: BoxBackend, owner: BoxOwner) -> None:
    """End the boxes of a job's earlier attempts, if there were any.

    Raises:
        AttemptFailure: a box does not end.
        BackendUnavailable: the backend does not answer.
    """
    if owner.epoch == 1:
        return
    try:
        reap_earlier(backend, owner)
    except BackendUnavailable:
        raise
    except Unavailable as cause:
        raise AttemptFailure(AttemptOutcome.FOLDER_BUSY, cause) from cause


def lock_folder(lock: int, job_id: str, stop: threading.Event) -> None:
    """Lock the folder of a job with an open file in it, which its boxes inherit.

    Raises:
        AttemptFailure: an earlier attempt still uses it.
    """
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as cause:
            if time.monotonic() > deadline or stop.is_set():
                error = Unavailable(f"an earlier attempt still uses the folder of job {job_id}")
                raise AttemptFailure(AttemptOutcome.FOLDER_BUSY, error) from cause
        time.sleep(0.05)


class OrphanReaper:
    """Thread that removes orphans at the start of a worker, and then every ``SWEEP_S`` seconds."""

    def __init__(self, backend: BoxBackend, database: Database, work: Path, pools: Path) -> None:
        self._backend, self._database, self._work, self._pools = backend, database, work, pools
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orphan_reaper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; waits for a termination that is under way."""
        self._stop.set()
        self._thread.join(15.0)

    def _run(self) -> None:
        while True:
            try:
                reap_orphans(self._backend, self._database)
                clear_folders(self._work, self._database)
                clear_pools(self._backend, self._pools)
            except (RdukitError, DBAPIError, OSError) as error:
                logger.warning("boxes were not looked through error=%s", error)
            if self._stop.wait(SWEEP_S):
                return
