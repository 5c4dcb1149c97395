"""Ledger of a decision: free resources of nodes, use by tenants, and ends of jobs.

It is built from a snapshot and changes with each job that starts or ends, so the simulator can keep it over many
decisions.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rdukit_platform.nodes.view import NodeCapacity, members_with_room, why_never
from rdukit_platform.scheduler.model import NO_LABELS, ActiveJob, Labels, Need, NodeState, QueuedJob, TenantShare
from rdukit_platform.scheduler.node_room import NodeRoom
from rdukit_platform.scheduler.openings import Ending, Openings
from rdukit_platform.scheduler.overdue import ActiveWaits
from rdukit_platform.scheduler.rooms import Rooms, Spread
from rdukit_platform.scheduler.shares import Shares

#: Largest number of existing labels named to a job that requires others.
SHOWN_LABELS: Final = 20


class Ledger:
    """Free resources, shares and ends."""

    def __init__(
        self, nodes: Sequence[NodeState], active: Collection[ActiveJob], claims: Mapping[str, TenantShare], now: float
    ) -> None:
        self._nodes = nodes
        self.rooms = Rooms(nodes)
        #: Jobs that all worker slots can run at once.
        self.slots = sum(node.slots for node in nodes)
        self.has_daemon = any(node.capacity is not None for node in nodes)
        #: Whether any node has maintenance planned or under way.
        self.has_windows = any(node.capacity is not None and node.capacity.windows for node in nodes)
        self.shares = Shares(claims, sum(node.capacity.tiles for node in nodes if node.capacity), self.slots)
        #: Ends of jobs with run limits by node index, earliest first.
        self.endings: defaultdict[int, list[Ending]] = defaultdict(list)
        self.openings = Openings(self.rooms, self.endings)
        self.waits = ActiveWaits()
        self._nevers: dict[Need, str | None] = {}
        self._unlabelled: dict[Labels, str | None] = {}
        self._able: dict[Need, list[NodeRoom]] = {}
        self._spreads: dict[Need, list[tuple[int, NodeRoom]]] = {}
        self._shapes: dict[object, tuple[NodeCapacity, str]] = {}
        #: Tiles of jobs started since the snapshot, by node index, as masks where known.
        self.held: defaultdict[str, dict[int, int]] = defaultdict(dict)
        #: Active jobs by node index, on nodes where some may be preempted.
        self.active: defaultdict[int, list[ActiveJob]] = defaultdict(list)
        #: Jobs with tiles, or parts of jobs, that all nodes can run at once.
        self.places = 0
        self._find_shapes()
        self._count(active, now)

    def _find_shapes(self) -> None:
        for node in self._nodes:
            if (capacity := node.capacity) is not None:
                shape = (capacity.tiles, capacity.broken_tiles, capacity.rdu_tiles, capacity.rows)
                self._shapes.setdefault(shape, (capacity, node.name))

    def change_capacity(self, room: NodeRoom, capacity: NodeCapacity) -> None:
        """Record a node's changed capacity. The room itself is updated separately."""
        room.node = replace(room.node, capacity=capacity)
        self._nodes = [each.node for each in self.rooms.all]
        self.shares.count_tiles(sum(node.capacity.tiles for node in self._nodes if node.capacity))
        for known in (self._nevers, self._able, self._spreads, self._shapes):
            known.clear()
        self.openings.forget()
        self._find_shapes()

    def close(self, room: NodeRoom) -> None:
        """Record that a node without jobs is lost."""
        self.places -= room.places
        self.rooms.close(room)
        self._count_slots(-room.node.slots)

    def open(self, room: NodeRoom) -> None:
        """Record that a lost node is back, without jobs."""
        self.rooms.open(room)
        self.places += room.places
        self._count_slots(room.node.slots)

    def _count_slots(self, change: int) -> None:
        self.slots += change
        self.shares.count_slots(self.slots)

    def _count(self, active: Collection[ActiveJob], now: float) -> None:
        rooms, endings = self.rooms, self.endings
        self.shares.add_all(active)
        self.waits.add_all(active, now)
        places = 0
        for job in active:
            ends_at, is_leaving = job.ends_at, job.is_leaving
            for part in job.parts or (job,):
                room = rooms.of(part)
                if room is None:
                    continue
                places += part.tiles > 0
                if part.holds_tiles:
                    room.slots -= 1
                    self._keep(job, room)
                else:
                    room.take((part.tiles, part.members, NO_LABELS))
                if ends_at is not None and not is_leaving:
                    endings[room.index].append((ends_at if ends_at > now else now, part.tiles, room.index))
        for of_node in endings.values():
            of_node.sort()
        rooms.count_slots()
        self.places += places + sum(room.places for room in rooms.all)

    def keep(self, job: ActiveJob) -> None:
        """Track an active job that may be preempted, or is being preempted."""
        for part in job.everywhere:
            if (room := self.rooms.of(part)) is not None:
                self._keep(job, room)

    def _keep(self, job: ActiveJob, room: NodeRoom) -> None:
        if job.is_preemptible or job.is_leaving or self.shares.has_quotas:
            self.active[room.index].append(job)

    def start(self, job: QueuedJob, places: Spread, now: float) -> list[int]:
        """Record the start of a job on one or several nodes. Returns the tiles that it gets on each."""
        self.shares.add(job)
        self.waits.add(job, now)
        given = []
        for room, need in places:
            before = room.mask
            tiles = self.rooms.take(room, need, now, job.ends_by(now))
            if taken := before & ~room.mask:
                self.held[job.job_id][room.index] = taken
            if job.run_limit_s is not None:
                insort(self.endings[room.index], (now + job.run_limit_s, tiles, room.index))
            given.append(tiles)
        return given

    def end(self, job: ActiveJob) -> None:
        """Record the end of a job, and return its tiles to its nodes."""
        self.shares.remove(job)
        self.waits.remove(job)
        held = self.held.pop(job.job_id, {})
        for part in job.everywhere:
            room = self.rooms.of(part)
            if room is not None:
                self.rooms.give(room, part.tiles, held.get(room.index, 0))
                if job in (of_node := self.active.get(room.index, [])):
                    of_node.remove(job)
        if job.ends_at is not None:
            self.forget_end(job, job.ends_at)

    def forget_end(self, job: ActiveJob, at: float) -> None:
        """Remove the expected end of a job that ends at another time."""
        for part in job.everywhere:
            if (room := self.rooms.of(part)) is not None:
                self._forget_end(room, at, part.tiles)

    def _forget_end(self, room: NodeRoom, at: float, tiles: int) -> None:
        of_node, ending = self.endings[room.index], (at, tiles, room.index)
        place = bisect_left(of_node, ending)
        if place < len(of_node) and of_node[place] == ending:
            of_node.pop(place)
            self.rooms.changes.append(room.index)

    def why_never(self, need: Need) -> str | None:
        """Explain why no node can ever satisfy a need; ``None``: one can."""
        if need not in self._nevers:
            self._nevers[need] = self._find_never(need) if need[0] else None
        return self._nevers[need]

    def could_have(self, need: Need) -> Sequence[NodeRoom]:
        """Return the nodes that could satisfy a need if they were empty."""
        if need not in self._able:
            shapes: dict[int, bool] = {}
            able = self._able[need] = []
            for room in self.rooms.all:
                capacity = room.node.capacity
                if capacity is None or not need[2] <= room.node.labels:
                    continue
                if id(capacity) not in shapes:
                    shapes[id(capacity)] = why_never(need[0], capacity, need[1]) is None
                if shapes[id(capacity)]:
                    able.append(room)
        return self._able[need]

    def could_spread(self, need: Need) -> Sequence[tuple[int, NodeRoom]]:
        """Return the number of members that each empty linked node could hold; an empty sequence: too few together."""
        if need not in self._spreads:
            tiles, members, constraint = need
            found = self._spreads[need] = []
            for room in self.rooms.linked if members > 1 and len(self.rooms.linked) > 1 else ():
                capacity = room.node.capacity
                if capacity is None or not constraint <= room.node.labels:
                    continue
                if most := members_with_room(tiles // members, capacity):
                    found.append((most, room))
            if sum(most for most, _ in found) < members:
                found.clear()
        return self._spreads[need]

    def why_unlabelled(self, constraint: Labels) -> str | None:
        """Explain that no node has the required labels, with the existing labels; ``None``: a node has them."""
        if constraint not in self._unlabelled:
            is_there = any(constraint <= node.labels for node in self._nodes)
            self._unlabelled[constraint] = None if is_there else self._find_labels(constraint)
        return self._unlabelled[constraint]

    def _find_labels(self, constraint: Labels) -> str:
        asked = ", ".join(f"{key}={value}" for key, value in sorted(constraint))
        there = sorted({f"{key}={value}" for node in self._nodes for key, value in node.labels})
        more = f" and {len(there) - SHOWN_LABELS} more" if len(there) > SHOWN_LABELS else ""
        return f"no node that is up has {asked}; there is: {', '.join(there[:SHOWN_LABELS]) or 'no label'}{more}"

    def _find_never(self, need: Need) -> str | None:
        tiles, members, constraint = need
        if self.could_spread(need):
            return None
        shapes: Iterable[tuple[NodeCapacity, str]] = self._shapes.values()
        if constraint:
            able = [node for node in self._nodes if constraint <= node.labels]
            shapes = [(node.capacity, node.name) for node in able if node.capacity is not None]
        whys = [(capacity, name, why_never(tiles, capacity, members)) for capacity, name in shapes]
        if not whys or any(why is None for *_, why in whys):
            return None
        if members > 1 and len(self.rooms.linked) > 1:
            return f"it has {members} members of {tiles // members} tiles, for which all nodes together have no room"
        _, name, why = max(whys, key=lambda each: (each[0].tiles, max(each[0].rows, default=0)))
        return why if len(self._nodes) == 1 else f"no node has room; of the largest, {name}: {why}"
