"""Permission to start (pure): limits of the job's tenant, and resources that no node has. Placement follows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.scheduler.ledger import Ledger
from rdukit_platform.scheduler.model import PreemptionRule, PriorityScope, QueuedJob, Wait
from rdukit_platform.scheduler.shares import Shares


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Rules of a decision, taken from ``QueueSnapshot``."""

    tenant_jobs: int = 0
    starve_s: float = 60.0
    has_other_tenants: bool = False
    absent: Mapping[str, int] = field(default_factory=dict)
    preemption: PreemptionRule = field(default_factory=PreemptionRule)
    priority_scope: PriorityScope = PriorityScope.TENANT


def find_limit(job: QueuedJob, shares: Shares, most: int) -> Wait | None:
    """Return the wait of a job whose tenant is at its limit; ``None``: the tenant is not.

    Args:
        most: limit of active jobs for tenants without a limit of their own; 0: no limit.
    """
    claim, active = shares.claim(job.tenant_id), shares.jobs[job.tenant_id]
    if claim.max_jobs is not None and active >= claim.max_jobs:
        return Wait(WaitCode.TENANT_JOBS, f"its tenant has {active} of {claim.max_jobs} jobs running")
    if claim.max_jobs is None and most and active >= most:
        return Wait(WaitCode.TENANT_LIMIT, f"its tenant has {active} of {most} jobs running")
    if claim.max_tiles is None or not job.tiles:
        return None
    used = shares.tiles[job.tenant_id] + claim.served
    if used + job.tiles <= claim.max_tiles:
        return None
    served = f" and its endpoints {claim.served}" if claim.served else ""
    why = f"its tenant's jobs have {used - claim.served}{served} of the {claim.max_tiles} that they may have"
    if job.tiles > claim.max_tiles:
        why = f"and its tenant may have {claim.max_tiles}: it waits for a new limit"
    return Wait(WaitCode.TENANT_TILES, f"it needs {job.tiles} tiles, {why}")


def find_lack(job: QueuedJob, ledger: Ledger, rules: QueueRules) -> Wait | None:
    """Return the wait of a job that no node accepts even if empty; ``None``: a node may accept it."""
    if ledger.slots == 0:
        return Wait(WaitCode.WORKERS_AWAY, _why_no_worker(ledger, rules.absent))
    if job.constraint and (unlabelled := ledger.why_unlabelled(job.constraint)) is not None:
        return Wait(WaitCode.BAD_CONSTRAINTS, unlabelled)
    if job.tiles and not ledger.has_daemon:
        return Wait(WaitCode.NODE_AWAY, "no node daemon answers")
    if (too_large := ledger.why_never(job.need)) is not None:
        return Wait(WaitCode.TOO_LARGE, too_large)
    free = ledger.rooms.slots
    if free <= 0:
        return Wait(WaitCode.RESOURCES, f"all {ledger.slots} worker slots are taken")
    if free == 1 and _leaves_one(job, ledger, rules):
        return Wait(WaitCode.TENANT_LIMIT, "the last free worker slot is kept for other tenants")
    return None


def find_slots(job: QueuedJob, nodes: int, ledger: Ledger, rules: QueueRules) -> Wait | None:
    """Return the wait of a job whose members on several nodes lack worker slots; ``None``: there are enough."""
    free = ledger.rooms.slots
    if free - nodes >= _leaves_one(job, ledger, rules):
        return None
    why = f"its members on {nodes} nodes need as many worker slots, {free} are free"
    return Wait(WaitCode.TENANT_LIMIT, f"{why}, and the last one is kept for other tenants")


def _leaves_one(job: QueuedJob, ledger: Ledger, rules: QueueRules) -> bool:
    """Return whether the job's tenant must leave the last worker slot to other tenants."""
    return rules.has_other_tenants and ledger.shares.jobs[job.tenant_id] > 0


def _why_no_worker(ledger: Ledger, absent: Mapping[str, int]) -> str:
    if ledger.rooms.all:
        return "no worker is up"
    states = ", ".join(f"{count} {state}" for state, count in sorted(absent.items()) if count)
    if not states:
        return "no node has joined the platform; join one: rdukit node join"
    return f"no node is up: {states}; look at them: rdukit node list"
