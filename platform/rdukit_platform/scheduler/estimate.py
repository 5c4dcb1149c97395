"""Estimate of when waiting jobs start, by the run limits of those before them (pure)."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

from rdukit_platform.scheduler.model import Need, QueuedJob
from rdukit_platform.scheduler.node_room import NodeRoom, whole_tiles
from rdukit_platform.scheduler.openings import Ending

#: Largest number of jobs on several nodes whose start is estimated: each is compared with all nodes.
MAX_SPREAD: Final = 64


class _Outlook:
    """Free tiles, places and slots of all nodes at a future time; neighbourhood of tiles is ignored."""

    def __init__(self, rooms: Sequence[NodeRoom], now: float, *, needs_slots: bool) -> None:
        #: Start of each node's first maintenance; the node is unknown from then on.
        self._closes = {
            room.index: min(at for at, *_ in room.windows if at > now)
            for room in rooms
            if room.windows and room.count_closing(now, float("inf"))
        }
        self._labels = [room.node.labels for room in rooms]
        self._linked = [room for room in rooms if room.node.is_linked and not (self._closes and room.windows)]
        self._left = MAX_SPREAD
        #: For the current job, if it may be spread: members that fit on each linked node, and on all together.
        self._counts: dict[int, int] = {}
        self._units: dict[int, int] = {}
        self._total = 0
        self._tiles = [room.tiles for room in rooms]
        self._places = [room.places for room in rooms]
        self._slots = [room.slots for room in rooms]
        self._needs_slots = needs_slots
        #: Nodes that have more free than their entries show.
        self._changed: set[int] = set()
        #: Heaps of nodes by free resources. An entry that shows too much is corrected when it reaches the top.
        self._most_slots = [(-room.slots, room.index) for room in rooms if room.slots > 0]
        self._most_tiles = [(-room.tiles, room.index) for room in rooms if room.tiles > 0]
        heapq.heapify(self._most_slots)
        heapq.heapify(self._most_tiles)

    def begin(self, need: Need) -> None:
        """Prepare the search for a job's room, on several nodes too if it may be spread."""
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
        """Return the nodes, each with its tiles, for the job of ``begin``; empty: no room."""
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
        """Return a node with the labels and enough free tiles until a time; ``None``: there is none."""
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
        for index in self._changed:
            heapq.heappush(self._most_tiles, (-self._tiles[index], index))
            if self._needs_slots:
                heapq.heappush(self._most_slots, (-self._slots[index], index))
        self._changed.clear()
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
        """Take a job's resources on a node."""
        self._slots[index] -= 1
        if tiles:
            self._tiles[index] -= tiles
            self._places[index] -= 1

    def advance(self, tiles: int, ends: list[Ending], more: list[Ending]) -> float | None:
        """Let jobs end, earliest first, until the job of ``begin`` may have room. Returns that time.

        ``None``: no more jobs end.

        Args:
            tiles: tiles of the job of ``begin``.
            ends: ends in falling order, earliest last; ended jobs are removed.
            more: a heap of further ends; ended jobs are removed.
        """
        slots, places, free = self._slots, self._places, self._tiles
        while ends or more:
            at, given, index = heapq.heappop(more) if more and not (ends and ends[-1] < more[0]) else ends.pop()
            slots[index] += 1
            if given:
                places[index] += 1
                free[index] += given
            self._changed.add(index)
            if self._counts:
                self._count(index)
            if self._counts or not tiles or free[index] >= tiles:
                return at
        return None


def estimate_starts(
    waiting: Sequence[QueuedJob], rooms: Sequence[NodeRoom], endings: Mapping[int, Iterable[Ending]], now: float
) -> dict[str, float]:
    """Estimate the starts of jobs that wait for room, if they start in this order and all run to their limits.

    The estimate stops at the first job that depends on one without a run limit.
    """
    outlook = _Outlook(rooms, now, needs_slots=any(not job.tiles for job in waiting))
    ends = sorted(chain.from_iterable(endings.values()), key=itemgetter(0), reverse=True)
    more: list[Ending] = []  # ends of jobs that wait now
    starts: dict[str, float] = {}
    at = now
    for job in waiting:
        outlook.begin(job.need)
        while not (found := outlook.find_all(job.need, job.ends_by(at))):
            ended = outlook.advance(job.tiles, ends, more)
            if ended is None:
                return starts
            at = max(at, ended)
        starts[job.job_id] = at
        for index, tiles in found:
            outlook.take(index, tiles)
            if job.run_limit_s is not None:
                heapq.heappush(more, (at + job.run_limit_s, tiles, index))
    return starts
