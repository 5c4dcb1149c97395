"""Which jobs start, and why the others wait."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rdukit_platform.nodes import NodeCapacity
from rdukit_platform.scheduler.decide import ActiveJob, QueuedJob, QueueSnapshot, decide

NODE = NodeCapacity(tiles=8, free_tiles=8, free_applications=8)
EMPTY = QueueSnapshot(now=100.0, queued=(), active=(), node=NODE, slots=4)


def waiting(name: str, tiles: int = 1, since: float = 90.0, tenant: str = "a") -> QueuedJob:
    return QueuedJob(name, tenant, tiles, since)


def test_the_oldest_goes_first() -> None:
    snapshot = replace(EMPTY, queued=(waiting("new", since=95), waiting("old", since=91)))
    assert decide(snapshot).admissions == ("old", "new")


def test_tiles_that_are_promised_but_not_yet_held_are_not_given_again() -> None:
    pending = ActiveJob("other", "a", 6, holds_tiles=False)
    decision = decide(replace(EMPTY, active=(pending,), queued=(waiting("big", 4), waiting("small", 2))))
    assert decision.admissions == ("small",)
    assert decision.waits == {"big": "it needs 4 tiles, 2 of 8 are free"}


def test_tiles_that_the_node_shows_as_taken_are_counted_once() -> None:
    held = ActiveJob("other", "a", 4, holds_tiles=True)
    node = replace(NODE, free_tiles=4)
    assert decide(replace(EMPTY, node=node, active=(held,), queued=(waiting("next", 4),))).admissions == ("next",)


def test_a_job_without_tiles_needs_no_node() -> None:
    decision = decide(replace(EMPTY, node=None, queued=(waiting("host", 0), waiting("device", 1))))
    assert decision.admissions == ("host",)
    assert decision.waits == {"device": "no node daemon answers"}


def test_without_a_worker_all_wait() -> None:
    assert decide(replace(EMPTY, slots=0, queued=(waiting("x"),))).waits == {"x": "no worker is up"}


def test_worker_slots_limit_how_many_start() -> None:
    decision = decide(replace(EMPTY, slots=1, queued=(waiting("x", since=1), waiting("y", since=2))))
    assert decision.admissions == ("x",)
    assert decision.waits == {"y": "all 1 worker slots are taken"}


def test_a_tenant_that_floods_the_queue_does_not_keep_another_out() -> None:
    flood = tuple(waiting(f"flood-{i}", since=float(i)) for i in range(10))
    decision = decide(replace(EMPTY, slots=2, queued=(*flood, waiting("quiet", since=50, tenant="b"))))
    assert decision.admissions == ("flood-0", "quiet")


def test_a_tenants_limit_holds() -> None:
    running = ActiveJob("r", "a", 1, holds_tiles=True)
    decision = decide(replace(EMPTY, tenant_jobs=1, active=(running,), queued=(waiting("x"),)))
    assert decision.waits == {"x": "its tenant has 1 of 1 jobs running"}


def test_a_job_that_has_waited_long_lets_nothing_past_it() -> None:
    node = replace(NODE, free_tiles=4)
    queue = (waiting("big", 8, since=0), waiting("small", 1, since=50))
    assert decide(replace(EMPTY, node=node, queued=queue)).admissions == ()
    soon = decide(replace(EMPTY, node=node, queued=queue, now=10.0))
    assert soon.admissions == ("small",)


def test_a_job_that_can_never_fit_keeps_nobody_out() -> None:
    decision = decide(replace(EMPTY, queued=(waiting("huge", 100, since=0), waiting("small", 1))))
    assert decision.admissions == ("small",)
    assert decision.waits == {"huge": "it needs 100 tiles, the node has 8 healthy ones"}


def test_a_pause_before_the_next_attempt_is_kept() -> None:
    later = replace(waiting("x"), not_before=101.5)
    assert decide(replace(EMPTY, queued=(later,))).waits == {"x": "its next attempt is due in 1.5 s"}
    assert decide(replace(EMPTY, queued=(later,), now=102.0)).admissions == ("x",)


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
        node=NodeCapacity(8, free, 8),
        slots=slots,
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
    alone = decide(replace(EMPTY, queued=flood))
    assert len(alone.admissions) == 4
    shared = decide(replace(EMPTY, queued=flood, has_other_tenants=True))
    assert shared.admissions == ("flood-0", "flood-1", "flood-2")
    assert shared.waits["flood-3"] == "the last free worker slot is kept for other tenants"
    late = replace(EMPTY, queued=(*flood, waiting("quiet", since=99, tenant="b")), has_other_tenants=True)
    running = tuple(ActiveJob(f"r{i}", "a", 0, holds_tiles=False) for i in range(3))
    assert decide(replace(late, active=running)).admissions == ("quiet",)


def test_a_tenant_without_jobs_gets_a_lone_slot() -> None:
    assert decide(replace(EMPTY, slots=1, queued=(waiting("x"),), has_other_tenants=True)).admissions == ("x",)


@given(queued=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=20), slots=st.integers(0, 20))
def test_the_turns_are_those_of_the_fewest_active_jobs_and_then_of_age(
    queued: list[tuple[int, str]], slots: int
) -> None:
    jobs = tuple(waiting(f"q{i:02}", 0, since, tenant) for i, (since, tenant) in enumerate(queued))
    rest, active, wanted = list(jobs), dict.fromkeys("abc", 0), list[str]()
    while rest and len(wanted) < slots:
        job = min(rest, key=lambda j: (active[j.tenant_id], j.since, j.job_id))
        rest.remove(job)
        active[job.tenant_id] += 1
        wanted.append(job.job_id)
    assert list(decide(replace(EMPTY, queued=jobs, slots=slots)).admissions) == wanted
