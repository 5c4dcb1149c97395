"""Which node a job gets where there are several."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import ActiveJob, NodeState, QueuedJob, QueueSnapshot
from support import shows

pytestmark = shows("scheduler")

RDU_TILES = 4


def node(name: str, *free_rows: int, rdus: int = 2, slots: int = 8, degraded: bool = False) -> NodeState:
    """A node of RDUs with four tiles each, all healthy, of which these rows are free."""
    tiles = rdus * RDU_TILES
    capacity = NodeCapacity(
        tiles, sum(free_rows), 8, rdu_tiles=RDU_TILES, rows=(RDU_TILES,) * rdus, free_rows=free_rows,
        is_degraded=degraded,
    )  # fmt: skip
    return NodeState(name, capacity, slots)


def queue(*tiles: int, run_limit_s: float | None = None) -> tuple[QueuedJob, ...]:
    return tuple(QueuedJob(f"j{i}", "t", n, 90.0 + i, run_limit_s=run_limit_s) for i, n in enumerate(tiles))


def place(nodes: tuple[NodeState, ...], *tiles: int) -> list[str | None]:
    decision = decide(QueueSnapshot(100.0, queue(*tiles), (), nodes))
    return [decision.placements.get(f"j{i}") for i in range(len(tiles))]


def test_a_job_gets_the_shortest_row_that_suffices_so_that_whole_rdus_stay_free() -> None:
    nodes = (node("whole", 4, 4), node("rest", 4, 2), node("crumbs", 1, 1))
    assert place(nodes, 1) == ["crumbs"]
    assert place(nodes, 2) == ["rest"]
    assert place(nodes, 2, 1, 8) == ["rest", "crumbs", "whole"]


def test_of_rows_alike_the_fuller_node_is_taken() -> None:
    assert place((node("empty", 4, 4), node("half", 4)), 3, 3, 3, 3) == ["half", "empty", "empty", None]


def test_a_degraded_node_comes_last() -> None:
    nodes = (node("worn", 2, degraded=True), node("well", 4))
    assert place(nodes, 2, 2, 2) == ["well", "well", "worn"]


def test_tiles_that_are_free_apart_are_no_row() -> None:
    decision = decide(QueueSnapshot(100.0, queue(3), (), (node("a", 2, 2), node("b", 1))))
    why = decision.waits["j0"].why
    assert why == "it needs 3 tiles in a row inside an RDU, the longest free row has 2"
    assert decide(QueueSnapshot(100.0, queue(8), (), (node("a", 4, 3), node("b", 4)))).admissions == ()


def test_a_node_without_a_free_worker_slot_gets_nothing() -> None:
    full = replace(node("full", 1), slots=1)
    running = (ActiveJob("r", "t", 1, holds_tiles=True, node="full"),)
    decision = decide(QueueSnapshot(100.0, queue(1, 0), running, (full, node("b", 4))))
    assert decision.placements == {"j0": "b", "j1": "b"}
    alone = decide(QueueSnapshot(100.0, queue(2), running, (replace(full, slots=1), node("b", 1))))
    assert alone.waits["j0"].why.startswith("it needs 2 tiles, 2 of 16 are free on 2 nodes, 1 of them on one")


def test_a_job_too_large_for_every_node_says_so_and_one_that_a_single_node_can_have_waits() -> None:
    decision = decide(QueueSnapshot(100.0, queue(16, 8), (), (node("a", 4, 4), node("large", 4, rdus=3))))
    assert decision.waits["j0"].code is WaitCode.TOO_LARGE
    assert (
        decision.waits["j0"].why == "no node has room; of the largest, large: it needs 16 tiles, but the node has 12 "
        "healthy ones"
    )
    assert decision.placements == {"j1": "a"}


def test_a_job_without_tiles_goes_where_most_slots_are_free_whether_or_not_a_daemon_answers() -> None:
    nodes = (node("a", 4, slots=2), NodeState("no-daemon", None, 3))
    assert place(nodes, 0, 0, 0) == ["no-daemon", "a", "no-daemon"]
    assert place(nodes, 4) == ["a"]


def test_a_reservation_holds_up_its_own_node_only() -> None:
    running = (
        ActiveJob("soon", "r", 4, holds_tiles=True, ends_at=150.0, node="a"),
        ActiveJob("late", "r", 4, holds_tiles=True, ends_at=500.0, node="b"),
    )
    nodes = (node("a", 4), node("b", 4))
    jobs = (
        QueuedJob("big", "t", 8, 90.0, run_limit_s=50.0),
        QueuedJob("small", "t", 4, 91.0),
        QueuedJob("short", "t", 4, 92.0, run_limit_s=20.0),
        QueuedJob("third", "t", 4, 93.0),
    )
    decision = decide(QueueSnapshot(100.0, jobs, running, nodes))
    assert decision.placements == {"small": "b", "short": "a"}
    assert decision.waits["big"].starts_at == 150.0
    assert decision.waits["third"].code is WaitCode.RESOURCES


NODES = st.lists(
    st.tuples(st.lists(st.integers(1, RDU_TILES), max_size=3), st.integers(0, 3), st.booleans()), min_size=1, max_size=4
)


@given(
    nodes=NODES,
    queued=st.lists(st.tuples(st.integers(0, 13), st.one_of(st.none(), st.floats(1, 99))), max_size=14),
    active=st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), max_size=4),
)
def test_no_node_is_given_more_than_it_has(
    nodes: list[tuple[list[int], int, bool]],
    queued: list[tuple[int, float | None]],
    active: list[tuple[int, bool, int]],
) -> None:
    states = tuple(
        node(f"n{i}", *rows, rdus=3, slots=slots, degraded=worn) for i, (rows, slots, worn) in enumerate(nodes)
    )
    jobs = tuple(
        QueuedJob(f"q{i:02}", "abc"[i % 3], tiles, float(i), run_limit_s=limit)
        for i, (tiles, limit) in enumerate(queued)
    )
    running = tuple(
        ActiveJob(f"r{i}", "a", tiles, holds, None, f"n{at}") for i, (tiles, holds, at) in enumerate(active)
    )
    decision = decide(QueueSnapshot(100.0, jobs, running, states))
    assert {*decision.admissions, *decision.waits} == {job.job_id for job in jobs}
    assert tuple(decision.placements) == decision.admissions and not {*decision.admissions} & {*decision.waits}
    sizes = {job.job_id: job.tiles for job in jobs}
    for state, (rows, slots, _) in zip(states, nodes, strict=True):
        promised = [job.tiles for job in running if job.node == state.name and not job.holds_tiles]
        given = [sizes[job_id] for job_id, name in decision.placements.items() if name == state.name]
        here = sum(job.node == state.name for job in running)
        assert not given or len(given) + here <= slots
        whole = [-(-tiles // RDU_TILES) * RDU_TILES if tiles > RDU_TILES else tiles for tiles in given]
        assert not sum(whole) or sum(whole) + sum(promised) <= sum(rows)
        assert max(whole, default=0) <= max(max(rows, default=0), rows.count(RDU_TILES) * RDU_TILES)


@given(nodes=NODES, queued=st.lists(st.integers(0, 8), max_size=14))
def test_what_waits_fits_no_node_unless_somebody_comes_first(
    nodes: list[tuple[list[int], int, bool]], queued: list[int]
) -> None:
    """With what the others were given, each job that waits for resources still finds no row on any node."""
    states = tuple(node(f"n{i}", *rows, rdus=3, slots=slots) for i, (rows, slots, _) in enumerate(nodes))
    decision = decide(QueueSnapshot(100.0, queue(*queued), (), states))
    left = [job for job in queue(*queued) if job.job_id in decision.waits]
    for job in left:
        wait = decision.waits[job.job_id]
        before = tuple(other for other in queue(*queued) if other.job_id in decision.placements)
        again = decide(QueueSnapshot(100.0, (*before, replace(job, since=1e9)), (), states))
        assert wait.code is not WaitCode.RESOURCES or job.job_id in again.waits
