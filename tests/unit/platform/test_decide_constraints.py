"""Jobs that ask for nodes by labels, and what is said where no node can take any."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import IllegalValue
from rdukit_platform.db.engine import Database
from rdukit_platform.jobs import service
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.jobs.states import WaitCode
from rdukit_platform.nodes import registry
from rdukit_platform.nodes.registry import NodeIdentity
from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import (
    ActiveJob,
    Labels,
    NodeState,
    PreemptionRule,
    PriorityScope,
    QueuedJob,
    QueueSnapshot,
)
from rdukit_platform.scheduler.snapshot import read_snapshot
from rdukit_platform.services import beat_service
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("scheduler", "nodes")

NOW = 100.0


def labels(**given: str) -> Labels:
    return frozenset(given.items())


def node(name: str, free: int = 8, slots: int = 8, **given: str) -> NodeState:
    return NodeState(name, NodeCapacity(8, free, 8), slots, labels(**given))


def wants(name: str, tiles: int, since: float = 99.0, priority: int = 0, **given: str) -> QueuedJob:
    return QueuedJob(name, "t", tiles, since, priority=priority, constraint=labels(**given))


def test_a_job_goes_to_a_node_that_has_all_its_labels_or_waits_for_it() -> None:
    nodes = (node("a", 2, zone="a"), node("b", zone="b", chip="sn30"))
    jobs = (wants("any", 1), wants("b", 2, zone="b"), wants("both", 0, zone="b", chip="sn30"), wants("a", 4, zone="a"))
    decision = decide(QueueSnapshot(NOW, jobs, (), nodes))
    assert decision.placements == {"any": "a", "b": "b", "both": "b"}
    assert decision.waits["a"].code is WaitCode.RESOURCES
    assert decision.waits["a"].why == "it needs 4 tiles, 2 of 8 are free"


def test_labels_that_no_node_has_are_told_with_those_that_there_are_and_one_size_too_large_among_them() -> None:
    nodes = (node("a", zone="a"), replace(node("b", zone="b"), capacity=NodeCapacity(16, 16, 8)))
    jobs = (wants("c", 1, zone="c"), wants("large", 12, zone="a"), wants("fits", 12, zone="b"))
    decision = decide(QueueSnapshot(NOW, jobs, (), nodes))
    assert decision.waits["c"].code is WaitCode.BAD_CONSTRAINTS
    assert decision.waits["c"].why == "no node that is up has zone=c; there is: zone=a, zone=b"
    assert decision.waits["large"].code is WaitCode.TOO_LARGE
    assert decision.placements == {"fits": "b"}


def test_nobody_leaves_a_node_for_a_job_that_may_not_have_it() -> None:
    nodes = (node("a", 0, zone="a"), node("b", 0, zone="b"))
    active = tuple(ActiveJob(n, "u", 8, True, None, n, began=0.0, is_preemptible=True) for n in ("a", "b"))
    urgent = (wants("j", 4, priority=50, zone="b"),)
    decision = decide(
        QueueSnapshot(
            NOW, urgent, active, nodes, preemption=PreemptionRule(10, 60.0, 5), priority_scope=PriorityScope.PLATFORM
        )
    )
    assert [(each.job_id, each.for_job) for each in decision.preemptions] == [("b", "j")]


def test_where_no_node_is_up_it_is_said_whether_any_ever_was() -> None:
    lone = QueueSnapshot(NOW, (wants("j", 1),), (), ())
    told = decide(lone).waits["j"]
    assert (told.code, told.why) == (
        WaitCode.WORKERS_AWAY, "no node has joined the platform; join one: rdukit node join",
    )  # fmt: skip
    lost = decide(replace(lone, absent={"lost": 2, "left": 1})).waits["j"]
    assert lost.why == "no node is up: 1 left, 2 lost; look at them: rdukit node list"
    assert decide(replace(lone, nodes=(node("n", slots=0),))).waits["j"].why == "no worker is up"


ZONES = st.sampled_from(("a", "b", None))


@given(
    nodes=st.lists(st.tuples(st.integers(0, 8), ZONES), min_size=1, max_size=4),
    asked=st.lists(st.tuples(st.integers(0, 8), ZONES), max_size=12),
)
def test_nobody_is_on_a_node_without_its_labels_and_who_waits_finds_no_room_on_one_with_them(
    nodes: list[tuple[int, str | None]], asked: list[tuple[int, str | None]]
) -> None:
    states = tuple(node(f"n{i}", free, 20, **({"zone": zone} if zone else {})) for i, (free, zone) in enumerate(nodes))
    jobs = tuple(
        wants(f"j{i:02}", tiles, 90.0 + i, **({"zone": zone} if zone else {})) for i, (tiles, zone) in enumerate(asked)
    )
    decision = decide(QueueSnapshot(NOW, jobs, (), states))
    assert {*decision.placements, *decision.waits} == {job.job_id for job in jobs}
    by_name, left = {each.name: each for each in states}, {each.name: nodes[i][0] for i, each in enumerate(states)}
    for job in jobs:
        if job.job_id in decision.placements:
            at = decision.placements[job.job_id]
            assert job.constraint <= by_name[at].labels
            left[at] -= job.tiles
    assert min(left.values()) >= 0
    for job in jobs:
        able = [each for each in states if job.constraint <= each.labels]
        code = decision.waits[job.job_id].code if job.job_id in decision.waits else None
        assert (code is WaitCode.BAD_CONSTRAINTS) == (not able)
        if code is WaitCode.RESOURCES:
            assert all(job.tiles > left[each.name] for each in able)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


def test_labels_by_administrators_count_more_than_a_node_s_own_and_outlast_its_starts(database: Database) -> None:
    own = NodeIdentity("one", "h1", "host", {"zone": "a", "chip": "sn30"})
    with database.write() as session:
        tenant = create_tenant(session, "lab", 0.0).id
        registry.join(session, own, NOW)
        assert registry.label(session, "one", {"zone": "b", "rack": "7"}, ()).all_labels["zone"] == "b"
        registry.join(session, own, NOW)
        with pytest.raises(IllegalValue, match="has no added label 'chip'; expected rack, zone"):
            registry.label(session, "one", {}, ["chip"])
        beat_service(session, "worker-1", "worker", 4, NOW, node="one")
        asked = JobRequest(box="counter", verb="preprocess", constraint={"zone": "b"})
        service.submit_job(session, counter_boxes(), tenant, asked, NOW)
    with database.read() as session:
        found = read_snapshot(session, NOW)
    assert found.nodes[0].labels == labels(zone="b", rack="7", chip="sn30")
    assert len(decide(found).placements) == 1
    with database.write() as session:
        assert registry.label(session, "one", {}, ["zone"]).all_labels["zone"] == "a"
        registry.lose(session, ["one"], NOW)
    with database.read() as session:
        lost = read_snapshot(session, NOW)
    assert [wait.why for wait in decide(lost).waits.values()] == [
        "no node is up: 1 lost; look at them: rdukit node list"
    ]
