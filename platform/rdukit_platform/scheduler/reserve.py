"""Reservation of tiles for the first job that finds none, by the run limits of the active ones (pure).

Source: ours; after Lifka, "The ANL/IBM SP Scheduling System" (1995), which is called EASY backfill.
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

#: Of the last day that a date can name.
_LAST_MINUTE: Final = 253402300740


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

    def describe_start(self) -> str:
        """Say when the job is expected to start, by the minute: the words are written again where they change."""
        if self.at == float("inf"):
            return ", expected to start when a job without a run limit ends"
        minute = min(-int(-self.at // 60.0) * 60, _LAST_MINUTE)
        return f", expected to start by {datetime.fromtimestamp(minute, UTC):%Y-%m-%d %H:%M} UTC"

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
        room = max(nearest, key=lambda room: room.tiles + sum(tiles for _, tiles, _ in endings.get(room.index, ())))
        return Reservation(job, float("inf"), {room.index: 0})
    return _reserve_nearest(job, could, now)


def _find_in_maintained(
    job: QueuedJob, room: NodeRoom, endings: Sequence[Ending], now: float
) -> Opening | None:  # fmt: skip
    """Find when a node has enough tiles beside those whose maintenance would begin before the job has ended."""
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
