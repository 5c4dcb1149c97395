"""The simulated queue: what holds in every trace, and the figures of some."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument, NotFound
from rdukit_platform.cli.simulate import simulate as command
from rdukit_platform.scheduler.figures import jain_index, parts_while_waiting, percentile, sum_up
from rdukit_platform.scheduler.model import Decision, QueueSnapshot, WaitCode
from rdukit_platform.scheduler.simulate import SimulatedJob, SimulatedRun, SimulatedSystem, simulate
from rdukit_platform.scheduler.traces import TraceJob, TraceParts, draw_trace, parse_swf, read_trace
from support import shows

pytestmark = shows("simulate", "simulate-queue", "scheduler", "fairness")

TILES = 8

_JOBS = st.tuples(
    st.integers(1, TILES + 2), st.integers(0, 60), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 60)),
    st.integers(-1, 1), st.sampled_from("abc"),
)  # fmt: skip
TRACES = st.lists(_JOBS, max_size=25).map(
    lambda rows: [
        TraceJob(f"j{i:02}", tenant, tiles, float(at), float(runs), None if limit is None else float(limit), priority)
        for i, (tiles, at, runs, limit, priority, tenant) in enumerate(rows)
    ]
)
SYSTEMS = st.builds(
    SimulatedSystem,
    tiles=st.just(TILES),
    slots=st.sampled_from([0, 1, 3]),
    tenant_jobs=st.sampled_from([0, 2]),
    starve_s=st.sampled_from([0.0, 10.0, 60.0]),
    half_life_s=st.sampled_from([0.0, 30.0]),
    nodes=st.sampled_from([1, 1, 2, 3]),
)


def most_at_once(run: SimulatedRun, of: Sequence[int]) -> int:
    """Largest sum of ``of``, one figure a job, over jobs that run at one moment."""
    changes = [(done.ended, 0, -size) for done, size in zip(run.jobs, of, strict=True)]
    changes += [(done.started, 1, size) for done, size in zip(run.jobs, of, strict=True)]
    most = now = 0
    for _, _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


@given(trace=TRACES, system=SYSTEMS)
def test_no_more_runs_than_there_is_room_for(trace: list[TraceJob], system: SimulatedSystem) -> None:
    run = simulate(trace, system)
    for node in map(str, range(system.nodes)):
        of_node = [done.job.tiles if done.node == node else 0 for done in run.jobs]
        assert most_at_once(run, of_node) <= TILES
    assert most_at_once(run, [1] * len(run.jobs)) <= (system.slots or system.all_tiles)
    for tenant in "abc":
        of = [int(done.job.tenant_id == tenant) for done in run.jobs]
        assert not system.tenant_jobs or most_at_once(run, of) <= system.tenant_jobs


@given(trace=TRACES, system=SYSTEMS)
def test_every_job_that_fits_runs_once_and_to_its_end(trace: list[TraceJob], system: SimulatedSystem) -> None:
    run = simulate(trace, system)
    assert sorted(done.job.job_id for done in run.jobs) == [job.job_id for job in trace if job.tiles <= TILES]
    assert {job.tiles > TILES for job in run.refused} <= {True}
    for done in run.jobs:
        job = done.job
        assert done.started >= job.at
        limit_s = float("inf") if job.run_limit_s is None else job.run_limit_s
        assert done.ended - done.started == pytest.approx(min(job.runs_s, limit_s))


@given(trace=TRACES, system=SYSTEMS)
def test_nothing_waits_without_a_cause(trace: list[TraceJob], system: SimulatedSystem) -> None:
    """What a decision leaves waiting lacks room, but for jobs behind a reservation and those of a limited tenant."""

    def look(snapshot: QueueSnapshot, decision: Decision) -> None:
        jobs = {job.job_id: job for job in snapshot.queued}
        free = {node.name: node.capacity.free_tiles for node in snapshot.nodes if node.capacity}
        for job_id, node in decision.placements.items():
            free[node] -= jobs[job_id].tiles
        assert min(free.values()) >= 0, "a node has no more than its tiles"
        slots = snapshot.slots - len(snapshot.active) - len(decision.admissions)
        for job_id, wait in decision.waits.items():
            if wait.code not in {WaitCode.PRIORITY, WaitCode.TENANT_LIMIT}:
                assert slots <= 0 or jobs[job_id].tiles > max(free.values()) or "worker slot" in wait.why
        assert decision.admissions or snapshot.active, "the node is idle beside jobs that wait"

    simulate(trace, system, look=look)


@given(trace=TRACES, starve_s=st.sampled_from([0.0, 60.0]), nodes=st.integers(1, 3))
def test_who_is_first_in_the_queue_starts_by_the_time_that_it_was_told(
    trace: list[TraceJob], starve_s: float, nodes: int
) -> None:
    """Of one tenant's jobs of one priority, all with run limits, none is passed by one that would delay it."""
    told: dict[str, float] = {}

    def look(snapshot: QueueSnapshot, decision: Decision) -> None:
        waiting = sorted((job.since, job.job_id) for job in snapshot.queued if job.job_id in decision.waits)
        if waiting:
            first = waiting[0][1]
            at = decision.waits[first].starts_at
            assert at is not None
            told[first] = min(at, told.get(first, at))

    jobs = [replace(job, tenant_id="a", priority=0, run_limit_s=job.run_limit_s or job.runs_s) for job in trace]
    run = simulate(jobs, SimulatedSystem(TILES, starve_s=starve_s, nodes=nodes), look=look)
    late = {done.job.job_id: done.started for done in run.jobs if done.started > told.get(done.job.job_id, 1e9) + 1e-6}
    assert late == {}


