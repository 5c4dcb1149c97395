"""Maintenance that is planned: no job starts that would not have ended when it begins."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity, view_for_scheduler
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import (
    ActiveJob,
    NodeState,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
)
from rdukit_platform.scheduler.simulate import SimulatedSystem, simulate
from rdukit_platform.scheduler.traces import Outage, draw_trace, parse_maintenance
from support import shows

pytestmark = shows("scheduler", "wait-reasons")

RDU, NOW = 4, 1000.0
Windows = tuple[tuple[float, float | None, int], ...]


def node(name: str, windows: Windows = (), rdus: int = 2) -> NodeState:
    """A node that is free, with RDUs of four tiles."""
    tiles = rdus * RDU
    rows = (RDU,) * rdus
    capacity = NodeCapacity(
        tiles, tiles, 8, rdu_tiles=RDU, rows=rows, free_rows=rows, free_mask=(1 << tiles) - 1, windows=windows
    )
    return NodeState(name, capacity, 8)


def wants(name: str, tiles: int, run_limit_s: float | None, since: float = 900.0, priority: int = 0) -> QueuedJob:
    return QueuedJob(name, "t", tiles, since, run_limit_s=run_limit_s, priority=priority)


def snapshot(queued: list[QueuedJob], *nodes: NodeState, active: tuple[ActiveJob, ...] = ()) -> QueueSnapshot:
    return QueueSnapshot(
        NOW, tuple(queued), active, nodes, preemption=PreemptionRule(10, 60.0, 5), priority_scope=PriorityScope.PLATFORM
    )


def test_a_job_starts_where_it_ends_before_the_maintenance_and_is_told_when_it_starts_else() -> None:
    queued = [wants("long", 4, 7200.0), wants("free", 2, None, 901.0), wants("short", 4, 600.0, 902.0)]
    decision = decide(snapshot(queued, node("n", ((NOW + 3600.0, NOW + 9000.0, 255),))))
    assert decision.placements == {"short": "n"}
    long, free = decision.waits["long"], decision.waits["free"]
    assert (long.code, long.starts_at) == (WaitCode.NODE_AWAY, NOW + 9000.0)
    assert long.why == "Reserved for maintenance, which begins in 60 min; it may run for 7200 s"
    assert free.why == "Reserved for maintenance, which begins in 60 min; it has no run limit"
    later = decide(replace(snapshot(queued, node("n", ((NOW - 5000.0, NOW - 10.0, 255),))), now=NOW))
    assert set(later.placements) == {"long", "free"}, "what is over keeps nobody away"


def test_a_node_without_maintenance_and_parts_that_have_none_are_used() -> None:
    soon = ((NOW + 60.0, None, 255),)
    assert decide(snapshot([wants("j", 4, None)], node("kept", soon), node("other"))).placements == {"j": "other"}
    part = node("n", ((NOW + 60.0, None, 0b1111),))
    decision = decide(snapshot([wants("a", 4, None), wants("b", 4, None, 990.0), wants("c", 4, 30.0, 991.0)], part))
    assert decision.placements == {"a": "n", "c": "n"}
    assert decision.waits["b"].code is WaitCode.RESOURCES, "it waits for the other RDU, which a has"
    assert (
        decision.waits["b"].why
        == "the free tiles are reserved for maintenance, which begins in 1 min; it has no run limit"
    )


def test_what_is_kept_away_makes_nobody_leave_and_holds_nobody_up() -> None:
    held = replace(
        node("n").capacity or NodeCapacity(0, 0, 0), free_tiles=0, free_rows=(), free_mask=0, held=(("r", 255),)
    )
    running = ActiveJob("r", "u", 8, True, None, "n", began=0.0, is_preemptible=True)
    urgent = [wants("u", 4, None, priority=50)]
    kept = NodeState("n", replace(held, windows=((NOW + 60.0, None, 255),)), 8)
    assert decide(snapshot(urgent, kept, active=(running,))).preemptions == ()
    assert len(decide(snapshot(urgent, NodeState("n", held, 8), active=(running,))).preemptions) == 1


def test_tiles_are_reserved_where_no_maintenance_begins_before_the_job_s_end() -> None:
    def full(name: str, windows: Windows = ()) -> NodeState:
        capacity = node(name, windows).capacity
        assert capacity is not None
        return NodeState(name, replace(capacity, free_tiles=0, free_rows=(), free_mask=0, held=((name, 255),)), 8)

    active = tuple(
        ActiveJob(name, "u", 8, True, NOW + ends_s, name, began=900.0)
        for name, ends_s in (("first", 100.0), ("later", 500.0))
    )
    half = ((NOW + 1000.0, None, 0b1111),)
    for limit_s, starts_s in ((800.0, 100.0), (2000.0, 500.0)):
        decision = decide(snapshot([wants("wide", 8, limit_s)], full("first", half), full("later"), active=active))
        assert decision.waits["wide"].starts_at == NOW + starts_s


def test_the_daemon_s_words_become_windows_of_tiles() -> None:
    tiles = [
        {"rdu": f"RDU_{i // 2}", "tile": i % 2, "path": f"/NODE/XRDU_0/RDU_{i // 2}/TILE_{i % 2}", "health": "online"}
        for i in range(4)
    ]
    windows = [
        {"component": "/NODE/XRDU_0/RDU_1", "starts_at": 5_000_000_000, "ends_at": None},
        {"component": "/NODE", "starts_at": 7_000_000_000, "ends_at": 9_000_000_000},
        {"component": "/NODE/HOST", "starts_at": 1, "ends_at": None},
    ]
    capacity = view_for_scheduler({"tiles": tiles, "leases": [], "windows": windows})
    assert capacity.windows == ((5.0, None, 0b1100), (7.0, 9.0, 0b1111))


SPANS = st.tuples(st.floats(-50, 200), st.one_of(st.none(), st.floats(1, 100)), st.integers(1, 255))


@given(
    windows=st.lists(st.lists(SPANS, max_size=2), min_size=1, max_size=3),
    asked=st.lists(st.tuples(st.integers(1, 8), st.one_of(st.none(), st.floats(1, 300))), max_size=10),
)
def test_nobody_is_placed_on_tiles_whose_maintenance_begins_before_it_ends(
    windows: list[list[tuple[float, float | None, int]]], asked: list[tuple[int, float | None]]
) -> None:
    nodes = tuple(
        node(
            f"n{i}",
            tuple((NOW + at, None if length is None else NOW + at + length, mask) for at, length, mask in spans),
        )
        for i, spans in enumerate(windows)
    )  # fmt: skip
    queued = [wants(f"j{i:02}", tiles, limit, 900.0 + i) for i, (tiles, limit) in enumerate(asked)]
    decision = decide(snapshot(queued, *nodes))
    assert {*decision.placements, *decision.waits} == {job.job_id for job in queued}
    jobs, capacities = {job.job_id: job for job in queued}, {each.name: each.capacity for each in nodes}
    for name, capacity in capacities.items():
        assert capacity is not None
        here = [jobs[job_id] for job_id, at in decision.placements.items() if at == name]
        for end in sorted(job.ends_by(NOW) for job in here):
            closed = 0
            for at, until, mask in capacity.windows:
                closed |= mask if at < end and (until is None or until > NOW) else 0
            used = sum(job.tiles for job in here if job.ends_by(NOW) >= end)
            assert used <= 8 - closed.bit_count(), "more than what stays open until then"


def test_in_a_simulation_no_job_runs_while_its_node_is_in_maintenance_and_all_are_done() -> None:
    trace = draw_trace(300, 4, 16, seed=5, load=0.9, nodes=3)
    span = max(job.at for job in trace)
    planned = (
        Outage("0", span * 0.2, span * 0.4),
        Outage("1", span * 0.5, span * 0.6),
        Outage("0", span * 0.7, span * 0.8),
    )
    run = simulate(trace, SimulatedSystem(16, nodes=3, maintenance=planned))
    assert len(run.jobs) == len(trace) and run.cut == ()
    for job in run.jobs:
        for each in planned:
            assert job.node != each.node or job.ended <= each.at or job.started >= each.until


def test_maintenance_of_a_simulation_is_read_and_what_is_none_is_refused() -> None:
    assert parse_maintenance("1-2@12h+30m", 3) == [Outage("1", 43200.0, 45000.0), Outage("2", 43200.0, 45000.0)]
    for text, words in (
        ("0@12h", "expected NODES@START"),
        ("3@1h+1h", "expected nodes 0 to 2"),
        ("2-1@1h+1h", "nodes 0"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            parse_maintenance(text, 3)
