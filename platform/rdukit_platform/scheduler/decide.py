"""Decision which queued jobs start now, where, and why the others wait. Pure: a snapshot in, a decision out.

Overdue jobs go first (``overdue``), then the others by the shares of their tenants (``shares``), then by age; each to
the node that fits it best (``rooms``). The first one that finds none gets a reservation on the node where the run
limits of the active jobs tell the earliest that its tiles get free; later jobs pass it there that end before, or need
none of its tiles. Where that cannot be told it lets smaller ones past it, until it is overdue; from then on nothing
that would take its tiles starts before it. An overdue job is the first until it starts, so that its reservation
holds. Where there are several tenants, no one of them gets the last free slot beside jobs of its own: the next one's
first job finds it. A job that goes before active ones may have their tiles (``preempt``); it gets them when they have
been given back, and nobody else meanwhile.

For n jobs and m nodes it takes O(n (log n + log m) + m).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import why_never
from rdukit_platform.scheduler.estimate import estimate_starts
from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import (
    NO_LABELS,
    Decision,
    JobPart,
    Need,
    Preemption,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
    Wait,
)
from rdukit_platform.scheduler.node_room import NodeRoom
from rdukit_platform.scheduler.overdue import OverdueRule
from rdukit_platform.scheduler.preempt import Preemptor
from rdukit_platform.scheduler.reserve import Reservation, reserve
from rdukit_platform.scheduler.rooms import Spread
from rdukit_platform.scheduler.shares import Lines, SizeBound, in_turn, line_up

#: Jobs whose start is estimated, the first ones of those that wait.
ESTIMATED: Final = 1000


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Rules of a decision, as ``QueueSnapshot`` has them."""

    tenant_jobs: int = 0
    starve_s: float = 60.0
    has_other_tenants: bool = False
    absent: Mapping[str, int] = field(default_factory=dict)
    preemption: PreemptionRule = field(default_factory=PreemptionRule)
    priority_scope: PriorityScope = PriorityScope.TENANT


def decide(snapshot: QueueSnapshot) -> Decision:
    """Return the admissions for this snapshot."""
    ledger = Ledger(snapshot.nodes, snapshot.active, snapshot.shares, snapshot.now)
    rules = QueueRules(
        snapshot.tenant_jobs, snapshot.starve_s, snapshot.has_other_tenants, snapshot.absent, snapshot.preemption,
        snapshot.priority_scope,
    )  # fmt: skip
    return decide_by(ledger, line_up(snapshot.queued), rules, snapshot.now)


