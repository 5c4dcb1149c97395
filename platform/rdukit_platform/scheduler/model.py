"""Input values of a scheduler decision, and the decision itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity

#: Jobs per tenant that one decision examines; among them, a small job may pass those that do not fit.
WINDOW: Final = 200


#: Labels, each as key and value.
Labels = frozenset[tuple[str, str]]
NO_LABELS: Final[Labels] = frozenset()
#: Needs of a job: tiles of all members together, number of members, required labels.
Need = tuple[int, int, Labels]


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job. ``since`` is when it was queued, seconds since the epoch; ``tiles`` are those of all members."""

    job_id: str
    tenant_id: str
    tiles: int
    since: float
    not_before: float | None = None
    #: Wait reason that its row has.
    waits_for: str | None = None
    priority: int = 0
    #: Run limit in seconds; ``None``: unlimited.
    run_limit_s: float | None = None
    wait_code: str | None = None
    #: Estimated start that its row has.
    estimated_start: float | None = None
    #: Processes that compute together on equal parts of the tiles; they are placed all at once.
    members: int = 1
    #: Labels that its node must have.
    constraint: Labels = NO_LABELS

    def ends_by(self, now: float) -> float:
        """Return its latest end if it starts now."""
        return float("inf") if self.run_limit_s is None else now + self.run_limit_s

    @property
    def need(self) -> "Need":
        """Return its needs on a node."""
        return self.tiles, self.members, self.constraint


@dataclass(frozen=True, slots=True)
class JobPart:
    """Members of a job on one node, and their tiles together."""

    #: Name of the node; ``None``: the platform's only node.
    node: str | None
    tiles: int
    members: int
    #: As in ``ActiveJob``.
    holds_tiles: bool = True


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job with an attempt that has not ended. ``holds_tiles``: the node daemon already counts its tiles as taken."""

    job_id: str
    tenant_id: str
    tiles: int
    holds_tiles: bool
    #: Latest end by its run limit, seconds since the epoch; ``None``: no run limit.
    ends_at: float | None = None
    #: Name of its node; ``None``: the platform's only node.
    node: str | None = None
    priority: int = 0
    #: Time at which a worker claimed its attempt; ``None``: not claimed.
    began: float | None = None
    #: Whether it was submitted as preemptible.
    is_preemptible: bool = False
    #: Number of times it was preempted.
    preemptions: int = 0
    #: After a preemption it resumes from a checkpoint; otherwise it begins again.
    keeps_work: bool = False
    #: It was asked to end its attempt, and will release its tiles soon.
    is_leaving: bool = False
    #: As in ``QueuedJob``.
    members: int = 1
    #: Its parts if its members are on several nodes, the first member's first; empty on one node.
    parts: tuple[JobPart, ...] = ()
    #: Time at which it was queued, seconds since the epoch; ``None``: without a wait.
    since: float | None = None

    @property
    def everywhere(self) -> "tuple[JobPart, ...] | tuple[ActiveJob]":
        """Return its parts; on one node, the job itself."""
        return self.parts or (self,)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node that is up: its daemon's report (``None``: unreachable), and its number of worker slots."""

    name: str
    capacity: NodeCapacity | None
    slots: int
    labels: Labels = NO_LABELS
    #: Members of a job there can reach members on other linked nodes.
    is_linked: bool = False


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Claim of a tenant: its weight, its past use from ``PastUsage``, and its limits of tiles and jobs."""

    weight: float = 1.0
    past: float = 0.0
    #: Tiles guaranteed to it; further tiles are borrowed. ``None``: no guarantee.
    quota: int | None = None
    #: Limit of tiles for its jobs and endpoints; ``None``: no limit.
    max_tiles: int | None = None
    #: Limit of active jobs; ``None``: the snapshot's ``tenant_jobs``.
    max_jobs: int | None = None
    #: Tiles of its endpoints' replicas, which count like tiles of jobs.
    served: int = 0


#: Claim of a tenant that the snapshot does not name.
EQUAL_SHARE: Final = TenantShare()


class PriorityScope(StrEnum):
    """Jobs that priorities order among each other."""

    #: Jobs of one tenant.
    TENANT = "tenant"
    #: Jobs of all tenants.
    PLATFORM = "platform"


@dataclass(frozen=True, slots=True)
class PreemptionRule:
    """Bounds of preemption; see ``preempt``."""

    #: Difference of priorities from which on the higher preempts the lower; 0: never.
    priority_gap: int = 0
    #: Seconds that an attempt runs before it may be preempted.
    min_run_s: float = 60.0
    #: Largest number of preemptions of one job.
    most: int = 5


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """Everything that a decision depends on. ``nodes`` are those that accept jobs."""

    now: float
    queued: tuple[QueuedJob, ...]
    active: tuple[ActiveJob, ...]
    nodes: tuple[NodeState, ...]
    #: Largest number of a tenant's active jobs; 0: no limit.
    tenant_jobs: int = 0
    starve_s: float = 60.0
    #: Whether some tenants have no jobs in this snapshot.
    has_other_tenants: bool = False
    #: Number of nodes in each state that accepts no jobs, such as ``lost``.
    absent: Mapping[str, int] = field(default_factory=dict)
    #: Claims by tenant; tenants not listed have weight 1 and no past use.
    shares: Mapping[str, TenantShare] = field(default_factory=dict)
    preemption: PreemptionRule = PreemptionRule()
    priority_scope: PriorityScope = PriorityScope.TENANT

    @property
    def slots(self) -> int:
        """Return the number of jobs that the live workers of all nodes can run at once."""
        return sum(node.slots for node in self.nodes)

    @property
    def tiles(self) -> int:
        """Return the number of tiles in service on all nodes."""
        return sum(node.capacity.tiles for node in self.nodes if node.capacity)


@dataclass(frozen=True, slots=True)
class Wait:
    """Reason why a job waits: a code, a sentence, and the latest start if all jobs keep their run limits."""

    code: WaitCode
    why: str
    #: Seconds since the epoch; ``None``: it cannot be computed.
    starts_at: float | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preemption: an active job must end its attempt and be queued again, so that another gets its tiles."""

    job_id: str
    #: The job that gets its tiles.
    for_job: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Jobs to admit, in order, with their nodes; wait reasons of the other jobs; preemptions."""

    admissions: tuple[str, ...]
    waits: Mapping[str, Wait]
    #: Node of each job; for a job on several nodes, that of its first member.
    placements: Mapping[str, str] = field(default_factory=dict)
    preemptions: tuple[Preemption, ...] = ()
    #: Parts of jobs on several nodes, the first member's first.
    parts: Mapping[str, tuple[JobPart, ...]] = field(default_factory=dict)
