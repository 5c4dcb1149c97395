"""Free resources of all nodes while a decision is made (pure): rows of tiles, places of applications, worker slots.

A job that fits in an RDU needs neighbouring tiles in one; a larger job gets whole RDUs. The node with the shortest
sufficient row of free tiles is chosen, so that long rows and whole RDUs stay free for larger jobs. Degraded nodes come
last. Within the node, its daemon takes the first sufficient row. If no node fits the job, its members are spread over
as few linked nodes as suffice, within one rack if that needs no more nodes.
"""

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Sequence

from rdukit_platform.scheduler.model import ActiveJob, JobPart, Need, NodeState
from rdukit_platform.scheduler.node_room import LOW, Leaving, NodeRoom

#: Members of a job on several nodes, each with the members' need there; the most members first.
Spread = tuple[tuple[NodeRoom, Need], ...]


def spread_near(need: Need, counts: Sequence[tuple[int, NodeRoom]]) -> Spread | None:
    """Spread members like ``spread_over``, within one rack (``RACK``) if that needs no more nodes (pure)."""
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
    """Spread members over as few nodes as suffice (pure); ``None``: all nodes together do not suffice.

    Nodes with the most room are filled first. The last node is the one that is then filled best. Among equals, degraded
    nodes come last.

    Args:
        counts: number of members that fit on each node.
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
    """Rooms of all nodes. A search for the best node takes logarithmic time."""

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        self.all = [NodeRoom(index, node) for index, node in enumerate(nodes)]
        self._named = {room.node.name: room for room in self.all}
        #: Nodes that a job's members may be spread over.
        self.linked = [room for room in self.all if room.node.is_linked and room.node.capacity is not None]
        #: Free worker slots of all nodes.
        self.slots = 0
        self.count_slots()
        #: Indices of changed nodes, in the order of the changes.
        self.changes: list[int] = []
        #: Per size, a heap of nodes by rank, and the number of changes already applied to it.
        self._ranks: dict[Need, tuple[list[int], int]] = {}
        self._whys: dict[Need, tuple[int, str]] = {}

    def count_slots(self) -> None:
        """Recount the free worker slots, after rooms were changed directly."""
        self.slots = sum(max(room.slots, 0) for room in self.all)

    def of(self, part: JobPart | ActiveJob) -> NodeRoom | None:
        """Return the room of the node that a part runs on; ``None``: the node is not among these."""
        if part.node is None:
            return self.all[0] if len(self.all) == 1 else None
        return self._named.get(part.node)

    def spread(
        self, need: Need, apart: Container[int] = (), now: float = 0.0, until: float = 0.0
    ) -> Spread | None:  # fmt: skip
        """Find nodes for a job's members, which start together; ``None``: they do not all fit.

        Args: as for ``find``.
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
        """Find the best node for a job; ``None``: no node has room.

        Args:
            apart: indices of nodes that are left out.
            until: the job's end; it gets no tiles whose maintenance begins before it.
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
            if len(ranks) > 4 * len(self.all) + 64:  # most entries are outdated
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
        """Take back a job's resources on a node, as ``NodeRoom.give`` does."""
        self.slots += 1
        self.changes.append(room.index)
        room.give(tiles, mask)

    def close(self, room: NodeRoom) -> None:
        """Mark a node without jobs as lost."""
        self.slots -= room.slots
        self.changes.append(room.index)
        room.close()

    def open(self, room: NodeRoom) -> None:
        """Mark a lost node as back and free."""
        before = room.slots
        room.open()
        self.slots += room.slots - before
        self.changes.append(room.index)

    def withdraw(self, room: NodeRoom, mask: int, *, is_degraded: bool) -> None:
        """Mark free tiles of a node as not free."""
        self.changes.append(room.index)
        room.withdraw(mask)
        room.is_degraded = is_degraded

    def restore(self, room: NodeRoom, mask: int, *, is_degraded: bool) -> None:
        """Mark unused tiles of a node as free again."""
        self.changes.append(room.index)
        room.release(0, mask)
        room.is_degraded = is_degraded

    def release(self, room: NodeRoom, tiles: int, mask: int = 0) -> None:
        """Release held tiles, as ``NodeRoom.release`` does."""
        self.changes.append(room.index)
        room.release(tiles, mask)

    def hold(self, room: NodeRoom, need: Need, leaving: Leaving, closed: int = 0) -> Leaving:
        """Hold a job's resources on a node that others leave, as ``NodeRoom.hold`` does."""
        self.changes.append(room.index)
        return room.hold(need, leaving, closed)

    def take(self, room: NodeRoom, need: Need, now: float = 0.0, until: float = 0.0) -> int:
        """Take a job's resources on a node, as ``NodeRoom.take`` does. Returns the number of tiles."""
        self.slots -= 1
        self.changes.append(room.index)
        return room.take(need, now, until)

    def forget_whys(self) -> None:
        """Drop the cached reasons of ``why_none``, at the beginning of a decision."""
        self._whys.clear()

    def why_none(self, need: Need) -> str:
        """Explain why no node has room for a need. On several nodes the text is cached for the decision."""
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
                f"it has {members} members of {tiles // members} tiles, but the {len(counts)} nodes together have "
                f"room for {sum(counts)} of them"
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
            return f"{where} as many applications as it may" if len(self.all) == 1 else f"{where} as many as they may"
        if all(room.slots <= 0 or room.places <= 0 for room in enough):
            return "the nodes with room have no free worker slot"
        if members > 1:
            return f"it has {members} members of {tiles // members} tiles, and no node has room for all of them at once"
        rdu_tiles = Counter(capacity.rdu_tiles for _, capacity in answering).most_common(1)[0][0]
        if tiles > rdu_tiles:
            return f"it needs {-(-tiles // rdu_tiles)} whole RDUs, and its {free} free tiles are not in as many"
        longest = max(room.longest for room in enough)
        return f"it needs {tiles} tiles in a row inside an RDU, the longest free row has {longest}"