def test_a_short_job_passes_one_that_waits_for_all_tiles() -> None:
    trace = [
        TraceJob("holder", "a", 4, 0.0, 100.0, 100.0),
        TraceJob("wide", "a", 8, 1.0, 10.0, 10.0),
        TraceJob("short", "a", 4, 2.0, 98.0, 98.0),
        TraceJob("long", "a", 4, 3.0, 98.0, 98.0),
    ]
    run = simulate(trace, SimulatedSystem(TILES))
    assert {done.job.job_id: done.started for done in run.jobs} == {
        "holder": 0.0, "wide": 100.0, "short": 2.0, "long": 110.0,
    }  # fmt: skip


def test_the_figures_are_those_of_the_jobs() -> None:
    trace = [TraceJob("a", "x", 8, 0.0, 20.0), TraceJob("b", "y", 4, 0.0, 20.0), TraceJob("c", "y", 9, 0.0, 1.0)]
    ticks = iter(range(100))
    figures = sum_up(simulate(trace, SimulatedSystem(TILES), timer=lambda: float(next(ticks))), TILES)
    assert (figures.jobs, figures.refused, figures.tenants, figures.span_s) == (2, 1, 2, 40.0)
    assert figures.utilisation == pytest.approx((8 * 20 + 4 * 20) / (8 * 40))
    assert (figures.wait_mean_s, figures.wait_p95_s, figures.slowdown_mean) == (10.0, 20.0, 1.5)
    assert figures.fairness == 1.0
    assert (figures.decisions, figures.decide_mean_s) == (2, 1.0)
    nothing = sum_up(simulate([], SimulatedSystem(TILES)), TILES)
    assert (nothing.jobs, nothing.utilisation, nothing.fairness) == (0, 0.0, 1.0)


def test_percentiles_and_fairness_at_their_ends() -> None:
    assert [percentile([4, 1, 3, 2], part) for part in (0.0, 0.5, 0.75, 0.95, 1.0)] == [1, 2, 3, 4, 4]
    assert (jain_index([2, 2, 2]), jain_index([1, 0, 0, 0])) == (1.0, 0.25)


