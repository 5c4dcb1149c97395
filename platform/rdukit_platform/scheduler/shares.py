"""Order of the queue (pure): within quota first, then overdue jobs, then the tenants' weighted shares, then age.

A tenant's own jobs go by priority, then age. Where priorities order the jobs of all tenants, they go before shares.

A tenant's share is dominant resource fairness's: the larger one of its part of the tiles and its part of the slots.
What it used lately counts beside what it uses now, and fades by half in each half-life. Where any tenant has a quota,
jobs that keep their tenant within its own go before those by which one would borrow.

Source: ours; after Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011), and the decayed usage of Slurm's
multifactor priorities.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.scheduler.model import EQUAL_SHARE, ActiveJob, PriorityScope, QueuedJob, TenantShare

#: Weights below this would be no weights; the gateway refuses them.
LOWEST_WEIGHT: Final = 0.01


@dataclass(frozen=True, slots=True)
class UsagePeriod:
    """Attempts of a tenant that have ended: so many ``jobs``, with ``tiles`` together, from ``began`` to ``ended``."""

    tenant_id: str
    jobs: int
    tiles: int
    began: float
    ended: float


class Shares:
    """Shares of the tenants while a decision is made: each job that is admitted raises its tenant's."""

    def __init__(self, claims: Mapping[str, TenantShare], tiles: int, slots: int) -> None:
        """Begin with no active job, on nodes of so many tiles and worker slots together."""
        #: Tiles and worker slots that shares are parts of.
        self.all_tiles, self.all_slots = max(tiles, 1), max(slots, 1)
        #: Whether any tenant has tiles of its own; else nobody borrows.
        self.has_quotas = False
        #: Whether any tenant may have no more than so much.
        self.has_limits = False
        self.change_claims(claims)
        #: Active jobs of each tenant, their tiles, and those of them that are about to be given back.
        self.jobs: Counter[str] = Counter()
        self.tiles: Counter[str] = Counter()
        self.leaving: Counter[str] = Counter()
        self._shares: dict[str, float] = {}

    def change_claims(self, claims: Mapping[str, TenantShare]) -> None:
        """Go by other claims from now on."""
        self._claims = claims
        self._shares = {}
        self.has_quotas = any(claim.quota is not None for claim in claims.values())
        self.has_limits = any(claim.max_tiles is not None or claim.max_jobs is not None for claim in claims.values())

    def add(self, job: ActiveJob | QueuedJob) -> None:
        """Count a job as active."""
        self.jobs[job.tenant_id] += 1
        self.tiles[job.tenant_id] += job.tiles
        self._shares.pop(job.tenant_id, None)

    def add_all(self, active: Collection[ActiveJob]) -> None:
        """Count jobs as active, of which some are about to give their tiles back."""
        tiles = defaultdict[str, int](int)  # quicker than a Counter is
        for job in active:
            tiles[job.tenant_id] += job.tiles
            if job.is_leaving:
                self.leaving[job.tenant_id] += job.tiles
        self.tiles.update(tiles)
        self.jobs.update([job.tenant_id for job in active])
        self._shares.clear()

    def remove(self, job: ActiveJob | QueuedJob) -> None:
        """Count a job as active no more."""
        self.jobs[job.tenant_id] -= 1
        self.tiles[job.tenant_id] -= job.tiles
        self._shares.pop(job.tenant_id, None)

    def count_tiles(self, tiles: int) -> None:
        """Count shares of so many tiles from now on."""
        self.all_tiles = max(tiles, 1)
        self._shares.clear()

    def count_slots(self, slots: int) -> None:
        """Count shares of so many worker slots from now on."""
        self.all_slots = max(slots, 1)
        self._shares.clear()

    def claim(self, tenant_id: str) -> TenantShare:
        """Return what a tenant may have."""
        return self._claims.get(tenant_id, EQUAL_SHARE)

    def borrows(self, job: QueuedJob) -> bool:
        """Return whether the tenant has more than its quota with this job; one without tiles counts as of one."""
        if not self.has_quotas:
            return False
        return self._held(job.tenant_id) + max(job.tiles, 1) > (self.claim(job.tenant_id).quota or 0)

    def borrowed(self, tenant_id: str) -> int:
        """Return how many tiles a tenant has beyond its quota, without those that it is about to give back."""
        if not self.has_quotas:
            return 0
        return self._held(tenant_id) - self.leaving[tenant_id] - (self.claim(tenant_id).quota or 0)

    def of(self, tenant_id: str) -> float:
        """Return the dominant share with its past, over the weight: who has the smallest is next."""
        if tenant_id not in self._shares:
            self._shares[tenant_id] = self._find(tenant_id)
        return self._shares[tenant_id]

    def _find(self, tenant_id: str) -> float:
        claim = self.claim(tenant_id)
        used = max(self._held(tenant_id) / self.all_tiles, self.jobs[tenant_id] / self.all_slots)
        return (used + claim.past) / max(claim.weight, LOWEST_WEIGHT)

    def _held(self, tenant_id: str) -> int:
        """Return the tiles of a tenant's active jobs and of its endpoints' replicas."""
        return self.tiles[tenant_id] + self.claim(tenant_id).served


