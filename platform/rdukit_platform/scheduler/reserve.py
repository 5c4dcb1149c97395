"""Times to come, from the run limits of jobs (pure): when tiles get free, and when each waiting job starts.

Source: ours; after Lifka, "The ANL/IBM SP Scheduling System" (1995), which is called EASY backfill.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from rdukit_platform.scheduler.model import QueuedJob


@dataclass(slots=True)
class Room:
    """Resources that are free: tiles, places for applications with tiles, worker slots."""

    tiles: int
    places: int
    slots: int

    def fits(self, tiles: int) -> bool:
        """Return whether a job with so many tiles finds room."""
        return self.slots > 0 and (tiles == 0 or (tiles <= self.tiles and self.places > 0))

    def take(self, tiles: int) -> None:
        """Give a job its room."""
        self.tiles -= tiles
        self.places -= 1 if tiles else 0
        self.slots -= 1

    def copy(self) -> "Room":
        """Return a room of its own with as much in it."""
        return Room(self.tiles, self.places, self.slots)


@dataclass(frozen=True, slots=True)
class Ending:
    """Time at which a job gives back its slot and its tiles, at the latest."""

    at: float
    tiles: int


@dataclass(slots=True)
class Reservation:
    """Tiles for the first job that finds none: from ``at`` on they are its own, and ``spare`` ones are left.

    ``at`` is infinite where a job without a run limit holds what it needs; then ``spare`` is 0.
    """

    job: QueuedJob
    at: float
    spare: int

    def lets_past(self, job: QueuedJob, now: float) -> bool:
        """Return whether a later job may start now: it ends in time, or the tiles that are left do for it."""
        if job.tiles <= self.spare:
            return True
        return job.run_limit_s is not None and self.at < float("inf") and now + job.run_limit_s <= self.at

    def note(self, job: QueuedJob, now: float) -> None:
        """Count the tiles of a later job that starts now and still runs at ``at``."""
        if job.run_limit_s is None or now + job.run_limit_s > self.at:
            self.spare -= job.tiles


def reserve(job: QueuedJob, free_tiles: int, endings: Iterable[Ending]) -> Reservation:
    """Reserve tiles for a job that needs more than ``free_tiles``, as early as the ends of others allow."""
    for ending in sorted((e for e in endings if e.tiles), key=lambda e: e.at):
        free_tiles += ending.tiles
        if free_tiles >= job.tiles:
            return Reservation(job, ending.at, free_tiles - job.tiles)
    return Reservation(job, float("inf"), 0)


def estimate_starts(
    waiting: Iterable[QueuedJob], room: Room, endings: Iterable[Ending], now: float
) -> dict[str, float]:
    """Estimate when jobs that wait for room start if they start in this order, and all run to their limits.

    From the first one on whose time depends on a job without a limit, nothing is known.
    """
    room = room.copy()
    ends = [(ending.at, ending.tiles) for ending in endings]
    heapq.heapify(ends)
    starts: dict[str, float] = {}
    at = now
    for job in waiting:
        tiles = job.tiles
        while not room.fits(tiles):
            if not ends:
                return starts
            ended, given = heapq.heappop(ends)
            at = max(at, ended)
            room.tiles += given
            room.places += 1 if given else 0
            room.slots += 1
        starts[job.job_id] = at
        room.take(tiles)
        if job.run_limit_s is not None:
            heapq.heappush(ends, (at + job.run_limit_s, tiles))
    return starts
