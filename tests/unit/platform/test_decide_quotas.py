"""Quotas of tenants, and who makes room for whom."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity, view_for_scheduler
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import (
    ActiveJob,
    Decision,
    NodeState,
    Preemption,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
    TenantShare,
    Wait,
)
from rdukit_platform.scheduler.node_room import Leaving, NodeRoom
from support import shows

pytestmark = shows("scheduler", "quotas")

NOW = 1000.0
RULE = PreemptionRule(priority_gap=10, min_run_s=60.0, most=3)
QUOTAS = {"lab": TenantShare(quota=4), "guest": TenantShare(quota=2, max_tiles=8)}


def wants(name: str, tiles: int, tenant: str = "lab", priority: int = 0, since: float = 990.0) -> QueuedJob:
    return QueuedJob(name, tenant, tiles, since, priority=priority)


def runs(
    name: str, tiles: int, tenant: str = "guest", priority: int = 0, began: float = 500.0, preemptible: bool = False,
    keeps_work: bool = True, leaving: bool = False,
) -> ActiveJob:  # fmt: skip
    return ActiveJob(
        name, tenant, tiles, True, None, "n", priority, began, preemptible, keeps_work=keeps_work, is_leaving=leaving
    )


def snapshot(queued: Sequence[QueuedJob], active: Sequence[ActiveJob], **changes: object) -> QueueSnapshot:
    """A node of eight tiles, of which any are as good as others."""
    free = 8 - sum(job.tiles for job in active)
    start = QueueSnapshot(
        NOW, tuple(queued), tuple(active), (NodeState("n", NodeCapacity(8, free, 8), 8),), shares=QUOTAS,
        preemption=RULE, priority_scope=PriorityScope.PLATFORM,
    )  # fmt: skip
    return replace(start, **changes)  # type: ignore[arg-type]


def victims(decision: Decision) -> list[str]:
    return [each.job_id for each in decision.preemptions]


def test_a_job_within_quota_goes_before_one_that_would_borrow_whatever_their_priorities() -> None:
    queue = (wants("borrows", 4, "guest", priority=50), wants("within", 4, priority=-50))
    assert decide(snapshot(queue, ())).admissions == ("within", "borrows")
    assert decide(snapshot(queue, (), shares={})).admissions == ("borrows", "within")


def test_what_others_leave_unused_is_lent_up_to_the_limit() -> None:
    decision = decide(snapshot([wants(f"j{i}", 3, "guest", since=float(i)) for i in range(3)], ()))
    assert decision.admissions == ("j0", "j1")
    wait = decision.waits["j2"]
    assert (wait.code, wait.why) == (
        WaitCode.TENANT_TILES, "it needs 3 tiles, its tenant's jobs have 6 of the 8 that they may have",
    )  # fmt: skip


def test_tiles_of_a_tenants_endpoints_count_against_its_limit() -> None:
    shares = {"guest": TenantShare(max_tiles=8, served=4)}
    decision = decide(snapshot([wants(f"j{i}", 3, "guest", since=float(i)) for i in range(2)], (), shares=shares))
    assert decision.admissions == ("j0",)
    assert decision.waits["j1"] == Wait(
        WaitCode.TENANT_TILES,
        "it needs 3 tiles, its tenant's jobs have 3 and its endpoints 4 of the 8 that they may have",
    )


def test_a_job_of_more_tiles_than_its_tenant_may_have_is_told_so() -> None:
    decision = decide(snapshot([wants("big", 5, "guest")], (), shares={"guest": TenantShare(max_tiles=4)}))
    assert decision.waits["big"] == Wait(
        WaitCode.TENANT_TILES, "it needs 5 tiles, and its tenant may have 4: it waits for a new limit"
    )


def test_tiles_of_endpoints_count_in_share_and_quota_and_only_jobs_make_room() -> None:
    even = {"lab": TenantShare(), "guest": TenantShare(served=4)}
    queue = [wants("guests", 4, "guest", since=980.0), wants("labs", 4, since=981.0)]
    assert decide(snapshot(queue, (), shares=even)).admissions == ("labs", "guests")
    # Its quota is used up by its endpoints: its jobs borrow, and give back what is asked for.
    shares = {"lab": TenantShare(quota=4), "guest": TenantShare(quota=2, served=2)}
    assert decide(snapshot(queue, (), shares=shares)).admissions == ("labs", "guests")
    full = [runs("first", 2), runs("second", 4)]
    for served, gone in ((2, ["first"]), (0, [])):
        shares["guest"] = TenantShare(quota=6, served=served)
        assert victims(decide(snapshot([wants("own", 4)], full, shares=shares))) == gone


def test_a_tenants_own_limit_of_jobs_goes_before_the_common_one() -> None:
    queue = [wants(f"j{i}", 1, since=float(i)) for i in range(3)]
    decision = decide(snapshot(queue, (), tenant_jobs=1, shares={"lab": TenantShare(max_jobs=2)}))
    assert decision.admissions == ("j0", "j1")
    assert decision.waits["j2"].code is WaitCode.TENANT_JOBS


def test_a_quota_is_reclaimed_from_who_has_borrowed_and_from_nobody_else() -> None:
    active = (runs("old", 2), runs("big", 4), runs("own", 2, "lab"))
    decision = decide(snapshot([wants("mine", 2)], active))
    assert decision.preemptions == (Preemption("old", "mine"),)
    assert decision.waits["mine"].why == "it needs 2 tiles, 0 of 8 are free; jobs that it precedes are preempted for it"
    assert victims(decide(snapshot([wants("more", 3)], active))) == [], "with it its own tenant would borrow"
    within = (runs("one", 2), runs("own", 2, "lab"), runs("third", 4, "third"))
    assert victims(decide(snapshot([wants("mine", 2)], within))) == ["third"], "who has no quota borrows"


def test_who_makes_room_already_is_waited_for_and_the_room_is_nobody_elses() -> None:
    active = (runs("big", 4, leaving=True), runs("own", 2, "lab"))
    queue = (wants("mine", 2, since=1.0), wants("next", 4, "guest", since=2.0), wants("small", 2, "guest", since=3.0))
    decision = decide(snapshot(queue, active))
    assert (decision.admissions, victims(decision)) == (("mine",), [])
    full = (runs("big", 4, leaving=True), runs("own", 2, "lab"), runs("two", 2))
    decision = decide(snapshot(queue, full))
    assert (decision.admissions, victims(decision)) == ((), [])
    assert "are preempted for it" in decision.waits["mine"].why


def test_tiles_that_a_tenant_gives_back_already_are_no_longer_borrowed() -> None:
    shares = {"lab": TenantShare(quota=4), "guest": TenantShare(quota=2), "third": TenantShare(quota=4)}
    active = (runs("goes", 2, leaving=True), runs("stays", 2), runs("other", 4, "third"))
    assert victims(decide(snapshot([wants("mine", 4)], active, shares=shares))) == [], "within quota without the first"
    shares["guest"] = TenantShare(quota=0)
    assert victims(decide(snapshot([wants("mine", 4)], active, shares=shares))) == ["stays"]


def test_a_higher_priority_takes_tiles_of_preemptible_jobs_by_the_gap_only() -> None:
    active = (runs("keep", 4, "a"), runs("give", 4, "a", preemptible=True))
    for priority, expected in ((9, []), (10, ["give"])):
        assert victims(decide(snapshot([wants("high", 4, "b", priority)], active, shares={}))) == expected
    never = replace(RULE, priority_gap=0)
    assert victims(decide(snapshot([wants("high", 4, "b", 99)], active, shares={}, preemption=never))) == []
    assert victims(decide(snapshot([wants("high", 8, "b", 99)], active, shares={}))) == [], "all or none"


def test_a_borrower_takes_nothing_by_priority_from_another_tenant_within_its_quota() -> None:
    active = (runs("own", 4, "lab", preemptible=True), runs("x", 4))
    assert victims(decide(snapshot([wants("high", 4, "guest", 99)], active))) == ["x"]
    assert victims(decide(snapshot([wants("high", 8, "guest", 99)], (runs("y", 8, "lab", preemptible=True),)))) == [
        "y"
    ], "who has borrowed is no better off than the other"


def test_victims_lose_the_least_work_and_are_the_fewest() -> None:
    def chosen(*active: ActiveJob) -> list[str]:
        return victims(decide(snapshot([wants("high", 4, "b", 50)], active, shares={})))

    def low(name: str, tiles: int, began: float = 500.0, keeps_work: bool = True, priority: int = 0) -> ActiveJob:
        return runs(name, tiles, "a", priority, began, True, keeps_work)

    assert chosen(low("a", 2), low("b", 2), low("one", 4)) == ["one"]
    assert chosen(low("a", 2), low("b", 2), low("loses", 4, keeps_work=False)) == ["a", "b"]
    assert chosen(low("long", 4, 100.0, False), low("short", 4, 900.0, False)) == ["short"]
    assert chosen(low("later", 4, priority=5), low("least", 4, priority=-5)) == ["least"]


@pytest.mark.parametrize(
    "change", [{"began": NOW - 59.0}, {"began": None}, {"preemptions": 3}, {"holds_tiles": False, "began": None}]
)
def test_who_has_just_begun_or_made_room_often_is_left_alone(change: dict[str, object]) -> None:
    victim = runs("low", 8, "a", preemptible=True)
    high = [wants("high", 8, "b", 50)]
    assert victims(decide(snapshot(high, (victim,), shares={}))) == ["low"]
    assert victims(decide(snapshot(high, (replace(victim, **change),), shares={}))) == []  # type: ignore[arg-type]


RDU = 4


def status(*owners: str) -> dict[str, object]:
    """What the daemon of a node tells whose tiles these jobs have, one letter a tile."""
    tiles = [
        {"rdu": f"RDU_{i // RDU}", "tile": i % RDU, "health": "online", "lease": owner if owner != "-" else None}
        for i, owner in enumerate("".join(owners))
    ]
    leases = [{"id": owner, "job": owner, "application": owner} for owner in sorted({*"".join(owners)} - {"-"})]
    return {"tiles": tiles, "leases": leases}


def test_nobody_makes_room_where_enough_tiles_are_free_that_are_no_neighbours() -> None:
    capacity = NodeCapacity(16, 12, 16, rdu_tiles=8, rows=(8, 8), free_rows=(6, 6))
    state = snapshot(
        [wants("wide", 8, priority=50)],
        [runs("low", 4, preemptible=True)],
        nodes=(NodeState("n", capacity, 8),),
        shares={},
    )
    assert decide(state).preemptions == () and decide(state).waits["wide"].code is WaitCode.RESOURCES


def test_victims_leave_a_row_of_neighbours_not_only_enough_tiles() -> None:
    capacity = view_for_scheduler(status("a-bb", "ccdd"))
    active = [runs(name, tiles, "a", preemptible=True) for name, tiles in (("a", 1), ("b", 2), ("c", 2), ("d", 2))]
    nodes = (NodeState("n", capacity, 9),)

    def chosen(tiles: int) -> list[str]:
        return sorted(victims(decide(snapshot([wants("high", tiles, "b", 50)], active, shares={}, nodes=nodes))))

    assert (chosen(2), chosen(3), chosen(4)) == (["a"], ["b"], ["c", "d"])
    assert chosen(8) == ["a", "b", "c", "d"]


@given(
    owners=st.lists(st.sampled_from("-abc"), min_size=2 * RDU, max_size=2 * RDU), tiles=st.integers(1, 2 * RDU),
    leave=st.sets(st.sampled_from("abc")), members=st.sampled_from((1, 1, 2, 3)),
)  # fmt: skip
def test_what_fits_with_others_gone_fits_when_they_are_gone(
    owners: list[str], tiles: int, leave: set[str], members: int
) -> None:
    need = tiles * members, members, frozenset[str]()
    capacity = view_for_scheduler(status(*owners))
    room = NodeRoom(0, NodeState("n", capacity, 9))
    masks = [mask for job, mask in capacity.held if job in leave]
    leaving = sum((Leaving(1, mask.bit_count(), mask) for mask in masks), Leaving())
    gone = view_for_scheduler(status(*("-" if owner in leave else owner for owner in owners)))
    after = NodeRoom(0, NodeState("n", gone, 9))
    assert room.fits_with(need, leaving) == (after.rank(need) is not None)
    if room.fits_with(need, leaving):
        free = room.tiles
        rest = room.hold(need, leaving)
        whole = members * (-(-tiles // RDU) * RDU if tiles > RDU else tiles)
        assert free - room.tiles + leaving.tiles - rest.tiles == whole, "it is held once"
