"""Order of the queue (pure): within quota first, then priority, then the tenants' weighted shares, then age.

A tenant's share is dominant resource fairness's: the larger one of its part of the tiles and its part of the slots.
What it used lately counts beside what it uses now, and fades by half in each half-life. Where any tenant has a quota,
jobs that keep their tenant within its own go before those by which one would borrow.

Source: ours; after Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011), and the decayed usage of Slurm's
multifactor priorities.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.scheduler.model import EQUAL_SHARE, ActiveJob, QueuedJob, QueueSnapshot, TenantShare

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

    def __init__(self, snapshot: QueueSnapshot) -> None:
        self._claims: Mapping[str, TenantShare] = snapshot.shares
        self._tiles = max(snapshot.tiles, 1)
        self._slots = max(snapshot.slots, 1)
        #: Whether any tenant has tiles of its own; else nobody borrows.
        self.has_quotas = any(claim.quota is not None for claim in snapshot.shares.values())
        #: Active jobs of each tenant, their tiles, and those of them that are about to be given back.
        self.jobs: Counter[str] = Counter()
        self.tiles: Counter[str] = Counter()
        self.leaving: Counter[str] = Counter()
        for job in snapshot.active:
            self.add(job)
            if job.is_leaving:
                self.leaving[job.tenant_id] += job.tiles

    def add(self, job: ActiveJob | QueuedJob) -> None:
        """Count a job as active."""
        self.jobs[job.tenant_id] += 1
        self.tiles[job.tenant_id] += job.tiles

    def claim(self, tenant_id: str) -> TenantShare:
        """Return what a tenant may have."""
        return self._claims.get(tenant_id, EQUAL_SHARE)

    def borrows(self, job: QueuedJob) -> bool:
        """Return whether the tenant has more than its quota with this job; one without tiles counts as of one."""
        if not self.has_quotas:
            return False
        return self.tiles[job.tenant_id] + max(job.tiles, 1) > (self.claim(job.tenant_id).quota or 0)

    def borrowed(self, tenant_id: str) -> int:
        """Return how many tiles a tenant has beyond its quota, without those that it is about to give back."""
        if not self.has_quotas:
            return 0
        return self.tiles[tenant_id] - self.leaving[tenant_id] - (self.claim(tenant_id).quota or 0)

    def of(self, tenant_id: str) -> float:
        """Return the dominant share with its past, over the weight: who has the smallest is next."""
        claim = self.claim(tenant_id)
        used = max(self.tiles[tenant_id] / self._tiles, self.jobs[tenant_id] / self._slots)
        return (used + claim.past) / max(claim.weight, LOWEST_WEIGHT)


def in_turn(queued: Sequence[QueuedJob], shares: Shares) -> Iterator[QueuedJob]:
    """Yield each job once: within quota, of the highest priority, of the smallest share *then*, the oldest."""
    lines: dict[str, deque[QueuedJob]] = defaultdict(deque)
    for job in sorted(queued, key=lambda j: (-j.priority, j.since, j.job_id)):
        lines[job.tenant_id].append(job)

    def place(tenant: str) -> tuple[bool, int, float, float, str, str]:
        first = lines[tenant][0]
        return shares.borrows(first), -first.priority, shares.of(tenant), first.since, first.job_id, tenant

    heads = [place(tenant) for tenant in lines]
    heapq.heapify(heads)
    while heads:
        tenant = heads[0][-1]
        line = lines[tenant]
        yield line.popleft()
        if line:
            heapq.heapreplace(heads, place(tenant))
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
