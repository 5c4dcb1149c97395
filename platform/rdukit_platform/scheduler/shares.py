"""Order of the queue (pure): priority, then the tenants' weighted shares, then age.

A tenant's share is dominant resource fairness's: the larger one of its part of the tiles and its part of the slots.
What it used lately counts beside what it uses now, and fades by half in each half-life.

Source: ours; after Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011), and the decayed usage of Slurm's
multifactor priorities.
"""

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        self._tiles = max(snapshot.node.tiles, 1) if snapshot.node else 1
        self._slots = max(snapshot.slots, 1)
        #: Active jobs of each tenant, and their tiles.
        self.jobs: Counter[str] = Counter()
        self.tiles: Counter[str] = Counter()
        for job in snapshot.active:
            self.add(job)

    def add(self, job: ActiveJob | QueuedJob) -> None:
        """Count a job as active."""
        self.jobs[job.tenant_id] += 1
        self.tiles[job.tenant_id] += job.tiles

    def of(self, tenant_id: str) -> float:
        """Return the dominant share with its past, over the weight: who has the smallest is next."""
        claim = self._claims.get(tenant_id, EQUAL_SHARE)
        used = max(self.tiles[tenant_id] / self._tiles, self.jobs[tenant_id] / self._slots)
        return (used + claim.past) / max(claim.weight, LOWEST_WEIGHT)


def in_turn(queued: Sequence[QueuedJob], shares: Shares) -> Iterator[QueuedJob]:
    """Yield each job once: the highest priority, then the tenant with the smallest share *then*, then the oldest."""
    lines: dict[str, deque[QueuedJob]] = defaultdict(deque)
    for job in sorted(queued, key=lambda j: (-j.priority, j.since, j.job_id)):
        lines[job.tenant_id].append(job)

    def place(tenant: str) -> tuple[int, float, float, str, str]:
        first = lines[tenant][0]
        return -first.priority, shares.of(tenant), first.since, first.job_id, tenant

    heads = [place(tenant) for tenant in lines]
    heapq.heapify(heads)
    while heads:
        tenant = heads[0][4]
        line = lines[tenant]
        yield line.popleft()
        if line:
            heapq.heapreplace(heads, place(tenant))
        else:
            heapq.heappop(heads)


class FadingUsage:
    """Past usage of one tenant as it grows, period by period: the means that ``past_shares`` sums up."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        #: Mean tiles and mean jobs as of ``_at``.
        self._tiles = self._jobs = 0.0
        self._at = float("-inf")

    def add(self, tiles: int, began: float, ended: float) -> None:
        """Add a job that has just ended; periods come in the order of their ends."""
        if self._half_life_s > 0:
            left = self._left(ended)
            weight = 1.0 - 2.0 ** (-(ended - began) / self._half_life_s)
            self._tiles = self._tiles * left + weight * tiles
            self._jobs = self._jobs * left + weight
            self._at = ended

    def share(self, now: float, tiles: int, slots: int) -> float:
        """Return the share as of now."""
        return self._left(now) * max(self._tiles / max(tiles, 1), self._jobs / max(slots, 1))

    def _left(self, now: float) -> float:
        return 2.0 ** (-(now - self._at) / self._half_life_s) if self._at > float("-inf") else 0.0


def past_shares(
    periods: Iterable[UsagePeriod], now: float, half_life_s: float, tiles: int, slots: int
) -> dict[str, float]:
    """Return each tenant's past usage as a share: its mean over all time, the weight of a second halved per half-life.

    Who has always had the half of the tiles has 0.5. With a half-life of 0 nothing is remembered.
    """
    if half_life_s <= 0:
        return {}
    fade = math.log(2) / half_life_s
    tile_means: defaultdict[str, float] = defaultdict(float)
    slot_means: defaultdict[str, float] = defaultdict(float)
    for period in periods:
        ended, began = (max(now - at, 0.0) for at in (period.ended, period.began))
        weight = math.exp(-fade * ended) - math.exp(-fade * began)
        if weight > 0:
            tile_means[period.tenant_id] += weight * period.tiles
            slot_means[period.tenant_id] += weight * period.jobs
    return {
        tenant: max(tile_means[tenant] / max(tiles, 1), slot_means[tenant] / max(slots, 1)) for tenant in slot_means
    }
