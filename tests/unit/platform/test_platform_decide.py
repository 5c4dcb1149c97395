"""Which jobs start, and why the others wait."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import (
    ActiveJob,
    Decision,
    NodeState,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
    TenantShare,
)
from rdukit_platform.scheduler.shares import PastUsage, UsagePeriod
from support import shows

pytestmark = shows("scheduler")

NODE = NodeCapacity(tiles=8, free_tiles=8, free_applications=8)
EMPTY = QueueSnapshot(now=100.0, queued=(), active=(), nodes=(NodeState("n", NODE, 4),))
OTHER = object()
#: What is said of a start at 200.
EXPECTED = ", expected to start by 1970-01-01 00:04 UTC"


def changed(snapshot: QueueSnapshot, node: object = OTHER, slots: int | None = None, **changes: Any) -> QueueSnapshot:
    """Return a snapshot of one node with another ``node`` or number of slots, and other changes."""
    (alone,) = snapshot.nodes
    capacity = alone.capacity if node is OTHER else node
    assert capacity is None or isinstance(capacity, NodeCapacity)
    alone = replace(alone, capacity=capacity, slots=alone.slots if slots is None else slots)
    return replace(snapshot, nodes=(alone,), **changes)


def waiting(name: str, tiles: int = 1, since: float = 90.0, tenant: str = "a") -> QueuedJob:
    return QueuedJob(name, tenant, tiles, since)


def said(decision: Decision) -> dict[str, str]:
    return {job_id: wait.why for job_id, wait in decision.waits.items()}


def test_the_oldest_goes_first() -> None:
    snapshot = changed(EMPTY, queued=(waiting("new", since=95), waiting("old", since=91)))
    assert decide(snapshot).admissions == ("old", "new")


def test_tiles_that_are_promised_but_not_yet_held_are_not_given_again() -> None:
    pending = ActiveJob("other", "a", 6, holds_tiles=False)
    decision = decide(changed(EMPTY, active=(pending,), queued=(waiting("big", 4), waiting("small", 2))))
    assert decision.admissions == ("small",)
    assert said(decision) == {"big": "it needs 4 tiles, 2 of 8 are free"}


def test_tiles_that_the_node_shows_as_taken_are_counted_once() -> None:
    held = ActiveJob("other", "a", 4, holds_tiles=True)
    node = replace(NODE, free_tiles=4)
    assert decide(changed(EMPTY, node=node, active=(held,), queued=(waiting("next", 4),))).admissions == ("next",)


def test_a_job_without_tiles_needs_no_node() -> None:
    decision = decide(changed(EMPTY, node=None, queued=(waiting("host", 0), waiting("device", 1))))
    assert decision.admissions == ("host",)
    assert said(decision) == {"device": "no node daemon answers"}


def test_without_a_worker_all_wait() -> None:
    assert said(decide(changed(EMPTY, slots=0, queued=(waiting("x"),)))) == {"x": "no worker is up"}


def test_worker_slots_limit_how_many_start() -> None:
    decision = decide(changed(EMPTY, slots=1, queued=(waiting("x", since=1), waiting("y", since=2))))
    assert decision.admissions == ("x",)
    assert said(decision) == {"y": "all 1 worker slots are taken"}


def test_a_tenant_that_floods_the_queue_does_not_keep_another_out() -> None:
    flood = tuple(waiting(f"flood-{i}", since=float(i)) for i in range(10))
    decision = decide(changed(EMPTY, slots=2, queued=(*flood, waiting("quiet", since=50, tenant="b"))))
    assert decision.admissions == ("flood-0", "quiet")


def test_a_tenants_limit_holds() -> None:
    running = ActiveJob("r", "a", 1, holds_tiles=True)
    decision = decide(changed(EMPTY, tenant_jobs=1, active=(running,), queued=(waiting("x"),)))
    assert said(decision) == {"x": "its tenant has 1 of 1 jobs running"}


def test_a_job_that_has_waited_long_lets_nothing_past_it() -> None:
    node = replace(NODE, free_tiles=4)
    queue = (waiting("big", 8, since=0), waiting("small", 1, since=50))
    assert decide(changed(EMPTY, node=node, queued=queue)).admissions == ()
    soon = decide(changed(EMPTY, node=node, queued=queue, now=10.0))
    assert soon.admissions == ("small",)


def test_a_job_that_can_never_fit_keeps_nobody_out() -> None:
    decision = decide(changed(EMPTY, queued=(waiting("huge", 100, since=0), waiting("small", 1))))
    assert decision.admissions == ("small",)
    assert said(decision) == {"huge": "it needs 100 tiles, but the node has 8 healthy ones"}


def test_a_pause_before_the_next_attempt_is_kept() -> None:
    later = replace(waiting("x"), not_before=101.5)
    assert said(decide(changed(EMPTY, queued=(later,)))) == {"x": "its next attempt is due in 1.5 s"}
    assert decide(changed(EMPTY, queued=(later,), now=102.0)).admissions == ("x",)


@given(
    queued=st.lists(st.tuples(st.integers(0, 10), st.floats(0, 100), st.sampled_from("abc")), max_size=12),
    active=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=4),
    free=st.integers(0, 8),
    slots=st.integers(0, 6),
)
def test_nothing_is_promised_twice_and_every_job_gets_an_answer(
    queued: list[tuple[int, float, str]], active: list[tuple[int, bool]], free: int, slots: int
) -> None:
    snapshot = QueueSnapshot(
        now=100.0,
        queued=tuple(QueuedJob(f"q{i}", tenant, tiles, since) for i, (tiles, since, tenant) in enumerate(queued)),
        active=tuple(ActiveJob(f"r{i}", "a", tiles, holds) for i, (tiles, holds) in enumerate(active)),
        nodes=(NodeState("n", NodeCapacity(8, free, 8), slots),),
    )
    decision = decide(snapshot)
    names = {job.job_id: job for job in snapshot.queued}
    assert {*decision.admissions, *decision.waits} == set(names)
    assert not set(decision.admissions) & set(decision.waits)
    pending = sum(job.tiles for job in snapshot.active if not job.holds_tiles)
    given = sum(names[job_id].tiles for job_id in decision.admissions)
    assert given == 0 or given + pending <= free
    assert len(decision.admissions) <= max(slots - len(active), 0)


def test_the_last_slot_is_another_tenants_where_there_are_others() -> None:
    flood = tuple(waiting(f"flood-{i}", since=float(i)) for i in range(10))
    alone = decide(changed(EMPTY, queued=flood))
    assert len(alone.admissions) == 4
    shared = decide(changed(EMPTY, queued=flood, has_other_tenants=True))
    assert shared.admissions == ("flood-0", "flood-1", "flood-2")
    assert shared.waits["flood-3"].why == "the last free worker slot is kept for other tenants"
    late = changed(EMPTY, queued=(*flood, waiting("quiet", since=99, tenant="b")), has_other_tenants=True)
    running = tuple(ActiveJob(f"r{i}", "a", 0, holds_tiles=False) for i in range(3))
    assert decide(changed(late, active=running)).admissions == ("quiet",)


def test_a_tenant_without_jobs_gets_a_lone_slot() -> None:
    assert decide(changed(EMPTY, slots=1, queued=(waiting("x"),), has_other_tenants=True)).admissions == ("x",)


@given(queued=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=20), slots=st.integers(0, 20))
def test_the_turns_are_those_of_the_fewest_active_jobs_and_then_of_age(
    queued: list[tuple[int, str]], slots: int
) -> None:
    jobs = tuple(waiting(f"q{i:02}", 0, 95.0 + since, tenant) for i, (since, tenant) in enumerate(queued))
    rest, active, wanted = list(jobs), dict.fromkeys("abc", 0), list[str]()
    while rest and len(wanted) < slots:
        job = min(rest, key=lambda j: (active[j.tenant_id], j.since, j.job_id))
        rest.remove(job)
        active[job.tenant_id] += 1
        wanted.append(job.job_id)
    assert list(decide(changed(EMPTY, queued=jobs, slots=slots)).admissions) == wanted


def running(name: str, tiles: int, ends_at: float | None = None, tenant: str = "r") -> ActiveJob:
    return ActiveJob(name, tenant, tiles, holds_tiles=True, ends_at=ends_at)


def test_priority_goes_before_age_and_before_shares() -> None:
    urgent = replace(waiting("urgent", tenant="busy", since=99), priority=5)
    humble = replace(waiting("humble", since=91), priority=-5)
    queue = (waiting("old", since=92), humble, waiting("new", since=98), urgent)
    busy = changed(EMPTY, slots=5, active=(running("r", 0, tenant="busy"),), queued=queue)
    decision = decide(replace(busy, priority_scope=PriorityScope.PLATFORM))
    assert decision.admissions == ("urgent", "old", "new", "humble")
    assert decide(busy).admissions == ("old", "new", "urgent", "humble"), "a tenant's own jobs only"


def test_a_tenant_of_twice_the_weight_gets_twice_as_much() -> None:
    queue = tuple(waiting(f"{tenant}{i}", since=float(i), tenant=tenant) for i in range(9) for tenant in "ab")
    shares = {"b": TenantShare(weight=2.0)}
    admitted = decide(changed(EMPTY, slots=6, queued=queue, shares=shares)).admissions
    assert sorted(admitted) == ["a0", "a1", "b0", "b1", "b2", "b3"]


def test_a_share_is_that_of_tiles_where_a_tenant_has_more_of_them_than_of_slots() -> None:
    active = (running("wide", 4, tenant="a"), running("thin-1", 0, tenant="b"), running("thin-2", 0, tenant="b"))
    queue = (waiting("more-a", since=91, tenant="a"), waiting("more-b", since=92, tenant="b"))
    decision = decide(changed(EMPTY, slots=20, active=active, queued=queue))
    assert decision.admissions == ("more-b", "more-a")


def test_who_used_much_lately_comes_later() -> None:
    queue = (waiting("a", since=91, tenant="a"), waiting("b", since=92, tenant="b"))
    decision = decide(changed(EMPTY, slots=1, queued=queue, shares={"a": TenantShare(past=0.3)}))
    assert decision.admissions == ("b",)


#: Four tiles are free, four get free at 200.
HALF = changed(EMPTY, node=replace(NODE, free_tiles=4), active=(running("r", 4, ends_at=200.0),), slots=20)


def limited(name: str, tiles: int, run_limit_s: float | None, since: float = 95.0) -> QueuedJob:
    return replace(waiting(name, tiles, since), run_limit_s=run_limit_s)


def test_what_ends_before_a_reservation_passes_and_what_would_delay_it_does_not() -> None:
    queue = (
        limited("big", 8, None),
        limited("short", 1, 100.0, 96),
        limited("long", 1, 101.0, 97),
        limited("?", 1, None, 98),
    )
    decision = decide(changed(HALF, queued=queue))
    assert decision.admissions == ("short",)
    first = f"job big has a reservation for 8 tiles{EXPECTED}"
    assert said(decision) == {
        "big": "it needs 8 tiles, 4 of 8 are free",
        "long": f"{first}, and this one would end too late",
        "?": f"{first}, and this one has no run limit",
    }
    assert {job_id: wait.code for job_id, wait in decision.waits.items()} == {
        "big": WaitCode.RESOURCES, "long": WaitCode.PRIORITY, "?": WaitCode.PRIORITY,
    }  # fmt: skip


def test_what_needs_none_of_the_reserved_tiles_passes_for_as_long_as_it_likes() -> None:
    queue = (
        limited("big", 6, None),
        limited("first", 1, None, 96),
        limited("wide", 2, None, 97),
        limited("last", 1, None, 98),
    )
    assert decide(changed(HALF, queued=queue)).admissions == ("first", "last")


def test_waiting_long_changes_nothing_where_a_reservation_is_known() -> None:
    queue = (limited("big", 8, None, since=0), limited("short", 1, 100.0))
    assert decide(changed(HALF, queued=queue)).admissions == ("short",)


def test_another_tenants_reservation_names_no_job_of_it() -> None:
    queue = (limited("big", 8, None, since=1), replace(limited("small", 1, None), tenant_id="b"))
    why = said(decide(changed(HALF, queued=queue)))["small"]
    assert why == f"a job of another tenant has a reservation for tiles{EXPECTED}, and this one has no run limit"


def test_a_reservation_is_not_told_from_jobs_without_limits() -> None:
    queue = (limited("big", 8, 10.0), limited("small", 4, None, 96))
    endless = changed(HALF, active=(running("r", 4),))
    decision = decide(changed(endless, queued=queue))
    assert decision.admissions == ("small",)
    assert decision.waits["big"].starts_at is None


def test_a_job_that_overruns_its_limit_is_expected_to_end_at_once() -> None:
    decision = decide(changed(HALF, now=300.0, queued=(limited("big", 8, 10.0),)))
    assert decision.waits["big"].starts_at == 300.0


def test_waiting_jobs_are_told_when_they_start_if_all_run_to_their_limits() -> None:
    queue = (
        limited("first", 8, 50.0),
        limited("second", 4, 30.0, 96),
        limited("third", 4, None, 97),
        limited("never", 5, 1.0, 98),
    )
    decision = decide(changed(HALF, queued=queue))
    assert decision.admissions == ("second",)
    starts = {job_id: wait.starts_at for job_id, wait in decision.waits.items()}
    assert starts == {"first": 200.0, "third": 250.0, "never": None}


def test_a_time_is_told_for_a_slot_too_and_for_a_pause() -> None:
    active = (running("x", 0, ends_at=130.0),)
    paused = replace(waiting("paused", 0, 91), not_before=500.0)
    decision = decide(changed(EMPTY, slots=1, active=active, queued=(waiting("next", 0), paused)))
    assert {job_id: wait.starts_at for job_id, wait in decision.waits.items()} == {"next": 130.0, "paused": 500.0}
    assert decision.waits["paused"].code is WaitCode.BEGIN_TIME


JOBS = st.tuples(
    st.integers(0, 8), st.floats(0, 100), st.sampled_from("abc"), st.integers(-2, 2),
    st.one_of(st.none(), st.floats(1, 100)),
)  # fmt: skip


@given(queued=st.lists(JOBS, max_size=12), ends=st.lists(st.tuples(st.integers(1, 4), st.floats(90, 200)), max_size=2))
def test_who_passes_a_reservation_does_not_delay_it(
    queued: list[tuple[int, float, str, int, float | None]], ends: list[tuple[int, float]]
) -> None:
    """With all limits known the first job that lacks tiles starts as early with those that pass it as without them."""
    jobs = tuple(
        QueuedJob(f"q{i}", tenant, tiles, since, priority=priority, run_limit_s=limit)
        for i, (tiles, since, tenant, priority, limit) in enumerate(queued)
    )
    active = tuple(running(f"r{i}", tiles, at) for i, (tiles, at) in enumerate(ends))
    node = replace(NODE, free_tiles=8 - sum(tiles for tiles, _ in ends), free_applications=99)
    snapshot = QueueSnapshot(
        now=100.0, queued=jobs, active=active, nodes=(NodeState("n", node, 99),),
        priority_scope=PriorityScope.PLATFORM,
    )  # fmt: skip
    decision = decide(snapshot)
    told = [job_id for job_id, wait in decision.waits.items() if wait.code is WaitCode.RESOURCES]
    if not told or decision.waits[told[0]].starts_at is None:
        return
    first = told[0]
    before = {job_id for job_id in decision.admissions if job_id not in passed(snapshot, decision, first)}
    alone = decide(replace(snapshot, queued=tuple(j for j in jobs if j.job_id in {*before, first})))
    assert alone.waits[first].starts_at == decision.waits[first].starts_at


def passed(snapshot: QueueSnapshot, decision: Decision, first: str) -> set[str]:
    """Jobs that were admitted though ``first`` has at least their priority and waits."""
    blocked = next(job for job in snapshot.queued if job.job_id == first)
    return {
        job.job_id for job in snapshot.queued if job.job_id in decision.admissions and job.priority < blocked.priority
    }


def test_the_past_fades_by_half_in_each_half_life_and_counts_the_larger_part() -> None:
    usage = PastUsage(10.0)
    usage.add(UsagePeriod("a", 2, 4, -1e9, 0.0))
    assert usage.shares(0.0, tiles=8, slots=8)["a"] == pytest.approx(0.5)
    assert usage.shares(10.0, tiles=8, slots=8)["a"] == pytest.approx(0.25)
    assert usage.shares(10.0, tiles=8, slots=2)["a"] == pytest.approx(0.5)
    forgetful = PastUsage(0.0)
    forgetful.add(UsagePeriod("a", 2, 4, -1e9, 0.0))
    assert forgetful.shares(0.0, tiles=8, slots=8) == {}


PERIODS = st.lists(st.tuples(st.integers(1, 8), st.floats(0, 50), st.floats(0, 100)), max_size=10)


@given(periods=PERIODS, later=st.floats(0, 100))
def test_the_past_is_the_sum_of_what_is_left_of_each_period(
    periods: list[tuple[int, float, float]], later: float
) -> None:
    """In whatever order they are added."""
    usage, now = PastUsage(20.0), 100.0 + later
    for tiles, took, ended in periods:
        usage.add(UsagePeriod("a", 1, tiles, ended - took, ended))
    left = [2 ** ((ended - now) / 20.0) - 2 ** ((ended - took - now) / 20.0) for _, took, ended in periods]
    wanted = max(sum(w * p[0] for w, p in zip(left, periods, strict=True)) / 8, sum(left) / 3)
    assert usage.shares(now, 8, 3).get("a", 0.0) == pytest.approx(wanted, abs=1e-9)
