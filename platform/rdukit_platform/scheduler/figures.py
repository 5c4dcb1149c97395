"""Figures of a simulated queue (pure): utilisation, waits and fairness."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rdukit_platform.nodes.topology import NO_LAYOUT, NodeLayout
from rdukit_platform.scheduler.simulate import SimulatedEnd, SimulatedJob, SimulatedRun


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Figures of a run. Seconds are trace time, except ``decide_…``, which are the host's."""

    jobs: int
    refused: int
    tenants: int
    #: Seconds from the first job's arrival to the last job's end.
    span_s: float
    #: Share of the tiles' total time in the span that jobs used.
    utilisation: float
    wait_mean_s: float
    wait_p95_s: float
    slowdown_mean: float
    #: Attempts that were preempted, and lost with their nodes; share of the tiles' time spent on attempts lost with a
    #: node or an RDU.
    preempted: int
    lost: int
    lost_work: float
    #: Jain's index over ``parts_while_waiting``: 1 if all tenants have their share, 1/tenants at worst.
    fairness: float
    decisions: int
    decide_mean_s: float
    decide_p95_s: float
    #: Jobs with several members, and jobs that require labels of nodes.
    gangs: int = 0
    gang_wait_mean_s: float = 0.0
    constrained: int = 0
    constrained_wait_mean_s: float = 0.0
    #: Gangs that ran on several nodes.
    wide: int = 0
    wide_wait_mean_s: float = 0.0
    #: Gangs whose several nodes were all in one rack.
    wide_in_rack: int = 0
    #: Attempts that ended because an RDU broke.
    broken: int = 0
    #: Jobs with tiles of several RDUs; and those of them on the fewest possible XRDUs.
    several_rdus: int = 0
    on_fewest_xrdus: int = 0


def sum_up(
    run: SimulatedRun, tiles: int, layout: NodeLayout = NO_LAYOUT, rack_of: Callable[[str], str | None] = lambda _: None
) -> QueueFigures:
    """Summarize a run; ``tiles`` are those of all nodes. Without jobs, fairness is 1 and the other figures are 0."""
    span_s = max((j.ended for j in run.jobs), default=0.0) - min((j.job.at for j in run.jobs), default=0.0)
    attempts = (*run.jobs, *run.cut)
    lost = [j for j in run.cut if j.end is not SimulatedEnd.PREEMPTED]
    broken = sum(j.end is SimulatedEnd.BROKEN for j in run.cut)
    places = [rdus_of(j, layout) for j in run.jobs] if layout.rdu_tiles else []
    several = [xrdus <= -(-rdus // max(layout.xrdu_rdus, 1)) for rdus, xrdus in places if rdus > 1]
    work, lost_work = (sum(j.job.tiles * (j.ended - j.started) for j in part) for part in (attempts, lost))
    waits = [j.waited_s for j in run.jobs]
    gangs = [j.waited_s for j in run.jobs if j.job.is_gang]
    wide = [j for j in run.jobs if j.parts]
    constrained = [j.waited_s for j in run.jobs if j.job.constraint]
    return QueueFigures(
        jobs=len(run.jobs),
        refused=len(run.refused),
        tenants=len({j.job.tenant_id for j in run.jobs}),
        span_s=span_s,
        utilisation=work / (tiles * span_s) if span_s else 0.0,
        wait_mean_s=mean(waits),
        wait_p95_s=percentile(waits, 0.95),
        slowdown_mean=mean([j.slowdown for j in run.jobs]),
        preempted=len(run.cut) - len(lost),
        lost=len(lost) - broken,
        lost_work=lost_work / (tiles * span_s) if span_s else 0.0,
        fairness=jain_index(list(parts_while_waiting(attempts).values())),
        decisions=len(run.decisions_s),
        decide_mean_s=mean(run.decisions_s),
        decide_p95_s=percentile(run.decisions_s, 0.95),
        gangs=len(gangs),
        gang_wait_mean_s=mean(gangs),
        constrained=len(constrained),
        constrained_wait_mean_s=mean(constrained),
        wide=len(wide),
        wide_wait_mean_s=mean([j.waited_s for j in wide]),
        wide_in_rack=sum(is_in_one_rack(j, rack_of) for j in wide),
        broken=broken,
        several_rdus=len(several),
        on_fewest_xrdus=sum(several),
    )


def is_in_one_rack(job: SimulatedJob, rack_of: Callable[[str], str | None]) -> bool:
    """Return whether all nodes of an attempt on several are in one rack."""
    racks = {rack_of(part.node or job.node) for part in job.parts}
    return len(racks) == 1 and racks != {None}


def rdus_of(job: SimulatedJob, layout: NodeLayout) -> tuple[int, int]:
    """Count the RDUs, and the XRDUs, of an attempt's tiles."""
    rdus = [(node, rdu) for node, mask in job.held for rdu in rdus_in(mask, layout.rdu_tiles)]
    return len(rdus), len({(node, rdu // layout.xrdu_rdus if layout.xrdu_rdus else 0) for node, rdu in rdus})


def rdus_in(mask: int, rdu_tiles: int) -> Iterator[int]:
    """Yield the numbers of the RDUs that have tiles of a mask."""
    whole = (1 << rdu_tiles) - 1
    for rdu in range(-(-mask.bit_length() // rdu_tiles)):
        if mask >> rdu * rdu_tiles & whole:
            yield rdu


def parts_while_waiting(jobs: Iterable[SimulatedJob]) -> dict[str, float]:
    """Return each tenant's tile-seconds while it had a waiting job, divided by an equal share.

    The equal share divides the tiles that waiting tenants use among these tenants. Tenants that never wait are left
    out: they lack nothing.
    """
    waiting: Counter[str] = Counter()
    using: Counter[str] = Counter()
    #: Tile-seconds of each tenant while it waited, and its equal share.
    had: defaultdict[str, float] = defaultdict(float)
    due: defaultdict[str, float] = defaultdict(float)
    #: Tiles of all waiting tenants, their number, and the integral of an equal share over time.
    shared, tenants, equal = 0, 0, 0.0
    #: Time, and value of that integral, up to which each waiting tenant is accounted.
    since: dict[str, tuple[float, float]] = {}
    before = 0.0
    for at, tenant, waits, tiles in sorted(change for done in jobs for change in _changes(done)):
        equal += shared / tenants * (at - before) if tenants else 0.0
        before = at
        if waiting[tenant]:
            began, sum_then = since[tenant]
            had[tenant] += using[tenant] * (at - began)
            due[tenant] += equal - sum_then
            shared, tenants = shared - using[tenant], tenants - 1
        waiting[tenant] += waits
        using[tenant] += tiles
        if waiting[tenant]:
            since[tenant] = at, equal
            shared, tenants = shared + using[tenant], tenants + 1
    return {tenant: had[tenant] / due[tenant] for tenant in due if due[tenant] > 0}


def _changes(done: SimulatedJob) -> Iterator[tuple[float, str, int, int]]:
    """Yield changes: the time, the tenant, and the differences of its waiting jobs and of its used tiles."""
    tenant, tiles = done.job.tenant_id, done.job.tiles
    yield done.queued_at, tenant, 1, 0
    yield done.started, tenant, -1, tiles
    yield done.ended, tenant, 0, -tiles


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 without values."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least ``part`` of the values do not exceed; 0 without values."""
    return sorted(values)[max(-int(-len(values) * part // 1) - 1, 0)] if values else 0.0


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's fairness index: squared sum over count times the sum of squares.

    Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness" (DEC-TR-301, 1984).
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
