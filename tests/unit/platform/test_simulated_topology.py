"""The simulated queue on nodes with RDUs and XRDUs: which tiles jobs have, and RDUs that break."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_platform.cli.simulate import simulate as command
from rdukit_platform.cli.simulated_tiles import CELLS, tile_rows
from rdukit_platform.nodes.topology import NodeLayout
from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.figures import rdus_of, sum_up
from rdukit_platform.scheduler.model import (
    NO_LABELS,
    Decision,
    NodeState,
    PreemptionRule,
    QueueSnapshot,
    TenantShare,
)
from rdukit_platform.scheduler.node_room import NodeRoom, rows_of
from rdukit_platform.scheduler.simulate import SimulatedEnd, SimulatedJob, SimulatedSystem, simulate
from rdukit_platform.scheduler.traces import WHOLE, Outage, TraceJob, draw_outages, draw_trace
from support import shows

pytestmark = shows("simulate", "simulate-queue", "scheduler")

#: Nodes of two XRDUs of two RDUs of four tiles.
WIDTH, RDUS = 4, 4
LAYOUT = NodeLayout(WIDTH, 2)
TILES = WIDTH * RDUS
SIZES = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 20])
TRACES = st.lists(
    st.tuples(
        SIZES, st.integers(0, 60), st.integers(1, 40), st.one_of(st.none(), st.integers(1, 60)), st.sampled_from("ab"),
        st.integers(-1, 1), st.sampled_from([1, 1, 1, 2]),
    ),
    max_size=20,
).map(
    lambda rows: [
        TraceJob(
            f"j{i:02}", tenant, tiles * members, float(at), float(runs), None if limit is None else float(limit),
            10 * priority, is_preemptible=priority < 0, members=members,
        )
        for i, (tiles, at, runs, limit, tenant, priority, members) in enumerate(rows)
    ]
)  # fmt: skip
OUTAGES = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([WHOLE, 0, 1, 3]), st.integers(1, 80), st.integers(1, 30)),
    max_size=4, unique_by=lambda each: each[:2],
).map(lambda rows: [Outage(str(node), float(at), float(at + long), rdu) for node, rdu, at, long in rows])  # fmt: skip
SYSTEMS = st.builds(
    SimulatedSystem,
    tiles=st.just(TILES),
    layout=st.just(LAYOUT),
    applications=st.sampled_from([0, 3]),
    starve_s=st.sampled_from([0.0, 30.0]),
    nodes=st.just(2),
    claims=st.sampled_from([{}, {"a": TenantShare(quota=8)}]),
    preemption=st.just(PreemptionRule(10, 0.0, 2)),
    is_linked=st.booleans(),
)


def check_places(attempts: Sequence[SimulatedJob], outages: Sequence[Outage]) -> None:
    """Check that no tile is two jobs', that tiles are as the node's daemon leases them, and in service."""
    uses = [(at, mask, node) for each in attempts for node, mask in each.held for at in [(each.started, each.ended)]]
    uses += [((o.at, o.until), ((1 << WIDTH) - 1) << o.rdu * WIDTH, o.node) for o in outages if o.rdu != WHOLE]
    for place, ((began, ended), mask, node) in enumerate(uses):
        for (other_began, other_ended), other, other_node in uses[place + 1 :]:
            is_at_once = began < other_ended and other_began < ended
            assert not (is_at_once and node == other_node and mask & other)
    for each in attempts:
        tiles = each.job.tiles // each.job.members
        assert sum(mask.bit_count() for _, mask in each.held) == each.job.tiles
        for _, mask in each.held:
            of_rdus = [mask >> rdu * WIDTH & 15 for rdu in range(RDUS)]
            if tiles > WIDTH:
                assert set(of_rdus) <= {0, 15}
            elif each.job.members == 1:
                rows = [row for rdu in of_rdus for row in f"{rdu:b}".split("0") if row]
                assert [len(row) for row in rows] == [tiles]


@given(trace=TRACES, system=SYSTEMS, outages=OUTAGES)
def test_each_job_has_tiles_of_its_own_in_service_and_as_the_daemon_gives_them(
    trace: list[TraceJob], system: SimulatedSystem, outages: list[Outage]
) -> None:
    run = simulate(trace, system, outages=outages)
    check_places([*run.jobs, *run.cut], outages)
    assert sorted(done.job.job_id for done in [*run.jobs]) + sorted(job.job_id for job in run.refused) == sorted(
        job.job_id for job in trace if system.could_have(job)
    ) + sorted(job.job_id for job in trace if not system.could_have(job))
    for cut in run.cut:
        if cut.end is SimulatedEnd.BROKEN:
            assert any(o.at == cut.ended and o.rdu != WHOLE for o in outages)


@given(trace=TRACES, system=SYSTEMS, outages=OUTAGES)
def test_the_ledger_that_is_kept_decides_as_one_that_is_made_anew(
    trace: list[TraceJob], system: SimulatedSystem, outages: list[Outage]
) -> None:
    def look(snapshot: QueueSnapshot, decision: Decision) -> None:
        anew = decide(snapshot)
        assert (anew.admissions, anew.placements, anew.parts) == (
            decision.admissions, decision.placements, decision.parts,
        )  # fmt: skip
        # Of victims that are equal the one comes that is first in a ledger, which may be another.
        assert [each.for_job for each in anew.preemptions] == [each.for_job for each in decision.preemptions]

    simulate(trace, system, look=look, outages=outages)


def test_rows_and_tiles_of_a_node_agree_where_a_job_takes_some_between_others() -> None:
    free = 0b1011_0100
    capacity = NodeCapacity(8, 4, 8, rdu_tiles=WIDTH, free_rows=tuple(rows_of(free, WIDTH)), free_mask=free)
    room = NodeRoom(0, NodeState("n", capacity, 8))
    assert room.rows == (1, 2, 1)
    for tiles, left in ((2, 0b1000_0100), (1, 0b1000_0000), (1, 0)):
        assert room.take((tiles, 1, NO_LABELS)) == tiles
        assert (room.mask, room.rows) == (left, tuple(rows_of(left, WIDTH)))


def test_an_rdu_that_breaks_ends_its_jobs_only_and_is_used_again_when_it_is_repaired() -> None:
    trace = [
        TraceJob("one", "a", 4, 0.0, 100.0),
        TraceJob("two", "a", 4, 0.0, 100.0),
        TraceJob("all", "a", 16, 1.0, 5.0),
    ]
    run = simulate(trace, SimulatedSystem(TILES, layout=LAYOUT), outages=[Outage("0", 10.0, 300.0, 0)])
    assert [(cut.job.job_id, cut.end, cut.ended) for cut in run.cut] == [("one", SimulatedEnd.BROKEN, 10.0)]
    done = {each.job.job_id: each for each in run.jobs}
    assert (done["two"].ended, done["one"].started, done["one"].ended) == (100.0, 10.0, 110.0)
    assert done["all"].started == 300.0  # it needs all RDUs, and keeps none from the others meanwhile
    figures = sum_up(run, TILES, LAYOUT)
    assert (figures.broken, figures.lost, figures.several_rdus, figures.on_fewest_xrdus) == (1, 0, 1, 1)
    assert figures.lost_work == pytest.approx(4 * 10 / (TILES * 305))


def test_jobs_of_two_rdus_are_on_one_xrdu_where_they_can() -> None:
    trace = [TraceJob("small", "a", 1, 0.0, 50.0), TraceJob("pair", "a", 5, 1.0, 10.0)]
    run = simulate(trace, SimulatedSystem(TILES, layout=LAYOUT))
    pair = next(done for done in run.jobs if done.job.job_id == "pair")
    assert (pair.job.tiles, pair.held, rdus_of(pair, LAYOUT)) == (8, (("0", 0xFF00),), (2, 1))


def test_rdus_break_by_themselves_and_as_often_as_is_said() -> None:
    outages = draw_outages(10, 1e6, 1e5, 1e3, seed=1, rdus=8)
    assert outages == draw_outages(10, 1e6, 1e5, 1e3, seed=1, rdus=8)
    assert {outage.rdu for outage in outages} == set(range(8)) and 600 < len(outages) < 1000
    assert {outage.rdu for outage in draw_outages(10, 1e6, 1e5, 1e3, seed=1)} == {WHOLE}


def test_the_picture_has_a_line_for_each_rdu_and_tells_what_is_away() -> None:
    trace = draw_trace(100, 3, TILES, seed=2, nodes=2)
    system, outages = SimulatedSystem(TILES, layout=LAYOUT, nodes=2), [Outage("1", 0.0, 1e9, 2)]
    run = simulate(trace, system, outages=outages)
    end = max(done.ended for done in run.jobs)
    rows = tile_rows([*run.jobs, *run.cut], system, outages, 0.0, end)
    assert [row.name for row in rows] == ["0", "", "", "", "1", "", "", ""]
    assert rows[6].away == [pytest.approx(1.0)] * CELLS and sum(rows[6].used) == 0.0
    assert all(0.0 <= part <= 1.0 + 1e-9 for row in rows for part in row.used)
    cell_s = end / CELLS
    used = sum(sum(row.used) for row in rows) * WIDTH * cell_s
    assert used == pytest.approx(sum(each.job.tiles * (each.ended - each.started) for each in [*run.jobs, *run.cut]))
    many = tile_rows([], SimulatedSystem(TILES, layout=LAYOUT, nodes=100), [], 0.0, 1.0)
    assert (many[0].name, many[-1].name, len(many)) == ("0-1", "98-99", 50)


def test_the_command_knows_platforms_and_breaks_rdus(tmp_path: Path) -> None:
    picture = tmp_path / "queue.svg"
    arguments = ["queue", "--jobs", "150", "--nodes", "2", "--break-every", "4h", "--broken-for", "2h"]
    shown = CliRunner().invoke(
        command, [*arguments, "--platform", "SN10-8", "-o", str(picture)], catch_exceptions=False
    )
    lines = dict(line.rsplit("  ", 1) for line in shown.stdout.splitlines()[1:])
    values = {name.strip(): value.strip() for name, value in lines.items()}
    assert values["a node, SN10-8"] == "4 XRDUs of 2 RDUs of 4 tiles"
    assert int(values["lost with an RDU"]) > 0 and values["of these on the fewest XRDUs"].endswith(" %")
    assert Counter(picture.read_text().split('"'))["away"] > 0
    told = json.loads(CliRunner().invoke(command, ["queue", "--jobs", "50", "--tiles", "8", "--json"]).output)
    assert (told["platform"], told["tiles"], told["several_rdus"]) == (None, 8, 0)
    told = json.loads(CliRunner().invoke(command, ["queue", "--jobs", "50", "--json"]).output)
    assert (told["platform"], told["tiles"]) == ("SN30-8", 64)
    for words, said in (
        (["--platform", "SN10-8", "--tiles", "8"], "give one of them"),
        (["--break-every", "1d", "--tiles", "8"], "give --platform"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            CliRunner().invoke(command, ["queue", *words], catch_exceptions=False)