def test_a_part_is_what_a_tenant_has_while_it_waits_over_an_equal_one() -> None:
    def done(name: str, tenant: str, tiles: int, at: float, started: float, ended: float) -> SimulatedJob:
        return SimulatedJob(TraceJob(name, tenant, tiles, at, ended - started), started, ended)

    jobs = [
        done("a1", "a", 6, 0.0, 0.0, 10.0), done("a2", "a", 2, 0.0, 10.0, 20.0),
        done("b1", "b", 2, 0.0, 0.0, 10.0), done("b2", "b", 2, 0.0, 10.0, 20.0),
        done("c1", "c", 2, 12.0, 12.0, 13.0),
    ]  # fmt: skip
    # For ten seconds a has six and b two of eight tiles, and both wait; c never waits.
    assert parts_while_waiting(jobs) == {"a": 1.5, "b": 0.5}
    assert jain_index([1.5, 0.5]) == pytest.approx(0.8)


SWF = """; Computer: an example
1  0 -1 100 4 -1 -1 8 200 -1 1 7 -1 -1 -1 -1 -1 -1
2 10 -1  50 4 -1 -1 -1 -1 -1 1 8 -1 -1 -1 -1 -1 -1

3 10 -1  -1 4 -1 -1 -1 -1 -1 0 8 -1 -1 -1 -1 -1 -1
"""


def test_a_trace_is_read_from_the_standard_workload_format(tmp_path: Path) -> None:
    (tmp_path / "trace.swf").write_text(SWF)
    assert read_trace(tmp_path / "trace.swf") == [
        TraceJob("swf-1-2", "user-7", 8, 0.0, 100.0, 200.0),
        TraceJob("swf-2-3", "user-8", 4, 10.0, 50.0, None),
    ]
    with pytest.raises(NotFound, match="Standard Workload Format"):
        read_trace(tmp_path / "none.swf")
    (tmp_path / "empty.swf").write_text("; MaxProcs: 64\n")
    with pytest.raises(InvalidArgument, match=r"empty\.swf has no job that ran; expected lines of 18 numbers"):
        read_trace(tmp_path / "empty.swf")


@pytest.mark.parametrize("line", ["1 2 3", "x" + " 1" * 17, "nan" + " 1" * 17, "1 " * 19])
def test_a_line_that_is_no_job_is_named(line: str) -> None:
    with pytest.raises(InvalidArgument, match="line 2"):
        parse_swf(["; head", line])


def test_a_drawn_trace_is_the_same_by_seed_and_asks_for_its_load() -> None:
    trace = draw_trace(2000, 5, 64, seed=3, load=0.5)
    assert trace == draw_trace(2000, 5, 64, seed=3, load=0.5) != draw_trace(2000, 5, 64, seed=4, load=0.5)
    asked = sum(job.tiles * job.runs_s for job in trace) / (64 * trace[-1].at)
    assert 0.4 < asked < 0.6  # the arrivals of 2,000 jobs are within a few percent of their mean
    assert {job.tenant_id for job in trace} == {f"tenant-{n}" for n in range(1, 6)}
    assert max(job.tiles for job in draw_trace(10, 1, 1, seed=0)) == 1


def test_drawn_gangs_and_zones_leave_the_rest_of_the_trace_as_it_was() -> None:
    plain = draw_trace(1000, 5, 16, seed=3, nodes=4)
    drawn = draw_trace(1000, 5, 16, seed=3, nodes=4, parts=TraceParts(gangs=0.3, constrained=0.25, zones=3))
    gangs, asking = [job for job in drawn if job.is_gang], [job for job in drawn if job.constraint]
    assert 250 < len(gangs) < 350 and 200 < len(asking) < 300
    assert {job.members for job in gangs} == {2, 4, 8}
    assert all(job.tiles >= job.members and job.tiles % job.members == 0 for job in gangs)
    assert {label for job in asking for label in job.constraint} == {("zone", str(zone)) for zone in range(3)}
    zones_only = draw_trace(1000, 5, 16, seed=3, nodes=4, parts=TraceParts(constrained=0.25, zones=3))
    assert [replace(job, constraint=frozenset()) for job in zones_only] == plain


