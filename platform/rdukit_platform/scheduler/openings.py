"""Times at which nodes have enough tiles for a job, if jobs with run limits use them up (pure).

Results are cached by size and recomputed for nodes that have changed: the first waiting job is mostly the same in
successive decisions.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rdukit_platform.scheduler.model import Need
from rdukit_platform.scheduler.node_room import NodeRoom
from rdukit_platform.scheduler.rooms import Rooms

#: Latest end of a job, its tiles, and its node's index.
Ending = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class Opening:
    """Time at which a node has enough tiles, and the number of tiles left over."""

    at: float
    spare: int
    room: NodeRoom


@dataclass(slots=True)
class _Known:
    """Known openings for jobs of one size."""

    able: dict[int, NodeRoom]
    #: Openings by node index; nodes that never have enough are missing.
    found: dict[int, Opening] = field(default_factory=dict)
    #: Heap of times and node indices; some entries are outdated.
    order: list[tuple[float, int]] = field(default_factory=list)
    #: Number of changes of rooms already considered.
    seen: int = 0


class Openings:
    """Cache of the times at which nodes without maintenance have enough tiles for a job."""

    def __init__(self, rooms: Rooms, endings: Mapping[int, Sequence[Ending]]) -> None:
        """
        Args:
            rooms: record each change, also of endings.
            endings: ends of jobs by node index, earliest first.
        """
        self._rooms, self._endings = rooms, endings
        self._known: dict[Need, _Known] = {}

    def forget(self) -> None:
        """Drop all results, because the nodes that can hold a size have changed."""
        self._known.clear()

    def find(self, need: Need, able: Sequence[NodeRoom]) -> Opening | None:
        """Find the earliest opening, on the first node among equals; ``None``: there is no opening.

        Args:
            able: nodes that could hold the job, always the same for one need; those with maintenance are skipped.
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
        if len(known.order) > 4 * len(known.able) + 64:  # most entries are outdated
            known.order = [(opening.at, index) for index, opening in known.found.items()]
            heapq.heapify(known.order)


def find_opening(room: NodeRoom, endings: Sequence[Ending], tiles: int) -> Opening | None:
    """Find when a node has enough tiles (pure); ``None``: no known time."""
    free = room.tiles
    for at, given, _ in endings:
        free += given
        if given and free >= tiles:
            return Opening(at, free - tiles, room)
    return None
