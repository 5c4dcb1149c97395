"""Free resources of all nodes while a decision is made (pure): rows of tiles, places of applications, worker slots.

A job of no more tiles than an RDU has needs as many neighbours in one; a larger one has whole RDUs. The node of a job
is the one whose smallest sufficient row of free tiles is the shortest, so that long rows and whole RDUs stay free for
larger jobs; nodes that are degraded come last. In the node, its daemon takes the first row that suffices. Members of a
job that no node has room for are spread over linked nodes, as few as suffice.
"""

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.nodes.view import members_that_fit
from rdukit_platform.scheduler.model import JobPart, Need, NodeState

#: Bits of each part of a node's rank.
_BITS: Final = 20
_LOW: Final = (1 << _BITS) - 1


class NodeRoom:
    """Free resources of one node."""

    __slots__ = ("_mask", "_rdu_tiles", "_rows", "index", "is_degraded", "node", "places", "slots", "tiles", "windows")

    def __init__(self, index: int, node: NodeState) -> None:
        self.index, self.node, self.slots = index, node, node.slots
        capacity = node.capacity
        self.tiles, self.places, self.is_degraded = 0, 0, False
        self._rows: list[int] = []
        #: 0: which tiles are neighbours is not known, and any do.
        self._rdu_tiles = 0
        #: Which tiles are free, where the daemon says it; else 0.
        self._mask = 0
        #: Maintenance, as of ``NodeCapacity``.
        self.windows = () if capacity is None else capacity.windows
        if capacity is not None:
            self.tiles, self.places = capacity.free_tiles, capacity.free_applications
            self.is_degraded = capacity.is_degraded
            is_known = capacity.rdu_tiles > 0 and sum(capacity.free_rows) == capacity.free_tiles
            self._rows = list(capacity.free_rows) if is_known else [capacity.free_tiles]
            self._rdu_tiles = capacity.rdu_tiles if is_known else 0
            self._mask = capacity.free_mask if is_known else 0

    @property
    def rdu_tiles(self) -> int:
        """Return how many tiles an RDU has; 0: any tiles are as good as others."""
        return self._rdu_tiles

    @property
    def longest(self) -> int:
        """Return the longest row of free tiles."""
        return max(self._rows, default=0)

    def rank(self, need: Need) -> int | None:
        """Return how well the node fits a job, the lowest best; ``None``: not at all, now."""
        tiles, members, constraint = need
        if self.slots <= 0 or not constraint <= self.node.labels:
            return None
        if tiles == 0:
            return (_LOW - min(self.slots, _LOW)) << _BITS | self.index
        if self.places <= 0 or tiles > self.tiles:
            return None
        if members > 1 and self._rdu_tiles:
            if members_that_fit(tiles // members, self._rdu_tiles, self._rows) < members:
                return None
            tiles //= members
        if self._rdu_tiles and tiles > self._rdu_tiles:
            row = self._rows.count(self._rdu_tiles) - -(-tiles // self._rdu_tiles)
            if row < 0:
                return None
        else:
            row = _LOW
            for length in self._rows:
                if tiles <= length < row:
                    row = length
            if row == _LOW:
                return None
        return ((self.is_degraded << _BITS | row) << _BITS | self.tiles) << _BITS | self.index

    def count_members(self, tiles: int, now: float = 0.0, until: float = 0.0) -> int:
        """Return how many members of so many tiles have room, which end by a time."""
        if self.slots <= 0 or self.places <= 0:
            return 0
        closed = self.closed(now, until) if self.windows else 0
        if closed and not self._mask:
            return 0
        return self._count_in(tiles, _rows_of(self._mask & ~closed, self._rdu_tiles) if closed else self._rows)

    def count_with(self, tiles: int, leaving: "Leaving", closed: int = 0) -> int:
        """Return how many members of so many tiles, which may not have ``closed`` ones, would fit if others left."""
        if self.places + leaving.jobs <= 0 or self.slots + leaving.jobs <= 0:
            return 0
        if self._is_mapped(leaving):
            return self._count_in(tiles, _rows_of((self._mask | leaving.mask) & ~closed, self._rdu_tiles))
        return 0 if closed else max(self.tiles + leaving.tiles, 0) // whole_tiles(tiles, self._rdu_tiles)

    def _count_in(self, tiles: int, rows: Iterable[int]) -> int:
        if not self._rdu_tiles:
            return sum(rows) // tiles
        return members_that_fit(tiles, self._rdu_tiles, rows)

    def closed(self, now: float, until: float) -> int:
        """Return which tiles have maintenance that is under way, or begins before a time; -1: all."""
        found = 0
        for at, end, mask in self.windows:
            if at < until and (end is None or end > now):
                found |= mask or -1
        return found

    def count_open(self, now: float, until: float) -> int:
        """Return how many tiles there are for a job that ends at a time, if it had the node for itself."""
        if self.node.capacity is None:
            return 0
        closed = self.closed(now, until)
        return self.node.capacity.tiles - closed.bit_count() if closed >= 0 else 0

    def count_closing(self, now: float, until: float) -> int:
        """Return how many tiles, free or not, have maintenance that begins between now and a time."""
        closing = sum(mask.bit_count() or _LOW for at, _, mask in self.windows if now < at < until)
        return closing

    def is_open(self, need: Need, now: float, until: float) -> bool:
        """Return whether a job for which there is room would have ended when maintenance of its tiles begins."""
        closed = self.closed(now, until) if self.windows and need[0] else 0
        return not closed or (self._mask > 0 and self.place(need, 0, closed) is not None)

    def take(self, need: Need, now: float = 0.0, until: float = 0.0) -> int:
        """Give a job its resources, as far as they are there. Returns how many tiles it gets.

        Args:
            until: it has no tiles whose maintenance begins before.
        """
        tiles, members, _ = need
        self.slots -= 1
        if tiles == 0:
            return 0
        self.places -= 1
        if self.windows and (closed := self.closed(now, until)) and self._mask:
            place = self.place(need, 0, closed) or 0
            self._mask &= ~place
            self._rows = _rows_of(self._mask, self._rdu_tiles)
            self.tiles -= place.bit_count() or tiles
            return place.bit_count() or tiles
        if members == 1 or not self._rdu_tiles:
            return self._take_row(tiles)
        return sum(self._take_row(tiles // members) for _ in range(members))

    def _take_row(self, tiles: int) -> int:
        rows, rdu = self._rows, self._rdu_tiles
        if self._mask:
            self._mask &= ~(self._place_row(tiles, self._mask) or 0)
        if rdu and tiles > rdu:
            tiles = -(-tiles // rdu) * rdu
            for _ in range(tiles // rdu):
                if rdu in rows:
                    rows.remove(rdu)
        else:
            for at, row in enumerate(rows):
                if row >= tiles:
                    rows[at] = row - tiles
                    break
            else:  # what the daemon told has changed since: nothing is promised there until it tells again
                rows.clear()
        self.tiles -= tiles
        return tiles

    def give(self, tiles: int) -> None:
        """Take back what a job had, where any tiles are as good as others."""
        self.slots += 1
        if tiles:
            self.places += 1
            self.release(tiles)

    def release(self, tiles: int) -> None:
        """Count so many tiles as free again, where any are as good as others."""
        self.tiles += tiles
        self._rows = [self.tiles]

    def set_free(self, tiles: int, places: int, slots: int, rows: list[int]) -> None:
        """Have so much free, where any tiles are as good as others."""
        self.tiles, self.places, self.slots, self._rows = tiles, places, slots, rows

    def fits_with(self, need: Need, leaving: "Leaving", closed: int = 0) -> bool:
        """Return whether a job that may not have ``closed`` tiles would fit if others left."""
        tiles = need[0]
        if self.places + leaving.jobs <= 0 or self.slots + leaving.jobs <= 0 or tiles > self.tiles + leaving.tiles:
            return False
        if not self._is_mapped(leaving):
            return not closed
        return self.place(need, leaving.mask, closed) is not None

    def hold(self, need: Need, leaving: "Leaving", closed: int = 0) -> "Leaving":
        """Keep what a job needs that ``fits_with`` others gone, so that nobody else gets it. Returns what is left."""
        tiles = need[0]
        if self._is_mapped(leaving):
            place = self.place(need, leaving.mask, closed) or 0
            self.tiles -= (place & self._mask).bit_count()
            self._mask &= ~place
            self._rows = _rows_of(self._mask, self._rdu_tiles)
            rest = leaving.mask & ~place
            return Leaving(leaving.jobs - 1, rest.bit_count(), rest)
        needed = max(tiles - leaving.tiles, 0)
        self.tiles -= needed
        while needed > 0 and self._rows:
            longest = max(range(len(self._rows)), key=self._rows.__getitem__)
            taken = min(needed, self._rows[longest])
            self._rows[longest] -= taken
            needed -= taken
        return Leaving(leaving.jobs - 1, max(leaving.tiles - tiles, 0), 0)

    def place(self, need: Need, besides: int, closed: int = 0) -> int | None:
        """Return which tiles the daemon would give a job, with those of a mask free besides; ``None``: it could not.

        ``closed``: tiles that it may not have.
        """
        tiles, members, _ = need
        free, found = (self._mask | besides) & ~closed, 0
        for _ in range(members):
            row = self._place_row(tiles // members, free)
            if row is None:
                return None
            found |= row
            free &= ~row
        return found

    def _place_row(self, tiles: int, free: int) -> int | None:
        rdu = self._rdu_tiles
        whole = (1 << rdu) - 1
        if tiles <= rdu:
            row = (1 << tiles) - 1
            for first in range(0, free.bit_length(), rdu):
                part = free >> first & whole
                for shift in range(rdu - tiles + 1):
                    if part >> shift & row == row:
                        return row << first + shift
            return None
        starts = [first for first in range(0, free.bit_length(), rdu) if free >> first & whole == whole]
        needed = -(-tiles // rdu)
        return None if len(starts) < needed else sum(whole << first for first in starts[:needed])

    def _is_mapped(self, leaving: "Leaving") -> bool:
        """Return whether it is known which tiles are free and which are to be; else only how many."""
        is_known = self._mask.bit_count() == self.tiles and leaving.mask.bit_count() == leaving.tiles
        return self._rdu_tiles > 0 and is_known


@dataclass(frozen=True, slots=True)
class Leaving:
    """Jobs of a node that give their tiles back soon: how many, how many tiles, and which, as ``held`` tells."""

    jobs: int = 0
    tiles: int = 0
    mask: int = 0

    def __add__(self, other: "Leaving") -> "Leaving":
        return Leaving(self.jobs + other.jobs, self.tiles + other.tiles, self.mask | other.mask)


def _rows_of(mask: int, rdu_tiles: int) -> list[int]:
    rows = []
    for first in range(0, mask.bit_length(), rdu_tiles):
        part = mask >> first & ((1 << rdu_tiles) - 1)
        rows += [len(row) for row in f"{part:b}".split("0") if row]
    return rows


#: Members of a job on each of several nodes, the most first, with what they need there.
Spread = tuple[tuple[NodeRoom, Need], ...]


def whole_tiles(tiles: int, rdu_tiles: int) -> int:
    """Return how many tiles a member of so many takes: of more than an RDU has, whole RDUs (pure)."""
    return -(-tiles // rdu_tiles) * rdu_tiles if 0 < rdu_tiles < tiles else tiles


def spread_over(need: Need, counts: Iterable[tuple[int, NodeRoom]]) -> Spread | None:
    """Spread members over as few nodes as suffice (pure); ``None``: all together do not.

    Each node takes as many as it has room for, those with the most room first; the last one is the one that the rest
    leaves the least room on. Of equals degraded nodes come last.

    Args:
        counts: how many members each node has room for.
    """
    tiles, members, constraint = need
    each, left, found = tiles // members, members, list[tuple[NodeRoom, Need]]()
    rest = sorted(counts, key=lambda of: (-min(of[0], members), of[1].is_degraded, of[1].tiles, of[1].index))
    for place, (count, room) in enumerate(rest):
        if count >= left:
            sufficient = (of for of in rest[place:] if of[0] >= left)
            _, room = min(sufficient, key=lambda of: (of[1].is_degraded, of[0], of[1].tiles, of[1].index))
        if (taken := min(count, left)) > 0:
            found.append((room, (taken * each, taken, constraint)))
            left -= taken
        if not left:
            return tuple(found)
    return None


class Rooms:
    """Rooms of all nodes. A search for the best one for so many tiles costs the logarithm of their number."""

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        self.all = [NodeRoom(index, node) for index, node in enumerate(nodes)]
        self._named = {room.node.name: room for room in self.all}
        #: Nodes that a job's members may be spread over.
        self.linked = [room for room in self.all if room.node.is_linked and room.node.capacity is not None]
        #: Free worker slots of all nodes.
        self.slots = 0
        self.count_slots()
        #: Nodes that have changed, and for each size the nodes by rank and how many of the changes they have seen.
        self._changes: list[int] = []
        self._ranks: dict[Need, tuple[list[int], int]] = {}
        self._whys: dict[Need, tuple[int, str]] = {}

    def count_slots(self) -> None:
        """Count the free worker slots anew, after rooms were changed by themselves."""
        self.slots = sum(max(room.slots, 0) for room in self.all)

    def of(self, part: JobPart) -> NodeRoom | None:
        """Return the node of a part of an active job; ``None``: it is not among them."""
        if part.node is None:
            return self.all[0] if len(self.all) == 1 else None
        return self._named.get(part.node)

    def spread(
        self, need: Need, apart: Container[int] = (), now: float = 0.0, until: float = 0.0
    ) -> Spread | None:  # fmt: skip
        """Find nodes for a job's members that are to start together; ``None``: there is no room for all.

        Args: as of ``find``.
        """
        tiles, members, constraint = need
        if members < 2 or not tiles or len(self.linked) < 2:
            return None
        counts = [
            (count, room)
            for room in self.linked
            if room.index not in apart
            and constraint <= room.node.labels
            and (count := room.count_members(tiles // members, now, until))
        ]
        return spread_over(need, counts) if sum(count for count, _ in counts) >= members else None

    def find(
        self, need: Need, apart: Container[int] = (), now: float = 0.0, until: float = 0.0
    ) -> NodeRoom | None:  # fmt: skip
        """Find the best node for a job; ``None``: none has room.

        Args:
            apart: indices of nodes that are left out.
            until: when the job has ended; it gets no tiles whose maintenance begins before.
        """
        ranks, seen = self._ranks.get(need) or (None, 0)
        if not ranks and ranks is not None and seen == len(self._changes):
            return None
        if ranks is None:
            ranks = [rank for room in self.all if (rank := room.rank(need)) is not None]
            heapq.heapify(ranks)
        elif seen < len(self._changes):
            for index in set(self._changes[seen:]):
                if (rank := self.all[index].rank(need)) is not None:
                    heapq.heappush(ranks, rank)
            if len(ranks) > 4 * len(self.all) + 64:  # most of them are of the past
                ranks = [rank for room in self.all if (rank := room.rank(need)) is not None]
                heapq.heapify(ranks)
        self._ranks[need] = ranks, len(self._changes)
        left_out: list[int] = []
        found = None
        while ranks:
            room = self.all[ranks[0] & _LOW]
            if room.rank(need) != ranks[0]:
                heapq.heappop(ranks)
            elif room.index in apart or (room.windows and not room.is_open(need, now, until)):
                left_out.append(heapq.heappop(ranks))
            else:
                found = room
                break
        for rank in left_out:
            heapq.heappush(ranks, rank)
        return found

    def give(self, room: NodeRoom, tiles: int) -> None:
        """Take back what a job had of a node of which any tiles are as good as others."""
        self.slots += 1
        self._changes.append(room.index)
        room.give(tiles)

    def close(self, name: str) -> None:
        """Count a node on which nothing runs as lost."""
        self._replace(self._named[name], 0, 0, 0, [])

    def open(self, name: str) -> None:
        """Count a node that was lost as free."""
        room = self._named[name]
        fresh = NodeRoom(room.index, room.node)
        self._replace(room, fresh.tiles, fresh.places, fresh.slots, [fresh.tiles])

    def _replace(self, room: NodeRoom, tiles: int, places: int, slots: int, rows: list[int]) -> None:
        self.slots += slots - room.slots
        self._changes.append(room.index)
        room.set_free(tiles, places, slots, rows)

    def release(self, room: NodeRoom, tiles: int) -> None:
        """Hold so many tiles no more, of a node of which any are as good as others."""
        self._changes.append(room.index)
        room.release(tiles)

    def hold(self, room: NodeRoom, need: Need, leaving: Leaving, closed: int = 0) -> Leaving:
        """Keep what a job needs on a node that others leave, as by ``NodeRoom.hold``."""
        self._changes.append(room.index)
        return room.hold(need, leaving, closed)

    def take(self, room: NodeRoom, need: Need, now: float = 0.0, until: float = 0.0) -> int:
        """Give a job its resources on a node, as by ``NodeRoom.take``. Returns how many tiles it gets."""
        self.slots -= 1
        self._changes.append(room.index)
        return room.take(need, now, until)

    def forget_whys(self) -> None:
        """Forget what ``why_none`` said: another decision begins."""
        self._whys.clear()

    def why_none(self, need: Need) -> str:
        """Say why no node has room for so many tiles: of several nodes, as it was when the first job found none."""
        known = self._whys.get(need)
        if known is None or (len(self.all) == 1 and known[0] != len(self._changes)):
            known = self._whys[need] = len(self._changes), self._find_why(need)
        return known[1]

    def _find_why(self, need: Need) -> str:
        tiles, members, constraint = need
        able = [room for room in self.all if constraint <= room.node.labels]
        answering = [(room, room.node.capacity) for room in able if room.node.capacity is not None]
        free = sum(max(room.tiles, 0) for room, _ in answering)
        total = sum(capacity.tiles for _, capacity in answering)
        enough = [room for room, _ in answering if room.tiles >= tiles]
        if members > 1 and tiles and len(self.linked) > 1:
            counts = [room.count_members(tiles // members) for room in able if room.node.is_linked]
            return (
                f"it has {members} members of {tiles // members} tiles, the {len(counts)} nodes together have room for "
                f"{sum(counts)} of them"
            )
        if not tiles:
            return "no node with the labels that it asks for has a free worker slot"
        if not enough:
            why = f"it needs {tiles} tiles, {free} of {total} are free"
            if len(answering) > 1:
                why += f" on {len(answering)} nodes, {max(max(room.tiles, 0) for room, _ in answering)} of them on one"
            if cordoned := sum(capacity.cordoned_tiles for _, capacity in answering):
                why += f", {cordoned} are cordoned or in maintenance"
            return why
        if all(room.places <= 0 for room in enough):
            where = "the node runs" if len(self.all) == 1 else "the nodes with room run"
            return f"{where} as many applications as it may" if len(self.all) == 1 else f"{where} all that they may"
        if all(room.slots <= 0 or room.places <= 0 for room in enough):
            return "the nodes with room have no free worker slot"
        if members > 1:
            return f"it has {members} members of {tiles // members} tiles, and no node has room for all of them at once"
        rdu_tiles = Counter(capacity.rdu_tiles for _, capacity in answering).most_common(1)[0][0]
        if tiles > rdu_tiles:
            return f"it needs {-(-tiles // rdu_tiles)} whole RDUs, and its {free} free tiles are not in as many"
        longest = max(room.longest for room in enough)
        return f"it needs {tiles} tiles in a row inside an RDU, the longest free row has {longest}"
