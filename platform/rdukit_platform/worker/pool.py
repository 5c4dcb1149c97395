"""Boxes that stay for the next job of their tenant, so that most jobs wait for none and none is made for them.

A box of the pool is one tenant's for its whole life, and one job's at a time. It sees two folders for jobs, ``in`` and
``out``, in which each job has one that is removed with it. It takes jobs whose box comes with rdukit, which lease no
tiles and have nothing that a next attempt goes on with: what their box is started with is the same for all of them. It
ends with its worker, after a job that did not succeed, a number of jobs or some idle seconds, when it has grown, and
where others need room.
"""

import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

from rdukit.box.client import BoxClient
from rdukit.errors import Unavailable
from rdukit.files.atomic import remove_tree
from rdukit.files.home import make_folder
from rdukit.interfaces import Clock, Closable
from rdukit.settings import TELEMETRY_OTLP_ENDPOINT, TELEMETRY_SPAN_FILE
from rdukit_platform.backends.contract import BoxBackend, BoxFence, BoxOwner, RunningBox
from rdukit_platform.backends.fenced import BOX, make_given_folder
from rdukit_platform.backends.job_boxes import WITHOUT_GRPC, BoxRules, spec_of
from rdukit_platform.backends.process_tree import start_ticks
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs.service import HOST_VERBS
from rdukit_platform.settings import PROCESS

logger = logging.getLogger(__name__)

SPANS: Final = "spans.jsonl"
#: Jobs of one box at most: its journal and its log keep something of each.
MAX_JOBS: Final = 200
#: A box is weighed after its first job and then each so many, and ends when it has grown by more than it may.
WEIGH_JOBS: Final = 20
MAX_GROWTH_BYTES: Final = 512 << 20
SWEEP_S: Final = 1.0
#: Seconds that a box has to answer, and bytes of an answer or event at most: it is not trusted to say only what there
#: is to say.
ANSWER_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 4 << 20

Key = tuple[str, str]


@dataclass(slots=True)
class PooledBox:
    """A box of the pool, and what its jobs have there."""

    key: Key
    folder: Path
    box: RunningBox
    client: BoxClient
    fence: BoxFence | None
    jobs: int = 0
    #: When it was given back, on the monotonic clock.
    idle_since: float = 0.0
    #: After its first job.
    first_bytes: int | None = None

    @property
    def spans(self) -> Path:
        """Return the file that the spans of its present job are in."""
        return spans_of(self.folder, self.fence)

    def make_room(self, name: str) -> tuple[Path, Path]:
        """Make the folders of a job: what it gets, which does not exist yet, and what it makes."""
        self.spans.unlink(missing_ok=True)
        output = self.folder / "out" / name
        make_given_folder(output, None if self.fence is None else self.fence.uid)
        return self.folder / "in" / name, output

    def clear(self, name: str) -> None:
        """Remove the folders of a job."""
        for side in ("in", "out"):
            remove_tree(self.folder / side / name)


def may_stay(jobs: int, first_bytes: int | None, now_bytes: int | None) -> bool:
    """Return whether a box that has done so many jobs takes another one (pure); ``None``: it was not weighed."""
    if jobs >= MAX_JOBS:
        return False
    return first_bytes is None or now_bytes is None or now_bytes - first_bytes <= MAX_GROWTH_BYTES


@dataclass(slots=True)
class BoxShelf:
    """Boxes that wait for a job, by tenant and box, those that waited longest first."""

    boxes: dict[Key, list[PooledBox]] = field(default_factory=dict)

    def take(self, key: Key) -> PooledBox | None:
        """Take the one that was used last."""
        found = self.boxes.get(key)
        return found.pop() if found else None

    def put(self, box: PooledBox) -> None:
        """Put one there."""
        self.boxes.setdefault(box.key, []).append(box)

    def take_old(self, before: float, most: int) -> list[PooledBox]:
        """Take those that wait since before a time, and of more than ``most`` those that waited longest."""
        waiting = sorted((box for boxes in self.boxes.values() for box in boxes), key=lambda box: box.idle_since)
        old = [
            box
            for place, box in enumerate(waiting)
            if box.idle_since < before or place < len(waiting) - most or not box.box.is_alive()
        ]
        gone = set(map(id, old))
        kept = {key: [box for box in boxes if id(box) not in gone] for key, boxes in self.boxes.items()}
        self.boxes = {key: boxes for key, boxes in kept.items() if boxes}
        return old


