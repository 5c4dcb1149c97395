"""Overdue jobs (pure): which waiting job goes before those of smaller shares, because it has waited too long.

A job is overdue once it has waited ``FACTOR`` times as long as the tiles in service waited for their jobs on average.
Only jobs that were queued before it count in this average: tiles that are free, or that later jobs have, count as never
waited for. So as long as jobs that came before it have more than half of the tiles, it is not overdue, and later jobs of
smaller shares pass it. When they have the other half, it is. Half of the tiles therefore go by age and half by share:
nobody waits much longer than twice as long as in a queue by age, and a tenant that uses little waits for nobody.

An overdue job stays overdue until it starts: it grows older, and the jobs that came before it only end. Preempted jobs
are the exception, since they return with the age that they had.

Source: ours. A fixed age would be too long for a quiet queue, and in a long one would make every job overdue.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

from rdukit_platform.scheduler.model import ActiveJob, QueuedJob

#: Times the average wait that a job waits before it is overdue.
FACTOR: Final = 2.0
#: When an active job was queued, its id, seconds that it waited, and its tiles.
_Wait = tuple[float, str, float, int]


class ActiveWaits:
    """Waits of the active jobs before they began, summed up over those that were queued before another."""

    def __init__(self) -> None:
        #: The earliest queued first.
        self._waits: list[_Wait] = []
        #: How many of them the sums are over: seconds of jobs, and of tiles.
        self._summed, self._job_s, self._tile_s = 0, 0.0, 0.0

    def add_all(self, active: Iterable[ActiveJob], now: float) -> None:
        """Count the jobs of a snapshot; one that no worker has taken yet begins now."""
        self._waits += [
            (job.since, job.job_id, (now if job.began is None else job.began) - job.since, job.tiles)
            for job in active
            if job.since is not None
        ]
        self._waits.sort()
        self._summed, self._job_s, self._tile_s = 0, 0.0, 0.0

    def add(self, job: QueuedJob, now: float) -> None:
        """Count a job that starts now."""
        wait = job.since, job.job_id, now - job.since, job.tiles
        if bisect_left(self._waits, wait) < self._summed:
            self._sum(wait, 1)
        insort(self._waits, wait)

    def remove(self, job: ActiveJob) -> None:
        """Count a job that was added, and has begun, no more."""
        if job.since is None or job.began is None:
            return
        wait = job.since, job.job_id, job.began - job.since, job.tiles
        place = bisect_left(self._waits, wait)
        if place < self._summed:
            self._sum(wait, -1)
        self._waits.pop(place)

    def before(self, job: QueuedJob) -> tuple[float, float]:
        """Return seconds that jobs which were queued before one waited: their sum, and that over their tiles."""
        first = job.since, job.job_id, 0.0, 0
        while self._summed < len(self._waits) and self._waits[self._summed] < first:
            self._sum(self._waits[self._summed], 1)
        while self._summed and self._waits[self._summed - 1] >= first:
            self._sum(self._waits[self._summed - 1], -1)
        return self._job_s, self._tile_s

    def _sum(self, wait: _Wait, sign: int) -> None:
        _, _, waited_s, tiles = wait
        self._summed += sign
        self._job_s += sign * waited_s
        self._tile_s += sign * waited_s * tiles


class OverdueRule:
    """Finds overdue jobs while a decision is made, in which waits are only added to ``waits``."""

    def __init__(self, waits: ActiveWaits, tiles: int, slots: int, starve_s: float, now: float) -> None:
        """
        Args:
            tiles, slots: of all nodes together.
            starve_s: seconds that a job waits at least before it is overdue.
        """
        self._waits, self._tiles, self._slots, self._starve_s, self._now = waits, tiles, slots, starve_s, now
        #: Jobs queued after then are not overdue: each is younger, and has more jobs before it, than one that is not.
        self._not_after = float("inf"), ""

    def applies(self, job: QueuedJob) -> bool:
        """Return whether a job is overdue. What is more scarce decides: tiles or worker slots."""
        waited_s, since = self._now - job.since, (job.since, job.job_id)
        if since >= self._not_after or waited_s < self._starve_s:
            return False
        job_s, tile_s = self._waits.before(job)
        if waited_s >= FACTOR * max(job_s / self._slots, tile_s / self._tiles):
            return True
        self._not_after = since
        return False
