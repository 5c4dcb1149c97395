"""Jobs of several members: all of them start at once on one node, or none does."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.topology import NodeLayout, place_members
from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import (
    ActiveJob,
    NodeState,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
)
from support import shows

pytestmark = shows("scheduler")

RDU = 4


def node(name: str, *rdus: str, slots: int = 8) -> NodeState:
    """A node of RDUs, each as a text: a letter a tile with who has it, ``-`` for nobody."""
    tiles = "".join(rdus)
    rows = tuple(len(row) for rdu in rdus for row in "".join(" -"[c == "-"] for c in rdu).split())
    held = {owner: 0 for owner in tiles if owner != "-"}
    for place, owner in enumerate(tiles):
        if owner != "-":
            held[owner] |= 1 << place
    mask = sum(1 << place for place, owner in enumerate(tiles) if owner == "-")
    capacity = NodeCapacity(
        len(tiles), tiles.count("-"), 8, rdu_tiles=RDU, rows=(RDU,) * len(rdus), free_rows=rows, free_mask=mask,
        held=tuple(held.items()),
    )  # fmt: skip
    return NodeState(name, capacity, slots)


def gang(name: str, members: int, tiles: int, since: float = 90.0, priority: int = 0) -> QueuedJob:
    return QueuedJob(name, "t", members * tiles, since, members=members, priority=priority, run_limit_s=60.0)


def runs(name: str, tiles: int, on: str, ends_at: float | None = None, members: int = 1) -> ActiveJob:
    return ActiveJob(
        name, "u", tiles, True, ends_at, on, began=0.0, is_preemptible=True, members=members
    )  # fmt: skip


def test_members_have_rows_of_their_own_which_one_job_of_as_many_tiles_could_not_use() -> None:
    apart = (node("n", "aa--", "--bb", "c---"),)
    assert decide(QueueSnapshot(100.0, (gang("g", 3, 2),), (), apart)).placements == {"g": "n"}
    one = QueuedJob("one", "t", 6, 90.0)
    assert decide(QueueSnapshot(100.0, (one,), (), apart)).admissions == ()
    wait = decide(QueueSnapshot(100.0, (gang("g", 2, 3),), (), apart)).waits["g"]
    assert (wait.code, wait.why) == (
        WaitCode.RESOURCES, "it has 2 members of 3 tiles, and no node has room for all of them at once",
    )  # fmt: skip


def test_members_that_no_node_has_together_are_told_so_although_all_nodes_have_them() -> None:
    nodes = (node("a", "----", "----"), node("b", "----", "----"))
    assert decide(QueueSnapshot(100.0, (gang("g", 2, 4),), (), nodes)).placements == {"g": "a"}
    wait = decide(QueueSnapshot(100.0, (gang("g", 2, 5),), (), nodes)).waits["g"]
    assert wait.code is WaitCode.TOO_LARGE and "it needs 10 tiles, but the node has 8" in wait.why
    wait = decide(QueueSnapshot(100.0, (gang("g", 3, 3),), (), (node("c", "----", "----", "--xx"),))).waits["g"]
    assert wait.code is WaitCode.RESOURCES
    wait = decide(QueueSnapshot(100.0, (gang("g", 4, 3),), (), (node("c", "----", "----", "----"),))).waits["g"]
    assert wait.why == "it has 4 members of 3 tiles, but the node has room for 3 of them"


def test_the_first_gang_that_waits_has_a_reservation_and_short_jobs_pass_it() -> None:
    nodes = (node("n", "aaaa", "----"),)
    queued = (gang("g", 2, 4), QueuedJob("long", "t", 2, 91.0), QueuedJob("short", "t", 2, 92.0, run_limit_s=20.0))
    decision = decide(QueueSnapshot(100.0, queued, (runs("a", 4, "n", ends_at=150.0),), nodes))
    assert decision.placements == {"short": "n"}
    assert decision.waits["g"].starts_at == 150.0
    assert decision.waits["long"].code is WaitCode.PRIORITY


def test_others_make_room_for_a_whole_gang_or_are_left_alone_and_a_gang_makes_room_as_a_whole() -> None:
    nodes = (node("n", "aabb", "ccdd"),)
    active = [runs(name, 2, "n") for name in "abcd"]
    rule = PreemptionRule(10, 60.0, 5)
    urgent = QueueSnapshot(
        100.0,
        (gang("g", 3, 2, priority=50),),
        tuple(active),
        nodes,
        preemption=rule,
        priority_scope=PriorityScope.PLATFORM,
    )
    chosen = decide(urgent).preemptions
    assert len(chosen) == 3 and {each.for_job for each in chosen} == {"g"}
    held_up = (replace(active[0], preemptions=5), replace(active[1], preemptions=5), *active[2:])
    assert decide(replace(urgent, active=held_up)).preemptions == ()
    pair = (runs("a", 4, "n", members=2), runs("c", 4, "n"))
    of_two = (node("n", "aacc", "ccaa"),)
    lone = QueuedJob("lone", "t", 2, 90.0, priority=50)
    assert {each.job_id for each in decide(replace(urgent, queued=(lone,), active=pair, nodes=of_two)).preemptions} in (
        {"a"}, {"c"},
    )  # fmt: skip


RDUS = st.lists(st.text("-xy", min_size=RDU, max_size=RDU), min_size=1, max_size=3)


@example(nodes=[["x---", "x-x-"]], asked=[(2, 1), (1, 2)])  # both members in the fuller RDU, which leaves the row
@given(nodes=st.lists(RDUS, min_size=1, max_size=3), asked=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9))))
def test_all_members_of_an_admitted_job_have_tiles_and_none_of_one_that_waits_for_room_could(
    nodes: list[list[str]], asked: list[tuple[int, int]]
) -> None:
    states = tuple(node(f"n{i}", *rdus) for i, rdus in enumerate(nodes))
    queued = tuple(gang(f"g{i:02}", members, tiles, 1.0 + i) for i, (members, tiles) in enumerate(asked))
    decision = decide(QueueSnapshot(100.0, queued, (), states, starve_s=0.0))
    jobs = {job.job_id: job for job in queued}
    free = {state.name: state.capacity.free_mask for state in states if state.capacity is not None}
    for job_id in decision.admissions:
        job, on = jobs[job_id], decision.placements[job_id]
        place = place_members(job.tiles // job.members, job.members, free[on], NodeLayout(RDU))  # as the worker does
        assert place is not None, "a member has no tiles"
        for mask in place.masks:
            assert free[on] & mask == mask and mask.bit_count() >= job.tiles // job.members
            free[on] &= ~mask
    if queued and not decision.admissions:
        first = queued[0]
        for state in states:
            rest = list(nodes[int(state.name[1:])])
            assert not all(give(rest, first.tiles // first.members) for _ in range(first.members))


def give(rdus: list[str], tiles: int) -> bool:
    """Take tiles for a member: the first row that suffices, or whole RDUs."""
    if tiles > RDU:
        whole = [i for i, rdu in enumerate(rdus) if rdu == "-" * RDU][: -(-tiles // RDU)]
        for i in whole:
            rdus[i] = "z" * RDU
        return len(whole) * RDU >= tiles
    for i, rdu in enumerate(rdus):
        if "-" * tiles in rdu:
            rdus[i] = rdu.replace("-" * tiles, "z" * tiles, 1)
            return True
    return False
