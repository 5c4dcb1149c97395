"""Decision which queued jobs start now, where, and why the others wait. Pure: a snapshot in, a decision out.

Jobs go by priority, then by the shares of their tenants (``shares``), then by age; each to the node that fits it best
(``rooms``). The first one that finds none gets a reservation on the node where the run limits of the active jobs tell
the earliest that its tiles get free; later jobs pass it there that end before, or need none of its tiles. Where that
cannot be told it lets smaller ones past it, until it has waited ``starve_s``; from then on nothing that would take its
tiles starts before it. Where there are several tenants, no one of them gets the last free slot beside jobs of its own:
the next one's first job finds it. A job that goes before active ones may have their tiles (``preempt``); it gets them
when they have been given back, and nobody else meanwhile.

For n jobs and m nodes it takes O(n (log n + log m) + m).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity, why_never
from rdukit_platform.scheduler.model import Decision, Preemption, QueuedJob, QueueSnapshot, Wait
from rdukit_platform.scheduler.preempt import Preemptor
from rdukit_platform.scheduler.reserve import Ending, Reservation, estimate_starts, reserve
from rdukit_platform.scheduler.rooms import NodeRoom, Rooms
from rdukit_platform.scheduler.shares import Shares, in_turn

#: What jobs with these codes wait for ends when others end, so that a time can be told.
_ENDS_WITH_OTHERS = frozenset({WaitCode.RESOURCES, WaitCode.PRIORITY})


def decide(snapshot: QueueSnapshot) -> Decision:
    """Return the admissions for this snapshot."""
    round_ = _Round(snapshot)
    for job in in_turn(snapshot.queued, round_.shares):
        found = round_.find(job)
        if not isinstance(found, Wait):
            round_.admit(job, found)
        elif not round_.clear(job, found):
            round_.keep_waiting(job, found)
    for job_id, at in estimate_starts(round_.waiting, round_.rooms.all, round_.endings, snapshot.now).items():
        round_.waits[job_id] = Wait(round_.waits[job_id].code, round_.waits[job_id].why, at)
    return Decision(tuple(round_.placements), round_.waits, round_.placements, tuple(round_.preemptions))


@dataclass(slots=True)
class _Round:
    """State of a decision under way."""

    snapshot: QueueSnapshot
    #: Jobs that worker slots of all nodes suffice for.
    slots: int = field(init=False)
    shares: Shares = field(init=False)
    rooms: Rooms = field(init=False)
    preemptor: Preemptor = field(init=False)
    #: For each size why no node could ever have it.
    never: Mapping[int, str | None] = field(init=False)
    has_daemon: bool = field(init=False)
    #: When jobs with run limits end, by the index of their node.
    endings: defaultdict[int, list[Ending]] = field(default_factory=lambda: defaultdict(list))
    #: Job to node, in the order of admission.
    placements: dict[str, str] = field(default_factory=dict)
    waiting: list[QueuedJob] = field(default_factory=list)
    waits: dict[str, Wait] = field(default_factory=dict)
    preemptions: list[Preemption] = field(default_factory=list)
    #: For the first job that lacks tiles and either knows when it gets them or has starved.
    reserved: Reservation | None = None
    #: For no job of so many tiles is a time known.
    hopeless: float = float("inf")

    def __post_init__(self) -> None:
        snapshot = self.snapshot
        self.slots = snapshot.slots
        self.shares = Shares(snapshot)
        self.rooms = Rooms(snapshot.nodes, snapshot.active)
        self.preemptor = Preemptor(snapshot, self.shares, self.rooms)
        self.has_daemon = any(node.capacity is not None for node in snapshot.nodes)
        self.never = find_nevers(snapshot)
        for job in snapshot.active:
            room = self.rooms.of(job)
            if room is not None and job.ends_at is not None and not job.is_leaving:
                self.endings[room.index].append(Ending(max(job.ends_at, snapshot.now), job.tiles))

    def find(self, job: QueuedJob) -> NodeRoom | Wait:
        """Find the node for a job, or what it waits for."""
        snapshot, rooms, tenant_active = self.snapshot, self.rooms, self.shares.jobs[job.tenant_id]
        if job.not_before is not None and job.not_before > snapshot.now:
            pause_s = job.not_before - snapshot.now
            return Wait(WaitCode.BEGIN_TIME, f"its next attempt is due in {pause_s:.1f} s", job.not_before)
        if (limited := self._find_limit(job, tenant_active)) is not None:
            return limited
        if self.slots == 0:
            return Wait(WaitCode.WORKERS_AWAY, "no worker is up")
        if job.tiles and not self.has_daemon:
            return Wait(WaitCode.NODE_AWAY, "no node daemon answers")
        if (too_large := self.never[job.tiles]) is not None:
            return Wait(WaitCode.TOO_LARGE, too_large)
        if rooms.slots <= 0:
            return Wait(WaitCode.RESOURCES, f"all {self.slots} worker slots are taken")
        if rooms.slots == 1 and tenant_active and snapshot.has_other_tenants:
            return Wait(WaitCode.TENANT_LIMIT, "the last free worker slot is kept for other tenants")
        room, reserved = rooms.find(job.tiles), self.reserved
        if room is None:
            return Wait(WaitCode.RESOURCES, rooms.why_none(job.tiles))
        if job.tiles and reserved is not None and room is reserved.room and not reserved.lets_past(job, snapshot.now):
            room = rooms.find(job.tiles, apart=room)
            if room is None:
                return Wait(WaitCode.PRIORITY, _comes_first(job, reserved))
        return room

    def _find_limit(self, job: QueuedJob, tenant_active: int) -> Wait | None:
        claim, most = self.shares.claim(job.tenant_id), self.snapshot.tenant_jobs
        if claim.max_jobs is not None and tenant_active >= claim.max_jobs:
            return Wait(WaitCode.TENANT_JOBS, f"its tenant has {tenant_active} of {claim.max_jobs} jobs running")
        if claim.max_jobs is None and most and tenant_active >= most:
            return Wait(WaitCode.TENANT_LIMIT, f"its tenant has {tenant_active} of {most} jobs running")
        if claim.max_tiles is not None and job.tiles:
            used = self.shares.tiles[job.tenant_id]
            if used + job.tiles > claim.max_tiles:
                why = f"it needs {job.tiles} tiles, its tenant's jobs have {used} of {claim.max_tiles} that they may"
                return Wait(WaitCode.TENANT_TILES, why)
        return None

    def clear(self, job: QueuedJob, wait: Wait) -> bool:
        """Have others make room for a job that finds none. Returns whether any do; then it waits for them only."""
        if not job.tiles or wait.code is not WaitCode.RESOURCES:
            return False
        found = self.preemptor.clear(job, lambda room: self._may_have(job, room))
        if found is None:
            return False
        self.preemptions += [Preemption(victim.job_id, job.job_id) for victim in found.victims]
        ends = self.endings[found.room.index]
        for victim in found.victims:
            if victim.ends_at is not None:
                ends.remove(Ending(max(victim.ends_at, self.snapshot.now), victim.tiles))
        self._note_end(job, found.room, job.tiles)
        self.waits[job.job_id] = Wait(wait.code, f"{wait.why}; jobs that it goes before make room for it")
        return True

    def _may_have(self, job: QueuedJob, room: NodeRoom) -> bool:
        reserved = self.reserved
        if reserved is not None and room is reserved.room and not reserved.lets_past(job, self.snapshot.now):
            return False
        return room.node.capacity is not None and why_never(job.tiles, room.node.capacity) is None

    def admit(self, job: QueuedJob, room: NodeRoom) -> None:
        """Let a job start on a node."""
        self.placements[job.job_id] = room.node.name
        self.shares.add(job)
        self._note_end(job, room, self.rooms.take(room, job.tiles))

    def _note_end(self, job: QueuedJob, room: NodeRoom, tiles: int) -> None:
        now = self.snapshot.now
        if job.run_limit_s is not None:
            self.endings[room.index].append(Ending(now + job.run_limit_s, tiles))
        if self.reserved is not None and room is self.reserved.room:
            self.reserved.note(job, tiles, now)

    def keep_waiting(self, job: QueuedJob, wait: Wait) -> None:
        """Let a job wait; the first that lacks tiles gets a reservation."""
        self.waits[job.job_id] = wait
        if wait.code not in _ENDS_WITH_OTHERS:
            return
        self.waiting.append(job)
        has_starved = self.snapshot.now - job.since >= self.snapshot.starve_s
        if self.reserved is None and job.tiles and self.rooms.slots > 0 and (has_starved or job.tiles < self.hopeless):
            self.reserved = reserve(job, self._could_have(job.tiles), self.endings, at_any_cost=has_starved)
            if self.reserved is None:
                self.hopeless = job.tiles

    def _could_have(self, tiles: int) -> Iterator[NodeRoom]:
        for room in self.rooms.all:
            capacity = room.node.capacity
            if capacity is not None and why_never(tiles, capacity) is None:
                yield room


def find_nevers(snapshot: QueueSnapshot) -> dict[int, str | None]:
    """Find for each size of a queued job why no node could ever have it; ``None``: one could."""
    shapes: dict[object, tuple[NodeCapacity, str]] = {}
    for node in snapshot.nodes:
        if (capacity := node.capacity) is not None:
            shape = (capacity.tiles, capacity.broken_tiles, capacity.rdu_tiles, capacity.rows)
            shapes.setdefault(shape, (capacity, node.name))
    found: dict[int, str | None] = {}
    for tiles in {job.tiles for job in snapshot.queued}:
        whys = [(capacity, name, why_never(tiles, capacity)) for capacity, name in shapes.values()] if tiles else []
        if not whys or any(why is None for *_, why in whys):
            found[tiles] = None
        else:
            _, name, why = max(whys, key=lambda each: (each[0].tiles, max(each[0].rows, default=0)))
            found[tiles] = why if len(snapshot.nodes) == 1 else f"no node has room; of the largest, {name}: {why}"
    return found


def _comes_first(job: QueuedJob, reserved: Reservation) -> str:
    first, is_own = reserved.job, reserved.job.tenant_id == job.tenant_id
    if reserved.at == float("inf"):
        return (
            f"job {first.job_id} has waited longer for {first.tiles} tiles" if is_own
            else "a job of another tenant has waited longer for tiles"
        )  # fmt: skip
    before = f"job {first.job_id} comes" if is_own else "a job of another tenant comes"
    how = "has no run limit" if job.run_limit_s is None else "would end too late"
    return f"{before} first for {f'{first.tiles} tiles' if is_own else 'tiles'}, and this one {how}"
