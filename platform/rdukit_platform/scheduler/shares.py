"""Order of the queue (pure): within quota first, then overdue jobs, then the tenants' weighted shares, then age.

A tenant's own jobs are ordered by priority, then age. If priorities order the jobs of all tenants, they precede shares.

A tenant's share follows dominant resource fairness: the larger of its fractions of tiles and of slots. Past use counts
too, and halves with each half-life. If any tenant has a quota, jobs within their tenant's quota precede jobs that would
borrow.

Source: ours; after Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011), and the decayed usage of Slurm's
multifactor priorities.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit_platform.scheduler.model import EQUAL_SHARE, ActiveJob, PriorityScope, QueuedJob, TenantShare

#: Smallest weight; the gateway refuses lower ones.
LOWEST_WEIGHT: Final = 0.01


@dataclass(frozen=True, slots=True)
class UsagePeriod:
    """Ended attempts of a tenant: number of ``jobs``, their ``tiles`` together, from ``began`` to ``ended``."""

    tenant_id: str
    jobs: int
    tiles: int
    began: float
    ended: float


class Shares:
    """Shares of the tenants during a decision; an admitted job raises its tenant's share."""

    def __init__(self, claims: Mapping[str, TenantShare], tiles: int, slots: int) -> None:
        """Begin without active jobs; ``tiles`` and ``slots`` are those of all nodes."""
        #: Tiles and worker slots of all nodes; shares are fractions of them.
        self.all_tiles, self.all_slots = max(tiles, 1), max(slots, 1)
        #: Whether any tenant has a quota; otherwise no tenant borrows.
        self.has_quotas = False
        #: Whether any tenant has a limit of tiles or jobs.
        self.has_limits = False
        self.change_claims(claims)
        #: Active jobs of each tenant, their tiles, and the tiles that they will release soon.
        self.jobs: Counter[str] = Counter()
        self.tiles: Counter[str] = Counter()
        self.leaving: Counter[str] = Counter()
        self._shares: dict[str, float] = {}

    def change_claims(self, claims: Mapping[str, TenantShare]) -> None:
        """Replace the tenants' claims."""
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
        """Count jobs as active; some of them will release their tiles soon."""
        tiles = defaultdict[str, int](int)  # faster than a Counter
        for job in active:
            tiles[job.tenant_id] += job.tiles
            if job.is_leaving:
                self.leaving[job.tenant_id] += job.tiles
        self.tiles.update(tiles)
        self.jobs.update([job.tenant_id for job in active])
        self._shares.clear()

    def remove(self, job: ActiveJob | QueuedJob) -> None:
        """Stop counting a job as active."""
        self.jobs[job.tenant_id] -= 1
        self.tiles[job.tenant_id] -= job.tiles
        self._shares.pop(job.tenant_id, None)

    def count_tiles(self, tiles: int) -> None:
        """Set the number of tiles that shares are fractions of."""
        self.all_tiles = max(tiles, 1)
        self._shares.clear()

    def count_slots(self, slots: int) -> None:
        """Set the number of worker slots that shares are fractions of."""
        self.all_slots = max(slots, 1)
        self._shares.clear()

    def claim(self, tenant_id: str) -> TenantShare:
        """Return a tenant's claim."""
        return self._claims.get(tenant_id, EQUAL_SHARE)

    def borrows(self, job: QueuedJob) -> bool:
        """Return whether this job takes its tenant beyond its quota; a job without tiles counts as one tile."""
        if not self.has_quotas:
            return False
        return self._held(job.tenant_id) + max(job.tiles, 1) > (self.claim(job.tenant_id).quota or 0)

    def borrowed(self, tenant_id: str) -> int:
        """Return a tenant's tiles beyond its quota, without those that it will release soon. It may be negative."""
        if not self.has_quotas:
            return 0
        return self._held(tenant_id) - self.leaving[tenant_id] - (self.claim(tenant_id).quota or 0)

    def of(self, tenant_id: str) -> float:
        """Return the dominant share with past use, divided by the weight; the smallest is next."""
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
    """Return the sort key of a tenant's jobs: priority, then age."""
    return -job.priority, job.since, job.job_id


def line_up(queued: Iterable[QueuedJob]) -> Lines:
    """Group jobs by tenant, sorted by ``order_key``."""
    lines: dict[str, list[QueuedJob]] = defaultdict(list)
    for job in queued:
        lines[job.tenant_id].append(job)
    for line in lines.values():
        line.sort(key=order_key)
    return lines


class SizeBound:
    """Size from which on jobs are skipped during a pass over the queue."""

    __slots__ = ("tiles",)

    def __init__(self) -> None:
        self.tiles: float = float("inf")


#: Share of a tenant whose first job is overdue: smaller than all others.
_OVERDUE: Final = -1.0


def in_turn(
    lines: Lines, shares: Shares, bound: SizeBound, scope: PriorityScope, is_overdue: Callable[[QueuedJob], bool]
) -> Iterator[tuple[QueuedJob, bool]]:
    """Yield each job once: overdue first jobs of tenants, then the first job of the tenant with the smallest current
    share.

    The second value of each pair is whether the job is overdue.

    Args:
        is_overdue: while jobs are yielded, it may turn false for a job, but not true.
    """
    rest = {tenant: iter(line) for tenant, line in lines.items()}
    has_quotas, has_priorities = shares.has_quotas, scope is PriorityScope.PLATFORM

    def place(tenant: str, first: QueuedJob) -> tuple[bool, int, float, float, str, str]:
        return (
            has_quotas and shares.borrows(first), -first.priority if has_priorities else 0,
            _OVERDUE if is_overdue(first) else shares.of(tenant), first.since, first.job_id, tenant,
        )  # fmt: skip

    firsts = {tenant: first for tenant, line in rest.items() if (first := next(line, None)) is not None}
    # The oldest are tested first: if one is not overdue, no later one is.
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

    Use is a mean over all time, in which the weight of a second halves per half-life. A tenant that always had half of
    the tiles has the share 0.5.
    """

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        #: Each tenant's mean tiles and mean jobs, and the time they refer to.
        self._means: dict[str, tuple[float, float, float]] = {}

    def add(self, period: UsagePeriod) -> None:
        """Add ended attempts, in any order."""
        if self._half_life_s > 0:
            tiles, jobs, _ = self._as_of(period.tenant_id, period.ended)
            weight = 1.0 - 2.0 ** (-max(period.ended - period.began, 0.0) / self._half_life_s)
            self._means[period.tenant_id] = tiles + weight * period.tiles, jobs + weight * period.jobs, period.ended

    def shares(self, now: float, tiles: int, slots: int) -> dict[str, float]:
        """Return the share of each tenant with past use; ``tiles`` and ``slots`` are those of all nodes."""
        found = {}
        for tenant in self._means:
            used_tiles, used_slots, _ = self._as_of(tenant, now)
            found[tenant] = max(used_tiles / max(tiles, 1), used_slots / max(slots, 1))
        return found

    def _as_of(self, tenant_id: str, now: float) -> tuple[float, float, float]:
        tiles, jobs, at = self._means.get(tenant_id, (0.0, 0.0, now))
        left = 2.0 ** (-(now - at) / self._half_life_s)
        return tiles * left, jobs * left, now
