"""Decide which queued jobs start now, on which nodes, and why the others wait (pure).

Overdue jobs go first (``overdue``), then the others by the shares of their tenants (``shares``), then by age. A job
starts on the node that fits it best (``rooms``). The first job that does not fit gets a reservation: the node and time
at which the run limits of active jobs free enough tiles. Later jobs may start there if they end before that time, or
use other tiles. If that time is unknown, smaller jobs may pass it until it is overdue; then jobs that would take its
tiles wait. An overdue job is the first until it starts, so that its reservation holds. With several tenants, a tenant
with active jobs does not get the last free slot; it is kept for another tenant's first job. A job may preempt active
ones (``preempt``). Their tiles are reserved for it until they are released.

Three questions, a module each: may this job start (``permits``), where (``rooms``, ``maintenance``), and what instead
(``reserve``, ``preempt``).

For n jobs and m nodes it takes O(n (log n + log m) + m).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import why_never
from rdukit_platform.scheduler.estimate import estimate_starts
from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.maintenance import MaintenanceRule
from rdukit_platform.scheduler.model import (
    NO_LABELS,
    Decision,
    JobPart,
    Need,
    Preemption,
    QueuedJob,
    QueueSnapshot,
    Wait,
)
from rdukit_platform.scheduler.node_room import NodeRoom
from rdukit_platform.scheduler.overdue import OverdueRule
from rdukit_platform.scheduler.permits import QueueRules, find_lack, find_limit, find_slots
from rdukit_platform.scheduler.preempt import Preemptor
from rdukit_platform.scheduler.reserve import Reservation, reserve
from rdukit_platform.scheduler.rooms import Spread
from rdukit_platform.scheduler.shares import Lines, SizeBound, in_turn, line_up

#: Number of waiting jobs, from the first, whose start is estimated.
ESTIMATED: Final = 1000


def decide(snapshot: QueueSnapshot) -> Decision:
    """Return the admissions for this snapshot."""
    ledger = Ledger(snapshot.nodes, snapshot.active, snapshot.shares, snapshot.now)
    rules = QueueRules(
        snapshot.tenant_jobs, snapshot.starve_s, snapshot.has_other_tenants, snapshot.absent, snapshot.preemption,
        snapshot.priority_scope,
    )  # fmt: skip
    return decide_by(ledger, line_up(snapshot.queued), rules, snapshot.now)


def decide_by(ledger: Ledger, lines: Lines, rules: QueueRules, now: float, *, tells: bool = True) -> Decision:
    """Decide, and record the admissions in the ledger.

    Args:
        tells: return a wait reason for each job. The admissions are the same without it, but found faster.
    """
    ledger.rooms.forget_whys()
    round_ = _Round(ledger, rules, now, tells)
    is_idle = round_.preemptor.is_idle
    turns = in_turn(lines, ledger.shares, round_.bound, rules.priority_scope, round_.overdue.applies)
    for job, is_overdue in turns:
        found = round_.find(job)
        if not isinstance(found, Wait):
            round_.admit(job, found)
        elif is_idle or not round_.clear(job, found):
            round_.keep_waiting(job, found, is_overdue=is_overdue)
            if not tells:
                round_.pass_over(job, found)
    if tells:
        first = round_.waiting[:ESTIMATED]
        for job_id, at in estimate_starts(first, ledger.rooms.all, ledger.endings, now).items():
            round_.waits[job_id] = Wait(round_.waits[job_id].code, round_.waits[job_id].why, at)
        if (held := round_.reserved) is not None and held.at < float("inf"):
            round_.waits[held.job.job_id] = replace(round_.waits[held.job.job_id], starts_at=held.at)
    round_.preemptor.release()
    return Decision(tuple(round_.placements), round_.waits, round_.placements, tuple(round_.preemptions), round_.parts)


@dataclass(slots=True)
class _Round:
    """State of a decision under way."""

    ledger: Ledger
    rules: QueueRules
    now: float
    #: Whether wait reasons are returned, which takes a look at all nodes.
    tells: bool
    preemptor: Preemptor = field(init=False)
    overdue: OverdueRule = field(init=False)
    maintenance: MaintenanceRule = field(init=False)
    bound: SizeBound = field(default_factory=SizeBound)
    #: Job to node, in the order of admission.
    placements: dict[str, str] = field(default_factory=dict)
    #: As in ``Decision``.
    parts: dict[str, tuple[JobPart, ...]] = field(default_factory=dict)
    waiting: list[QueuedJob] = field(default_factory=list)
    waits: dict[str, Wait] = field(default_factory=dict)
    preemptions: list[Preemption] = field(default_factory=list)
    #: Reservation for the first job that lacks tiles and knows its start, or is overdue.
    reserved: Reservation | None = None
    #: Sizes for which no node has room any more.
    full: dict[Need, Wait] = field(default_factory=dict)
    #: Sizes for which only the reserved node has room.
    behind: set[Need] = field(default_factory=set)
    firsts: dict[tuple[bool, bool], Wait] = field(default_factory=dict)
    #: Whether a tenant has a limit.
    has_limits: bool = False
    #: Per size, the end from which on no start time can be computed, for jobs of that size or more tiles.
    hopeless: dict[Need, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.preemptor = Preemptor(self.ledger, self.rules.preemption, self.rules.priority_scope, self.now)
        shares, places = self.ledger.shares, self.ledger.places
        there = shares.all_slots, max(places, 1), shares.all_tiles
        self.overdue = OverdueRule(self.ledger.waits, there, self.rules.starve_s, self.now)
        self.maintenance = MaintenanceRule(self.ledger, self.now)
        self.has_limits = self.rules.tenant_jobs > 0 or self.ledger.shares.has_limits

    def find(self, job: QueuedJob) -> Spread | Wait:
        """Find the node for a job, or several for its members; otherwise return its wait reason."""
        if job.not_before is not None and job.not_before > self.now:
            pause_s = job.not_before - self.now
            return Wait(WaitCode.BEGIN_TIME, f"its next attempt is due in {pause_s:.1f} s", job.not_before)
        if self.has_limits and (limited := find_limit(job, self.ledger.shares, self.rules.tenant_jobs)) is not None:
            return limited
        known = self.full.get(job.need)
        if known is None:
            known = find_lack(job, self.ledger, self.rules)
        return self._place(job) if known is None else known

    def _place(self, job: QueuedJob) -> Spread | Wait:
        """Find the place of a job that may start: one node, several nodes, or behind a reservation."""
        need, reserved, ledger, rooms = job.need, self.reserved, self.ledger, self.ledger.rooms
        closed = () if reserved is None or not job.tiles else reserved.closed_to(job, self.now)
        if reserved is not None and closed and need in self.behind:
            return self._let_first(job, reserved)
        now, until = self.now, job.ends_by(self.now) if ledger.has_windows else 0.0
        room = first = rooms.find(need, (), now, until)
        if room is not None and room.index in closed:
            room = rooms.find(need, closed, now, until)
        if room is not None:
            return ((room, need),)
        if (spread := rooms.spread(need, closed, now, until)) is not None:
            return find_slots(job, len(spread), ledger, self.rules) or spread
        if first is None and not (closed and rooms.spread(need, (), now, until)):
            return self._find_none(job, until)
        assert reserved is not None
        if not ledger.has_windows:
            self.behind.add(need)
        return self._let_first(job, reserved)

    def _find_none(self, job: QueuedJob, until: float) -> Wait:
        """Return the wait reason of a job for which no node has room until its end."""
        if self.ledger.has_windows and (shut := self.maintenance.find_wait(job, until)) is not None:
            return shut
        rooms = self.ledger.rooms
        wait = Wait(WaitCode.RESOURCES, rooms.why_none(job.need) if self.tells else "")
        if len(rooms.all) > 1:  # on a single node the reason names the free tiles, which change
            self.full[job.need] = wait
        return wait

    def _let_first(self, job: QueuedJob, reserved: Reservation) -> Wait:
        kind = job.tenant_id == reserved.job.tenant_id, job.run_limit_s is None
        if kind not in self.firsts:
            self.firsts[kind] = Wait(WaitCode.PRIORITY, _comes_first(job, reserved))
        return self.firsts[kind]

    def clear(self, job: QueuedJob, wait: Wait) -> bool:
        """Preempt others for a job that finds no room. Returns whether any make room; it then waits for them only."""
        if not job.tiles or wait.code is not WaitCode.RESOURCES:
            return False
        closed = () if self.reserved is None else self.reserved.closed_to(job, self.now)
        found = self.preemptor.clear(job, lambda room: self._may_have(job, room, closed), closed)
        if found is None:
            return False
        self.preemptions += [Preemption(victim.job_id, job.job_id) for victim in found.victims]
        for victim in found.victims:
            if victim.ends_at is not None:
                self.ledger.forget_end(victim, max(victim.ends_at, self.now))
        if self.reserved is not None:
            for room, need in found.places:
                self.reserved.note(job, room, need[0], self.now)
        self.waits[job.job_id] = Wait(wait.code, f"{wait.why}; jobs that it precedes are preempted for it")
        return True

    def _may_have(self, job: QueuedJob, room: NodeRoom, closed: Sequence[int]) -> bool:
        if room.index in closed or not job.constraint <= room.node.labels:
            return False
        return room.node.capacity is not None and why_never(job.tiles, room.node.capacity, job.members) is None

    def admit(self, job: QueuedJob, places: Spread) -> None:
        """Admit a job on a node, or its members on several."""
        self.placements[job.job_id] = places[0][0].node.name
        if len(places) > 1:
            self.parts[job.job_id] = tuple(JobPart(room.node.name, need[0], need[1]) for room, need in places)
        given = self.ledger.start(job, places, self.now)
        if self.reserved is not None:
            for (room, _), tiles in zip(places, given, strict=True):
                self.reserved.note(job, room, tiles, self.now)

    def keep_waiting(self, job: QueuedJob, wait: Wait, *, is_overdue: bool) -> None:
        """Keep a job waiting; the first that lacks tiles gets a reservation."""
        self.waits[job.job_id] = wait
        if wait.code is not WaitCode.RESOURCES and wait.code is not WaitCode.PRIORITY:
            return  # this wait does not end with other jobs, so its time is unknown
        self.waiting.append(job)
        if self.reserved is not None or not job.tiles or self.ledger.rooms.slots <= 0:
            return
        until = job.ends_by(self.now) if self.ledger.has_windows else 0.0
        if is_overdue or not self._is_hopeless(job, until):
            self.reserved = reserve(job, self.ledger, self.now, at_any_cost=is_overdue)
            if self.reserved is None:
                self.hopeless[job.need] = until
                return
            self.overdue.stop()
            if is_overdue:
                why = f"{wait.why}; it has waited the longest and has a reservation{self.reserved.describe_start()}"
                self.waits[job.job_id] = replace(wait, why=why)

    def _is_hopeless(self, job: QueuedJob, until: float) -> bool:
        need, known = job.need, self.hopeless
        if need in known and known[need] <= until:
            return True
        return any(of[0] <= need[0] and of[1:] == need[1:] and end <= until for of, end in known.items())

    def pass_over(self, job: QueuedJob, wait: Wait) -> None:
        """Skip jobs with the same need as a waiting one, once no job may pass it."""
        if not self.preemptor.is_idle:
            return  # a later one may have others preempted, and a slot, for it
        if self.ledger.rooms.slots <= 0:
            self.bound.tiles = 0
        elif self.ledger.shares.has_quotas:
            return  # one that borrows delays the later jobs of its tenant, examined or not
        elif wait.code is WaitCode.RESOURCES and self.reserved and job.need[1:] == (1, NO_LABELS):
            self.bound.tiles = min(self.bound.tiles, job.tiles)


def _comes_first(job: QueuedJob, reserved: Reservation) -> str:
    first = reserved.job
    whose = (
        f"job {first.job_id} has a reservation for {first.tiles} tiles" if job.tenant_id == first.tenant_id
        else "a job of another tenant has a reservation for tiles"
    )  # fmt: skip
    how = "has no run limit" if job.run_limit_s is None else "would end too late"
    return f"{whose}{reserved.describe_start()}, and this one {how}"