#: Jobs of each tenant by priority and age.
Lines = Mapping[str, Sequence[QueuedJob]]


def order_key(job: QueuedJob) -> tuple[int, float, str]:
    """Return what a tenant's jobs go by among each other: priority, then age."""
    return -job.priority, job.since, job.job_id


def line_up(queued: Iterable[QueuedJob]) -> Lines:
    """Line up the jobs of each tenant."""
    lines: dict[str, list[QueuedJob]] = defaultdict(list)
    for job in queued:
        lines[job.tenant_id].append(job)
    for line in lines.values():
        line.sort(key=order_key)
    return lines


class SizeBound:
    """Size from which on no job is to be looked at any more, while the queue is gone through."""

    __slots__ = ("tiles",)

    def __init__(self) -> None:
        self.tiles: float = float("inf")


#: Share of a tenant whose first job is overdue: smaller than all others.
_OVERDUE: Final = -1.0


def in_turn(
    lines: Lines, shares: Shares, bound: SizeBound, scope: PriorityScope, is_overdue: Callable[[QueuedJob], bool]
) -> Iterator[tuple[QueuedJob, bool]]:
    """Yield each job once: of all tenants' first jobs the overdue ones, then that of the smallest share *then*.

    With each job comes whether it is overdue.

    Args:
        is_overdue: it may say so of fewer jobs the more have been yielded, not of more.
    """
    rest = {tenant: iter(line) for tenant, line in lines.items()}
    has_quotas, has_priorities = shares.has_quotas, scope is PriorityScope.PLATFORM

    def place(tenant: str, first: QueuedJob) -> tuple[bool, int, float, float, str, str]:
        return (
            has_quotas and shares.borrows(first), -first.priority if has_priorities else 0,
            _OVERDUE if is_overdue(first) else shares.of(tenant), first.since, first.job_id, tenant,
        )  # fmt: skip

    firsts = {tenant: first for tenant, line in rest.items() if (first := next(line, None)) is not None}
    # The oldest are asked first: where one of them is not overdue, no later one is.
    oldest = sorted(firsts, key=lambda tenant: firsts[tenant].since)
    heads = [place(tenant, firsts[tenant]) for tenant in oldest]
    heapq.heapify(heads)
    while heads and bound.tiles > 0:
        _, _, share, *_, tenant = heads[0]
        first = firsts[tenant]
        if share == _OVERDUE and not is_overdue(first):
            heapq.heapreplace(heads, place(tenant, first))
            continue
        yield first, share == _OVERDUE
        for following in rest[tenant]:
            if following.tiles < bound.tiles or following.members > 1 or following.constraint:
                firsts[tenant] = following
                heapq.heapreplace(heads, place(tenant, following))
                break
        else:
            heapq.heappop(heads)


class PastUsage:
    """Usage of tenants in the past, fading by half in each half-life. With a half-life of 0 nothing is remembered.

    It is a mean over all time, the weight of a second halved per half-life: who has always had half of the tiles has
    the share 0.5.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        #: Each tenant's mean tiles and mean jobs, and when they were so.
        self._means: dict[str, tuple[float, float, float]] = {}

    def add(self, period: UsagePeriod) -> None:
        """Add what has ended; in any order."""
        if self._half_life_s > 0:
            tiles, jobs, _ = self._as_of(period.tenant_id, period.ended)
            weight = 1.0 - 2.0 ** (-max(period.ended - period.began, 0.0) / self._half_life_s)
            self._means[period.tenant_id] = tiles + weight * period.tiles, jobs + weight * period.jobs, period.ended

    def shares(self, now: float, tiles: int, slots: int) -> dict[str, float]:
        """Return the share of each tenant that used anything, of so many tiles and slots."""
        found = {}
        for tenant in self._means:
            used_tiles, used_slots, _ = self._as_of(tenant, now)
            found[tenant] = max(used_tiles / max(tiles, 1), used_slots / max(slots, 1))
        return found

    def _as_of(self, tenant_id: str, now: float) -> tuple[float, float, float]:
        tiles, jobs, at = self._means.get(tenant_id, (0.0, 0.0, now))
        left = 2.0 ** (-(now - at) / self._half_life_s)
        return tiles * left, jobs * left, now
