"""Pool of boxes that stay for the next job of their tenant, so that most jobs need not wait for a new box.

A box of the pool belongs to one tenant for its life, and to one job at a time. It sees two folders, ``in`` and ``out``;
each job has a folder in both, which is removed with the job. It takes jobs of rdukit's boxes that lease no tiles and
leave no work for a next attempt; such boxes are all started with the same arguments. A pooled box ends with its worker,
after an unsuccessful job, after a number of jobs or some idle seconds, when it has grown, and when others need its
memory.

A worker owns its pool while it holds a lock next to the pool's folder. Containers and Pods outlive their worker: a
worker that finds the lock free ends the boxes of that pool, and removes the folder.
"""

import logging
import os
import secrets
import threading
from collections.abc import Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

from rdukit.box.client import BoxClient
from rdukit.errors import BackendUnavailable, Unavailable
from rdukit.files.atomic import remove_tree
from rdukit.files.home import make_folder
from rdukit.files.locks import sole_lock
from rdukit.interfaces import Clock, Closable
from rdukit.settings import TELEMETRY_OTLP_ENDPOINT, TELEMETRY_SPAN_FILE
from rdukit_platform.backends.container_options import uid_of_box
from rdukit_platform.backends.contract import BoxBackend, BoxFence, BoxOwner, RunningBox
from rdukit_platform.backends.fenced import BOX, make_given_folder, open_to_read
from rdukit_platform.backends.job_boxes import WITHOUT_GRPC, BoxRules, spec_of
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs.service import HOST_VERBS
from rdukit_platform.settings import PROCESS, SLURM

logger = logging.getLogger(__name__)

SPANS: Final = "spans.jsonl"
LOCK: Final = ".lock"
#: Prefix of owners that are pools; other owners are jobs and replicas.
POOL: Final = "pool-"
#: Largest number of jobs of one box: its journal and its log grow with each.
MAX_JOBS: Final = 200
#: A process is measured after its first job and then periodically. It is ended when its growth exceeds the
#: limit.
WEIGH_JOBS: Final = 20
MAX_GROWTH_BYTES: Final = 512 << 20
SWEEP_S: Final = 1.0
#: Seconds that a box has for an answer, and largest answer or event in bytes, since boxes are not trusted.
ANSWER_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 4 << 20

Key = tuple[str, str]


@dataclass(slots=True)
class PooledBox:
    """A box of the pool, and its jobs' folders."""

    key: Key
    folder: Path
    box: RunningBox
    client: BoxClient
    fence: BoxFence | None
    #: Its user, if that differs from the worker's.
    uid: int | None = None
    jobs: int = 0
    #: Time of its return to the pool, by the monotonic clock.
    idle_since: float = 0.0
    #: Its memory after its first job.
    first_bytes: int | None = None
    #: Folders of its jobs' inputs and outputs.
    incoming: Path = field(init=False)
    outputs: Path = field(init=False)
    #: Spans of its present job.
    spans: Path = field(init=False)

    def __post_init__(self) -> None:
        self.incoming, self.outputs = self.folder / "in", self.folder / "out"
        self.spans = spans_of(self.folder, self.fence)

    def make_room(self, name: str) -> tuple[Path, Path]:
        """Create a job's output folder. Returns the path for its inputs, not created yet, and that of its outputs."""
        self.spans.unlink(missing_ok=True)
        output = self.outputs / name
        make_given_folder(output, self.uid)
        return self.incoming / name, output

    def show(self, incoming: Path) -> None:
        """Let the box read a job's inputs."""
        if self.fence is not None or self.uid is not None:
            open_to_read(incoming)

    def clear(self, name: str) -> None:
        """Remove the folders of a job."""
        remove_tree(self.incoming / name)
        remove_tree(self.outputs / name)


def may_stay(jobs: int, first_bytes: int | None, now_bytes: int | None) -> bool:
    """Return whether a box may run another job (pure); ``None`` bytes: not measured."""
    if jobs >= MAX_JOBS:
        return False
    return first_bytes is None or now_bytes is None or now_bytes - first_bytes <= MAX_GROWTH_BYTES


