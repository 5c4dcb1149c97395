"""Decision which queued jobs start now, and why the others wait. Pure: a snapshot in, a decision out.

Jobs of the tenant that has the fewest active ones go first, then the oldest. A job that does not fit lets smaller ones
past it, until it has waited ``starve_s``; from then on nothing that would take its tiles starts before it. Where there
are several tenants, no one of them gets the last free slot beside jobs of its own: the next one's first job finds it.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rdukit_platform.nodes import NodeCapacity, why_never


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job. ``since`` is when it was queued, seconds since the epoch."""

    job_id: str
    tenant_id: str
    tiles: int
    since: float
    not_before: float | None = None
    #: What it was last told to wait for.
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job with an attempt that has not ended. ``holds_tiles``: the node daemon counts its tiles as taken already."""

    job_id: str
    tenant_id: str
    tiles: int
    holds_tiles: bool


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """Everything that a decision depends on. ``node`` is ``None`` when no daemon answers."""

    now: float
    queued: tuple[QueuedJob, ...]
    active: tuple[ActiveJob, ...]
    node: NodeCapacity | None
    #: Jobs that the live workers can run at once.
    slots: int
    #: Active jobs that one tenant may have; 0 means no limit.
    tenant_jobs: int = 0
    starve_s: float = 60.0
    #: Whether there are tenants beside those that have jobs here.
    has_other_tenants: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Jobs to admit, in order, and for each other job the reason why it waits."""

    admissions: tuple[str, ...]
    waits: Mapping[str, str]


def decide(snapshot: QueueSnapshot) -> Decision:
    """Return the admissions for this snapshot."""
    active = Counter(job.tenant_id for job in snapshot.active)
    pending = [job for job in snapshot.active if job.tiles and not job.holds_tiles]
    free_tiles = snapshot.node.free_tiles - sum(job.tiles for job in pending) if snapshot.node else 0
    places = snapshot.node.free_applications - len(pending) if snapshot.node else 0
    slots = snapshot.slots - len(snapshot.active)
    admitted: list[str] = []
    waits: dict[str, str] = {}
    blocker: QueuedJob | None = None
    for job in _in_turn(snapshot.queued, active):
        why = _why_not(snapshot, job, active[job.tenant_id], slots, free_tiles, places, blocker)
        if why is None:
            admitted.append(job.job_id)
            active[job.tenant_id] += 1
            slots -= 1
            free_tiles -= job.tiles
            places -= 1 if job.tiles else 0
            continue
        waits[job.job_id] = why
        starves = snapshot.now - job.since >= snapshot.starve_s
        can_ever_fit = snapshot.node is not None and why_never(job.tiles, snapshot.node) is None
        if job.tiles > free_tiles and starves and can_ever_fit and blocker is None:
            blocker = job
    return Decision(tuple(admitted), waits)


def _in_turn(queued: Sequence[QueuedJob], active: Mapping[str, int]) -> Iterator[QueuedJob]:
    """Yield each job once, always the oldest of a tenant that has the fewest active ones *then*."""
    lines: dict[str, deque[QueuedJob]] = defaultdict(deque)
    for job in sorted(queued, key=lambda j: (j.since, j.job_id)):
        lines[job.tenant_id].append(job)
    heads = [(active.get(tenant, 0), line[0].since, line[0].job_id, tenant) for tenant, line in lines.items()]
    heapq.heapify(heads)
    while heads:
        tenant = heads[0][3]
        line = lines[tenant]
        yield line.popleft()
        if line:
            heapq.heapreplace(heads, (active.get(tenant, 0), line[0].since, line[0].job_id, tenant))
        else:
            heapq.heappop(heads)


def _why_not(
    snapshot: QueueSnapshot,
    job: QueuedJob,
    tenant_active: int,
    slots: int,
    free_tiles: int,
    places: int,
    blocker: QueuedJob | None,
) -> str | None:
    if job.not_before is not None and job.not_before > snapshot.now:
        return f"its next attempt is due in {job.not_before - snapshot.now:.1f} s"
    if snapshot.tenant_jobs and tenant_active >= snapshot.tenant_jobs:
        return f"its tenant has {tenant_active} of {snapshot.tenant_jobs} jobs running"
    if snapshot.slots == 0:
        return "no worker is up"
    if slots <= 0:
        return f"all {snapshot.slots} worker slots are taken"
    if slots == 1 and tenant_active and snapshot.has_other_tenants:
        return "the last free worker slot is kept for other tenants"
    if job.tiles == 0:
        return None
    if snapshot.node is None:
        return "no node daemon answers"
    if (never := why_never(job.tiles, snapshot.node)) is not None:
        return never
    if blocker is not None:
        if blocker.tenant_id != job.tenant_id:
            return "a job of another tenant has waited longer for tiles"
        return f"job {blocker.job_id} has waited longer for {blocker.tiles} tiles"
    if job.tiles > free_tiles:
        return f"it needs {job.tiles} tiles, {max(free_tiles, 0)} of {snapshot.node.tiles} are free"
    if places <= 0:
        return "the node runs as many applications as it may"
    return None
