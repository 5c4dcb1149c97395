"""Preemption (pure): active jobs end their attempts so that a job that precedes them gets their tiles.

A job that finds no tiles may take those of others in two cases:

* **Reclaim**: it keeps its tenant within quota, and the victim's tenant has borrowed.
* **Priority**: its priority is higher by at least ``priority_gap``, and the victim was submitted as preemptible or is
  of a tenant that has borrowed. The victim is of its own tenant, unless priorities order the jobs of all. A job by
  which its own tenant would borrow takes nothing so from another that is within its quota.

A node offers one victim, or several that are all needed. The node with the least lost work is chosen, then the one with
the fewest jobs, then the least urgent ones with the fewest tiles. A training continues from its checkpoint and loses no
work; another verb begins again.

That ends. A victim ranks behind the job that replaces it, because it borrows and the other does not, or because its
priority is lower. So the victim does not take the tiles back under unchanged conditions. A job becomes a victim only
after
``min_run_s`` of its attempt, and at most ``most`` times, so n jobs are preempted at most n * ``most`` times.

Source: ours; the two cases follow Kueue's cohorts (reclaimWithinCohort, withinClusterQueue).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import ActiveJob, Labels, PreemptionRule, PriorityScope, QueuedJob
from rdukit_platform.scheduler.node_room import Leaving, NodeRoom
from rdukit_platform.scheduler.rooms import Spread, spread_over

#: Largest number of jobs for which one decision finds victims; the next decision continues.
MAX_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Clearing:
    """Room that a job gets soon on one or several nodes, from victims or from jobs that leave anyway."""

    places: Spread
    victims: tuple[ActiveJob, ...] = ()


class Preemptor:
    """Finds victims while a decision is made."""

    def __init__(self, ledger: Ledger, rule: PreemptionRule, scope: PriorityScope, now: float) -> None:
        self._spans_tenants = scope is PriorityScope.PLATFORM
        self._now, self._rule, self._shares, self._rooms = now, rule, ledger.shares, ledger.rooms
        self._victims: defaultdict[int, list[ActiveJob]] = defaultdict(list)
        self._leaving: defaultdict[int, Leaving] = defaultdict(Leaving)
        self._held: dict[int, dict[str, int]] = {}
        self._started = ledger.held
        #: Lowest priority that can preempt the least urgent victim.
        self._least: float = float("inf")
        #: Kinds and sizes of jobs for which no victims exist; the same holds for larger ones.
        self._in_vain: dict[tuple[bool, int, str, int, Labels], int] = {}
        self._left = MAX_AT_ONCE
        #: Free tiles held for other jobs, by node index: their number, and their mask where known.
        self._kept: Counter[int] = Counter()
        self._kept_masks: defaultdict[int, int] = defaultdict(int)
        #: Tiles of each tenant's victims.
        self._asked: Counter[str] = Counter()
        for index, active in ledger.active.items():
            for job in active:
                if job.tiles:
                    self._note(job, self._rooms.all[index])

    def _note(self, job: ActiveJob, room: NodeRoom) -> None:
        rule = self._rule
        if job.is_leaving:
            self._leaving[room.index] += self._given_by(job, room)
        elif job.preemptions < rule.most and job.began is not None and self._now - job.began >= rule.min_run_s:
            self._victims[room.index].append(job)
            if rule.priority_gap:
                self._least = min(self._least, job.priority + rule.priority_gap)

    @property
    def is_idle(self) -> bool:
        """Return whether no job can make room."""
        return not self._victims and not self._leaving

    def release(self) -> None:
        """Release all held tiles. A caller that keeps the ledger decides again when the victims have left."""
        for index, tiles in self._kept.items():
            self._rooms.release(self._rooms.all[index], tiles, self._kept_masks[index])
        self._shares.leaving.subtract(self._asked)

    def clear(
        self, job: QueuedJob, may_have: Callable[[NodeRoom], bool], closed: Container[int] = ()
    ) -> Clearing | None:  # fmt: skip
        """Find room for a job by preemption, and hold it; ``None``: there is no room.

        Args:
            may_have: whether the job may use a node completely.
            closed: indices of nodes that its members may not use.
        """
        is_borrower = self._shares.borrows(job)
        kind = is_borrower, job.priority, self._tenant_of(job), *job.need[1:]
        if job.tiles >= self._in_vain.get(kind, 1 << 62):
            return None
        found = self._find_left(job, may_have) or self._find_victims(job, is_borrower, may_have)
        found = found or self._find_spread(job, is_borrower, closed)
        if found is None:
            self._in_vain[kind] = job.tiles
            return None
        for victim in found.victims:
            for room in self._rooms_of(victim):
                self._leaving[room.index] += self._given_by(victim, room)
                self._victims[room.index].remove(victim)
            self._shares.leaving[victim.tenant_id] += victim.tiles
            self._asked[victim.tenant_id] += victim.tiles
        for room, need in found.places:
            free, mask, leaving = room.tiles, room.mask, self._leaving.pop(room.index, Leaving())
            rest = self._rooms.hold(room, need, leaving, self._closed(job, room))
            self._kept[room.index] += free - room.tiles
            self._kept_masks[room.index] |= mask & ~room.mask
            if rest.jobs > 0:
                self._leaving[room.index] = rest
        self._left -= bool(found.victims)
        return found

    def _tenant_of(self, job: QueuedJob) -> str:
        """Return the tenant of a job if victims depend on it; otherwise an empty text."""
        return job.tenant_id if self._shares.has_quotas or not self._spans_tenants else ""

    def _rooms_of(self, job: ActiveJob) -> list[NodeRoom]:
        return [room for part in job.everywhere if (room := self._rooms.of(part)) is not None]

    def _find_left(self, job: QueuedJob, may_have: Callable[[NodeRoom], bool]) -> Clearing | None:
        for index, leaving in sorted(self._leaving.items(), key=lambda item: item[0]):
            room = self._rooms.all[index]
            if room.fits_with(job.need, leaving, self._closed(job, room)) and may_have(room):
                return Clearing(((room, job.need),))
        return None

    def _find_victims(self, job: QueuedJob, is_borrower: bool, may_have: Callable[[NodeRoom], bool]) -> Clearing | None:
        can_reclaim = self._shares.has_quotas and not is_borrower
        if not self._left or not (can_reclaim or job.priority >= self._least):
            return None
        best: tuple[tuple[float, int, int, int], int, Clearing] | None = None
        for index, candidates in self._victims.items():
            room = self._rooms.all[index]
            if not may_have(room):
                continue
            chosen = self._choose(job, is_borrower, room, candidates)
            # Among equals the first node wins, so the order in which jobs began is irrelevant.
            if chosen and (best is None or (self._cost(chosen), index) < best[:2]):
                best = self._cost(chosen), index, Clearing(((room, job.need),), tuple(chosen))
        return None if best is None else best[2]

    def _find_spread(self, job: QueuedJob, is_borrower: bool, closed: Container[int]) -> Clearing | None:
        """Find room on several nodes for a job's members, from jobs that leave anyway and from victims."""
        linked = self._rooms.linked
        if job.members < 2 or len(linked) < 2:
            return None
        nodes = {room.index: room for room in linked if room.index not in closed and job.constraint <= room.node.labels}
        leaving = {index: self._leaving.get(index, Leaving()) for index in nodes}

        def count(index: int, leaving: Leaving) -> int:
            return nodes[index].count_with(job.tiles // job.members, leaving, self._closed(job, nodes[index]))

        counts = {index: count(index, leaving[index]) for index in nodes}
        victims = list[ActiveJob]()
        if sum(counts.values()) < job.members and self._left:
            there = {victim.job_id: victim for index in nodes for victim in self._victims.get(index, ())}
            given = Counter[str]()
            for victim in sorted(there.values(), key=self._by_cost):
                if sum(counts.values()) >= job.members:
                    break
                if self._may_take(job, is_borrower, victim, given[victim.tenant_id]):
                    victims.append(victim)
                    given[victim.tenant_id] += victim.tiles
                    for room in self._rooms_of(victim):
                        if room.index in nodes:
                            leaving[room.index] += self._given_by(victim, room)
                            counts[room.index] = count(room.index, leaving[room.index])
        if sum(counts.values()) < job.members:
            return None
        for victim in victims[::-1]:  # keep every victim that is not needed
            others = [other for other in victims if other is not victim]
            rest = dict(counts)
            for room in self._rooms_of(victim):
                if room.index in nodes:
                    left = self._leaving.get(room.index, Leaving())
                    here = [other for other in others if room in self._rooms_of(other)]
                    rest[room.index] = count(room.index, left + self._given_by_all(here, room))
            if sum(rest.values()) >= job.members:
                victims, counts = others, rest
        places = spread_over(job.need, [(counts[index], room) for index, room in nodes.items()])
        return None if places is None else Clearing(places, tuple(victims))

    def _may_take(self, job: QueuedJob, is_borrower: bool, victim: ActiveJob, given: int = 0) -> bool:
        """Return whether an active job may be a victim; ``given``: tiles of its tenant's other victims."""
        gap, is_other = self._rule.priority_gap, victim.tenant_id != job.tenant_id
        has_borrowed = self._shares.borrowed(victim.tenant_id) > given
        if has_borrowed and is_other and not is_borrower:
            return True
        if is_other and not self._spans_tenants:
            return False
        is_outranked = gap > 0 and job.priority - victim.priority >= gap
        return is_outranked and (has_borrowed or (victim.is_preemptible and not (is_borrower and is_other)))

    def _choose(
        self, job: QueuedJob, is_borrower: bool, room: NodeRoom, candidates: Sequence[ActiveJob]
    ) -> list[ActiveJob]:
        """Choose the cheapest sufficient victims; empty: all together do not suffice, or the job lacks no tiles."""
        left, closed = self._leaving.get(room.index, Leaving()), self._closed(job, room)
        cheapest = sorted(
            (victim for victim in candidates if self._may_take(job, is_borrower, victim)),
            key=self._by_cost,
        )

        def suffice(victims: Iterable[ActiveJob]) -> bool:
            return room.fits_with(job.need, left + self._given_by_all(victims, room), closed)

        if not suffice(cheapest) or suffice(()):
            return []
        several, given = list[ActiveJob](), Counter[str]()
        for victim in cheapest:
            if suffice(several):
                break
            if self._may_take(job, is_borrower, victim, given[victim.tenant_id]):
                several.append(victim)
                given[victim.tenant_id] += victim.tiles
        for victim in several[::-1]:
            if suffice(without := [other for other in several if other is not victim]):
                several = without
        found = [[victim] for victim in cheapest if suffice([victim])] + ([several] if suffice(several) else [])
        return min(found, key=self._cost, default=[])

    def _by_cost(self, victim: ActiveJob) -> tuple[float, int, int, str]:
        return self._lost_work(victim), victim.priority, -victim.tiles, victim.job_id

    def _closed(self, job: QueuedJob, room: NodeRoom) -> int:
        return room.closed(self._now, job.ends_by(self._now)) if room.windows else 0

    def _cost(self, victims: Sequence[ActiveJob]) -> tuple[float, int, int, int]:
        highest, tiles = max(victim.priority for victim in victims), sum(victim.tiles for victim in victims)
        return sum(map(self._lost_work, victims)), len(victims), highest, tiles

    def _lost_work(self, job: ActiveJob) -> float:
        return 0.0 if job.keeps_work or job.began is None else job.tiles * (self._now - job.began)

    def _given_by(self, job: ActiveJob, room: NodeRoom) -> Leaving:
        held = self._held.get(room.index)
        if held is None:
            capacity = room.node.capacity
            held = self._held[room.index] = dict(capacity.held if capacity is not None else ())
        mask = held.get(job.job_id, 0)
        if not mask and job.job_id in self._started:
            mask = self._started[job.job_id].get(room.index, 0)
        here = sum(part.tiles for part in job.everywhere if part.node in (None, room.node.name))
        return Leaving(1, mask.bit_count() if mask else here, mask)

    def _given_by_all(self, jobs: Iterable[ActiveJob], room: NodeRoom) -> Leaving:
        return sum((self._given_by(job, room) for job in jobs), Leaving())
