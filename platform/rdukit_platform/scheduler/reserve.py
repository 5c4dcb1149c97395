"""Reservation of tiles for the first job that does not fit, by the run limits of active jobs (pure).

Source: ours; after Lifka, "The ANL/IBM SP Scheduling System" (1995), known as EASY backfill.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import QueuedJob
from rdukit_platform.scheduler.node_room import NodeRoom, whole_tiles
from rdukit_platform.scheduler.openings import Ending, Opening
from rdukit_platform.scheduler.rooms import spread_over

#: Last minute, in seconds since the epoch, that a date can express.
_LAST_MINUTE: Final = 253402300740


@dataclass(slots=True)
class Reservation:
    """Tiles of one or several nodes that are reserved for the first job that does not fit, from ``at`` on.

    ``at`` is infinite if a job without a run limit holds tiles that it needs.
    """

    job: QueuedJob
    at: float
    #: Tiles left over on each node, by index; 0 if ``at`` is infinite.
    spares: dict[int, int]

    def closed_to(self, job: QueuedJob, now: float) -> Sequence[int]:
        """Return the nodes on which a later job may not start now: it ends too late, and too few tiles remain."""
        if job.run_limit_s is not None and self.at < float("inf") and now + job.run_limit_s <= self.at:
            return ()
        return [index for index, spare in self.spares.items() if job.tiles > spare]

    def describe_start(self) -> str:
        """Describe the expected start to the minute, so that the stored text changes seldom."""
        if self.at == float("inf"):
            return ", expected to start when a job without a run limit ends"
        minute = min(-int(-self.at // 60.0) * 60, _LAST_MINUTE)
        return f", expected to start by {datetime.fromtimestamp(minute, UTC):%Y-%m-%d %H:%M} UTC"

    def note(self, job: QueuedJob, room: NodeRoom, tiles: int, now: float) -> None:
        """Subtract the tiles of a later job that starts now and still runs at ``at``."""
        if room.index in self.spares and (job.run_limit_s is None or now + job.run_limit_s > self.at):
            self.spares[room.index] -= tiles


#: Members of a job that each linked node could hold if it were empty.
Could = Sequence[tuple[int, NodeRoom]]


def reserve(job: QueuedJob, ledger: Ledger, now: float, *, at_any_cost: bool) -> Reservation | None:
    """Reserve tiles for a job that does not fit, at the earliest time that the ends of others allow.

    Several nodes are used if that is earlier. Tiles whose maintenance would begin before the job's end are left out.

    Args:
        at_any_cost: if no time is known, reserve the node that comes closest.
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
        room = max(nearest, key=lambda room: room.tiles + sum(tiles for _, tiles, _ in endings.get(room.index, ())))
        return Reservation(job, float("inf"), {room.index: 0})
    return _reserve_nearest(job, could, now)


def _find_in_maintained(
    job: QueuedJob, room: NodeRoom, endings: Sequence[Ending], now: float
) -> Opening | None:  # fmt: skip
    """Find when a node has enough tiles, without those whose maintenance would begin before the job's end."""
    free = room.tiles
    for at, tiles, _ in endings:
        free += tiles
        wanted = job.tiles + room.count_closing(now, job.ends_by(at))
        if tiles and free >= wanted:
            return Opening(at, free - wanted, room)
    return None


def _reserve_spread(
    job: QueuedJob, could: Could, endings: Mapping[int, Sequence[Ending]], now: float, before: float
) -> Reservation | None:
    """Reserve tiles of several nodes if ends of jobs free enough of them before a time; otherwise ``None``.

    Nodes with planned maintenance are left out.
    """
    each = job.tiles // job.members
    nodes = {room.index: (most, room) for most, room in could if not (room.windows and room.closed(now, float("inf")))}
    free = {index: room.tiles for index, (_, room) in nodes.items()}
    unit = {index: whole_tiles(each, room.rdu_tiles) for index, (_, room) in nodes.items()}

    def count(index: int) -> int:
        return min(max(free[index], 0) // unit[index], nodes[index][0])

    total = sum(map(count, nodes))
    # Heap of each node's next end, with its position among the node's ends.
    coming = [(*of_node[0], 0) for index in nodes if (of_node := endings.get(index))]
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
            heapq.heapreplace(coming, (*endings[index][place + 1], place + 1))
        else:
            heapq.heappop(coming)
    return None


def _reserve_nearest(job: QueuedJob, could: Could, now: float) -> Reservation | None:
    """Reserve the linked nodes with the most free tiles, as many as the job needs."""
    each, left, spares = job.tiles // job.members, job.members, dict[int, int]()
    until = job.ends_by(now)
    for most, room in sorted(could, key=lambda of: (-of[1].tiles, of[1].index)):
        if room.windows:
            most = min(most, room.count_open(now, until) // whole_tiles(each, room.rdu_tiles))
        if most and left > 0:
            spares[room.index] = 0
            left -= most
    return Reservation(job, float("inf"), spares) if spares and left <= 0 else None
