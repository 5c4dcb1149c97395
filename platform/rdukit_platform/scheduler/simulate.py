"""Simulation of the queue (pure): a trace and a number of nodes in, when each job starts and ends out.

Time is counted, never waited for: whenever a job comes or ends, ``decide`` says what starts, as it does in the
platform. A job that is longer than its run limit ends with it.
"""

import bisect
import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import (
    WINDOW,
    ActiveJob,
    Decision,
    NodeState,
    QueuedJob,
    QueueSnapshot,
    TenantShare,
)
from rdukit_platform.scheduler.shares import PastUsage, UsagePeriod
from rdukit_platform.scheduler.traces import TraceJob

#: A job that takes less is counted as so long where its slowdown is told.
SHORT_S: Final = 10.0


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

    @property
    def all_tiles(self) -> int:
        """Return the tiles of all nodes."""
        return self.nodes * self.tiles


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A job with its times."""

    job: TraceJob
    started: float
    ended: float
    node: str = "0"

    @property
    def waited_s(self) -> float:
        return self.started - self.job.at

    @property
    def slowdown(self) -> float:
        """Time from the job's coming to its end, over the time that it took alone; a short job's is bounded."""
        return max((self.ended - self.job.at) / max(self.ended - self.started, SHORT_S), 1.0)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Result: jobs in the order of their ends, those that need more tiles than a node has, seconds of each decision."""

    jobs: tuple[SimulatedJob, ...]
    refused: tuple[TraceJob, ...]
    decisions_s: tuple[float, ...]


Look = Callable[[QueueSnapshot, Decision], None]


def simulate(
    trace: Sequence[TraceJob], system: SimulatedSystem, timer: Callable[[], float] = lambda: 0.0,
    look: Look | None = None,
) -> SimulatedRun:  # fmt: skip
    """Simulate a trace to its end.

    Args:
        timer: the clock by which decisions are timed; without one they take no time.
        look: called with each decision and what it was made of.
    """
    fits = [job for job in trace if job.tiles <= system.tiles]
    state = _State(system, len({job.tenant_id for job in fits}))
    coming = sorted(fits, key=lambda job: (job.at, job.job_id))
    decisions_s = []
    place = 0
    while place < len(coming) or state.ends:
        now = min(coming[place].at if place < len(coming) else float("inf"), state.next_end())
        state.end_until(now)
        while place < len(coming) and coming[place].at <= now:
            state.enqueue(coming[place])
            place += 1
        if not state.may_start():
            continue
        snapshot = state.snapshot(now)
        began = timer()
        decision = decide(snapshot)
        decisions_s.append(timer() - began)
        if look is not None:
            look(snapshot, decision)
        for job_id in decision.admissions:
            state.start(job_id, decision.placements[job_id], now)
    refused = tuple(job for job in trace if job.tiles > system.tiles)
    return SimulatedRun(tuple(state.done), refused, tuple(decisions_s))


class _State:
    """Queue and tiles at a moment."""

    def __init__(self, system: SimulatedSystem, tenants: int) -> None:
        self._system, self._has_other_tenants = system, tenants > 1
        # One more than there are tiles: then none is the last one, which is kept for other tenants.
        self._slots = system.slots or system.all_tiles + system.nodes
        share, rest = divmod(self._slots, system.nodes)
        self._nodes = {str(number): share + (number < rest) for number in range(system.nodes)}
        self._free = dict.fromkeys(self._nodes, system.tiles)
        self._all_free = system.all_tiles
        #: Each tenant's queue by priority and age, and the jobs in it.
        self._lines: dict[str, list[tuple[int, float, str]]] = defaultdict(list)
        self._waiting: dict[str, tuple[TraceJob, QueuedJob]] = {}
        self._active: dict[str, tuple[SimulatedJob, ActiveJob]] = {}
        self._usage = PastUsage(system.half_life_s)
        self.ends: list[tuple[float, str]] = []
        self.done: list[SimulatedJob] = []

    def next_end(self) -> float:
        return self.ends[0][0] if self.ends else float("inf")

    def end_until(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            _, job_id = heapq.heappop(self.ends)
            ended, active = self._active.pop(job_id)
            self._take(str(active.node), -active.tiles)
            self._usage.add(UsagePeriod(active.tenant_id, 1, active.tiles, ended.started, ended.ended))
            self.done.append(ended)

    def enqueue(self, job: TraceJob) -> None:
        queued = QueuedJob(
            job.job_id, job.tenant_id, job.tiles, job.at, priority=job.priority, run_limit_s=job.run_limit_s
        )
        self._waiting[job.job_id] = job, queued
        bisect.insort(self._lines[job.tenant_id], (-job.priority, job.at, job.job_id))

    def may_start(self) -> bool:
        """Return whether a decision could start anything: a job waits, a tile is free, and so is a slot."""
        return bool(self._waiting) and self._all_free > 0 and len(self._active) < self._slots

    def snapshot(self, now: float) -> QueueSnapshot:
        system = self._system
        return QueueSnapshot(
            now=now,
            queued=tuple(self._waiting[job_id][1] for line in self._lines.values() for *_, job_id in line[:WINDOW]),
            active=tuple(active for _, active in self._active.values()),
            nodes=tuple(
                NodeState(name, NodeCapacity(system.tiles, self._free[name], system.tiles), slots)
                for name, slots in self._nodes.items()
            ),
            tenant_jobs=system.tenant_jobs,
            starve_s=system.starve_s,
            has_other_tenants=self._has_other_tenants,
            shares={
                tenant: TenantShare(1.0, past)
                for tenant, past in self._usage.shares(now, system.all_tiles, self._slots).items()
            },
        )

    def start(self, job_id: str, node: str, now: float) -> None:
        job, queued = self._waiting.pop(job_id)
        line = self._lines[job.tenant_id]
        line.pop(bisect.bisect_left(line, (-job.priority, job.at, job_id)))
        limit_s = queued.run_limit_s
        ended = now + (job.runs_s if limit_s is None else min(job.runs_s, limit_s))
        ends_at = None if limit_s is None else now + limit_s
        self._take(node, job.tiles)
        active = ActiveJob(job_id, job.tenant_id, job.tiles, True, ends_at, node)
        self._active[job_id] = SimulatedJob(job, now, ended, node), active
        heapq.heappush(self.ends, (ended, job_id))

    def _take(self, node: str, tiles: int) -> None:
        self._free[node] -= tiles
        self._all_free -= tiles
