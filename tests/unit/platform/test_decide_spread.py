"""Jobs whose members are on several nodes: all of them start at once, on as few nodes as suffice, or none does."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.figures import sum_up
from rdukit_platform.scheduler.model import (
    ActiveJob,
    Decision,
    JobPart,
    NodeState,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
)
from rdukit_platform.scheduler.simulate import SimulatedSystem, simulate
from rdukit_platform.scheduler.traces import Outage, TraceJob, TraceParts, draw_trace
from support import shows

pytestmark = shows("scheduler")

RDU = 4
TILES = 8


def node(name: str, *rdus: str, slots: int = 8, is_linked: bool = True) -> NodeState:
    """A node of RDUs, each as a text: a letter a tile with who has it, ``-`` for nobody."""
    tiles = "".join(rdus)
    rows = tuple(len(row) for rdu in rdus for row in "".join(" -"[c == "-"] for c in rdu).split())
    held: Counter[str] = Counter()
    for place, owner in enumerate(tiles):
        held[owner] += 1 << place
    mask = held.pop("-", 0)
    capacity = NodeCapacity(
        len(tiles), tiles.count("-"), 8, rdu_tiles=RDU, rows=(RDU,) * len(rdus), free_rows=rows, free_mask=mask,
        held=tuple(held.items()),
    )  # fmt: skip
    return NodeState(name, capacity, slots, is_linked=is_linked)


def gang(name: str, members: int, tiles: int, since: float = 90.0, priority: int = 0) -> QueuedJob:
    return QueuedJob(name, "t", members * tiles, since, members=members, priority=priority, run_limit_s=60.0)


def decided(queued: Sequence[QueuedJob], nodes: Sequence[NodeState], active: Sequence[ActiveJob] = ()) -> Decision:
    return decide(QueueSnapshot(100.0, tuple(queued), tuple(active), tuple(nodes)))


def parts(decision: Decision, name: str) -> list[tuple[str | None, int]]:
    return [(part.node, part.members) for part in decision.parts.get(name, ())]


def test_one_node_is_taken_where_it_suffices_and_else_as_few_as_possible_with_the_least_left_over() -> None:
    one = decided([gang("g", 2, 4)], [node("a", "----"), node("b", "----"), node("c", "----", "----")])
    assert one.placements == {"g": "c"} and one.parts == {}
    nodes = [node("a", "----"), node("b", "----", "----", "aaaa"), node("c", "----", "aaaa"), node("d", "----", "--aa")]
    assert parts(decided([gang("g", 3, 4)], nodes), "g") == [("b", 2), ("a", 1)]
    assert parts(decided([gang("g", 5, 4)], nodes), "g") == [("b", 2), ("a", 1), ("c", 1), ("d", 1)]
    assert decided([gang("g", 6, 4)], nodes).waits["g"].why == (
        "it has 6 members of 4 tiles, but the 4 nodes together have room for 5 of them"
    )
    never = decided([gang("g", 9, 4)], nodes).waits["g"]
    assert never.code is WaitCode.TOO_LARGE and "all nodes together have no room" in never.why


def test_the_last_members_avoid_a_degraded_node_though_less_would_be_left_over_there() -> None:
    nodes = [node("a", "----", "----"), node("b", "----", "aaaa"), node("c", "----", "----")]
    assert parts(decided([gang("g", 3, 4)], nodes), "g") == [("a", 2), ("b", 1)]
    capacity = nodes[1].capacity
    assert capacity is not None
    nodes[1] = replace(nodes[1], capacity=replace(capacity, is_degraded=True))
    assert parts(decided([gang("g", 3, 4)], nodes), "g") == [("a", 2), ("c", 1)]


def test_only_linked_nodes_with_a_slot_and_the_labels_take_part() -> None:
    nodes = [node("a", "----"), node("b", "----", is_linked=False), node("c", "----", slots=0), node("d", "----")]
    assert parts(decided([gang("g", 2, 4)], nodes), "g") == [("a", 1), ("d", 1)]
    east = frozenset({("zone", "east")})
    asked = replace(gang("g", 2, 4), constraint=east)
    assert decided([asked], nodes).waits["g"].code is WaitCode.BAD_CONSTRAINTS
    labelled = [replace(each, labels=east) if each.name in "ab" else each for each in nodes]
    assert decided([asked], labelled).waits["g"].code is WaitCode.TOO_LARGE
    single = QueuedJob("one", "t", 8, 90.0)
    assert decided([single], nodes).waits["one"].code is WaitCode.TOO_LARGE, "one process is on one node"


def test_a_reservation_is_of_several_nodes_and_only_who_is_not_in_its_way_passes() -> None:
    nodes = [node("a", "xxxx"), node("b", "----"), node("c", "--yy")]
    active = [
        ActiveJob("x", "u", 4, True, 150.0, "a"), ActiveJob("y", "u", 2, True, 900.0, "c"),
    ]  # fmt: skip
    queued = [
        gang("g", 2, 4), QueuedJob("long", "t", 4, 91.0), QueuedJob("short", "t", 4, 92.0, run_limit_s=50.0),
        QueuedJob("aside", "t", 2, 93.0),
    ]  # fmt: skip
    decision = decided(queued, nodes, active)
    assert decision.placements == {"short": "b", "aside": "c"}
    assert decision.waits["g"].starts_at == 150.0
    assert decision.waits["long"].code is WaitCode.PRIORITY
    endless = [replace(each, ends_at=None) for each in active]
    starved = decide(QueueSnapshot(200.0, tuple(queued), tuple(endless), tuple(nodes), starve_s=60.0))
    assert starved.placements == {}, "what a starved job of several nodes comes nearest to is kept for it"
    assert starved.waits["aside"].code is WaitCode.PRIORITY


def test_others_on_several_nodes_make_room_for_it_and_it_makes_room_with_all_its_parts() -> None:
    rule = PreemptionRule(10, 60.0, 5)
    nodes = (node("a", "xxyy"), node("b", "zzzz"), node("c", "wwww", is_linked=False))
    active = tuple(
        ActiveJob(name, "u", tiles, True, None, on, began=0.0, is_preemptible=True)
        for name, tiles, on in (("x", 2, "a"), ("y", 2, "a"), ("z", 4, "b"), ("w", 4, "c"))
    )
    urgent = QueueSnapshot(
        100.0, (gang("g", 2, 4, priority=50),), active, nodes, preemption=rule, priority_scope=PriorityScope.PLATFORM
    )
    decision = decide(urgent)
    assert {each.job_id for each in decision.preemptions} == {"x", "y", "z"}
    held_up = replace(urgent, active=(replace(active[0], preemptions=5), *active[1:]))
    assert decide(held_up).preemptions == (), "without room for all, nobody makes any"
    wide = ActiveJob(
        "x", "u", 8, True, None, "a", began=0.0, is_preemptible=True, members=2,
        parts=(JobPart("a", 4, 1), JobPart("b", 4, 1)),
    )  # fmt: skip
    two = (gang("g", 1, 4, priority=50), gang("h", 1, 4, priority=50))
    full = (node("a", "xxxx"), node("b", "xxxx"))
    leaving = decide(replace(urgent, queued=two, active=(wide,), nodes=full))
    assert [(each.job_id, each.for_job) for each in leaving.preemptions] == [("x", "g")]
    assert "preempted for it" in leaving.waits["h"].why, "the second one has the part on the other node"


RDUS = st.lists(st.text("-xy", min_size=RDU, max_size=RDU), min_size=1, max_size=3)


@given(nodes=st.lists(RDUS, min_size=2, max_size=4), asked=st.lists(st.tuples(st.integers(2, 6), st.integers(1, 9))))
def test_all_members_have_tiles_or_none_has_and_none_waits_that_could_have_them(
    nodes: list[list[str]], asked: list[tuple[int, int]]
) -> None:
    states = [node(f"n{i}", *rdus) for i, rdus in enumerate(nodes)]
    queued = [gang(f"g{i:02}", members, tiles, 1.0 + i) for i, (members, tiles) in enumerate(asked)]
    decision = decided(queued, states)
    left = {f"n{i}": list(rdus) for i, rdus in enumerate(nodes)}
    jobs = {job.job_id: job for job in queued}
    for job_id in decision.admissions:
        job = jobs[job_id]
        each = job.tiles // job.members
        here = decision.parts.get(job_id) or (JobPart(decision.placements[job_id], job.tiles, job.members),)
        assert sum(part.members for part in here) == job.members and len({part.node for part in here}) == len(here)
        for part in here:
            assert part.tiles == part.members * each and part.node is not None
            assert all(give(left[part.node], each) for _ in range(part.members)), "a member has no tiles"
    if queued and not decision.admissions:
        each = queued[0].tiles // queued[0].members
        free = sum(give(list_, each) for list_ in map(list, nodes) for _ in range(queued[0].members))
        assert free < queued[0].members


def give(rdus: list[str], tiles: int) -> bool:
    """Take tiles as the daemon does: the first row that suffices, or whole RDUs."""
    if tiles > RDU:
        whole = [i for i, rdu in enumerate(rdus) if rdu == "-" * RDU][: -(-tiles // RDU)]
        if len(whole) * RDU < tiles:
            return False
        for i in whole:
            rdus[i] = "z" * RDU
        return True
    for i, rdu in enumerate(rdus):
        if "-" * tiles in rdu:
            rdus[i] = rdu.replace("-" * tiles, "z" * tiles, 1)
            return True
    return False


_JOBS = st.tuples(
    st.integers(1, 6), st.integers(1, TILES), st.integers(0, 60), st.integers(1, 40), st.integers(1, 60),
    st.sampled_from("abc"),
)  # fmt: skip


@given(
    rows=st.lists(_JOBS, max_size=20), nodes=st.integers(2, 4), starve_s=st.sampled_from([0.0, 60.0]),
    lost=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=2, unique_by=lambda of: of[0]),
)  # fmt: skip
def test_in_any_trace_no_node_has_more_than_its_tiles_and_every_job_that_fits_ends(
    rows: list[tuple[int, int, int, int, int, str]], nodes: int, starve_s: float, lost: list[tuple[int, int]]
) -> None:
    trace = [
        TraceJob(f"j{i:02}", tenant, members * each, float(at), float(runs), float(limit), members=members)
        for i, (members, each, at, runs, limit, tenant) in enumerate(rows)
    ]
    system = SimulatedSystem(TILES, starve_s=starve_s, nodes=nodes, is_linked=True)
    outages = [Outage(str(name), float(at), at + 30.0) for name, at in lost if name < nodes]
    run = simulate(trace, system, outages=outages)
    assert sorted(done.job.job_id for done in run.jobs) == [job.job_id for job in trace if system.could_have(job)]
    changes = []
    for done in (*run.jobs, *run.cut):
        for part in done.parts or (JobPart(done.node, done.job.tiles, done.job.members),):
            changes += [(done.started, 1, part.node, part.tiles), (done.ended, 0, part.node, -part.tiles)]
    used: Counter[str | None] = Counter()
    for _, _, name, tiles in sorted(changes, key=lambda change: change[:2]):
        used[name] += tiles
        assert 0 <= used[name] <= TILES


@given(rows=st.lists(_JOBS, max_size=20), nodes=st.integers(2, 4), starve_s=st.sampled_from([0.0, 60.0]))
def test_who_is_first_starts_by_the_time_that_it_was_told(
    rows: list[tuple[int, int, int, int, int, str]], nodes: int, starve_s: float
) -> None:
    told: dict[str, float] = {}

    def look(snapshot: QueueSnapshot, decision: Decision) -> None:
        waiting = sorted((job.since, job.job_id) for job in snapshot.queued if job.job_id in decision.waits)
        if waiting:
            first = waiting[0][1]
            at = decision.waits[first].starts_at
            assert at is not None
            told[first] = min(at, told.get(first, at))

    trace = [
        TraceJob(f"j{i:02}", "a", members * each, float(at), float(runs), float(limit), members=members)
        for i, (members, each, at, runs, limit, _) in enumerate(rows)
    ]
    run = simulate(trace, SimulatedSystem(TILES, starve_s=starve_s, nodes=nodes, is_linked=True), look=look)
    late = {done.job.job_id: done.started for done in run.jobs if done.started > told.get(done.job.job_id, 1e9) + 1e-6}
    assert late == {}


def test_drawn_wide_gangs_run_on_several_nodes_and_the_figures_tell_them() -> None:
    trace = draw_trace(200, 3, TILES, seed=1, nodes=4, parts=TraceParts(gangs=0.4, wide=0.5))
    system = SimulatedSystem(TILES, nodes=4, is_linked=True)
    run = simulate(trace, system)
    figures = sum_up(run, system.all_tiles)
    assert not run.refused and 0 < figures.wide < figures.gangs
    needing = [done for done in run.jobs if done.job.tiles > TILES]
    assert needing and all(len(done.parts) > 1 for done in needing)
    alone = simulate(trace, replace(system, is_linked=False))
    assert len(alone.refused) == len(needing)
    assert sum_up(alone, system.all_tiles).wide == 0
    assert figures.wide_wait_mean_s == pytest.approx(
        sum(done.waited_s for done in run.jobs if done.parts) / figures.wide
    )


def test_simulated_gangs_keep_to_a_rack_where_there_are_racks() -> None:
    trace = draw_trace(200, 3, TILES, seed=1, load=0.5, nodes=12, parts=TraceParts(gangs=0.4, wide=0.5))
    plain = SimulatedSystem(TILES, nodes=12, is_linked=True)
    racked = replace(plain, racks=3)
    assert [racked.rack_of(str(number)) for number in range(12)] == [*"000011112222"]
    by_chance, kept = (
        sum_up(simulate(trace, system), system.all_tiles, rack_of=racked.rack_of) for system in (plain, racked)
    )
    assert 4 * by_chance.wide_in_rack < kept.wide_in_rack <= kept.wide
    assert sum_up(simulate(trace, plain), plain.all_tiles).wide_in_rack == 0, "no rack is none of all nodes"
