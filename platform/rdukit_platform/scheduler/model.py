"""Values that a decision of the scheduler goes by, and the decision itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity

#: Jobs of a tenant that one decision looks at: among so many a small one may pass those that do not fit.
WINDOW: Final = 200


#: Labels, each as key and value.
Labels = frozenset[tuple[str, str]]
NO_LABELS: Final[Labels] = frozenset()
#: What a job asks of a node: tiles of all its members together, how many members it has, and which labels.
Need = tuple[int, int, Labels]


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A queued job. ``since`` is when it was queued, seconds since the epoch; ``tiles`` are those of all members."""

    job_id: str
    tenant_id: str
    tiles: int
    since: float
    not_before: float | None = None
    #: What it was last told to wait for.
    waits_for: str | None = None
    priority: int = 0
    #: Seconds after which it would be ended; ``None``: it may run for ever.
    run_limit_s: float | None = None
    wait_code: str | None = None
    #: When it was last told to start.
    estimated_start: float | None = None
    #: Processes that compute together, each with an equal part of the tiles: all are placed at once, or none is.
    members: int = 1
    #: Labels that its node has to have.
    constraint: Labels = NO_LABELS

    def ends_by(self, now: float) -> float:
        """Return when it has ended at the latest if it starts now."""
        return float("inf") if self.run_limit_s is None else now + self.run_limit_s

    @property
    def need(self) -> "Need":
        """Return what it asks of a node."""
        return self.tiles, self.members, self.constraint


@dataclass(frozen=True, slots=True)
class JobPart:
    """Members of a job that are on one node, and their tiles together."""

    #: Name of the node; ``None``: the only one that there is.
    node: str | None
    tiles: int
    members: int
    #: As of ``ActiveJob``.
    holds_tiles: bool = True


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job with an attempt that has not ended. ``holds_tiles``: the node daemon counts its tiles as taken already."""

    job_id: str
    tenant_id: str
    tiles: int
    holds_tiles: bool
    #: When its run limit ends it at the latest, seconds since the epoch; ``None``: it has no limit.
    ends_at: float | None = None
    #: Name of its node; ``None``: of the only one that there is.
    node: str | None = None
    priority: int = 0
    #: When a worker took its attempt; ``None``: none has.
    began: float | None = None
    #: It was submitted as one that others may preempt.
    is_preemptible: bool = False
    #: How often it was preempted.
    preemptions: int = 0
    #: Preempted, it goes on from a checkpoint; otherwise it begins again.
    keeps_work: bool = False
    #: It was asked to end its attempt, and gives its tiles back soon.
    is_leaving: bool = False
    #: As of ``QueuedJob``.
    members: int = 1
    #: Its parts, where its members are on several nodes, the first member's first; of one node there are none.
    parts: tuple[JobPart, ...] = ()
    #: When it was queued, seconds since the epoch; ``None``: it did not wait.
    since: float | None = None

    @property
    def everywhere(self) -> "tuple[JobPart, ...] | tuple[ActiveJob]":
        """Return its parts; on one node it is the only one itself."""
        return self.parts or (self,)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node that is up: what its daemon tells (``None``: it does not answer), and how many jobs its workers run."""

    name: str
    capacity: NodeCapacity | None
    slots: int
    labels: Labels = NO_LABELS
    #: What runs there for a job can meet what runs for it on other nodes that are linked.
    is_linked: bool = False


@dataclass(frozen=True, slots=True)
class TenantShare:
    """Claim of a tenant: its weight, its past as by ``PastUsage``, and how many tiles and jobs it may have."""

    weight: float = 1.0
    past: float = 0.0
    #: Tiles that are its own when it wants them; what it has beyond, it borrows. ``None``: none are.
    quota: int | None = None
    #: Tiles that its jobs and endpoints may have at once; ``None``: any number.
    max_tiles: int | None = None
    #: Jobs that it may have active at once; ``None``: as the snapshot's ``tenant_jobs`` says.
    max_jobs: int | None = None
    #: Tiles that replicas of its endpoints have, which count as its jobs' tiles do.
    served: int = 0


#: Weight of a tenant that is not named.
EQUAL_SHARE: Final = TenantShare()


class PriorityScope(StrEnum):
    """Jobs that priorities order among each other."""

    #: Those of one tenant.
    TENANT = "tenant"
    #: All.
    PLATFORM = "platform"


@dataclass(frozen=True, slots=True)
class PreemptionRule:
    """Bounds of preemption; see ``preempt``."""

    #: By how much a priority must be higher to preempt a lower one; 0: none does.
    priority_gap: int = 0
    #: Seconds that an attempt has before it may be preempted.
    min_run_s: float = 60.0
    #: How often one job may be preempted.
    most: int = 5


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """Everything that a decision depends on. ``nodes`` are those that may be given jobs."""

    now: float
    queued: tuple[QueuedJob, ...]
    active: tuple[ActiveJob, ...]
    nodes: tuple[NodeState, ...]
    #: Active jobs that one tenant may have; 0 means no limit.
    tenant_jobs: int = 0
    starve_s: float = 60.0
    #: Whether there are tenants beside those that have jobs here.
    has_other_tenants: bool = False
    #: How many nodes are in each state in which they take no jobs, such as ``lost``.
    absent: Mapping[str, int] = field(default_factory=dict)
    #: Tenants that are not in it have the weight 1 and no past.
    shares: Mapping[str, TenantShare] = field(default_factory=dict)
    preemption: PreemptionRule = PreemptionRule()
    priority_scope: PriorityScope = PriorityScope.TENANT

    @property
    def slots(self) -> int:
        """Return how many jobs the live workers of all nodes can run at once."""
        return sum(node.slots for node in self.nodes)

    @property
    def tiles(self) -> int:
        """Return how many healthy tiles all nodes have."""
        return sum(node.capacity.tiles for node in self.nodes if node.capacity)


@dataclass(frozen=True, slots=True)
class Wait:
    """Reason why a job waits: a code, a sentence, and when it starts at the latest if all keep their run limits."""

    code: WaitCode
    why: str
    #: Seconds since the epoch; ``None``: it cannot be computed.
    starts_at: float | None = None


@dataclass(frozen=True, slots=True)
class Preemption:
    """An active job that is to end its attempt and be queued again, so that another one gets its tiles."""

    job_id: str
    #: The job that gets them.
    for_job: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Jobs to admit, in order, the node of each, for each other job what it waits for, and which are to make room."""

    admissions: tuple[str, ...]
    waits: Mapping[str, Wait]
    #: Of a job on several nodes, the one of its first member.
    placements: Mapping[str, str] = field(default_factory=dict)
    preemptions: tuple[Preemption, ...] = ()
    #: Parts of the jobs that are on several nodes, the first member's first.
    parts: Mapping[str, tuple[JobPart, ...]] = field(default_factory=dict)
