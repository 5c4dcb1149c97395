"""Simulation of the queue (pure): compute each job's start and end from a trace and a number of nodes.

Time is simulated. At each arrival and end of a job, and each loss or return of a node, the platform's own decision
starts and preempts jobs. Decisions share one ledger. With a layout, nodes have RDUs and XRDUs, the positions of each
job's tiles are known, and RDUs may break. A job ends at its run limit. A preempted job resumes its work; a job that
loses its node or RDU begins again.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from rdukit_platform.nodes.topology import NO_LAYOUT, NodeLayout
from rdukit_platform.nodes.view import NodeCapacity, members_with_room, why_never
from rdukit_platform.scheduler.decide import decide_by
from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import (
    NO_LABELS,
    WINDOW,
    ActiveJob,
    Decision,
    JobPart,
    Labels,
    Need,
    NodeState,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
    TenantShare,
)
from rdukit_platform.scheduler.node_room import RACK, rows_of, whole_tiles
from rdukit_platform.scheduler.permits import QueueRules
from rdukit_platform.scheduler.shares import PastUsage, UsagePeriod, order_key
from rdukit_platform.scheduler.traces import WHOLE, Outage, TraceJob, zone_labels

#: Shortest duration in seconds that slowdowns are computed with.
SHORT_S: Final = 10.0
#: Seconds between summaries of the tenants' recent use, as in the platform.
USAGE_S: Final = 10.0
_NEVER: Final = float("inf")


class QueuePolicy(StrEnum):
    """Order of a simulated queue."""

    #: The scheduler's order.
    FAIR = "fair"
    #: Age only, for comparison: EASY backfill. Tenants, quotas and priorities make no difference.
    EASY = "easy"


@dataclass(frozen=True, slots=True)
class SimulatedSystem:
    """Rules of a simulation: nodes with ``tiles`` tiles each. A job has tiles of one node; a gang may have tiles of
    several.
    """

    tiles: int
    #: Largest number of running jobs on all nodes; 0: as many as tiles.
    slots: int = 0
    tenant_jobs: int = 0
    starve_s: float = 60.0
    half_life_s: float = 3600.0
    nodes: int = 1
    #: Claims of tenants whose weight is not 1, or that have quotas or limits.
    claims: Mapping[str, TenantShare] = field(default_factory=dict)
    preemption: PreemptionRule = field(default_factory=PreemptionRule)
    #: Planned maintenance, known from the beginning.
    maintenance: tuple[Outage, ...] = ()
    #: Number of zones, which label the nodes cyclically; 0: no such labels.
    zones: int = 0
    #: Number of racks, each with consecutive nodes; 0: no racks.
    racks: int = 0
    #: Members of a job may be on several nodes.
    is_linked: bool = False
    #: Tiles of an RDU and RDUs of an XRDU; 0 tiles: all tiles of a node are equivalent.
    layout: NodeLayout = NO_LAYOUT
    #: Largest number of jobs with tiles on a node; 0: as many as tiles.
    applications: int = 0
    priority_scope: PriorityScope = PriorityScope.TENANT
    policy: QueuePolicy = QueuePolicy.FAIR

    def capacity(self, node: str, broken: int = 0) -> NodeCapacity:
        """Return the capacity of an empty node, without the broken tiles."""
        windows = tuple((each.at, each.until, 0) for each in self.maintenance if each.node == node)
        mask, width = ((1 << self.tiles) - 1) & ~broken, self.layout.rdu_tiles
        rows = tuple(rows_of(mask, width)) if width else ()
        tiles = mask.bit_count()
        return NodeCapacity(
            tiles, tiles, self.applications or self.tiles, self.tiles - tiles, width, rows, free_rows=rows,
            is_degraded=broken > 0, xrdu_rdus=self.layout.xrdu_rdus, free_mask=mask if width else 0, windows=windows,
        )  # fmt: skip

    def as_granted(self, job: TraceJob) -> TraceJob:
        """Return a job with its granted tiles: complete RDUs if it needs more than one."""
        if job.tiles <= self.layout.rdu_tiles or not self.layout.rdu_tiles:
            return job
        return replace(job, tiles=whole_tiles(job.tiles // job.members, self.layout.rdu_tiles) * job.members)

    def could_have(self, job: TraceJob) -> bool:
        """Return whether one node, or several together, can ever hold a job."""
        used = min(self.zones, self.nodes)
        labels = {zone_labels(number, self.zones) for number in range(used)} | {NO_LABELS}
        if job.constraint not in labels:
            return False
        whole = self.capacity("")
        fits_one = why_never(job.tiles, whole, job.members) is None
        if fits_one or not (self.is_linked and job.is_gang):
            return fits_one
        nodes = sum(job.constraint <= zone_labels(number, self.zones) for number in range(self.nodes))
        return nodes * members_with_room(job.tiles // job.members, whole) >= job.members

    def rack_of(self, node: str) -> str | None:
        """Return the rack of a node; ``None``: there are no racks."""
        return str(int(node) * self.racks // self.nodes) if self.racks else None

    def labels_of(self, number: int) -> Labels:
        """Return the labels of a node."""
        rack = self.rack_of(str(number))
        return zone_labels(number, self.zones) | (NO_LABELS if rack is None else {(RACK, rack)})

    @property
    def all_tiles(self) -> int:
        """Return the tiles of all nodes."""
        return self.nodes * self.tiles


class SimulatedEnd(StrEnum):
    """End of an attempt."""

    DONE = "done"
    PREEMPTED = "preempted"
    #: Its node was lost.
    LOST = "lost"
    #: An RDU of its node broke.
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """Attempt at a job with its times; for a finished job, the last attempt."""

    job: TraceJob
    started: float
    ended: float
    #: Node of its first member.
    node: str = "0"
    #: Time at which it was queued for this attempt; ``None``: at its arrival.
    queued: float | None = None
    end: SimulatedEnd = SimulatedEnd.DONE
    #: Seconds that the job waited before its earlier attempts.
    waited_before_s: float = 0.0
    #: As in ``ActiveJob``.
    parts: tuple[JobPart, ...] = ()
    #: Nodes and masks of its tiles, as in ``NodeCapacity.free_mask``; empty if unknown.
    held: tuple[tuple[str, int], ...] = ()

    @property
    def queued_at(self) -> float:
        return self.job.at if self.queued is None else self.queued

    @property
    def waited_s(self) -> float:
        return self.waited_before_s + self.started - self.queued_at

    @property
    def slowdown(self) -> float:
        """Return the time from arrival to end, divided by the job's duration alone (at least ``SHORT_S``)."""
        return max((self.ended - self.job.at) / max(self.job.alone_s, SHORT_S), 1.0)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Result: jobs in the order of their ends, jobs that can never start, and seconds of each decision."""

    jobs: tuple[SimulatedJob, ...]
    refused: tuple[TraceJob, ...]
    decisions_s: tuple[float, ...]
    #: Attempts that were preempted or lost.
    cut: tuple[SimulatedJob, ...] = ()


Look = Callable[[QueueSnapshot, Decision], None]


def simulate(
    trace: Sequence[TraceJob], system: SimulatedSystem, timer: Callable[[], float] = lambda: 0.0,
    look: Look | None = None, outages: Sequence[Outage] = (), progress: Callable[[int], None] = lambda done: None,
) -> SimulatedRun:  # fmt: skip
    """Simulate a trace to its end.

    Args:
        timer: the clock that times decisions; without one they take no time.
        look: called with each decision and its snapshot.
        outages: losses of nodes or RDUs; those of one node, or of one RDU, do not overlap.
        progress: called at each decision with the number of finished jobs.
    """
    fits, nowhere = _sort_out(trace, system)
    state = _State(system, len({job.tenant_id for job in fits}))
    coming = sorted(fits, key=lambda job: (job.at, job.job_id))
    away = (*outages, *system.maintenance)
    changes = sorted([(o.at, 1, o.node, o.rdu) for o in away] + [(o.until, 0, o.node, o.rdu) for o in away])
    decisions_s = []
    place = change = 0
    while place < len(coming) or state.has_jobs():
        at = changes[change][0] if change < len(changes) else _NEVER
        now = min(coming[place].at if place < len(coming) else _NEVER, state.next_end(), at)
        if now == _NEVER:
            break  # the waiting jobs are blocked by their tenants' limits
        state.end_until(now)
        while change < len(changes) and changes[change][0] <= now:
            _, is_lost, node, rdu = changes[change]
            state.lose(node, rdu, now) if is_lost else state.bring_back(node, rdu)
            change += 1
        while place < len(coming) and coming[place].at <= now:
            state.enqueue(coming[place])
            place += 1
        progress(len(state.done))
        is_settled = False
        while not is_settled and state.may_decide():
            snapshot = state.snapshot(now) if look is not None else None
            began = timer()
            decision = state.decide(now, tells=look is not None)
            decisions_s.append(timer() - began)
            if look is not None and snapshot is not None:
                look(snapshot, decision)
            for job_id in decision.admissions:
                state.start(job_id, decision.placements[job_id], decision.parts.get(job_id, ()), now)
            for preemption in decision.preemptions:
                state.preempt(preemption.job_id, now)
            is_settled = not decision.preemptions
    refused = (*nowhere, *state.waiting())
    return SimulatedRun(tuple(state.done), refused, tuple(decisions_s), tuple(state.cut))


def _sort_out(trace: Sequence[TraceJob], system: SimulatedSystem) -> tuple[list[TraceJob], list[TraceJob]]:
    """Split a trace into jobs that can start, with the tiles that they get, and jobs that never can."""
    known: dict[Need, bool] = {}
    fits, nowhere = list[TraceJob](), list[TraceJob]()
    for job in trace:
        need = job.tiles, job.members, job.constraint
        if need not in known:
            known[need] = system.could_have(job)
        fits.append(system.as_granted(job)) if known[need] else nowhere.append(job)
    return fits, nowhere


@dataclass(slots=True)
class _Running:
    """Running attempt: its end unless it is interrupted, and the work left at that time."""

    active: ActiveJob
    queued: float
    waited_before_s: float
    ends: float


class _State:
    """Queue and tiles at a point in time."""

    def __init__(self, system: SimulatedSystem, tenants: int) -> None:
        self._system = system
        # More slots than tiles, so that the last slot, which is kept for other tenants, is never reached.
        self._slots = system.slots or system.all_tiles + system.nodes
        share, rest = divmod(self._slots, system.nodes)
        maintained = {each.node for each in system.maintenance}
        whole = system.capacity("")
        nodes = [
            NodeState(
                str(number), system.capacity(str(number)) if str(number) in maintained else whole,
                share + (number < rest), system.labels_of(number), is_linked=system.is_linked,
            )
            for number in range(system.nodes)
        ]  # fmt: skip
        #: Under EASY all jobs count as one tenant's, and all are examined.
        self._is_fair = system.policy is QueuePolicy.FAIR
        self._window = WINDOW if self._is_fair else None
        self._given: Mapping[str, TenantShare] = system.claims if self._is_fair else {}
        self._ledger = Ledger(nodes, (), self._given, 0.0)
        self._rules = QueueRules(
            system.tenant_jobs, system.starve_s, tenants > 1 and self._is_fair, preemption=system.preemption,
            priority_scope=system.priority_scope,
        )  # fmt: skip
        self._usage, self._usage_at = PastUsage(system.half_life_s), -_NEVER
        self._claims: Mapping[str, TenantShare] = self._given
        #: Each tenant's queue, by priority and age.
        self._lines: dict[str, list[QueuedJob]] = defaultdict(list)
        self._jobs: dict[str, TraceJob] = {}
        #: Jobs with interrupted attempts: number of preemptions, seconds waited, and seconds of work left.
        self._past: dict[str, tuple[int, float, float]] = {}
        #: Waiting jobs, each with the time it was queued.
        self._queued: dict[str, tuple[QueuedJob, float]] = {}
        self._running: dict[str, _Running] = {}
        #: Number of reasons why each node is away: it may be lost during maintenance.
        self._away: Counter[str] = Counter()
        #: Tiles of each node whose RDUs are broken.
        self._broken: Counter[str] = Counter()
        self._ends: list[tuple[float, str, float]] = []
        self.done: list[SimulatedJob] = []
        self.cut: list[SimulatedJob] = []

    def has_jobs(self) -> bool:
        return bool(self._running or self._queued)

    def waiting(self) -> list[TraceJob]:
        return [self._jobs[job_id] for job_id in self._queued]

    def next_end(self) -> float:
        while self._ends:
            at, job_id, began = self._ends[0]
            running = self._running.get(job_id)
            if running is not None and running.active.began == began:
                return at
            heapq.heappop(self._ends)  # that attempt was interrupted
        return _NEVER

    def end_until(self, now: float) -> None:
        while self.next_end() <= now:
            ended, job_id, _ = heapq.heappop(self._ends)
            self.done.append(self._end(job_id, ended, SimulatedEnd.DONE))
            del self._jobs[job_id]
            self._past.pop(job_id, None)

    def enqueue(self, job: TraceJob) -> None:
        self._jobs[job.job_id] = job
        self._line_up(job, job.at)

    def _line_up(self, job: TraceJob, now: float) -> None:
        tenant, priority = (job.tenant_id, job.priority) if self._is_fair else ("", 0)
        queued = QueuedJob(
            job.job_id, tenant, job.tiles, job.at, priority=priority, run_limit_s=job.run_limit_s,
            members=job.members, constraint=job.constraint,
        )  # fmt: skip
        self._queued[job.job_id] = queued, now
        insort(self._lines[tenant], queued, key=order_key)

    def may_decide(self) -> bool:
        """Return whether a decision could start anything: a job waits, and a slot is free."""
        return bool(self._queued) and (self._ledger.rooms.slots > 0 or self._ledger.shares.has_quotas)

    def _update_claims(self, now: float) -> None:
        if now - self._usage_at >= USAGE_S:
            self._usage_at = now
            past = self._usage.shares(now, self._system.all_tiles, self._slots)
            given = self._given
            self._claims = {
                tenant: TenantShare(claim.weight, past.get(tenant, 0.0), claim.quota, claim.max_tiles, claim.max_jobs)
                for tenant in {*past, *given}
                for claim in (given.get(tenant, TenantShare()),)
            }
            self._ledger.shares.change_claims(self._claims)

    def decide(self, now: float, *, tells: bool) -> Decision:
        self._update_claims(now)
        lines = {tenant: line[: self._window] for tenant, line in self._lines.items() if line}
        return decide_by(self._ledger, lines, self._rules, now, tells=tells)

    def snapshot(self, now: float) -> QueueSnapshot:
        """Return the snapshot of a decision, for the callback ``look``."""
        self._update_claims(now)
        rules = self._rules
        nodes = []
        held: defaultdict[int, list[tuple[str, int]]] = defaultdict(list)
        for job_id, of_job in self._ledger.held.items():
            for index, mask in of_job.items():
                held[index].append((job_id, mask))
        for room in self._ledger.rooms.all:
            is_away, whole = self._away[room.node.name] > 0, room.node.capacity
            assert whole is not None
            capacity = replace(
                whole, free_tiles=0 if is_away else room.tiles, free_applications=0 if is_away else room.places,
                free_rows=room.rows if room.rdu_tiles else (), free_mask=room.mask, held=tuple(held[room.index]),
            )  # fmt: skip
            slots = 0 if is_away else room.node.slots
            nodes.append(replace(room.node, capacity=capacity, slots=slots))
        return QueueSnapshot(
            now, tuple(job for line in self._lines.values() for job in line[: self._window]),
            tuple(running.active for running in self._running.values()), tuple(nodes), rules.tenant_jobs,
            rules.starve_s, rules.has_other_tenants, {}, self._claims, rules.preemption, rules.priority_scope,
        )  # fmt: skip

    def start(self, job_id: str, node: str, parts: tuple[JobPart, ...], now: float) -> None:
        """Record the start of a job, which the ledger has recorded already."""
        queued, since = self._queued.pop(job_id)
        job, line = self._jobs[job_id], self._lines[queued.tenant_id]
        line.pop(bisect_left(line, order_key(queued), key=order_key))
        preemptions, waited_s, left_s = self._past.get(job_id, (0, 0.0, job.runs_s))
        limit_s = queued.run_limit_s
        active = ActiveJob(
            job_id, queued.tenant_id, job.tiles, True, None if limit_s is None else now + limit_s, node,
            queued.priority, now, job.is_preemptible, preemptions, keeps_work=True, members=job.members,
            parts=parts, since=queued.since,
        )  # fmt: skip
        ends = now + (left_s if limit_s is None else min(left_s, limit_s))
        self._running[job_id] = _Running(active, since, waited_s, ends)
        self._ledger.keep(active)
        heapq.heappush(self._ends, (ends, job_id, now))

    def _end(self, job_id: str, now: float, end: SimulatedEnd) -> SimulatedJob:
        running = self._running.pop(job_id)
        active, job = running.active, self._jobs[job_id]
        began = now if active.began is None else active.began
        rooms = self._ledger.rooms.all
        held = tuple((rooms[index].node.name, mask) for index, mask in self._ledger.held.get(job_id, {}).items())
        self._ledger.end(active)
        self._usage.add(UsagePeriod(active.tenant_id, 1, active.tiles, began, now))
        return SimulatedJob(
            job, began, now, str(active.node), running.queued, end, running.waited_before_s, active.parts, held
        )

    def preempt(self, job_id: str, now: float) -> None:
        self._cut(job_id, now, SimulatedEnd.PREEMPTED)

    def lose(self, node: str, rdu: int, now: float) -> None:
        """Remove a node, or an RDU of it, with all attempts there."""
        room = self._ledger.rooms.named(node)
        if rdu != WHOLE:
            mask = self._mask_of(rdu)
            for job_id in [job_id for job_id, held in self._ledger.held.items() if held.get(room.index, 0) & mask]:
                self._cut(job_id, now, SimulatedEnd.BROKEN)
            self._broken[node] |= mask
            self._ledger.change_capacity(room, self._system.capacity(node, self._broken[node]))
            if not self._away[node]:
                self._ledger.rooms.withdraw(room, mask, is_degraded=True)
            return
        for job_id in [
            job_id for job_id, running in self._running.items()
            if any(part.node == node for part in running.active.everywhere)
        ]:  # fmt: skip
            self._cut(job_id, now, SimulatedEnd.LOST)
        self._away[node] += 1
        self._ledger.close(room)

    def bring_back(self, node: str, rdu: int) -> None:
        room = self._ledger.rooms.named(node)
        if rdu != WHOLE:
            mask = self._mask_of(rdu)
            self._broken[node] &= ~mask
            self._ledger.change_capacity(room, self._system.capacity(node, self._broken[node]))
            if not self._away[node]:
                self._ledger.rooms.restore(room, mask, is_degraded=self._broken[node] > 0)
            return
        self._away[node] -= 1
        if not self._away[node]:
            self._ledger.open(room)

    def _mask_of(self, rdu: int) -> int:
        width = self._system.layout.rdu_tiles
        return ((1 << width) - 1) << rdu * width

    def _cut(self, job_id: str, now: float, end: SimulatedEnd) -> None:
        preemptions, _, left_s = self._past.get(job_id, (0, 0.0, self._jobs[job_id].runs_s))
        attempt = self._end(job_id, now, end)
        self.cut.append(attempt)
        is_preempted = end is SimulatedEnd.PREEMPTED
        left_s = left_s - (now - attempt.started) if is_preempted else self._jobs[job_id].runs_s
        self._past[job_id] = preemptions + is_preempted, attempt.waited_s, max(left_s, 0.0)
        self._line_up(self._jobs[job_id], now)
