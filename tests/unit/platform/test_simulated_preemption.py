"""The simulated queue with quotas, preemption and nodes that are lost: what holds in every trace."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_platform.cli.simulate import simulate as command
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.figures import sum_up
from rdukit_platform.scheduler.model import Decision, PreemptionRule, PriorityScope, QueueSnapshot, TenantShare
from rdukit_platform.scheduler.simulate import SimulatedEnd, SimulatedJob, SimulatedSystem, simulate
from rdukit_platform.scheduler.traces import Outage, TraceJob, TraceParts, draw_outages, draw_trace
from support import shows

pytestmark = shows("simulate", "scheduler")

TILES = 8
_JOBS = st.tuples(
    st.integers(1, TILES), st.integers(0, 60), st.integers(1, 40), st.one_of(st.none(), st.integers(41, 60)),
    st.sampled_from([-20, 0, 20]), st.sampled_from("abc"), st.booleans(),
)  # fmt: skip
TRACES = st.lists(_JOBS, max_size=20).map(
    lambda rows: [
        TraceJob(f"j{i:02}", tenant, tiles, float(at), float(runs), limit and float(limit), priority, preemptible)
        for i, (tiles, at, runs, limit, priority, tenant, preemptible) in enumerate(rows)
    ]
)
SYSTEMS = st.builds(
    SimulatedSystem,
    tiles=st.just(TILES),
    slots=st.sampled_from([0, 0, 3]),
    half_life_s=st.sampled_from([0.0, 30.0]),
    nodes=st.integers(1, 3),
    claims=st.sampled_from(
        [{}, {"a": TenantShare(quota=6)}, {"a": TenantShare(quota=4), "b": TenantShare(quota=9, weight=2.0)}]
    ),
    preemption=st.builds(
        PreemptionRule, priority_gap=st.sampled_from([0, 10, 30]), min_run_s=st.sampled_from([0.0, 5.0]),
        most=st.integers(0, 3),
    ),
    priority_scope=st.sampled_from(PriorityScope),
)  # fmt: skip
OUTAGES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), max_size=2).map(
    lambda rows: (
        [Outage("0", float(at), float(at + lasts)) for at, lasts in rows[:1]]
        + [Outage("1", float(at), float(at + lasts)) for at, lasts in rows[1:]]
    )
)


def attempts(trace: list[TraceJob], system: SimulatedSystem, outages: list[Outage]) -> list[SimulatedJob]:
    run = simulate(trace, system, outages=[o for o in outages if int(o.node) < system.nodes])
    assert sorted(done.job.job_id for done in run.jobs) == [job.job_id for job in trace], "each ends once"
    return [*run.jobs, *run.cut]


@given(trace=TRACES, system=SYSTEMS, outages=OUTAGES)
def test_no_node_has_more_than_its_tiles_and_a_lost_one_has_nothing(
    trace: list[TraceJob], system: SimulatedSystem, outages: list[Outage]
) -> None:
    found = attempts(trace, system, outages)
    for node in map(str, range(system.nodes)):
        here = [attempt for attempt in found if attempt.node == node]
        for moment in {attempt.started for attempt in here}:
            assert sum(a.job.tiles for a in here if a.started <= moment < a.ended) <= TILES
        for outage in (each for each in outages if each.node == node):
            assert not [a for a in here if a.started < outage.until and a.ended > outage.at and a.ended > a.started]


@given(trace=TRACES, system=SYSTEMS, outages=OUTAGES)
def test_preemption_ends_and_takes_no_work_away(
    trace: list[TraceJob], system: SimulatedSystem, outages: list[Outage]
) -> None:
    found, rule = attempts(trace, system, outages), system.preemption
    for job in trace:
        own = sorted((a for a in found if a.job is job), key=lambda a: (a.started, a.ended))
        ends = Counter(attempt.end for attempt in own)
        assert ends[SimulatedEnd.PREEMPTED] <= rule.most
        assert own[-1].end is SimulatedEnd.DONE
        assert min([a.ended - a.started for a in own if a.end is SimulatedEnd.PREEMPTED], default=9e9) >= rule.min_run_s
        if not ends[SimulatedEnd.LOST]:
            assert sum(a.ended - a.started for a in own) == pytest.approx(job.runs_s)
            assert own[-1].waited_s == pytest.approx(own[-1].ended - job.at - job.runs_s)


@given(trace=TRACES, system=SYSTEMS, outages=OUTAGES)
def test_a_ledger_that_is_kept_decides_as_one_that_is_made_anew(
    trace: list[TraceJob], system: SimulatedSystem, outages: list[Outage]
) -> None:
    here = [outage for outage in outages if int(outage.node) < system.nodes]

    def look(snapshot: QueueSnapshot, decision: Decision) -> None:
        anew = decide(snapshot)
        assert (anew.placements, anew.preemptions) == (decision.placements, decision.preemptions)

    told = simulate(trace, system, look=look, outages=here)
    untold = simulate(trace, system, outages=here)
    assert (told.jobs, told.cut) == (untold.jobs, untold.cut), "to say why others wait changes nothing"


@given(trace=TRACES, quota=st.integers(1, TILES))
def test_who_keeps_within_quota_waits_for_nobody_who_has_borrowed(trace: list[TraceJob], quota: int) -> None:
    """A tenant sends one job after the other, each within its quota, while others take all that they can get."""
    others = [replace(job, tenant_id="b") for job in trace]
    own = [TraceJob(f"own{i}", "a", quota, 10.0 * i, 9.0, None, -100) for i in range(5)]
    rule = PreemptionRule(priority_gap=1, min_run_s=0.0, most=1000)
    system = SimulatedSystem(TILES, claims={"a": TenantShare(quota=quota)}, preemption=rule)
    run = simulate([*others, *own], system)
    assert {done.job.job_id: done.waited_s for done in run.jobs if done.job.tenant_id == "a"} == {
        job.job_id: 0.0 for job in own
    }


def test_a_preempted_job_goes_on_and_one_that_was_lost_begins_again() -> None:
    low, high = TraceJob("low", "a", 8, 0.0, 100.0, is_preemptible=True), TraceJob("high", "b", 8, 70.0, 10.0, None, 50)
    run = simulate(
        [low, high],
        SimulatedSystem(TILES, preemption=PreemptionRule(10, 60.0, 1), priority_scope=PriorityScope.PLATFORM),
    )
    assert {done.job.job_id: (done.started, done.ended, done.waited_s) for done in run.jobs} == {
        "high": (70.0, 80.0, 0.0), "low": (80.0, 110.0, 10.0),
    }  # fmt: skip
    lost = simulate([low], SimulatedSystem(TILES), outages=[Outage("0", 50.0, 60.0)])
    assert [(done.started, done.ended) for done in (*lost.cut, *lost.jobs)] == [(0.0, 50.0), (60.0, 160.0)]
    figures = sum_up(lost, TILES)
    assert (figures.preempted, figures.lost, figures.lost_work) == (0, 1, pytest.approx(50 / 160))
    assert figures.utilisation == pytest.approx(150 / 160)


def test_who_may_have_less_than_its_job_needs_is_told_as_refused() -> None:
    system = SimulatedSystem(TILES, claims={"a": TenantShare(max_tiles=4)})
    run = simulate([TraceJob("x", "a", 5, 0.0, 1.0), TraceJob("y", "a", 4, 0.0, 1.0)], system)
    assert ([done.job.job_id for done in run.jobs], [job.job_id for job in run.refused]) == (["y"], ["x"])


def test_outages_and_urgent_jobs_are_the_same_by_seed() -> None:
    outages = draw_outages(50, 1e6, 1e5, 1e3, seed=1)
    assert outages == draw_outages(50, 1e6, 1e5, 1e3, seed=1) != draw_outages(50, 1e6, 1e5, 1e3, seed=2)
    assert 400 < len(outages) < 600  # 500 are expected, of a deviation of about 22
    trace = draw_trace(1000, 5, 64, seed=3, parts=TraceParts(urgent=0.2))
    assert {(job.priority, job.is_preemptible) for job in trace} == {(100, False), (0, True)}
    assert [replace(job, priority=0, is_preemptible=False) for job in trace] == draw_trace(1000, 5, 64, seed=3)


def test_the_command_takes_quotas_and_loses_nodes() -> None:
    arguments = ["queue", "--jobs", "300", "--tiles", "8", "--load", "1.5", "--urgent", "0.2", "--quota", "tenant-2=4"]
    told = json.loads(CliRunner().invoke(command, [*arguments, "--lose-every", "2h", "--json"]).stdout)
    assert told["jobs"] == 300 and told["preempted"] > 0 and told["lost"] > 0
    for wrong, message in (("tenant-2=x", "not a number of tiles"), ("nobody=4", "no jobs in the trace")):
        refused = CliRunner().invoke(command, ["queue", "--quota", wrong])
        assert isinstance(refused.exception, InvalidArgument) and message in refused.exception.message
