"""Preemption (pure): which active jobs end their attempts so that one that goes before them gets their tiles.

A job that finds no tiles may take those of others in two cases:

* **Reclaim**: it keeps its tenant within quota, and the victim's tenant has borrowed.
* **Priority**: its priority is higher by at least ``priority_gap``, and the victim was submitted as preemptible or is
  of a tenant that has borrowed. A job by which its own tenant would borrow takes nothing so from another that is
  within its quota.

On each node that is one victim, or several of which none can be spared; of all nodes it takes those that lose the least
work, of these the fewest jobs, and of these the least urgent ones with the fewest tiles. A training goes on from its
checkpoint and loses none; another verb begins again.

That ends. A victim goes behind whom it makes room for, it borrows and the other does not or its priority is lower, so
that it does not take the tiles back while all else stays as it is. And whatever comes or ends later, a job is a victim
only after ``min_run_s`` of its attempt, and at most ``most`` times: n jobs are preempted n * ``most`` times at most.

Source: ours; the two cases are those of Kueue's cohorts (reclaimWithinCohort, withinClusterQueue).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import ActiveJob, Labels, PreemptionRule, QueuedJob
from rdukit_platform.scheduler.rooms import Leaving, NodeRoom

#: Jobs that one decision finds victims for; what is left comes next time.
MAX_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Clearing:
    """Room that a job gets soon on a node: by victims, or, without any, by jobs that leave anyway."""

    room: NodeRoom
    victims: tuple[ActiveJob, ...] = ()


class Preemptor:
    """Finds victims while a decision is made."""

    def __init__(self, ledger: Ledger, rule: PreemptionRule, now: float) -> None:
        self._now, self._rule, self._shares, self._rooms = now, rule, ledger.shares, ledger.rooms
        self._victims: defaultdict[int, list[ActiveJob]] = defaultdict(list)
        self._leaving: defaultdict[int, Leaving] = defaultdict(Leaving)
        self._held: dict[int, dict[str, int]] = {}
        #: What priority reaches the least urgent job that may be a victim for its priority.
        self._least: float = float("inf")
        #: For jobs of this kind and size, or larger ones, nobody makes room.
        self._in_vain: dict[tuple[bool, int, str, int, Labels], int] = {}
        self._left = MAX_AT_ONCE
        #: How many free tiles are held for others, by the index of their node.
        self._kept: Counter[int] = Counter()
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
        """Return whether there is nobody that could make room."""
        return not self._victims and not self._leaving

    def release(self) -> None:
        """Hold nothing any more: who keeps the ledger decides anew when the victims have left."""
        for index, tiles in self._kept.items():
            self._rooms.release(self._rooms.all[index], tiles)
        self._shares.leaving.subtract(self._asked)

    def clear(self, job: QueuedJob, may_have: Callable[[NodeRoom], bool]) -> Clearing | None:
        """Clear room for a job that finds none, and hold it. ``may_have``: whether it may have any there at all."""
        is_borrower = self._shares.borrows(job)
        kind = is_borrower, job.priority, job.tenant_id if self._shares.has_quotas else "", *job.need[1:]
        if job.tiles >= self._in_vain.get(kind, 1 << 62):
            return None
        found = self._find_left(job, may_have) or self._find_victims(job, is_borrower, may_have)
        if found is None:
            self._in_vain[kind] = job.tiles
            return None
        index = found.room.index
        leaving = self._leaving[index] + self._given_by_all(found.victims, found.room)
        free = found.room.tiles
        rest = self._rooms.hold(found.room, job.need, leaving, self._closed(job, found.room))
        self._kept[index] += free - found.room.tiles
        if rest.jobs:
            self._leaving[index] = rest
        else:
            self._leaving.pop(index)
        for victim in found.victims:
            self._victims[index].remove(victim)
            self._shares.leaving[victim.tenant_id] += victim.tiles
            self._asked[victim.tenant_id] += victim.tiles
        self._left -= bool(found.victims)
        return found

    def _find_left(self, job: QueuedJob, may_have: Callable[[NodeRoom], bool]) -> Clearing | None:
        for index, leaving in self._leaving.items():
            room = self._rooms.all[index]
            if room.fits_with(job.need, leaving, self._closed(job, room)) and may_have(room):
                return Clearing(room)
        return None

    def _find_victims(self, job: QueuedJob, is_borrower: bool, may_have: Callable[[NodeRoom], bool]) -> Clearing | None:
        can_reclaim = self._shares.has_quotas and not is_borrower
        if not self._left or not (can_reclaim or job.priority >= self._least):
            return None
        best: tuple[tuple[float, int, int, int], Clearing] | None = None
        for index, candidates in self._victims.items():
            room = self._rooms.all[index]
            if not may_have(room):
                continue
            chosen = self._choose(job, is_borrower, room, candidates)
            if chosen and (best is None or self._cost(chosen) < best[0]):
                best = self._cost(chosen), Clearing(room, tuple(chosen))
        return None if best is None else best[1]

    def _may_take(self, job: QueuedJob, is_borrower: bool, victim: ActiveJob, given: int = 0) -> bool:
        """Return whether an active job may be a victim beside others of its tenant that have ``given`` tiles."""
        gap, is_other = self._rule.priority_gap, victim.tenant_id != job.tenant_id
        has_borrowed = self._shares.borrowed(victim.tenant_id) > given
        if has_borrowed and is_other and not is_borrower:
            return True
        is_outranked = gap > 0 and job.priority - victim.priority >= gap
        return is_outranked and (has_borrowed or (victim.is_preemptible and not (is_borrower and is_other)))

    def _choose(
        self, job: QueuedJob, is_borrower: bool, room: NodeRoom, candidates: Sequence[ActiveJob]
    ) -> list[ActiveJob]:
        """Choose the cheapest victims that suffice; none: they do not all together."""
        left, closed = self._leaving.get(room.index, Leaving()), self._closed(job, room)
        cheapest = sorted(
            (victim for victim in candidates if self._may_take(job, is_borrower, victim)),
            key=lambda victim: (self._lost_work(victim), victim.priority, -victim.tiles, victim.job_id),
        )

        def suffice(victims: Iterable[ActiveJob]) -> bool:
            return room.fits_with(job.need, left + self._given_by_all(victims, room), closed)

        if not suffice(cheapest):
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
        return Leaving(1, mask.bit_count() if mask else job.tiles, mask)

    def _given_by_all(self, jobs: Iterable[ActiveJob], room: NodeRoom) -> Leaving:
        return sum((self._given_by(job, room) for job in jobs), Leaving())
