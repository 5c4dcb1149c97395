"""Overdue jobs (pure): which waiting job goes before those of smaller shares, because it has waited too long.

A job is overdue once it has waited ``FACTOR`` times as long as the tiles in service waited for their jobs on average;
where places on nodes or worker slots are scarcer than tiles, as these did. Only jobs that were queued before it count
in this average: tiles that are free, or that later jobs have, count as never waited for. So as long as jobs that came
before it have more than half of the tiles, it is not overdue, and later jobs of smaller shares pass it. When they
have the other half, it is. Half of the tiles therefore go by age and half by share: nobody waits much longer than
twice as long as in a queue by age, and a tenant that uses little waits for nobody.

An overdue job stays overdue until it starts: it grows older, and the jobs that came before it only end. Preempted jobs
are the exception, since they return with the age that they had.

Source: ours. A fixed age would be too long for a quiet queue, and in a long one would make every job overdue.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from rdukit_platform.scheduler.model import ActiveJob, QueuedJob

#: Times the average wait that a job waits before it is overdue.
FACTOR: Final = 2.0
#: When an active job was queued, its id, seconds that it waited, and its tiles.
_Wait = tuple[float, str, float, int]
#: Seconds that jobs waited, summed up over their worker slots, their places on nodes and their tiles; or how many of
#: these there are on all nodes.
Scarce = tuple[float, float, float]
_NOTHING: Final[Scarce] = (0.0, 0.0, 0.0)


class ActiveWaits:
    """Waits of the active jobs before they began, summed up over those that were queued before another.

    One question is answered by a look at all jobs; they are sorted for the second one.
    """

    def __init__(self) -> None:
        #: The earliest queued first, if they are sorted.
        self._waits: list[_Wait] = []
        self._is_sorted, self._was_asked = False, False
        #: How many of them the sums are over.
        self._summed, self._sums = 0, _NOTHING

    def add_all(self, active: Iterable[ActiveJob], now: float) -> None:
        """Count the jobs of a snapshot; one that no worker has taken yet begins now."""
        self._waits += [
            (job.since, job.job_id, (now if job.began is None else job.began) - job.since, job.tiles)
            for job in active
            if job.since is not None
        ]
        self._is_sorted, self._was_asked = False, False

    def add(self, job: QueuedJob, now: float) -> None:
        """Count a job that starts now."""
        wait = job.since, job.job_id, now - job.since, job.tiles
        if not self._is_sorted:
            self._waits.append(wait)
            return
        place = bisect_left(self._waits, wait)
        self._waits.insert(place, wait)
        if place < self._summed:
            self._sum([wait], 1)

    def remove(self, job: ActiveJob) -> None:
        """Count a job that was added, and has begun, no more."""
        if job.since is None or job.began is None:
            return
        self._sort()
        wait = job.since, job.job_id, job.began - job.since, job.tiles
        place = bisect_left(self._waits, wait)
        if place < self._summed:
            self._sum([wait], -1)
        self._waits.pop(place)

    def before(self, job: QueuedJob) -> Scarce:
        """Return what the jobs waited that were queued before one."""
        asked = job.since, job.job_id, 0.0, 0
        if not self._was_asked and not self._is_sorted:
            self._was_asked = True
            return _add_up([wait for wait in self._waits if wait < asked])
        self._sort()
        place = bisect_left(self._waits, asked)
        if place > self._summed:
            self._sum(self._waits[self._summed : place], 1)
        elif place < self._summed:
            self._sum(self._waits[place : self._summed], -1)
        return self._sums

    def _sort(self) -> None:
        if not self._is_sorted:
            self._waits.sort()
            self._is_sorted, self._summed, self._sums = True, 0, _NOTHING

    def _sum(self, waits: Sequence[_Wait], sign: int) -> None:
        slots, places, tiles = self._sums
        of_slots, of_places, of_tiles = _add_up(waits)
        self._sums = slots + sign * of_slots, places + sign * of_places, tiles + sign * of_tiles
        self._summed += sign * len(waits)


def _add_up(waits: Sequence[_Wait]) -> Scarce:
    return (
        sum([waited_s for _, _, waited_s, _ in waits]),
        sum([waited_s for _, _, waited_s, tiles in waits if tiles]),
        sum([waited_s * tiles for _, _, waited_s, tiles in waits]),
    )


class OverdueRule:
    """Finds overdue jobs while a decision is made, in which waits are only added to ``waits``."""

    def __init__(self, waits: ActiveWaits, there: Scarce, starve_s: float, now: float) -> None:
        """
        Args:
            there: what all nodes have together; of nothing there is less than one.
            starve_s: seconds that a job waits at least before it is overdue.
        """
        self._waits, self._there = waits, there
        self._now = now
        #: When the last job that may be overdue was queued. Later ones have waited less, with more jobs before them.
        self._queued_by = now - starve_s
        #: The job that was found not to be overdue: neither is any that was queued after it.
        self._not_from = float("inf"), ""

    def stop(self) -> None:
        """Find no further one: an overdue job waits for its reservation."""
        self._queued_by = -float("inf")

    def applies(self, job: QueuedJob) -> bool:
        """Return whether a job is overdue. What is the scarcest decides."""
        since = job.since
        if since > self._queued_by or (since, job.job_id) >= self._not_from:
            return False
        waited_s = self._now - since
        if all(
            waited_s * there >= FACTOR * sum_s
            for sum_s, there in zip(self._waits.before(job), self._there, strict=True)
        ):
            return True
        self._queued_by, self._not_from = since, (since, job.job_id)
        return False