def decide_by(ledger: Ledger, lines: Lines, rules: QueueRules, now: float, *, tells: bool = True) -> Decision:
    """Return the admissions, which the ledger then has noted.

    Args:
        tells: whether to say what each job waits for; without it the answer is the same, and those that cannot start
            are passed over.
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
    #: Whether waits are told in words, for which all nodes are looked at.
    tells: bool
    preemptor: Preemptor = field(init=False)
    overdue: OverdueRule = field(init=False)
    bound: SizeBound = field(default_factory=SizeBound)
    #: Job to node, in the order of admission.
    placements: dict[str, str] = field(default_factory=dict)
    #: As of ``Decision``.
    parts: dict[str, tuple[JobPart, ...]] = field(default_factory=dict)
    waiting: list[QueuedJob] = field(default_factory=list)
    waits: dict[str, Wait] = field(default_factory=dict)
    preemptions: list[Preemption] = field(default_factory=list)
    #: For the first job that lacks tiles and either knows when it gets them or has starved.
    reserved: Reservation | None = None
    #: Sizes for which no node has room any more.
    full: dict[Need, Wait] = field(default_factory=dict)
    #: Sizes for which only the node that is reserved has room any more, and what is said to jobs of such a size.
    behind: set[Need] = field(default_factory=set)
    firsts: dict[tuple[bool, bool], Wait] = field(default_factory=dict)
    #: From which end on maintenance keeps jobs of such a size from starting, and what is said to them.
    shut: dict[Need, tuple[float, Wait]] = field(default_factory=dict)
    #: Whether any tenant is limited in what it may have.
    has_limits: bool = False
    #: For no job of such a size, or of more tiles, that ends then or later is a time known.
    hopeless: dict[Need, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.preemptor = Preemptor(self.ledger, self.rules.preemption, self.rules.priority_scope, self.now)
        shares, places = self.ledger.shares, self.ledger.places
        there = shares.all_slots, max(places, 1), shares.all_tiles
        self.overdue = OverdueRule(self.ledger.waits, there, self.rules.starve_s, self.now)
        self.has_limits = self.rules.tenant_jobs > 0 or self.ledger.shares.has_limits

    def find(self, job: QueuedJob) -> Spread | Wait:
        """Find the node for a job, or several for its members, or what it waits for."""
        if job.not_before is not None and job.not_before > self.now:
            pause_s = job.not_before - self.now
            return Wait(WaitCode.BEGIN_TIME, f"its next attempt is due in {pause_s:.1f} s", job.not_before)
        if self.has_limits and (limited := self._find_limit(job)) is not None:
            return limited
        need = job.need
        if (known := self.full.get(need)) is not None:
            return known
        ledger, rooms, tenant_active = self.ledger, self.ledger.rooms, self.ledger.shares.jobs[job.tenant_id]
        if ledger.slots == 0:
            return Wait(WaitCode.WORKERS_AWAY, self._why_no_worker())
        if job.constraint and (unlabelled := ledger.why_unlabelled(job.constraint)) is not None:
            return Wait(WaitCode.BAD_CONSTRAINTS, unlabelled)
        if job.tiles and not ledger.has_daemon:
            return Wait(WaitCode.NODE_AWAY, "no node daemon answers")
        if (too_large := ledger.why_never(need)) is not None:
            return Wait(WaitCode.TOO_LARGE, too_large)
        if rooms.slots <= 0:
            return Wait(WaitCode.RESOURCES, f"all {ledger.slots} worker slots are taken")
        if rooms.slots == 1 and tenant_active and self.rules.has_other_tenants:
            return Wait(WaitCode.TENANT_LIMIT, "the last free worker slot is kept for other tenants")
        reserved = self.reserved
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
            keeps_one = tenant_active and self.rules.has_other_tenants
            if rooms.slots - len(spread) < keeps_one:
                why = f"its members on {len(spread)} nodes need as many worker slots, {rooms.slots} are free"
                return Wait(WaitCode.TENANT_LIMIT, f"{why}, and the last one is kept for other tenants")
            return spread
        if first is None and not (closed and rooms.spread(need, (), now, until)):
            if ledger.has_windows and (shut := self._find_shut(job, until)) is not None:
                return shut
            wait = Wait(WaitCode.RESOURCES, rooms.why_none(need) if self.tells else "")
            if len(rooms.all) > 1:  # of one node it is said how much is left, which changes
                self.full[need] = wait
            return wait
        assert reserved is not None
        if not ledger.has_windows:
            self.behind.add(need)
        return self._let_first(job, reserved)

    def _why_no_worker(self) -> str:
        if self.ledger.rooms.all:
            return "no worker is up"
        absent = ", ".join(f"{count} {state}" for state, count in sorted(self.rules.absent.items()) if count)
        if not absent:
            return "no node has joined the platform; join one: rdukit node join"
        return f"no node is up: {absent}; look at them: rdukit node list"

    def _find_shut(self, job: QueuedJob, until: float) -> Wait | None:
        """Find whether maintenance keeps a job that ends by a time from tiles that are free, or from all."""
        known = self.shut.get(job.need)
        if known is not None and until >= known[0]:
            return known[1]
        now, able = self.now, self.ledger.could_have(job.need)
        is_kept = all(room.count_open(now, until) < job.tiles for room in able)
        if not able or not (is_kept or self.ledger.rooms.find(job.need) is not None):
            return None
        shut = [room for room in able if room.closed(now, until)]
        begins = min(at for room in shut for at, end, _ in room.windows if end is None or end > now)
        how = "has no run limit" if job.run_limit_s is None else f"may run for {job.run_limit_s:g} s"
        when = "is under way" if begins <= now else f"begins in {_coarse(begins - now)}"
        if not is_kept:
            wait = Wait(WaitCode.RESOURCES, f"the free tiles are reserved for maintenance, which {when}; it {how}")
            self.shut[job.need] = until, wait
            return wait
        over = min(_reopens(room, now, until) for room in shut)
        wait = Wait(WaitCode.NODE_AWAY, f"Reserved for maintenance, which {when}; it {how}")
        # The first one alone is told when it starts: it may take all that there is then.
        self.shut[job.need] = until, wait
        return wait if over == float("inf") else replace(wait, starts_at=over)

    def _let_first(self, job: QueuedJob, reserved: Reservation) -> Wait:
        kind = job.tenant_id == reserved.job.tenant_id, job.run_limit_s is None
        if kind not in self.firsts:
            self.firsts[kind] = Wait(WaitCode.PRIORITY, _comes_first(job, reserved))
        return self.firsts[kind]

    def _find_limit(self, job: QueuedJob) -> Wait | None:
        shares, most = self.ledger.shares, self.rules.tenant_jobs
        claim, tenant_active = shares.claim(job.tenant_id), shares.jobs[job.tenant_id]
        if claim.max_jobs is not None and tenant_active >= claim.max_jobs:
            return Wait(WaitCode.TENANT_JOBS, f"its tenant has {tenant_active} of {claim.max_jobs} jobs running")
        if claim.max_jobs is None and most and tenant_active >= most:
            return Wait(WaitCode.TENANT_LIMIT, f"its tenant has {tenant_active} of {most} jobs running")
        if claim.max_tiles is not None and job.tiles:
            used = self.ledger.shares.tiles[job.tenant_id] + claim.served
            if used + job.tiles > claim.max_tiles:
                served = f" and its endpoints {claim.served}" if claim.served else ""
                have = f"its tenant's jobs have {used - claim.served}{served}"
                why = f"{have} of the {claim.max_tiles} that they may have"
                if job.tiles > claim.max_tiles:
                    why = f"and its tenant may have {claim.max_tiles}: it waits for a new limit"
                return Wait(WaitCode.TENANT_TILES, f"it needs {job.tiles} tiles, {why}")
        return None

    def clear(self, job: QueuedJob, wait: Wait) -> bool:
        """Have others make room for a job that finds none. Returns whether any do; then it waits for them only."""
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
        self.waits[job.job_id] = Wait(wait.code, f"{wait.why}; jobs that it goes before make room for it")
        return True

    def _may_have(self, job: QueuedJob, room: NodeRoom, closed: Sequence[int]) -> bool:
        if room.index in closed or not job.constraint <= room.node.labels:
            return False
        return room.node.capacity is not None and why_never(job.tiles, room.node.capacity, job.members) is None

    def admit(self, job: QueuedJob, places: Spread) -> None:
        """Let a job start on a node, or its members on several."""
        self.placements[job.job_id] = places[0][0].node.name
        if len(places) > 1:
            self.parts[job.job_id] = tuple(JobPart(room.node.name, need[0], need[1]) for room, need in places)
        given = self.ledger.start(job, places, self.now)
        if self.reserved is not None:
            for (room, _), tiles in zip(places, given, strict=True):
                self.reserved.note(job, room, tiles, self.now)

    def keep_waiting(self, job: QueuedJob, wait: Wait, *, is_overdue: bool) -> None:
        """Let a job wait; the first that lacks tiles gets a reservation."""
        self.waits[job.job_id] = wait
        if wait.code is not WaitCode.RESOURCES and wait.code is not WaitCode.PRIORITY:
            return  # it does not end when others end, so that no time is known
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
        """Look no more at jobs that need as much as one that waits for resources, once nobody is let past it."""
        if not self.preemptor.is_idle:
            return  # a later one may have others make room, and a slot, for it
        if self.ledger.rooms.slots <= 0:
            self.bound.tiles = 0
        elif self.ledger.shares.has_quotas:
            return  # one that borrows keeps those behind it in its tenant's line from their turn, looked at or not
        elif wait.code is WaitCode.RESOURCES and self.reserved and job.need[1:] == (1, NO_LABELS):
            self.bound.tiles = min(self.bound.tiles, job.tiles)


def _reopens(room: NodeRoom, now: float, until: float) -> float:
    """Return when maintenance of a node is over that begins before a time; infinite: that is open."""
    ends = [end for at, end, _ in room.windows if at < until and (end is None or end > now)]
    return max(float("inf") if end is None else end for end in ends)


def _coarse(seconds: float) -> str:
    """Return a length of time in words that seldom change: they are written where a job waits."""
    return f"{seconds / 3600:.0f} h" if seconds >= 7200 else f"{-(-seconds // 60):.0f} min"


def _comes_first(job: QueuedJob, reserved: Reservation) -> str:
    first = reserved.job
    whose = (
        f"job {first.job_id} has a reservation for {first.tiles} tiles" if job.tenant_id == first.tenant_id
        else "a job of another tenant has a reservation for tiles"
    )  # fmt: skip
    how = "has no run limit" if job.run_limit_s is None else "would end too late"
    return f"{whose}{reserved.describe_start()}, and this one {how}"
