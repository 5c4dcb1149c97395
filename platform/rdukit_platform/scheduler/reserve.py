"""Times to come, from the run limits of jobs (pure): when tiles get free, and when each waiting job starts.

Source: ours; after Lifka, "The ANL/IBM SP Scheduling System" (1995), which is called EASY backfill.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import Need, QueuedJob
from rdukit_platform.scheduler.node_room import NodeRoom, whole_tiles
from rdukit_platform.scheduler.openings import Ending, Opening
from rdukit_platform.scheduler.rooms import spread_over

#: Jobs that wait for several nodes and whose start is estimated, at most: each is compared with all nodes.
MAX_SPREAD: Final = 64


@dataclass(slots=True)
class Reservation:
    """Tiles of a node, or of several, for the first job that finds none: from ``at`` on they are its own.

    ``at`` is infinite where a job without a run limit holds what it needs.
    """

    job: QueuedJob
    at: float
    #: How many tiles are left over on each of the nodes, by its index; none where ``at`` is infinite.
    spares: dict[int, int]

    def closed_to(self, job: QueuedJob, now: float) -> Sequence[int]:
        """Return where a later job may not start now: it ends too late, and what is left does not do for it."""
        if job.run_limit_s is not None and self.at < float("inf") and now + job.run_limit_s <= self.at:
            return ()
        return [index for index, spare in self.spares.items() if job.tiles > spare]

    def note(self, job: QueuedJob, room: NodeRoom, tiles: int, now: float) -> None:
        """Count the tiles of a later job that starts on a node now and still runs at ``at``."""
        if room.index in self.spares and (job.run_limit_s is None or now + job.run_limit_s > self.at):
            self.spares[room.index] -= tiles


#: How many members of a job each linked node could have if it were empty.
Could = Sequence[tuple[int, NodeRoom]]


def reserve(job: QueuedJob, ledger: Ledger, now: float, *, at_any_cost: bool) -> Reservation | None:
    """Reserve tiles for a job that finds no room, where and as early as the ends of others allow.

    It may be several nodes, where that is earlier. What has maintenance that would begin before the job has ended is
    left out.

    Args:
        at_any_cost: where no time is known, reserve the node that comes nearest.
    """
    able, could, endings = ledger.could_have(job.need), ledger.could_spread(job.need), ledger.endings
    best = ledger.openings.find(job.need, able)
    for room in able if ledger.has_windows else ():
        if room.windows:
            found = _find_in_maintained(job, room, endings.get(room.index, ()), now)
            if found is not None and (best is None or (found.at, room.index) < (best.at, best.room.index)):
                best = found
    before = float("inf") if best is None else best.at
    if could and (spread := _reserve_spread(job, could, endings, now, before)) is not None:
        return spread
    if best is not None:
        return Reservation(job, best.at, {best.room.index: best.spare})
    if not at_any_cost:
        return None
    until = job.ends_by(now)
    nearest = [room for room in able if not room.windows or room.count_open(now, until) >= job.tiles]
    if nearest:
        room = max(nearest, key=lambda room: room.tiles + sum(tiles for _, tiles in endings.get(room.index, ())))
        return Reservation(job, float("inf"), {room.index: 0})
    return _reserve_nearest(job, could, now)


def _find_in_maintained(
    job: QueuedJob, room: NodeRoom, endings: Sequence[Ending], now: float
) -> Opening | None:  # fmt: skip
    """Find when a node has enough tiles beside those whose maintenance would begin before the job has ended."""
    free = room.tiles
    for at, tiles in endings:
        free += tiles
        wanted = job.tiles + room.count_closing(now, job.ends_by(at))
        if tiles and free >= wanted:
            return Opening(at, free - wanted, room)
    return None


def _reserve_spread(
    job: QueuedJob, could: Could, endings: Mapping[int, Sequence[Ending]], now: float, before: float
) -> Reservation | None:
    """Reserve tiles of several nodes, where their jobs' ends give enough before a time; else ``None``.

    Nodes with maintenance to come are left out.
    """
    each = job.tiles // job.members
    nodes = {room.index: (most, room) for most, room in could if not (room.windows and room.closed(now, float("inf")))}
    free = {index: room.tiles for index, (_, room) in nodes.items()}
    unit = {index: whole_tiles(each, room.rdu_tiles) for index, (_, room) in nodes.items()}

    def count(index: int) -> int:
        return min(max(free[index], 0) // unit[index], nodes[index][0])

    total = sum(map(count, nodes))
    # Of each node the end that comes next, and its place among the node's.
    coming = [(*of_node[0], index, 0) for index in nodes if (of_node := endings.get(index))]
    heapq.heapify(coming)
    while coming and coming[0][0] < before:
        at, tiles, index, place = coming[0]
        if tiles:
            total -= count(index)
            free[index] += tiles
            total += count(index)
            if total >= job.members:
                places = spread_over(job.need, [(count(index), room) for index, (_, room) in nodes.items()]) or ()
                return Reservation(
                    job, at, {room.index: free[room.index] - part[1] * unit[room.index] for room, part in places}
                )
        if place + 1 < len(endings[index]):
            heapq.heapreplace(coming, (*endings[index][place + 1], index, place + 1))
        else:
            heapq.heappop(coming)
    return None


def _reserve_nearest(job: QueuedJob, could: Could, now: float) -> Reservation | None:
    """Reserve the linked nodes that have the most free tiles, as many as could have the job."""
    each, left, spares = job.tiles // job.members, job.members, dict[int, int]()
    until = job.ends_by(now)
    for most, room in sorted(could, key=lambda of: (-of[1].tiles, of[1].index)):
        if room.windows:
            most = min(most, room.count_open(now, until) // whole_tiles(each, room.rdu_tiles))
        if most and left > 0:
            spares[room.index] = 0
            left -= most
    return Reservation(job, float("inf"), spares) if spares and left <= 0 else None


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
        self._linked = [room for room in rooms if room.node.is_linked and not (self._closes and room.windows)]
        self._left = MAX_SPREAD
        #: Of the job at hand, if it may be spread: how many members each linked node has room for, and all have.
        self._counts: dict[int, int] = {}
        self._units: dict[int, int] = {}
        self._total = 0
        self._tiles = [room.tiles for room in rooms]
        self._places = [room.places for room in rooms]
        self._slots = [room.slots for room in rooms]
        self._needs_slots = needs_slots
        #: Nodes by what they have most of. An entry that says more than there is, is mended when it comes up.
        self._most_slots = [(-room.slots, room.index) for room in rooms if room.slots > 0]
        self._most_tiles = [(-room.tiles, room.index) for room in rooms if room.tiles > 0]
        heapq.heapify(self._most_slots)
        heapq.heapify(self._most_tiles)

    def begin(self, need: Need) -> None:
        """Begin to look for room for a job, on several nodes too if it may be spread."""
        tiles, members, constraint = need
        if self._counts:
            self._counts, self._total = {}, 0
        if members > 1 and tiles and len(self._linked) > 1 and self._left:
            self._left -= 1
            for room in self._linked:
                if constraint <= room.node.labels:
                    self._units[room.index] = whole_tiles(tiles // members, room.rdu_tiles)
                    self._counts[room.index] = 0
                    self._count(room.index)

    def _count(self, index: int) -> None:
        if index in self._counts:
            is_open = self._places[index] > 0 and self._slots[index] > 0
            count = max(self._tiles[index], 0) // self._units[index] if is_open else 0
            self._total += count - self._counts[index]
            self._counts[index] = count

    def find_all(self, need: Need, until: float = 0.0) -> Sequence[tuple[int, int]]:
        """Return nodes, each with its tiles, with room for a job that was begun with; none: there is no room."""
        if (index := self.find(need, until)) is not None:
            return [(index, need[0])]
        tiles, left, found = need[0] // need[1], need[1], list[tuple[int, int]]()
        if self._counts and self._total >= left:
            for index, count in sorted(self._counts.items(), key=lambda of: (-of[1], of[0])):
                if (taken := min(count, left)) > 0:
                    found.append((index, taken * tiles))
                    left -= taken
        return found

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

    def may_have(self, index: int, tiles: int) -> bool:
        """Return whether the job that was begun with, of so many tiles, may have room since a node got some back."""
        return not tiles or self._tiles[index] >= tiles or bool(self._counts)

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
        if self._counts:
            self._count(index)
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
        outlook.begin(job.need)
        found = outlook.find_all(job.need, job.ends_by(at))
        while not found:
            if more and (following == len(ends) or more[0] < ends[following]):
                ended, given, node = heapq.heappop(more)
            elif following < len(ends):
                ended, given, node = ends[following]
                following += 1
            else:
                return starts
            at = max(at, ended)
            outlook.give(node, given)
            if outlook.may_have(node, job.tiles):
                found = outlook.find_all(job.need, job.ends_by(at))
        starts[job.job_id] = at
        for index, tiles in found:
            outlook.take(index, tiles)
            if job.run_limit_s is not None:
                heapq.heappush(more, (at + job.run_limit_s, tiles, index))
    return starts
