"""Times to come, from the run limits of jobs (pure): when tiles get free, and when each waiting job starts.

Source: ours; after Lifka, "The ANL/IBM SP Scheduling System" (1995), which is called EASY backfill.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rdukit_platform.scheduler.ledger import Ending
from rdukit_platform.scheduler.model import Need, QueuedJob
from rdukit_platform.scheduler.rooms import NodeRoom


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
    job: QueuedJob, rooms: Iterable[NodeRoom], endings: Mapping[int, Sequence[Ending]], now: float, *, at_any_cost: bool
) -> Reservation | None:
    """Reserve tiles for a job that finds no room, where and as early as the ends of others allow.

    What has maintenance that would begin before the job has ended is left out.

    Args:
        rooms: nodes that could have it if they were empty.
        endings: of the jobs on each node, by its index, the earliest first.
        at_any_cost: where no time is known, reserve the node that comes nearest.
    """
    best_at, best = float("inf"), None
    nearest: tuple[int, NodeRoom] | None = None
    for room in rooms:
        wanted = job.tiles
        free = room.tiles
        for at, tiles in endings.get(room.index, ()):
            if at >= best_at:
                break
            if room.windows:
                wanted = job.tiles + room.count_closing(now, job.ends_by(at))
            free += tiles
            if tiles and free >= wanted:
                best_at, best = at, (free - wanted, room)
                break
        if room.windows and room.count_open(now, job.ends_by(now)) < job.tiles:
            continue
        if best is None and (nearest is None or free > nearest[0]):
            nearest = free, room
    if best is not None:
        return Reservation(job, best_at, *best)
    return Reservation(job, float("inf"), 0, nearest[1]) if at_any_cost and nearest is not None else None


class _Outlook:
    """Free tiles, places and slots of all nodes at a time to come; which tiles are neighbours is left out."""

    def __init__(self, rooms: Sequence[NodeRoom], now: float, *, needs_slots: bool) -> None:
        #: When the first maintenance of a node begins; from then on nothing is known of it.
        self._closes = {
            room.index: min(at for at, *_ in room.windows if at > now)
            for room in rooms
            if room.windows and room.count_closing(now, float("inf"))
        }
        self._labels = [room.node.labels for room in rooms]
        self._tiles = [room.tiles for room in rooms]
        self._places = [room.places for room in rooms]
        self._slots = [room.slots for room in rooms]
        self._needs_slots = needs_slots
        #: Nodes by what they have most of. An entry that says more than there is, is mended when it comes up.
        self._most_slots = [(-room.slots, room.index) for room in rooms if room.slots > 0]
        self._most_tiles = [(-room.tiles, room.index) for room in rooms if room.tiles > 0]
        heapq.heapify(self._most_slots)
        heapq.heapify(self._most_tiles)

    def find(self, need: Need, until: float = 0.0) -> int | None:
        """Return a node with room for so many tiles until a time, and with labels."""
        tiles, _, constraint = need
        if not constraint and not (self._closes and tiles):
            return self._find(tiles)
        heap, passed = self._most_tiles if tiles else self._most_slots, list[tuple[int, int]]()
        while (index := self._find(tiles)) is not None:
            is_open = not tiles or self._closes.get(index, until) >= until
            if is_open and constraint <= self._labels[index]:
                break
            passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return index

    def _find(self, tiles: int) -> int | None:
        heap = self._most_tiles if tiles else self._most_slots
        while heap:
            most, index = heap[0]
            there = self._slots[index]
            if tiles and there > 0:
                there = self._tiles[index] if self._places[index] > 0 else 0
            if there == -most:
                return index if there >= tiles else None
            if there > 0:
                heapq.heapreplace(heap, (-there, index))
            else:
                heapq.heappop(heap)
        return None

    def take(self, index: int, tiles: int) -> None:
        """Give a job its resources."""
        self._slots[index] -= 1
        if tiles:
            self._tiles[index] -= tiles
            self._places[index] -= 1

    def give(self, index: int, tiles: int) -> None:
        """Take a job's resources back."""
        self._slots[index] += 1
        if tiles:
            self._places[index] += 1
            self._tiles[index] += tiles
        if self._needs_slots:
            heapq.heappush(self._most_slots, (-self._slots[index], index))
        heapq.heappush(self._most_tiles, (-self._tiles[index], index))


def estimate_starts(
    waiting: Sequence[QueuedJob], rooms: Sequence[NodeRoom], endings: Mapping[int, Iterable[Ending]], now: float
) -> dict[str, float]:
    """Estimate when jobs that wait for room start if they start in this order, and all run to their limits.

    From the first one on whose time depends on a job without a limit, nothing is known.
    """
    outlook = _Outlook(rooms, now, needs_slots=any(not job.tiles for job in waiting))
    ends = sorted((at, tiles, index) for index, of_node in endings.items() for at, tiles in of_node)
    more: list[tuple[float, int, int]] = []  # ends of jobs that wait now
    following = 0
    starts: dict[str, float] = {}
    at = now
    for job in waiting:
        while (index := outlook.find(job.need, job.ends_by(at))) is None:
            if more and (following == len(ends) or more[0] < ends[following]):
                ended, given, node = heapq.heappop(more)
            elif following < len(ends):
                ended, given, node = ends[following]
                following += 1
            else:
                return starts
            at = max(at, ended)
            outlook.give(node, given)
        starts[job.job_id] = at
        outlook.take(index, job.tiles)
        if job.run_limit_s is not None:
            heapq.heappush(more, (at + job.run_limit_s, job.tiles, index))
    return starts
