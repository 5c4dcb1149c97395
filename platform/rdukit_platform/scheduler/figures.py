"""Figures of a simulated queue (pure): how much was used, how long jobs waited, how fair it was."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rdukit_platform.nodes.topology import NO_LAYOUT, NodeLayout
from rdukit_platform.scheduler.simulate import SimulatedEnd, SimulatedJob, SimulatedRun


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """Figures of a run. Seconds of trace time, but for ``decide_…``, which are the host's."""

    jobs: int
    refused: int
    tenants: int
    #: From the first job's coming to the last one's end.
    span_s: float
    #: Part of all tiles' time in the span that jobs had.
    utilisation: float
    wait_mean_s: float
    wait_p95_s: float
    slowdown_mean: float
    #: Attempts that were ended for other jobs, and with their nodes; part of all tiles' time that those which were
    #: lost with a node or an RDU had.
    preempted: int
    lost: int
    lost_work: float
    #: Jain's index over ``parts_while_waiting``: 1 if all have their part, 1/tenants at worst.
    fairness: float
    decisions: int
    decide_mean_s: float
    decide_p95_s: float
    #: Of jobs with several members, and of those that ask for labels of nodes.
    gangs: int = 0
    gang_wait_mean_s: float = 0.0
    constrained: int = 0
    constrained_wait_mean_s: float = 0.0
    #: Of the gangs, those that had several nodes.
    wide: int = 0
    wide_wait_mean_s: float = 0.0
    #: Of these, those whose nodes are all in one rack.
    wide_in_rack: int = 0
    #: Attempts that were ended with an RDU that broke.
    broken: int = 0
    #: Jobs that had tiles of several RDUs, and of them those that were on as few XRDUs as have so many RDUs.
    several_rdus: int = 0
    on_fewest_xrdus: int = 0


def sum_up(
    run: SimulatedRun, tiles: int, layout: NodeLayout = NO_LAYOUT, rack_of: Callable[[str], str | None] = lambda _: None
) -> QueueFigures:
    """Sum a run up, on nodes of so many tiles together. Without jobs all is 0, but fairness is 1."""
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
    """Return of how many RDUs, and of how many XRDUs, an attempt had tiles."""
    rdus = [(node, rdu) for node, mask in job.held for rdu in rdus_in(mask, layout.rdu_tiles)]
    return len(rdus), len({(node, rdu // layout.xrdu_rdus if layout.xrdu_rdus else 0) for node, rdu in rdus})


def rdus_in(mask: int, rdu_tiles: int) -> Iterator[int]:
    """Yield the numbers of the RDUs that have tiles of a mask."""
    whole = (1 << rdu_tiles) - 1
    for rdu in range(-(-mask.bit_length() // rdu_tiles)):
        if mask >> rdu * rdu_tiles & whole:
            yield rdu


def parts_while_waiting(jobs: Iterable[SimulatedJob]) -> dict[str, float]:
    """Return what each tenant had of the tiles while it had a job waiting, over its equal part of them.

    The equal part is that of all tiles which waiting tenants use, among these tenants. Who never waits is left out: it
    has what it wants.
    """
    waiting: Counter[str] = Counter()
    using: Counter[str] = Counter()
    #: Tile-seconds of each tenant while it waited, and what its equal part would have been.
    had: defaultdict[str, float] = defaultdict(float)
    due: defaultdict[str, float] = defaultdict(float)
    #: Tiles of all tenants that wait, how many these are, and an equal part of the tiles summed up over time.
    shared, tenants, equal = 0, 0, 0.0
    #: Until when, and until which sum, each tenant that waits has been reckoned.
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
    """Yield when how many jobs of the tenant wait, and how many tiles it uses, change by how much."""
    tenant, tiles = done.job.tenant_id, done.job.tiles
    yield done.queued_at, tenant, 1, 0
    yield done.started, tenant, -1, tiles
    yield done.ended, tenant, 0, -tiles


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 without values."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least ``part`` of them do not exceed; 0 without values."""
    return sorted(values)[max(-int(-len(values) * part // 1) - 1, 0)] if values else 0.0


def jain_index(values: Sequence[float]) -> float:
    """Return Jain's fairness index: squared sum over count times the sum of squares.

    Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness" (DEC-TR-301, 1984).
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