@dataclass(slots=True)
class BoxShelf:
    """Idle boxes by tenant and box, longest idle first."""

    boxes: dict[Key, list[PooledBox]] = field(default_factory=dict)

    def take(self, key: Key) -> PooledBox | None:
        """Take the box that was used last; ``None``: there is no box."""
        found = self.boxes.get(key)
        return found.pop() if found else None

    def put(self, box: PooledBox) -> None:
        """Add an idle box."""
        self.boxes.setdefault(box.key, []).append(box)

    def waiting(self) -> list[PooledBox]:
        """Return all idle boxes, longest idle first."""
        return sorted((box for boxes in self.boxes.values() for box in boxes), key=lambda box: box.idle_since)

    def take_old(self, before: float, most: int, ended: Set[int] = frozenset()) -> list[PooledBox]:
        """Take the boxes idle since before a time, and the longest idle ones beyond ``most``.

        ``ended``: ``id()`` of further boxes to take.
        """
        waiting = self.waiting()
        old = [
            box
            for place, box in enumerate(waiting)
            if box.idle_since < before or place < len(waiting) - most or id(box) in ended
        ]
        gone = set(map(id, old))
        kept = {key: [box for box in boxes if id(box) not in gone] for key, boxes in self.boxes.items()}
        self.boxes = {key: boxes for key, boxes in kept.items() if boxes}
        return old


