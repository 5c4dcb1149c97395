"""Times to come, from the run limits of jobs (pure): when tiles get free, and when each waiting job starts.

Source: ours; after Lifka, "The ANL/IBM SP Scheduling System" (1995), which is called EASY backfill.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rdukit_platform.scheduler.model import QueuedJob
from rdukit_platform.scheduler.rooms import NodeRoom


@dataclass(frozen=True, slots=True)
class Ending:
    """Time at which a job gives back its slot and its tiles, at the latest."""

    at: float
    tiles: int


@dataclass(slots=True)
class Reservation:
    """Tiles of a node for the first job that finds none: from ``at`` on they are its own, and ``spare`` ones are left.

    ``at`` is infinite where a job without a run limit holds what it needs; then ``spare`` is 0.
    """

    job: QueuedJob
    at: float
    spare: int
    room: NodeRoom

    def lets_past(self, job: QueuedJob, now: float) -> bool:
        """Return whether a later job may start on the node now: it ends in time, or what is left does for it."""
        if job.tiles <= self.spare:
            return True
        return job.run_limit_s is not None and self.at < float("inf") and now + job.run_limit_s <= self.at

    def note(self, job: QueuedJob, tiles: int, now: float) -> None:
        """Count the tiles of a later job that starts on the node now and still runs at ``at``."""
        if job.run_limit_s is None or now + job.run_limit_s > self.at:
            self.spare -= tiles


def reserve(
    job: QueuedJob, rooms: Iterable[NodeRoom], endings: Mapping[int, Collection[Ending]], *, at_any_cost: bool
) -> Reservation | None:
    """Reserve tiles for a job that finds no room, where and as early as the ends of others allow.

    Args:
        rooms: nodes that could have it if they were empty.
        endings: of the jobs on each node, by its index.
        at_any_cost: where no time is known, reserve the node that comes nearest.
    """
    best: tuple[float, int, NodeRoom] | None = None
    nearest: tuple[int, NodeRoom] | None = None
    for room in rooms:
        free = room.tiles
        for ending in sorted((e for e in endings.get(room.index, ()) if e.tiles), key=lambda e: e.at):
            free += ending.tiles
            if free >= job.tiles:
                if best is None or ending.at < best[0]:
                    best = ending.at, free - job.tiles, room
                break
        if nearest is None or free > nearest[0]:
            nearest = free, room
    if best is not None:
        return Reservation(job, *best)
    return Reservation(job, float("inf"), 0, nearest[1]) if at_any_cost and nearest is not None else None


class _Outlook:
    """Free tiles, places and slots of all nodes at a time to come; which tiles are neighbours is left out."""

    def __init__(self, rooms: Sequence[NodeRoom]) -> None:
        self._free = [[room.tiles, room.places, room.slots] for room in rooms]
        self._most_tiles: list[tuple[int, int]] = []
        self._most_slots: list[tuple[int, int]] = []
        for index in range(len(rooms)):
            self._rank(index)

    def _rank(self, index: int) -> None:
        tiles, places, slots = self._free[index]
        if slots > 0:
            heapq.heappush(self._most_slots, (-slots, index))
            if places > 0 and tiles > 0:
                heapq.heappush(self._most_tiles, (-tiles, index))

    def find(self, tiles: int) -> int | None:
        """Return a node with room for so many tiles."""
        heap = self._most_tiles if tiles else self._most_slots
        while heap:
            most, index = heap[0]
            free_tiles, places, slots = self._free[index]
            is_current = slots > 0 and (-most == free_tiles and places > 0 if tiles else -most == slots)
            if is_current:
                return index if not tiles or tiles <= free_tiles else None
            heapq.heappop(heap)
        return None

    def change(self, index: int, tiles: int, sign: int) -> None:
        """Give a job its resources (``sign`` is -1), or take them back (1)."""
        free = self._free[index]
        free[0] += sign * tiles
        free[1] += sign if tiles else 0
        free[2] += sign
        self._rank(index)


def estimate_starts(
    waiting: Iterable[QueuedJob], rooms: Sequence[NodeRoom], endings: Mapping[int, Iterable[Ending]], now: float
) -> dict[str, float]:
    """Estimate when jobs that wait for room start if they start in this order, and all run to their limits.

    From the first one on whose time depends on a job without a limit, nothing is known.
    """
    outlook = _Outlook(rooms)
    ends = [(ending.at, ending.tiles, index) for index, of_node in endings.items() for ending in of_node]
    heapq.heapify(ends)
    starts: dict[str, float] = {}
    at = now
    for job in waiting:
        while (index := outlook.find(job.tiles)) is None:
            if not ends:
                return starts
            ended, given, node = heapq.heappop(ends)
            at = max(at, ended)
            outlook.change(node, given, 1)
        starts[job.job_id] = at
        outlook.change(index, job.tiles, -1)
        if job.run_limit_s is not None:
            heapq.heappush(ends, (at + job.run_limit_s, job.tiles, index))
    return starts
