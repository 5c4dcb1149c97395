"""Free resources of one node while a decision is made (pure): rows of tiles, places of applications, worker slots.

If the node's daemon reports which tiles are free, their positions are known, too; otherwise only their number.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rdukit_platform.nodes.topology import NodeLayout, place_members
from rdukit_platform.nodes.view import members_that_fit
from rdukit_platform.scheduler.model import Need, NodeState

#: Bits of each field of a node's rank; the lowest field is the node's index.
_BITS: Final = 20
LOW: Final = (1 << _BITS) - 1
#: Label of nodes: its value names the rack, within which links are short.
RACK: Final = "rack"


class NodeRoom:
    """Free resources of one node."""

    __slots__ = (
        "_layout", "_mask",
        "_rdu_tiles", "_rows", "index", "is_degraded", "node", "places", "rack", "slots", "tiles", "windows",
    )  # fmt: skip

    def __init__(self, index: int, node: NodeState) -> None:
        self.index, self.node, self.slots = index, node, node.slots
        #: Value of the node's label ``RACK``.
        self.rack = next((value for key, value in node.labels if key == RACK), None)
        capacity = node.capacity
        self.tiles, self.places, self.is_degraded = 0, 0, False
        self._rows: list[int] = []
        #: Tiles of an RDU; 0: positions are unknown, and any tiles are equivalent.
        self._rdu_tiles = 0
        #: Mask of free tiles, if the daemon reports it; otherwise 0.
        self._mask = 0
        #: Maintenance windows, as in ``NodeCapacity``.
        self.windows = () if capacity is None else capacity.windows
        if capacity is not None:
            self.tiles, self.places = capacity.free_tiles, capacity.free_applications
            self.is_degraded = capacity.is_degraded
            is_known = capacity.rdu_tiles > 0 and sum(capacity.free_rows) == capacity.free_tiles
            self._rows = list(capacity.free_rows) if is_known else [capacity.free_tiles]
            self._rdu_tiles = capacity.rdu_tiles if is_known else 0
            self._mask = capacity.free_mask if is_known else 0
        self._layout = NodeLayout(self._rdu_tiles, 0 if capacity is None else capacity.xrdu_rdus)

    @property
    def rdu_tiles(self) -> int:
        """Return the tiles per RDU; 0: all tiles are equivalent."""
        return self._rdu_tiles

    @property
    def mask(self) -> int:
        """Return the mask of free tiles, as in ``NodeCapacity.free_mask``; 0: unknown, or none is free."""
        return self._mask

    @property
    def rows(self) -> tuple[int, ...]:
        """Return the lengths of the rows of free tiles."""
        return tuple(row for row in self._rows if row)

    @property
    def longest(self) -> int:
        """Return the length of the longest row of free tiles."""
        return max(self._rows, default=0)

    def rank(self, need: Need) -> int | None:
        """Return the node's rank for a job, lower is better; ``None``: the job does not fit now."""
        tiles, members, constraint = need
        if self.slots <= 0 or (constraint and not constraint <= self.node.labels):
            return None
        if tiles == 0:
            return (LOW - min(self.slots, LOW)) << _BITS | self.index
        if self.places <= 0 or tiles > self.tiles:
            return None
        rdu_tiles, distance, row = self._rdu_tiles, 0, LOW
        if members > 1 or tiles > rdu_tiles:
            distance = self._distance(tiles // members, members)
            if members > 1 and rdu_tiles:
                if members_that_fit(tiles // members, rdu_tiles, self._rows) < members:
                    return None
                tiles //= members
        if 0 < rdu_tiles < tiles:
            row = self._rows.count(rdu_tiles) - -(-tiles // rdu_tiles)
            if row < 0:
                return None
        else:
            for length in self._rows:
                if tiles <= length < row:
                    row = length
            if row == LOW:
                return None
        return (((self.is_degraded << _BITS | distance) << _BITS | row) << _BITS | self.tiles) << _BITS | self.index

    def _distance(self, tiles: int, members: int) -> int:
        """Return the distance between the job's tiles, as in ``MemberTiles``; 1 if unknown."""
        if self._rdu_tiles and self._mask.bit_count() == self.tiles:
            found = place_members(tiles, members, self._mask, self._layout)
            return 0 if found is None else found.distance
        return 1

    def count_members(self, tiles: int, now: float = 0.0, until: float = 0.0) -> int:
        """Return how many members of ``tiles`` tiles fit, if they end by ``until``."""
        if self.slots <= 0 or self.places <= 0:
            return 0
        closed = self.closed(now, until) if self.windows else 0
        if closed and not self._mask:
            return 0
        return self._count_in(tiles, rows_of(self._mask & ~closed, self._rdu_tiles) if closed else self._rows)

    def count_with(self, tiles: int, leaving: "Leaving", closed: int = 0) -> int:
        """Return how many members of ``tiles`` tiles would fit outside of ``closed`` once others have left."""
        if self.places + leaving.jobs <= 0 or self.slots + leaving.jobs <= 0:
            return 0
        if self._is_mapped(leaving):
            return self._count_in(tiles, rows_of((self._mask | leaving.mask) & ~closed, self._rdu_tiles))
        return 0 if closed else max(self.tiles + leaving.tiles, 0) // whole_tiles(tiles, self._rdu_tiles)

    def _count_in(self, tiles: int, rows: Iterable[int]) -> int:
        if not self._rdu_tiles:
            return sum(rows) // tiles
        return members_that_fit(tiles, self._rdu_tiles, rows)

    def closed(self, now: float, until: float) -> int:
        """Return the mask of tiles whose maintenance is under way or begins before ``until``; -1: all."""
        found = 0
        for at, end, mask in self.windows:
            if at < until and (end is None or end > now):
                found |= mask or -1
        return found

    def count_open(self, now: float, until: float) -> int:
        """Return the number of tiles for a job that ends at ``until``, if it were alone on the node."""
        if self.node.capacity is None:
            return 0
        closed = self.closed(now, until)
        return self.node.capacity.tiles - closed.bit_count() if closed >= 0 else 0

    def count_closing(self, now: float, until: float) -> int:
        """Count the tiles, free or not, whose maintenance begins between now and ``until``."""
        closing = sum(mask.bit_count() or LOW for at, _, mask in self.windows if now < at < until)
        return closing

    def is_open(self, need: Need, now: float, until: float) -> bool:
        """Return whether a job that fits would end before maintenance of its tiles begins."""
        closed = self.closed(now, until) if self.windows and need[0] else 0
        return not closed or (self._mask > 0 and self.place(need, 0, closed) is not None)

    def take(self, need: Need, now: float = 0.0, until: float = 0.0) -> int:
        """Take those of a job's resources that are free. Returns the number of tiles.

        Args:
            until: the job's end; tiles whose maintenance begins before it are not used.
        """
        tiles, members, _ = need
        self.slots -= 1
        if tiles == 0:
            return 0
        self.places -= 1
        if self.windows and (closed := self.closed(now, until)) and self._mask:
            place = self.place(need, 0, closed) or 0
            self._mask &= ~place
            self._rows = rows_of(self._mask, self._rdu_tiles)
            self.tiles -= place.bit_count() or tiles
            return place.bit_count() or tiles
        several = members > 1 or tiles > self._rdu_tiles
        if several and self._is_mapped(Leaving()) and (near := self.place(need, 0)) is not None:
            self._mask &= ~near
            self._rows = rows_of(self._mask, self._rdu_tiles)
            self.tiles -= near.bit_count()
            return near.bit_count()
        if members == 1 or not self._rdu_tiles:
            return self._take_row(tiles)
        return sum(self._take_row(tiles // members) for _ in range(members))

    def _take_row(self, tiles: int) -> int:
        rows, rdu = self._rows, self._rdu_tiles
        if self._mask and (place := place_members(tiles, 1, self._mask, self._layout)) is not None:
            self._mask &= ~place.masks[0]
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
            else:  # the daemon's report is outdated: assume no free tiles until the next one
                rows.clear()
        self.tiles -= tiles
        return tiles

    def give(self, tiles: int, mask: int = 0) -> None:
        """Take back a job's resources: the tiles of a mask, or a number of equivalent tiles."""
        self.slots += 1
        if tiles:
            self.places += 1
            self.release(tiles, mask)

    def release(self, tiles: int, mask: int = 0) -> None:
        """Free the tiles of a mask, or a number of equivalent tiles."""
        if mask:
            self._set_mask(self._mask | mask)
        elif tiles:
            self.tiles += tiles
            self._rows = [self.tiles]

    def withdraw(self, mask: int) -> None:
        """Mark free tiles as not free."""
        self._set_mask(self._mask & ~mask)

    def _set_mask(self, mask: int) -> None:
        self._mask, self.tiles, self._rows = mask, mask.bit_count(), rows_of(mask, self._rdu_tiles)

    def close(self) -> None:
        """Mark everything as not free."""
        self.tiles, self.places, self.slots, self._rows, self._mask = 0, 0, 0, [], 0

    def open(self) -> None:
        """Reset the free resources to the node's capacity, without jobs."""
        fresh = NodeRoom(self.index, self.node)
        self.tiles, self.places, self.slots = fresh.tiles, fresh.places, fresh.slots
        self._rows, self._mask, self.is_degraded = fresh._rows, fresh._mask, fresh.is_degraded

    def fits_with(self, need: Need, leaving: "Leaving", closed: int = 0) -> bool:
        """Return whether a job would fit, outside of ``closed`` tiles, once others have left."""
        tiles = need[0]
        if self.places + leaving.jobs <= 0 or self.slots + leaving.jobs <= 0 or tiles > self.tiles + leaving.tiles:
            return False
        if not self._is_mapped(leaving):
            return not closed
        return self.place(need, leaving.mask, closed) is not None

    def hold(self, need: Need, leaving: "Leaving", closed: int = 0) -> "Leaving":
        """Hold the resources of a job that ``fits_with`` accepts, so that no other job gets them. Returns what remains
        of ``leaving``.
        """
        tiles = need[0]
        if self._is_mapped(leaving):
            place = self.place(need, leaving.mask, closed) or 0
            self.tiles -= (place & self._mask).bit_count()
            self._mask &= ~place
            self._rows = rows_of(self._mask, self._rdu_tiles)
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
        """Return the mask of tiles that a job would get if ``besides`` were also free; ``None``: the job does not fit.

        ``closed``: tiles that it may not have.
        """
        tiles, members, _ = need
        found = place_members(tiles // members, members, (self._mask | besides) & ~closed, self._layout)
        return None if found is None else sum(found.masks)

    def _is_mapped(self, leaving: "Leaving") -> bool:
        """Return whether the positions of free and of leaving tiles are known, not only their numbers."""
        is_known = self._mask.bit_count() == self.tiles and leaving.mask.bit_count() == leaving.tiles
        return self._rdu_tiles > 0 and is_known


@dataclass(frozen=True, slots=True)
class Leaving:
    """Jobs of a node that release their tiles soon: number of jobs, number of tiles, and mask."""

    jobs: int = 0
    tiles: int = 0
    mask: int = 0

    def __add__(self, other: "Leaving") -> "Leaving":
        return Leaving(self.jobs + other.jobs, self.tiles + other.tiles, self.mask | other.mask)


def rows_of(mask: int, rdu_tiles: int) -> list[int]:
    """Return the lengths of the rows of tiles in a mask, each inside an RDU, the lowest first (pure)."""
    rows = []
    for first in range(0, mask.bit_length(), rdu_tiles):
        part = mask >> first & ((1 << rdu_tiles) - 1)
        rows += [len(row) for row in reversed(f"{part:b}".split("0")) if row]
    return rows


def whole_tiles(tiles: int, rdu_tiles: int) -> int:
    """Return the tiles that a member occupies: whole RDUs if it needs more than one (pure)."""
    return -(-tiles // rdu_tiles) * rdu_tiles if 0 < rdu_tiles < tiles else tiles
