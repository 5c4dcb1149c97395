"""When nodes have enough tiles for a job, if those of their jobs that have run limits use them up (pure).

What was found for jobs of a size is kept, and looked up anew for nodes that have changed since: the first job that
waits is much the same in one decision after the other.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rdukit_platform.scheduler.model import Need
from rdukit_platform.scheduler.node_room import NodeRoom
from rdukit_platform.scheduler.rooms import Rooms

#: When a job gives back its slot and how many tiles at the latest, and the index of its node.
Ending = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class Opening:
    """Time at which a node has enough tiles, and how many more."""

    at: float
    spare: int
    room: NodeRoom


@dataclass(slots=True)
class _Known:
    """Openings that are known for jobs of a size."""

    able: dict[int, NodeRoom]
    #: By the index of the node; a node that never has enough is not there.
    found: dict[int, Opening] = field(default_factory=dict)
    #: Times and indices, the earliest first. Some are of the past.
    order: list[tuple[float, int]] = field(default_factory=list)
    #: Changes of rooms that are in it.
    seen: int = 0


class Openings:
    """Openings of all nodes without maintenance."""

    def __init__(self, rooms: Rooms, endings: Mapping[int, Sequence[Ending]]) -> None:
        """
        Args:
            rooms: they note each change, that of endings, too.
            endings: of the jobs on each node, by its index, the earliest first.
        """
        self._rooms, self._endings = rooms, endings
        self._known: dict[Need, _Known] = {}

    def forget(self) -> None:
        """Forget all: nodes that could have jobs of some sizes are others now."""
        self._known.clear()

    def find(self, need: Need, able: Sequence[NodeRoom]) -> Opening | None:
        """Find the node that is the first to have enough tiles, of equals the first one; ``None``: none ever has.

        Args:
            able: nodes that could have such a job, the same for the same need; those with maintenance are left out.
        """
        known = self._known.get(need)
        if known is None:
            known = self._known[need] = _Known({room.index: room for room in able if not room.windows})
            self._look(known, need[0], known.able)
        else:
            self._look(known, need[0], known.able.keys() & set(self._rooms.changes[known.seen :]))
        known.seen = len(self._rooms.changes)
        while known.order:
            at, index = known.order[0]
            opening = known.found.get(index)
            if opening is not None and opening.at == at:
                return opening
            heapq.heappop(known.order)
        return None

    def _look(self, known: _Known, tiles: int, indices: Iterable[int]) -> None:
        for index in indices:
            opening = find_opening(known.able[index], self._endings.get(index, ()), tiles)
            if opening is None:
                known.found.pop(index, None)
                continue
            before = known.found.get(index)
            known.found[index] = opening
            if before is None or before.at != opening.at:
                heapq.heappush(known.order, (opening.at, index))
        if len(known.order) > 4 * len(known.able) + 64:  # most of them are of the past
            known.order = [(opening.at, index) for index, opening in known.found.items()]
            heapq.heapify(known.order)


def find_opening(room: NodeRoom, endings: Sequence[Ending], tiles: int) -> Opening | None:
    """Find when a node has enough tiles (pure); ``None``: never, as far as is known."""
    free = room.tiles
    for at, given, _ in endings:
        free += given
        if given and free >= tiles:
            return Opening(at, free - tiles, room)
    return None
