"""Free resources of all nodes while a decision is made (pure): rows of tiles, places of applications, worker slots.

A job of no more tiles than an RDU has needs as many neighbours in one; a larger one has whole RDUs. The node of a job
is the one whose smallest sufficient row of free tiles is the shortest, so that long rows and whole RDUs stay free for
larger jobs; nodes that are degraded come last. In the node, its daemon takes the first row that suffices. Members of a
job that no node has room for are spread over linked nodes, as few as suffice, if as few do within a rack there.
"""

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from rdukit_platform.scheduler.model import ActiveJob, JobPart, Need, NodeState
from rdukit_platform.scheduler.node_room import LOW, Leaving, NodeRoom

#: Members of a job on each of several nodes, the most first, with what they need there.
Spread = tuple[tuple[NodeRoom, Need], ...]


def spread_near(need: Need, counts: Sequence[tuple[int, NodeRoom]]) -> Spread | None:
    """Spread members as ``spread_over``, but within a rack (``RACK``) if no more nodes are needed there (pure)."""
    best = spread_over(need, counts)
    racks: dict[str, list[tuple[int, NodeRoom]]] = {}
    for count, room in counts:
        if (rack := room.rack) is not None:
            racks.setdefault(rack, []).append((count, room))
    if best is None or len(racks) < 2:
        return best
    members = need[1]
    found = [
        places
        for of_rack in racks.values()
        if sum(count for count, _ in of_rack) >= members and (places := spread_over(need, of_rack)) is not None
    ]
    return min(
        (places for places in found if len(places) == len(best)),
        key=lambda places: (sum(room.tiles for room, _ in places), places[0][0].index),
        default=best,
    )


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
        #: Indices of nodes that have changed, one after the other.
        self.changes: list[int] = []
        #: For each size the nodes by rank, and how many of the changes they have seen.
        self._ranks: dict[Need, tuple[list[int], int]] = {}
        self._whys: dict[Need, tuple[int, str]] = {}

    def count_slots(self) -> None:
        """Count the free worker slots anew, after rooms were changed by themselves."""
        self.slots = sum(max(room.slots, 0) for room in self.all)

    def of(self, part: JobPart | ActiveJob) -> NodeRoom | None:
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
        each = tiles // members
        counts = [
            (count, room)
            for room in self.linked
            if room.tiles >= each
            and room.index not in apart
            and constraint <= room.node.labels
            and (count := room.count_members(each, now, until))
        ]
        return spread_near(need, counts) if sum(count for count, _ in counts) >= members else None

    def find(
        self, need: Need, apart: Container[int] = (), now: float = 0.0, until: float = 0.0
    ) -> NodeRoom | None:  # fmt: skip
        """Find the best node for a job; ``None``: none has room.

        Args:
            apart: indices of nodes that are left out.
            until: when the job has ended; it gets no tiles whose maintenance begins before.
        """
        ranks, seen = self._ranks.get(need) or (None, 0)
        if not ranks and ranks is not None and seen == len(self.changes):
            return None
        if ranks is None:
            ranks = [rank for room in self.all if (rank := room.rank(need)) is not None]
            heapq.heapify(ranks)
        elif seen < len(self.changes):
            for index in set(self.changes[seen:]):
                if (rank := self.all[index].rank(need)) is not None:
                    heapq.heappush(ranks, rank)
            if len(ranks) > 4 * len(self.all) + 64:  # most of them are of the past
                ranks = [rank for room in self.all if (rank := room.rank(need)) is not None]
                heapq.heapify(ranks)
        self._ranks[need] = ranks, len(self.changes)
        left_out: list[int] = []
        found = None
        while ranks:
            room = self.all[ranks[0] & LOW]
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

    def named(self, name: str) -> NodeRoom:
        """Return the room of a node."""
        return self._named[name]

    def give(self, room: NodeRoom, tiles: int, mask: int = 0) -> None:
        """Take back what a job had of a node, as by ``NodeRoom.give``."""
        self.slots += 1
        self.changes.append(room.index)
        room.give(tiles, mask)

    def close(self, room: NodeRoom) -> None:
        """Count a node on which nothing runs as lost."""
        self.slots -= room.slots
        self.changes.append(room.index)
        room.close()

    def open(self, room: NodeRoom) -> None:
        """Count a node that was lost as free."""
        before = room.slots
        room.open()
        self.slots += room.slots - before
        self.changes.append(room.index)

    def withdraw(self, room: NodeRoom, mask: int, *, is_degraded: bool) -> None:
        """Count free tiles of a node as not free."""
        self.changes.append(room.index)
        room.withdraw(mask)
        room.is_degraded = is_degraded

    def restore(self, room: NodeRoom, mask: int, *, is_degraded: bool) -> None:
        """Count tiles of a node, which nobody has, as free again."""
        self.changes.append(room.index)
        room.release(0, mask)
        room.is_degraded = is_degraded

    def release(self, room: NodeRoom, tiles: int, mask: int = 0) -> None:
        """Hold tiles no more, as by ``NodeRoom.release``."""
        self.changes.append(room.index)
        room.release(tiles, mask)

    def hold(self, room: NodeRoom, need: Need, leaving: Leaving, closed: int = 0) -> Leaving:
        """Keep what a job needs on a node that others leave, as by ``NodeRoom.hold``."""
        self.changes.append(room.index)
        return room.hold(need, leaving, closed)

    def take(self, room: NodeRoom, need: Need, now: float = 0.0, until: float = 0.0) -> int:
        """Give a job its resources on a node, as by ``NodeRoom.take``. Returns how many tiles it gets."""
        self.slots -= 1
        self.changes.append(room.index)
        return room.take(need, now, until)

    def forget_whys(self) -> None:
        """Forget what ``why_none`` said: another decision begins."""
        self._whys.clear()

    def why_none(self, need: Need) -> str:
        """Say why no node has room for so many tiles: of several nodes, as it was when the first job found none."""
        known = self._whys.get(need)
        if known is None or (len(self.all) == 1 and known[0] != len(self.changes)):
            known = self._whys[need] = len(self.changes), self._find_why(need)
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
