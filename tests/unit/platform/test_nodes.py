"""Nodes that join, beat, are silent, leave and come back, and what becomes of the attempts that were placed on them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AttemptRow, JobRow, NodeRow
from rdukit_platform.jobs import execution, overdue, service
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.nodes import registry
from rdukit_platform.nodes.orders import answer_order, has_orders, order, take_orders
from rdukit_platform.nodes.registry import NodeIdentity, read_home_id
from rdukit_platform.nodes.view import NodeCapacity, NodeLook, count_uptime
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.snapshot import read_snapshot
from rdukit_platform.scheduler.watches import SilenceWatch
from rdukit_platform.services import beat_service
from rdukit_platform.setting_texts import parse_labels, parse_node_name
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.worker.attempts.carried import EarlierAttempt, choose_work
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("nodes")

ONE, TWO = (NodeIdentity(name, f"home-{name}", f"{name}.lan", {"zone": name}) for name in ("one", "two"))
CAPACITY = NodeCapacity(8, 8, 4, rdu_tiles=8, rows=(8,), free_rows=(8,))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


def join(database: Database, *nodes: NodeIdentity, now: float = 100.0) -> None:
    with database.write() as session:
        for node in nodes:
            registry.join(session, node, now)
            registry.beat(session, node, NodeLook({"state": "up"}, CAPACITY), now)
            beat_service(session, f"worker@{node.name}", "worker", 4, now, node=node.name)


def place(database: Database, node: str, tiles: int = 0, now: float = 100.0) -> FencingToken:
    with database.write() as session:
        tenants = session.scalars(select(JobRow.tenant_id)).all()
        tenant = tenants[0] if tenants else create_tenant(session, "lab", 0.0).id
        request = JobRequest(box="counter", verb="preprocess", tiles=tiles)
        job = service.submit_job(session, counter_boxes(), tenant, request, now)
        return execution.admit(session, job.id, now, node)


def state_of(database: Database, name: str) -> str:
    with database.read() as session:
        return session.get_one(NodeRow, name).state


def test_who_is_silent_for_long_is_lost_and_who_beats_is_not() -> None:
    watch = SilenceWatch(4.0)
    lost = [watch.look({"one": second, "two": min(second, 3)}, second) for second in range(9)]
    assert lost[6] == frozenset() and lost[7] == lost[8] == {"two"}
    assert watch.look({"one": 9, "two": 4}, 9.0) == frozenset()


def test_a_watcher_that_stood_still_calls_nobody_lost() -> None:
    watch = SilenceWatch(4.0)
    watch.look({"one": 1}, 0.0)
    assert watch.look({"one": 1}, 600.0) == frozenset()
    assert watch.look({"one": 2}, 600.5) == frozenset()
    assert watch.look({"one": 2}, 599.0) == frozenset()


def test_a_watcher_that_has_just_begun_gives_everybody_the_whole_time() -> None:
    watch = SilenceWatch(4.0)
    found = [watch.look({"one": 7}, second / 2) for second in range(9)]
    assert found[:8] == [frozenset()] * 8 and found[8] == {"one"}


def test_a_second_machine_of_the_same_name_is_refused_while_the_first_is_there(database: Database) -> None:
    join(database, ONE)
    other = NodeIdentity("one", "another home", "elsewhere.lan", {})
    with database.write() as session, pytest.raises(Conflict, match=r"is already up on one\.lan"):
        registry.join(session, other, 105.0)
    with database.write() as session:
        registry.join(session, other, 150.0)
    with database.write() as session, pytest.raises(Conflict, match="another machine"):
        registry.beat(session, ONE, None, 151.0)


def lapsed(session: Session) -> dict[str, float]:
    """Attempts whose leases have ended with their node."""
    attempts = overdue.read_open_attempts(session)
    return {id: registry.LAPSED for id, each in attempts.items() if each.lease == registry.LAPSED}


def test_the_attempts_of_a_lost_node_are_queued_again_where_another_node_is_up(database: Database) -> None:
    join(database, ONE, TWO)
    begun, waiting, other = (place(database, node) for node in ("two", "two", "one"))
    with database.write() as session:
        assert execution.claim(session, begun, "w2", 8.0, 100.0, "two") is not None
        registry.lose(session, ["two"], 104.0)
        registry.release_absent(session, 104.0)
        assert overdue.expire_attempts(session, lapsed(session), 1.0, 104.0) == 2
    with database.read() as session:
        ends = {row.id: (row.outcome, (row.error or {}).get("message")) for row in session.scalars(select(AttemptRow))}
        assert ends[begun.attempt_id][0] == "expired"
        assert ends[waiting.attempt_id] == (
            "interrupted", "node two has sent no heartbeat since its lease ended; it was lost"
        )  # fmt: skip
        assert ends[other.attempt_id][0] is None
        jobs = {row.id: row for row in session.scalars(select(JobRow))}
        assert (jobs[begun.job_id].failures, jobs[begun.job_id].losses) == (0, 1)
        assert (jobs[waiting.job_id].state, jobs[waiting.job_id].losses) == ("queued", 0)


def test_the_only_node_keeps_its_attempts_for_as_long_as_their_leases_last(database: Database) -> None:
    join(database, ONE)
    fencing = place(database, "one")
    with database.write() as session:
        execution.claim(session, fencing, "w1", 8.0, 100.0, "one")
        registry.lose(session, ["one"], 104.0)
        registry.release_absent(session, 104.0)
        assert not lapsed(session)
        registry.beat(session, ONE, None, 105.0)
    assert state_of(database, "one") == "up"


def test_an_attempt_is_claimed_by_workers_of_its_node_only(database: Database) -> None:
    join(database, ONE, TWO)
    fencing = place(database, "two")
    with database.write() as session:
        assert execution.claim(session, fencing, "w1", 8.0, 100.0, "one") is None
        assert execution.claim(session, fencing, "w2", 8.0, 100.0, "two") is not None


def test_jobs_are_placed_on_nodes_that_are_up_by_what_each_has_told(database: Database) -> None:
    join(database, ONE, TWO)
    held = place(database, "one", tiles=5)
    promised = place(database, "two", tiles=6)
    with database.write() as session:
        told = NodeLook({"state": "up"}, NodeCapacity(8, 3, 4, rdu_tiles=8, rows=(8,), free_rows=(3,)),
                        frozenset({held.job_id}))  # fmt: skip
        registry.beat(session, ONE, told, 101.0)
        tenant = session.get_one(JobRow, held.job_id).tenant_id
        for _ in range(2):
            request = JobRequest(box="counter", verb="preprocess", tiles=3)
            service.submit_job(session, counter_boxes(), tenant, request, 101.0)
    with database.read() as session:
        found = read_snapshot(session, 101.0)
    assert {job.job_id: (job.node, job.holds_tiles) for job in found.active} == {
        held.job_id: ("one", True), promised.job_id: ("two", False)
    }  # fmt: skip
    assert list(decide(found).placements.values()) == ["one"]
    with database.write() as session:
        registry.leave(session, "one", 102.0)
    with database.read() as session:
        assert decide(read_snapshot(session, 102.0)).placements == {}


def test_a_node_that_leaves_has_left_when_what_it_has_is_done(database: Database) -> None:
    join(database, ONE, TWO)
    fencing = place(database, "two")
    with database.write() as session:
        execution.claim(session, fencing, "w2", 8.0, 100.0, "two")
        registry.leave(session, "two", 101.0)
        registry.release_absent(session, 101.0)
    assert state_of(database, "two") == "leaving"
    with database.write() as session:
        execution.start(session, fencing, {}, 101.0)
        execution.succeed(session, fencing, [], None, 102.0)
        registry.release_absent(session, 102.0)
        registry.beat(session, TWO, None, 103.0)
    assert state_of(database, "two") == "left"
    with database.write() as session, pytest.raises(Conflict, match="left already"):
        registry.leave(session, "two", 104.0)
    with database.write() as session:
        registry.rejoin(session, "two", 104.0)
    assert state_of(database, "two") == "up"


def test_a_node_that_has_left_rejoins_until_its_process_ends(database: Database) -> None:
    join(database, TWO)
    with database.write() as session:
        assert not registry.let_go(session, "two", TWO.home_id)
        registry.leave(session, "two", 101.0)
        registry.release_absent(session, 101.0)
        assert not registry.let_go(session, "two", "another home")
        registry.rejoin(session, "two", 102.0)
        assert not registry.let_go(session, "two", TWO.home_id)
        registry.leave(session, "two", 103.0)
        registry.release_absent(session, 103.0)
        assert registry.let_go(session, "two", TWO.home_id)
        with pytest.raises(Conflict, match="its process ends; start it again"):
            registry.rejoin(session, "two", 103.5)
        with pytest.raises(Conflict, match="has left"):  # its worker has not stopped yet
            registry.beat(session, TWO, None, 103.5)
    assert state_of(database, "two") == "left"
    join(database, TWO, now=104.0)
    assert state_of(database, "two") == "up"


def test_a_name_is_free_for_its_own_home_and_once_its_node_is_away(database: Database) -> None:
    join(database, ONE)
    with database.read() as session:
        registry.check_name(session, "one", ONE.home_id, 101.0)
        registry.check_name(session, "two", "another home", 101.0)
        with pytest.raises(Conflict, match=r"'one' is already up on one\.lan.*--name"):
            registry.check_name(session, "one", "another home", 101.0)
        registry.check_name(session, "one", "another home", 150.0)


def test_how_long_a_daemon_has_been_up_ages_without_a_word_of_it(database: Database) -> None:
    join(database, ONE)
    with database.write() as session:
        registry.beat(session, ONE, NodeLook({"state": "up", "uptime_s": 8.5}, CAPACITY), 200.0)
        registry.beat(session, ONE, None, 245.0)
        told = session.get_one(NodeRow, "one").report
    assert count_uptime(told, 245.0) == {"state": "up", "uptime_s": 53.5}
    assert count_uptime({"state": "unreachable"}, 245.0) == {"state": "unreachable"}


def test_the_last_worker_of_a_node_leaves_for_it(database: Database) -> None:
    join(database, ONE)
    with database.write() as session:
        beat_service(session, "worker@other", "worker", 4, 100.0, node="one")
        registry.end_worker(session, "one", "worker@one", 101.0)
        assert session.get_one(NodeRow, "one").state == "up"
        registry.end_worker(session, "one", "worker@other", 130.0)
        assert session.get_one(NodeRow, "one").state == "left"


def test_nodes_that_went_long_ago_are_forgotten(database: Database) -> None:
    join(database, ONE, TWO)
    with database.write() as session:
        registry.lose(session, ["two"], 104.0)
        registry.release_absent(session, 100.0 + registry.FORGET_S)
        assert session.get(NodeRow, "two") is not None
        registry.release_absent(session, 101.0 + registry.FORGET_S)
        assert session.get(NodeRow, "two", populate_existing=True) is None


def test_the_only_node_needs_no_name_and_one_of_several_does(database: Database) -> None:
    with database.read() as session, pytest.raises(NotFound, match="no node has joined"):
        registry.find_node(session, "-")
    join(database, ONE)
    with database.read() as session:
        assert registry.find_node(session, "-").name == "one"
    join(database, TWO)
    with database.read() as session:
        with pytest.raises(InvalidArgument, match="name one by --node: one, two"):
            registry.find_node(session, "-")
        with pytest.raises(NotFound, match="expected one, two"):
            registry.find_node(session, "three")


def test_an_order_is_taken_once_and_its_answer_comes_back(database: Database) -> None:
    answered: list[object] = []

    def wake(node: str) -> None:
        assert node == "two"
        with database.write() as session:
            (row,) = take_orders(session, "two", 1.0)
            assert take_orders(session, "two", 1.0) == []
            answered.append((row.operation, row.arguments, row.ordered_by))
            error = NotFound("there is no lease 'x'") if row.operation == "evict" else None
            answer_order(session, row.id, error or {"cordon": {"state": "cordoned"}})

    assert order(database, wake, "two", "cordon", "tok-1", {"component": "/NODE"}, 1.0) == {
        "cordon": {"state": "cordoned"}
    }
    with pytest.raises(NotFound, match="no lease 'x'"):
        order(database, wake, "two", "evict", "tok-1", {"lease": "x"}, 1.0)
    assert answered == [("cordon", {"component": "/NODE"}, "tok-1"), ("evict", {"lease": "x"}, "tok-1")]
    with database.read() as session:
        assert not has_orders(session, "two")


def test_an_attempt_begins_with_the_newest_work_that_can_be_had() -> None:
    kept, lost, here = EarlierAttempt("two", "aa"), EarlierAttempt("two", None), EarlierAttempt("one", None)
    assert choose_work([], "one") is None
    assert choose_work([kept, here], "one") == "aa"
    assert choose_work([here, kept], "one") is None
    assert choose_work([lost, kept], "one") == "aa"
    assert choose_work([lost, here, kept], "one") is None
    assert choose_work([lost, here, kept], "one", has_folder=False) == "aa"
    assert choose_work([lost, EarlierAttempt(None, None), kept], "one") is None


def test_a_home_folder_keeps_its_id(tmp_path: Path) -> None:
    first = read_home_id(tmp_path / "node-id")
    assert len(first) == 32 and read_home_id(tmp_path / "node-id") == first


@pytest.mark.parametrize("text", ["a b", "/x", "-x", "x" * 65, "käse"])
def test_a_name_that_would_not_do_for_a_queue_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 letters"):
        parse_node_name(text)


@pytest.mark.parametrize("text", ["zone", "=a", "zone=a,zone=b", "zone=a b"])
def test_labels_that_are_none_are_refused(text: str) -> None:
    assert parse_labels("zone=a, disk=") == "zone=a, disk="
    with pytest.raises(ValueError, match="KEY=VALUE"):
        parse_labels(text)
