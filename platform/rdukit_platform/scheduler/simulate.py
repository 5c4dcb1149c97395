"""Simulation of the queue (pure): a trace and a number of nodes in, when each job starts and ends out.

Time is counted, never waited for: whenever a job comes or ends, or a node is lost or back, the scheduler's own decision
says what starts and what makes room, as it does in the platform. The ledger that it goes by is kept from one decision
to the next. A job that is longer than its run limit ends with it. A preempted one goes on where it was; one whose node
is lost begins again.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import QueueRules, decide_by
from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import (
    NO_LABELS,
    WINDOW,
    ActiveJob,
    Decision,
    JobPart,
    NodeState,
    PreemptionRule,
    QueuedJob,
    QueueSnapshot,
    TenantShare,
)
from rdukit_platform.scheduler.shares import PastUsage, UsagePeriod, order_key
from rdukit_platform.scheduler.traces import Outage, TraceJob, zone_labels

#: A job that takes less is counted as so long where its slowdown is told.
SHORT_S: Final = 10.0
#: How often it is summed up what tenants have used lately, as the platform does.
USAGE_S: Final = 10.0
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class SimulatedSystem:
    """Rules of a simulation: nodes of ``tiles`` each, where a job has tiles of one node, any of them."""

    tiles: int
    #: Jobs that run at once at most, on all nodes; 0: as many as there are tiles.
    slots: int = 0
    tenant_jobs: int = 0
    starve_s: float = 60.0
    half_life_s: float = 3600.0
    nodes: int = 1
    #: What tenants have beside weight 1: quotas and limits.
    claims: Mapping[str, TenantShare] = field(default_factory=dict)
    preemption: PreemptionRule = field(default_factory=PreemptionRule)
    #: When nodes are in maintenance, which is known from the beginning.
    maintenance: tuple[Outage, ...] = ()
    #: Each node has the label of one zone, in turn; 0: none has any.
    zones: int = 0
    #: Members of a job may be on several nodes.
    is_linked: bool = False

    def could_have(self, job: TraceJob) -> bool:
        """Return whether any node has what a job asks for, or several together."""
        used = min(self.zones, self.nodes)
        labels = {zone_labels(number, self.zones) for number in range(used)} | {NO_LABELS}
        if job.constraint not in labels:
            return False
        if job.tiles <= self.tiles or not (self.is_linked and job.is_gang):
            return job.tiles <= self.tiles
        nodes = sum(job.constraint <= zone_labels(number, self.zones) for number in range(self.nodes))
        return nodes * (self.tiles // (job.tiles // job.members)) >= job.members

    @property
    def all_tiles(self) -> int:
        """Return the tiles of all nodes."""
        return self.nodes * self.tiles


class SimulatedEnd(StrEnum):
    """End of an attempt."""

    DONE = "done"
    PREEMPTED = "preempted"
    #: With its node.
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """Attempt at a job with its times; of a job that is done, the last one."""

    job: TraceJob
    started: float
    ended: float
    #: Of its first member.
    node: str = "0"
    #: When it was queued for this attempt; none: when it came.
    queued: float | None = None
    end: SimulatedEnd = SimulatedEnd.DONE
    #: Seconds that the job waited for its earlier attempts.
    waited_before_s: float = 0.0
    #: As of ``ActiveJob``.
    parts: tuple[JobPart, ...] = ()

    @property
    def queued_at(self) -> float:
        return self.job.at if self.queued is None else self.queued

    @property
    def waited_s(self) -> float:
        return self.waited_before_s + self.started - self.queued_at

    @property
    def slowdown(self) -> float:
        """Time from the job's coming to its end, over the time that it takes alone; a short job's is bounded."""
        return max((self.ended - self.job.at) / max(self.job.alone_s, SHORT_S), 1.0)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Result: jobs in the order of their ends, those that can never start, seconds of each decision."""

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
        timer: the clock by which decisions are timed; without one they take no time.
        look: called with each decision and what it was made of.
        outages: when nodes are lost; those of one node do not overlap.
        progress: called with the number of jobs done, at each decision.
    """
    fits = [job for job in trace if system.could_have(job)]
    state = _State(system, len({job.tenant_id for job in fits}))
    coming = sorted(fits, key=lambda job: (job.at, job.job_id))
    away = (*outages, *system.maintenance)
    changes = sorted([(o.at, 1, o.node) for o in away] + [(o.until, 0, o.node) for o in away])
    decisions_s = []
    place = change = 0
    while place < len(coming) or state.has_jobs():
        at = changes[change][0] if change < len(changes) else _NEVER
        now = min(coming[place].at if place < len(coming) else _NEVER, state.next_end(), at)
        if now == _NEVER:
            break  # what waits now is kept from starting by a limit of its tenant
        state.end_until(now)
        while change < len(changes) and changes[change][0] <= now:
            _, is_lost, node = changes[change]
            state.lose(node, now) if is_lost else state.bring_back(node)
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
    refused = (*(job for job in trace if not system.could_have(job)), *state.waiting())
    return SimulatedRun(tuple(state.done), tuple(refused), tuple(decisions_s), tuple(state.cut))


@dataclass(slots=True)
class _Running:
    """Attempt under way: when it ends if nothing comes between, and how much of the job is left then."""

    active: ActiveJob
    queued: float
    waited_before_s: float
    ends: float


class _State:
    """Queue and tiles at a moment."""

    def __init__(self, system: SimulatedSystem, tenants: int) -> None:
        self._system = system
        # One more than there are tiles: then none is the last one, which is kept for other tenants.
        self._slots = system.slots or system.all_tiles + system.nodes
        share, rest = divmod(self._slots, system.nodes)
        capacity, planned = NodeCapacity(system.tiles, system.tiles, system.tiles), defaultdict[str, list[Outage]](list)
        for each in system.maintenance:
            planned[each.node].append(each)
        #: What each node has when nothing runs there.
        self._whole = {
            str(number): replace(capacity, windows=tuple((each.at, each.until, 0) for each in planned[str(number)]))
            for number in range(system.nodes)
        }
        nodes = [
            NodeState(
                name, whole, share + (number < rest), zone_labels(number, system.zones), is_linked=system.is_linked
            )
            for number, (name, whole) in enumerate(self._whole.items())
        ]
        self._ledger = Ledger(nodes, (), system.claims, 0.0)
        self._rules = QueueRules(
            system.tenant_jobs, system.starve_s, tenants > 1, preemption=system.preemption
        )  # fmt: skip
        self._usage, self._usage_at = PastUsage(system.half_life_s), -_NEVER
        self._claims: Mapping[str, TenantShare] = system.claims
        #: Each tenant's queue by priority and age.
        self._lines: dict[str, list[QueuedJob]] = defaultdict(list)
        self._jobs: dict[str, TraceJob] = {}
        #: Of jobs whose attempt was cut: how often by preemption, seconds waited, and seconds of work left.
        self._past: dict[str, tuple[int, float, float]] = {}
        #: When each waiting job was queued.
        self._queued: dict[str, tuple[QueuedJob, float]] = {}
        self._running: dict[str, _Running] = {}
        #: How often each node is away: it may be lost while it is in maintenance.
        self._away: Counter[str] = Counter()
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
            heapq.heappop(self._ends)  # that attempt was cut
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
        queued = QueuedJob(
            job.job_id, job.tenant_id, job.tiles, job.at, priority=job.priority, run_limit_s=job.run_limit_s,
            members=job.members, constraint=job.constraint,
        )  # fmt: skip
        self._queued[job.job_id] = queued, now
        insort(self._lines[job.tenant_id], queued, key=order_key)

    def may_decide(self) -> bool:
        """Return whether a decision could start anything: a job waits, and a slot is free."""
        return bool(self._queued) and (self._ledger.rooms.slots > 0 or self._ledger.shares.has_quotas)

    def _update_claims(self, now: float) -> None:
        if now - self._usage_at >= USAGE_S:
            self._usage_at = now
            past = self._usage.shares(now, self._system.all_tiles, self._slots)
            given = self._system.claims
            self._claims = {
                tenant: TenantShare(claim.weight, past.get(tenant, 0.0), claim.quota, claim.max_tiles, claim.max_jobs)
                for tenant in {*past, *given}
                for claim in (given.get(tenant, TenantShare()),)
            }
            self._ledger.shares.change_claims(self._claims)

    def decide(self, now: float, *, tells: bool) -> Decision:
        self._update_claims(now)
        lines = {tenant: line[:WINDOW] for tenant, line in self._lines.items() if line}
        return decide_by(self._ledger, lines, self._rules, now, tells=tells)

    def snapshot(self, now: float) -> QueueSnapshot:
        """Return what the decision is made of, for who looks at it."""
        self._update_claims(now)
        rules = self._rules
        nodes = []
        for room in self._ledger.rooms.all:
            is_away, whole = self._away[room.node.name] > 0, self._whole[room.node.name]
            capacity = replace(
                whole, free_tiles=0 if is_away else room.tiles, free_applications=0 if is_away else room.places
            )  # fmt: skip
            slots = 0 if is_away else room.node.slots
            nodes.append(replace(room.node, capacity=capacity, slots=slots))
        return QueueSnapshot(
            now, tuple(job for line in self._lines.values() for job in line[:WINDOW]),
            tuple(running.active for running in self._running.values()), tuple(nodes), rules.tenant_jobs,
            rules.starve_s, rules.has_other_tenants, {}, self._claims, rules.preemption,
        )  # fmt: skip

    def start(self, job_id: str, node: str, parts: tuple[JobPart, ...], now: float) -> None:
        """Note what the ledger has noted already."""
        queued, since = self._queued.pop(job_id)
        job, line = self._jobs[job_id], self._lines[queued.tenant_id]
        line.pop(bisect_left(line, order_key(queued), key=order_key))
        preemptions, waited_s, left_s = self._past.get(job_id, (0, 0.0, job.runs_s))
        limit_s = queued.run_limit_s
        active = ActiveJob(
            job_id, job.tenant_id, job.tiles, True, None if limit_s is None else now + limit_s, node, job.priority,
            now, job.is_preemptible, preemptions, keeps_work=True, members=job.members,
            parts=parts,
        )  # fmt: skip
        ends = now + (left_s if limit_s is None else min(left_s, limit_s))
        self._running[job_id] = _Running(active, since, waited_s, ends)
        self._ledger.keep(active)
        heapq.heappush(self._ends, (ends, job_id, now))

    def _end(self, job_id: str, now: float, end: SimulatedEnd) -> SimulatedJob:
        running = self._running.pop(job_id)
        active, job = running.active, self._jobs[job_id]
        began = now if active.began is None else active.began
        self._ledger.end(active)
        self._usage.add(UsagePeriod(active.tenant_id, 1, active.tiles, began, now))
        return SimulatedJob(
            job, began, now, str(active.node), running.queued, end, running.waited_before_s, active.parts
        )

    def preempt(self, job_id: str, now: float) -> None:
        self._cut(job_id, now, SimulatedEnd.PREEMPTED)

    def lose(self, node: str, now: float) -> None:
        """Lose a node with all that runs there."""
        for job_id in [
            job_id for job_id, running in self._running.items()
            if any(part.node == node for part in running.active.everywhere)
        ]:  # fmt: skip
            self._cut(job_id, now, SimulatedEnd.LOST)
        self._away[node] += 1
        self._ledger.rooms.close(node)

    def bring_back(self, node: str) -> None:
        self._away[node] -= 1
        if not self._away[node]:
            self._ledger.rooms.open(node)

    def _cut(self, job_id: str, now: float, end: SimulatedEnd) -> None:
        preemptions, _, left_s = self._past.get(job_id, (0, 0.0, self._jobs[job_id].runs_s))
        attempt = self._end(job_id, now, end)
        self.cut.append(attempt)
        is_preempted = end is SimulatedEnd.PREEMPTED
        left_s = left_s - (now - attempt.started) if is_preempted else self._jobs[job_id].runs_s
        self._past[job_id] = preemptions + is_preempted, attempt.waited_s, max(left_s, 0.0)
        self._line_up(self._jobs[job_id], now)