def test_jobs_that_ask_for_a_zone_run_on_its_nodes_and_one_that_no_node_has_is_refused() -> None:
    trace = draw_trace(200, 3, TILES, seed=1, load=1.1, nodes=3, parts=TraceParts(gangs=0.3, constrained=0.5, zones=2))
    nowhere = TraceJob("nowhere", "a", 1, 0.0, 5.0, constraint=frozenset({("zone", "7")}))
    run = simulate([*trace, nowhere], SimulatedSystem(TILES, nodes=3, zones=2))
    assert run.refused == (nowhere,) and len(run.jobs) == 200
    for done in run.jobs:
        assert done.job.constraint <= {("zone", str(int(done.node) % 2))}
    for node in map(str, range(3)):
        assert most_at_once(run, [done.job.tiles if done.node == node else 0 for done in run.jobs]) <= TILES
    figures = sum_up(run, 3 * TILES)
    asking = [done.waited_s for done in run.jobs if done.job.constraint]
    assert (figures.constrained, figures.constrained_wait_mean_s) == (
        len(asking),
        pytest.approx(sum(asking) / len(asking)),
    )
    assert 0 < figures.gangs < 200


def test_the_picture_and_the_table_tell_gangs_and_zones_where_there_are_any(tmp_path: Path) -> None:
    picture = tmp_path / "queue.svg"
    arguments = ["queue", "--jobs", "80", "--nodes", "4", "--tiles", "8", "-o", str(picture)]
    plain = CliRunner().invoke(command, arguments).output
    assert "gangs" not in plain and "of these" not in picture.read_text()
    shown = CliRunner().invoke(command, [*arguments, "--gangs", "0.3", "--zones", "2", "--constrained", "0.4"])
    assert shown.exit_code == 0, shown.output
    assert "gangs, waiting, mean" in shown.output and "asking for a zone, waiting, mean" in shown.output
    drawn = picture.read_text()
    assert drawn.count('<path class="gangs"') == drawn.count('<path class="constrained"') == 2
    assert "of these gangs" in drawn and "of these asking for a zone" in drawn


def test_the_command_prints_figures_and_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "queue.svg"
    arguments = ["queue", "--jobs", "60", "--tenants", "3", "--nodes", "2", "--tiles", "8", "-o", str(picture)]
    shown = CliRunner().invoke(command, arguments)
    assert shown.exit_code == 0, shown.output
    assert "utilisation" in shown.output and "fairness" in shown.output
    told = json.loads(CliRunner().invoke(command, [*arguments[:-2], "--json"]).output)
    assert (told["jobs"], told["tiles"], told["refused"]) == (60, 16, 0)
    assert 0 < told["utilisation"] <= 1
    assert picture.read_text().startswith("<svg") and "</svg>" in picture.read_text()


def test_the_command_replays_a_file(tmp_path: Path) -> None:
    (tmp_path / "trace.swf").write_text(SWF)
    told = json.loads(CliRunner().invoke(command, ["queue", "--swf", str(tmp_path / "trace.swf"), "--json"]).output)
    assert (told["jobs"], told["wait_mean_s"]) == (2, 0.0)


def test_the_command_compares_the_policy_with_one_by_age() -> None:
    arguments = ["queue", "--jobs", "300", "--tenants", "3", "--tiles", "8", "--load", "1.3", "--json"]
    fair, easy = (
        json.loads(CliRunner().invoke(command, [*arguments, "--policy", policy]).output) for policy in ("fair", "easy")
    )
    assert fair["jobs"] == easy["jobs"] == 300
    assert fair["wait_mean_s"] != easy["wait_mean_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--swf", "x.swf", "--jobs", "3"], "--swf cannot be combined with"),
        (["--swf", "x.swf", "--gangs", "0.2"], "--swf cannot be combined with"),
        (["--constrained", "0.2"], "add, for example, --zones 4"),
        (["--policy", "easy", "--quota", "tenant-1=4"], "the order by age ignores quotas"),
        (["--jobs", "3", "-o", "x.png"], "ends in .svg"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["queue", *arguments])
    assert isinstance(result.exception, InvalidArgument)
    assert message in result.exception.message
