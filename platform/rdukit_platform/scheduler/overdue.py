"""Overdue jobs (pure): a job that has waited too long precedes jobs of tenants with smaller use.

A job is overdue once it has waited ``FACTOR`` times the average wait of the active jobs, weighted by tiles in service,
or by places on nodes or worker slots if those are scarcer. Only jobs that were queued before it count in this average;
tiles that are free or used by later jobs count with a wait of 0. While older jobs have more than half of the tiles, a
job is not overdue, and later jobs of tenants with smaller use pass it. When younger jobs have the other half, it is
overdue. So half of the tiles are given by age and half by share. A wait is at most about twice that of a queue by age,
and a tenant that uses little hardly waits.

An overdue job stays overdue until it starts: its wait grows, and the number of older jobs only falls. Preempted jobs
are the exception, since they return with the age that they had.

Source: ours. A fixed age would be too long for a quiet queue, and in a long one would make every job overdue.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from rdukit_platform.scheduler.model import ActiveJob, QueuedJob

#: Multiple of the average wait after which a job is overdue.
FACTOR: Final = 2.0
#: An active job: time at which it was queued, id, seconds that it waited, and tiles.
_Wait = tuple[float, str, float, int]
#: Waits in seconds, summed over worker slots, places on nodes and tiles; also the totals of these on all nodes.
Scarce = tuple[float, float, float]
_NOTHING: Final[Scarce] = (0.0, 0.0, 0.0)


class ActiveWaits:
    """Waits of the active jobs before they began, summed up over those that were queued before another.

    The first query examines all jobs; the second sorts them.
    """

    def __init__(self) -> None:
        #: Sorted by queue time from the second query on.
        self._waits: list[_Wait] = []
        self._is_sorted, self._was_asked = False, False
        #: Number of jobs included in the sums, and the sums.
        self._summed, self._sums = 0, _NOTHING

    def add_all(self, active: Iterable[ActiveJob], now: float) -> None:
        """Add the jobs of a snapshot; unclaimed jobs count as begun now."""
        self._waits += [
            (job.since, job.job_id, (now if job.began is None else job.began) - job.since, job.tiles)
            for job in active
            if job.since is not None
        ]
        self._is_sorted, self._was_asked = False, False

    def add(self, job: QueuedJob, now: float) -> None:
        """Add a job that starts now."""
        wait = job.since, job.job_id, now - job.since, job.tiles
        if not self._is_sorted:
            self._waits.append(wait)
            return
        place = bisect_left(self._waits, wait)
        self._waits.insert(place, wait)
        if place < self._summed:
            self._sum([wait], 1)

    def remove(self, job: ActiveJob) -> None:
        """Remove a job that was added and has begun."""
        if job.since is None or job.began is None:
            return
        self._sort()
        wait = job.since, job.job_id, job.began - job.since, job.tiles
        place = bisect_left(self._waits, wait)
        if place < self._summed:
            self._sum([wait], -1)
        self._waits.pop(place)

    def before(self, job: QueuedJob) -> Scarce:
        """Return the summed waits of the jobs queued before ``job``."""
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
    """Finds overdue jobs during a decision, which only adds to ``waits``."""

    def __init__(self, waits: ActiveWaits, there: Scarce, starve_s: float, now: float) -> None:
        """
        Args:
            there: resources of all nodes together, at least 1 of each.
            starve_s: shortest wait in seconds of an overdue job.
        """
        self._waits, self._there = waits, there
        self._now = now
        #: Latest queue time of a job that may be overdue. Later jobs have waited less, with more jobs before them.
        self._queued_by = now - starve_s
        #: A job that is not overdue; no job queued after it is, either.
        self._not_from = float("inf"), ""

    def stop(self) -> None:
        """Stop finding overdue jobs, because one waits for its reservation."""
        self._queued_by = -float("inf")

    def applies(self, job: QueuedJob) -> bool:
        """Return whether a job is overdue. The scarcest resource decides."""
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