class BoxPool(Closable):
    """The boxes of one worker that stay. Safe in any thread."""

    def __init__(
        self, backend: BoxBackend, rules: BoxRules, pools: Path, clock: Clock, idle_s: float, most: int
    ) -> None:  # fmt: skip
        """
        Args:
            pools: folder for the pools of all workers of this home.
            idle_s: seconds that a box waits for a job; 0: none stays.
            most: boxes that wait at most.
        """
        self._backend, self._rules, self._clock, self._idle_s, self._most = backend, rules, clock, idle_s, most
        self._folder = pools / f"{os.getpid()}-{start_ticks(os.getpid())}"
        self._numbers, self._lock, self._shelf = count(1), threading.Lock(), BoxShelf()
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="pool", daemon=True)
        if self.is_open:
            clear_pools(pools)
            self._sweeper.start()

    @property
    def is_open(self) -> bool:
        """Return whether any box may stay."""
        return self._idle_s > 0 and self._backend.name == PROCESS

    def takes(self, job: JobRow) -> bool:
        """Return whether a box of the pool does a job."""
        is_plain = job.box_version is None and job.tiles == 0 and job.members == 1
        return self.is_open and is_plain and job.verb in HOST_VERBS

    def lend(
        self, tenant_id: str, box: str, fence: BoxFence | None, start_s: float, stop: threading.Event
    ) -> PooledBox:  # fmt: skip
        """Return a box for a job of a tenant: one that waits, or a new one.

        Args:
            fence: of the tenant.
            start_s, stop: as of ``BoxBackend.start``, which also says what is raised.
        """
        while True:
            with self._lock:
                found = self._shelf.take((tenant_id, box))
            if found is None:
                return self._start(tenant_id, box, fence, start_s, stop)
            if found.box.is_alive() and found.fence == fence:
                return found
            self.end(found)

    def give_back(self, lent: PooledBox) -> None:
        """Keep a box whose job has succeeded, or end it."""
        lent.jobs, now_bytes = lent.jobs + 1, None
        if lent.jobs % WEIGH_JOBS == 1:
            with suppress(Unavailable):
                now_bytes = lent.box.stats().memory_bytes
            lent.first_bytes = lent.first_bytes or now_bytes
        if self._stop.is_set() or not may_stay(lent.jobs, lent.first_bytes, now_bytes):
            self.end(lent)
            return
        lent.idle_since = self._clock.monotonic()
        with self._lock:
            self._shelf.put(lent)
        if self._stop.is_set():
            self._end_idle(float("inf"))

    def end(self, lent: PooledBox, grace_s: float = 0.0) -> None:
        """End a box. Nobody else has it."""
        lent.client.close()
        try:
            lent.box.stop(grace_s)
        finally:
            remove_tree(lent.folder)
        logger.info("box of the pool ends tenant=%s box=%s jobs=%d", *lent.key, lent.jobs)

    def close(self) -> None:
        """End those that wait; those that are lent end when they are given back."""
        self._stop.set()
        if self.is_open:
            self._sweeper.join(5.0)
            self._end_idle(float("inf"))
            remove_tree(self._folder)

    def _start(
        self, tenant_id: str, box: str, fence: BoxFence | None, start_s: float, stop: threading.Event
    ) -> PooledBox:  # fmt: skip
        folder = self._folder / str(next(self._numbers))
        for name in ("state", "in", "out"):
            make_folder(folder / name)
        telemetry = {TELEMETRY_SPAN_FILE.variable: str(spans_of(folder, fence)), TELEMETRY_OTLP_ENDPOINT.variable: ""}
        spec = spec_of(
            self._rules, box, BoxOwner("", 0), folder / "state", folder / "in", folder / "out",
            {**WITHOUT_GRPC, **telemetry}, fence=fence,
        )  # fmt: skip
        # It ends with this process, and needs nobody to find it after that.
        try:
            running = self._backend.start(replace(spec, owner=None), start_s, stop)
        except BaseException:
            remove_tree(folder)
            raise
        client = BoxClient(running.rest_url, ANSWER_S, max_bytes=MAX_ANSWER_BYTES)
        return PooledBox((tenant_id, box), folder, running, client, fence)

    def _sweep(self) -> None:
        while not self._stop.wait(SWEEP_S):
            self._end_idle(self._clock.monotonic() - self._idle_s)

    def _end_idle(self, before: float) -> None:
        with self._lock:
            old = self._shelf.take_old(before, self._most)
        for box in old:
            try:
                self.end(box)
            except Unavailable as error:
                logger.warning("box of the pool not ended box=%s error=%s", box.key[1], error)


def spans_of(folder: Path, fence: BoxFence | None) -> Path:
    """Return the file of spans of a box whose folder that is (pure): a fenced one writes in ``BOX`` only."""
    return (folder / "state" / BOX if fence is not None else folder / "state") / SPANS


def clear_pools(pools: Path) -> None:
    """Remove the folders of workers that are gone, and of whose boxes nothing is left."""
    for folder in pools.iterdir() if pools.is_dir() else ():
        pid, _, ticks = folder.name.partition("-")
        if str(start_ticks(int(pid))) != ticks:
            remove_tree(folder)
