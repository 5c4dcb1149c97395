"""Jobs that have waited too long go first, and their reservation holds."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.figures import percentile
from rdukit_platform.scheduler.model import (
    ActiveJob,
    Decision,
    NodeState,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
    TenantShare,
)
from rdukit_platform.scheduler.overdue import ActiveWaits, OverdueRule
from rdukit_platform.scheduler.simulate import QueuePolicy, SimulatedSystem, simulate
from rdukit_platform.scheduler.traces import TraceJob
from support import shows

pytestmark = shows("scheduler", "simulate")

TILES = 8
HOLDS = "it has waited the longest and has a reservation"


def flow(tenant: str, jobs: int, every_s: float, tiles: int, runs_s: float, priority: int = 0) -> list[TraceJob]:
    """Jobs of one tenant that come one after the other and are over by their run limits."""
    return [
        TraceJob(f"{tenant}{number}", tenant, tiles, every_s * number, runs_s, runs_s, priority)
        for number in range(jobs)
    ]


def waits(trace: Sequence[TraceJob], system: SimulatedSystem) -> dict[str, float]:
    return {done.job.job_id: done.waited_s for done in simulate(trace, system).jobs}


def test_a_whole_node_job_of_the_largest_share_starts_while_others_keep_submitting() -> None:
    others = [job for tenant in "abc" for job in flow(tenant, 300, 37.5, 1, 90.0)]
    busy, whole = flow("w", 300, 37.5, 1, 100.0), TraceJob("whole", "w", TILES, 1000.0, 60.0, 60.0)
    fair = waits([*others, *busy, whole], SimulatedSystem(TILES))
    easy = waits([*others, *busy, whole], SimulatedSystem(TILES, policy=QueuePolicy.EASY))
    assert fair["whole"] <= 3 * max(easy.values())


def test_a_tenant_that_uses_little_passes_a_flood_and_the_flood_has_half_of_the_tiles() -> None:
    flood = [replace(job, at=0.0) for job in flow("flood", 200, 0.0, 1, 100.0)]
    crowd = [job for tenant in "abcd" for job in flow(tenant, 60, 25.0, 1, 100.0)]
    little = flow("little", 10, 200.0, 1, 50.0)
    fair = waits([*flood, *crowd, *little], SimulatedSystem(TILES))
    easy = waits([*flood, *crowd, *little], SimulatedSystem(TILES, policy=QueuePolicy.EASY))
    of_little = [seconds for job, seconds in fair.items() if job.startswith("little")]
    assert percentile(of_little, 0.5) <= 25.0
    assert max(fair.values()) <= 2.5 * max(easy.values())


_JOBS = st.tuples(
    st.integers(1, TILES), st.integers(0, 200), st.integers(1, 40), st.integers(0, 40), st.integers(-1, 1),
    st.sampled_from("abc"),
)  # fmt: skip
TRACES = st.lists(_JOBS, max_size=25).map(
    lambda rows: [
        TraceJob(f"j{i:02}", tenant, tiles, float(at), float(runs), float(runs + more), priority)
        for i, (tiles, at, runs, more, priority, tenant) in enumerate(rows)
    ]
)


@given(trace=TRACES, starve_s=st.sampled_from([0.0, 20.0]), nodes=st.integers(1, 3))
def test_a_reservation_of_the_longest_waiting_job_holds(trace: list[TraceJob], starve_s: float, nodes: int) -> None:
    """Whatever comes later: it starts by the time that it was told first, but for later ones of its own tenant."""
    told: dict[str, float] = {}
    own = {job.job_id: replace(job, priority=0) for job in trace}

    def look(snapshot: QueueSnapshot, decision: Decision) -> None:
        holders = [job_id for job_id, wait in decision.waits.items() if HOLDS in wait.why]
        assert len(holders) <= 1
        for job_id in holders:
            starts_at = decision.waits[job_id].starts_at
            assert starts_at is not None
            assert starts_at <= told.get(job_id, starts_at) + 1e-6
            told[job_id] = starts_at

    run = simulate(list(own.values()), SimulatedSystem(TILES, starve_s=starve_s, nodes=nodes), look=look)
    late = {done.job.job_id for done in run.jobs if done.started > told.get(done.job.job_id, 1e9) + 1e-6}
    assert late == set()


def test_a_job_within_its_quota_does_not_wait_for_the_reservation_of_one_above() -> None:
    nodes = (NodeState("n", NodeCapacity(TILES, 4, TILES), 9),)
    running = ActiveJob("r", "a", 4, True, ends_at=200.0)
    queued = (QueuedJob("wide", "a", TILES, 0.0), QueuedJob("own", "b", 2, 90.0))
    snapshot = QueueSnapshot(100.0, queued, (running,), nodes)
    held = decide(snapshot)
    assert held.admissions == () and HOLDS in held.waits["wide"].why and held.waits["wide"].starts_at == 200.0
    quotas = {"a": TenantShare(quota=4), "b": TenantShare(quota=4)}
    assert decide(replace(snapshot, shares=quotas)).admissions == ("own",)


@pytest.mark.parametrize("scope", list(PriorityScope))
def test_a_flood_of_the_highest_priority_holds_others_only_where_priorities_are_the_platforms(
    scope: PriorityScope,
) -> None:
    flood = [replace(job, at=0.0) for job in flow("flood", 100, 0.0, 2, 100.0, priority=100)]
    other = flow("other", 20, 50.0, 1, 10.0)
    found = waits([*flood, *other], SimulatedSystem(TILES, priority_scope=scope))
    of_other = [seconds for job, seconds in found.items() if job.startswith("other")]
    assert (max(of_other) <= 100.0) == (scope is PriorityScope.TENANT)


def test_a_queue_by_age_knows_no_tenants_and_no_priorities() -> None:
    trace = [*flow("a", 20, 5.0, 3, 30.0, priority=50), *flow("b", 20, 7.0, 5, 20.0)]
    alike = [replace(job, tenant_id="c", priority=0) for job in trace]
    easy = SimulatedSystem(TILES, policy=QueuePolicy.EASY, claims={"b": TenantShare(quota=TILES)})
    assert waits(trace, easy) == waits(alike, easy)


_WAITS = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9))


@given(active=st.lists(_WAITS, max_size=10), more=st.lists(_WAITS, max_size=5), asked=st.lists(st.integers(0, 60)))
def test_waits_are_summed_over_the_jobs_that_were_queued_before(
    active: list[tuple[int, int, int]], more: list[tuple[int, int, int]], asked: list[int]
) -> None:
    found, now = ActiveWaits(), 200.0
    jobs = [
        ActiveJob(f"r{i}", "a", tiles, True, began=float(since + waited), since=float(since))
        for i, (since, waited, tiles) in enumerate([*active, *more])
    ]
    found.add_all(jobs[: len(active)], now)
    there = jobs[: len(active)]
    for job, since in zip([*jobs[len(active) :], *there], [*asked, *range(60)], strict=False):
        if job in there:
            there = [each for each in there if each is not job]
            found.remove(job)
        else:
            there = [*there, job]
            found.add(QueuedJob(job.job_id, "a", job.tiles, job.since or 0.0), job.began or 0.0)
        asking = QueuedJob("r4", "a", 1, float(since))
        before = [each for each in there if (each.since or 0.0, each.job_id) < (asking.since, asking.job_id)]
        seconds = [(each.began or 0.0) - (each.since or 0.0) for each in before]
        tiles = sum(s * each.tiles for s, each in zip(seconds, before, strict=True))
        places = sum(s for s, each in zip(seconds, before, strict=True) if each.tiles)
        assert found.before(asking) == (sum(seconds), places, tiles)


def test_a_job_is_overdue_at_twice_the_average_wait_of_what_is_scarce_and_only_where_it_was_passed() -> None:
    def overdue(
        active: Sequence[ActiveJob], tiles: int = 8, places: int = 8, slots: int = 8, starve_s: float = 10.0
    ) -> bool:
        found = ActiveWaits()
        found.add_all(active, 100.0)
        return OverdueRule(found, (slots, places, tiles), starve_s, 100.0).applies(QueuedJob("j", "a", 1, 20.0))

    before = ActiveJob("before", "b", 4, True, began=90.0, since=10.0)
    assert overdue([before]), "80 s are twice the average of 80 s on half of the tiles"
    assert (
        not overdue([replace(before, tiles=5)]) and not overdue([before], slots=1) and not overdue([before], places=1)
    )
    assert overdue([before, ActiveJob("after", "b", 4, True, began=90.0, since=30.0)]), "a later one has not waited"
    assert not overdue([], starve_s=81.0)