class BoxPool(Closable):
    """Pool of one worker's boxes. Thread-safe."""

    def __init__(
        self, backend: BoxBackend, rules: BoxRules, pools: Path, clock: Clock, idle_s: float, most: int
    ) -> None:  # fmt: skip
        """
        Args:
            pools: folder of all workers' pools in this home.
            idle_s: seconds after which an idle box ends; 0: the pool is off.
            most: largest number of idle boxes.
        """
        self._backend, self._rules, self._clock, self._idle_s, self._most = backend, rules, clock, idle_s, most
        self._folder = pools / f"{POOL}{secrets.token_hex(6)}"
        self._numbers, self._lock, self._shelf = count(1), threading.Lock(), BoxShelf()
        #: Boxes out of use that could not be ended yet.
        self._left: list[PooledBox] = []
        self._held = ExitStack()
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="pool", daemon=True)
        if self.is_open:
            # The folder is created after the lock, so no other worker removes it.
            self._held.enter_context(sole_lock(lock_of(self._folder)))
            make_folder(self._folder)
            self._sweeper.start()

    @property
    def is_open(self) -> bool:
        """Return whether the pool is on."""
        # In Slurm an idle box would occupy an allocation.
        return self._idle_s > 0 and self._backend.name != SLURM

    def takes(self, job: JobRow) -> bool:
        """Return whether a pooled box can do a job."""
        is_plain = job.box_version is None and job.tiles == 0 and job.members == 1
        return self.is_open and is_plain and job.verb in HOST_VERBS

    def lend(
        self, tenant_id: str, box: str, fence: BoxFence | None, start_s: float, stop: threading.Event
    ) -> PooledBox:  # fmt: skip
        """Return a box for a tenant's job: an idle one, or a new one.

        Args:
            fence: the tenant's fence.
            start_s, stop: as for ``BoxBackend.start``, which documents the errors.
        """
        while True:
            with self._lock:
                found = self._shelf.take((tenant_id, box))
            if found is None:
                return self._start(tenant_id, box, fence, start_s, stop)
            try:
                is_alive = found.box.is_alive()
            except BackendUnavailable:
                self._put(found)
                raise
            if is_alive and found.fence == fence:
                return found
            self.end(found)

    def give_back(self, lent: PooledBox) -> None:
        """Return a box whose job has succeeded to the pool, or end it."""
        lent.jobs, now_bytes = lent.jobs + 1, None
        if self._is_process and lent.jobs % WEIGH_JOBS == 1:
            with suppress(Unavailable):
                now_bytes = lent.box.stats().memory_bytes
            lent.first_bytes = lent.first_bytes or now_bytes
        if self._stop.is_set() or not may_stay(lent.jobs, lent.first_bytes, now_bytes):
            self.end(lent)
            return
        lent.idle_since = self._clock.monotonic()
        self._put(lent)
        if self._stop.is_set():
            self._end_idle(float("inf"))

    def end(self, lent: PooledBox, grace_s: float = 0.0) -> None:
        """End a box that no job uses. If its backend does not answer, the sweeper retries, or it is cleared like a dead
        worker's.
        """
        lent.client.close()
        try:
            lent.box.stop(grace_s)
        except Unavailable as error:
            make_folder(lent.folder)  # the box is found by its folder
            with self._lock:
                self._left.append(lent)
            logger.warning("box of the pool not ended yet box=%s error=%s", lent.key[1], error)
            return
        remove_tree(lent.folder)
        logger.info("box of the pool ends tenant=%s box=%s jobs=%d", *lent.key, lent.jobs)

    def close(self) -> None:
        """End the idle boxes; boxes in use end when they are returned."""
        self._stop.set()
        if self.is_open:
            self._sweeper.join(5.0)
            self._end_idle(float("inf"))
            if not self._left:
                remove_tree(self._folder)
            self._held.close()

    @property
    def _is_process(self) -> bool:
        return self._backend.name == PROCESS

    def _put(self, box: PooledBox) -> None:
        with self._lock:
            self._shelf.put(box)

    def _start(
        self, tenant_id: str, box: str, fence: BoxFence | None, start_s: float, stop: threading.Event
    ) -> PooledBox:  # fmt: skip
        folder = self._folder / str(next(self._numbers))
        for name in ("state", "in", "out"):
            make_folder(folder / name)
        telemetry = {TELEMETRY_SPAN_FILE.variable: str(spans_of(folder, fence)), TELEMETRY_OTLP_ENDPOINT.variable: ""}
        if self._is_process:
            uid = None if fence is None else fence.uid
        else:
            uid = uid_of_box() if os.getuid() == 0 else None
            open_to_read(folder / "in")
        spec = spec_of(
            self._rules, box, BoxOwner(self._folder.name, 1), folder / "state", folder / "in", folder / "out",
            {**WITHOUT_GRPC, **telemetry}, fence=fence,
        )  # fmt: skip
        # A process ends with this worker, so it need not be found later.
        spec = replace(spec, owner=None) if self._is_process else spec
        try:
            running = self._backend.start(spec, start_s, stop)
        except BaseException:
            remove_tree(folder)
            raise
        client = BoxClient(running.rest_url, ANSWER_S, max_bytes=MAX_ANSWER_BYTES)
        return PooledBox((tenant_id, box), folder, running, client, fence, uid)

    def _sweep(self) -> None:
        while not self._stop.wait(SWEEP_S):
            self._end_idle(self._clock.monotonic() - self._idle_s)

    def _end_idle(self, before: float) -> None:
        with self._lock:
            waiting = self._shelf.waiting()
        # Other kinds of boxes would need a call of their engine.
        ended = {id(box) for box in waiting if self._is_process and not box.box.is_alive()}
        with self._lock:
            old = [*self._shelf.take_old(before, self._most, ended), *self._left]
            self._left = []
        for box in old:
            self.end(box)


def spans_of(folder: Path, fence: BoxFence | None) -> Path:
    """Return the path of the spans of a box with this folder (pure); a fenced box writes in ``BOX`` only."""
    return (folder / "state" / BOX if fence is not None else folder / "state") / SPANS


def lock_of(folder: Path) -> Path:
    """Return the path of the lock of a pool's folder (pure)."""
    return folder.with_name(f"{folder.name}{LOCK}")


def clear_pools(backend: BoxBackend, pools: Path) -> int:
    """End the boxes of dead workers, and remove their folders. Returns the number of such workers.

    Raises:
        Unavailable: the backend does not answer.
    """
    names = {path.name.removesuffix(LOCK) for path in pools.iterdir()} if pools.is_dir() else set()
    cleared = 0
    for name in names:
        folder = pools / name
        with sole_lock(lock_of(folder)) as is_free:
            if not is_free:
                continue
            for box in backend.owned() if backend.name != PROCESS else ():
                if box.owner.id == name:
                    logger.warning("box of a pool left behind pool=%s box=%s id=%s", name, box.box, box.id)
                    backend.reap(box)
            remove_tree(folder)
            cleared += 1
    return cleared
