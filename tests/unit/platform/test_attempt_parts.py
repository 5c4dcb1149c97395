"""Attempts with parts on several nodes, on a real database: claimed apart, ended together and once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from rdukit.errors import IllegalValue, LeaseLost
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.jobs import execution, overdue, service
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.fencing import PartPlace, add_parts, lease_of, list_places, read_parts
from rdukit_platform.jobs.fit import check_nodes
from rdukit_platform.jobs.schemas import JobRequest, show_job
from rdukit_platform.nodes.registry import LAPSED, NodeIdentity, NodeLook, beat, is_in_use, join, lose, release_absent
from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.snapshot import read_snapshot
from rdukit_platform.services import beat_service
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.worker.parts import part_of
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("nodes", "jobs")

LEASE_S = 5.0
#: Nodes of two RDUs.
CAPACITY = NodeCapacity(8, 8, 8, rdu_tiles=4, rows=(4, 4), free_rows=(4, 4), free_mask=0xFF)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with fresh_database(tmp_path_factory.mktemp("parts")) as opened:
        with opened.write() as session:
            create_tenant(session, "lab", 0.0)
        yield opened


def submit(session: Session, members: int = 3) -> str:
    """A queued job of members with four tiles each."""
    (tenant,) = session.query(JobRow.tenant_id).limit(1).all() or [(create_tenant(session, "gang", 0.0).id,)]
    request = JobRequest.model_validate({"box": "counter", "verb": "preprocess"})
    job = service.submit_job(session, counter_boxes(), tenant[0], request, 1.0)
    job.tiles, job.members = 4, members
    return job.id


def begin(database: Database) -> list[FencingToken]:
    """The tokens of an attempt at a job, with parts on one, two and three, all claimed."""
    with database.write() as session:
        first = execution.admit(session, submit(session), 2.0, "one")
        tokens = [first, *add_parts(session, first, [PartPlace("two", 1), PartPlace("three", 1)], 2.0)]
    with database.write() as session:
        for token in tokens:
            assert execution.claim(session, token, f"worker@{token.node}", LEASE_S, 3.0, "elsewhere") is None
            assert execution.claim(session, token, f"worker@{token.node}", LEASE_S, 3.0, token.node) is not None
            assert execution.claim(session, token, f"late@{token.node}", LEASE_S, 3.0, token.node) is None
    return tokens


def leases(session: Session) -> dict[str, float]:
    """All leases, as if nobody beat any more."""
    found = overdue.read_open_attempts(session).items()
    return {id: each.lease for id, each in found if each.lease is not None} | overdue.read_part_leases(session)


def test_whichever_part_is_lost_ends_the_attempt_once_and_the_others_notice(database: Database) -> None:
    for lost in range(3):
        tokens = begin(database)
        attempt_id, job_id = tokens[0].attempt_id, tokens[0].job_id
        with database.write() as session:
            found = {lease: at for lease, at in leases(session).items() if lease.startswith(attempt_id)}
            assert len(found) == 3
            others = [token for token in tokens if token.part != lost]
            assert execution.beat(session, others, LEASE_S, 6.0) == []
            assert overdue.expire_attempts(session, found, 1.0, 9.0) == 1
            assert overdue.expire_attempts(session, found, 1.0, 9.0) == 0
            assert execution.beat(session, tokens, LEASE_S, 9.1) == tokens
            attempt, job = session.get_one(AttemptRow, attempt_id), session.get_one(JobRow, job_id)
            assert (attempt.outcome, job.state, job.losses, job.failures) == ("expired", "retrying", 1, 0)
            assert f"worker@{tokens[lost].node}" in str((attempt.error or {})["message"])
            assert read_parts(session, [attempt_id]) == {} and not leases(session)


def test_a_part_may_fail_its_attempt_but_makes_nothing_and_stands_for_no_other(database: Database) -> None:
    first, second, third = begin(database)
    error = {"code": "internal", "message": "member 1 broke"}
    forged = FencingToken(second.job_id, second.attempt_id, first.token, part=1)
    for token in (forged, FencingToken(first.job_id, first.attempt_id, second.token)):
        with pytest.raises(LeaseLost), database.write() as session:
            execution.fail(session, token, AttemptOutcome.BOX_FAILED, error, 1.0, 4.0)
    with pytest.raises(LeaseLost, match="starts nothing"), database.write() as session:
        execution.start(session, second, {}, 4.0)
    with pytest.raises(LeaseLost, match="makes nothing"), database.write() as session:
        execution.succeed(session, second, [], {}, 4.0)
    with database.write() as session:
        execution.hold_tiles(session, third, ["/NODE/RDU_0/TILE_0"])
        execution.tell_address(session, first, "one.lan:7400")
        execution.tell_address(session, third, "three.lan:7401")
        places = list_places(session, session.get_one(AttemptRow, first.attempt_id), 3)
        assert places == [
            PartPlace("one", 1, "one.lan:7400", True), PartPlace("two", 1, None, True),
            PartPlace("three", 1, "three.lan:7401", True),
        ]  # fmt: skip
        parts = [part_of(places, number) for number in range(3)]
        assert [(part.first_rank, part.members, part.world, part.is_first) for part in parts] == [
            (0, 1, 3, True), (1, 1, 3, False), (2, 1, 3, False),
        ]  # fmt: skip
        assert [row.tiles for row in read_parts(session)[first.attempt_id]] == [None, ["/NODE/RDU_0/TILE_0"]]
        execution.fail(session, second, AttemptOutcome.BOX_FAILED, error, 1.0, 4.0)
    for token in (first, third):
        with pytest.raises(LeaseLost), database.write() as session:
            execution.fail(session, token, AttemptOutcome.BOX_FAILED, error, 1.0, 4.1)
    with database.write() as session:
        job = session.get_one(JobRow, first.job_id)
        assert job.failures == 1
        # The first part's worker keeps what there is all the same, until the job has gone on.
        execution.keep_lost(session, first, "digest-1")
        execution.keep_lost(session, second, "digest-2")
        (shown,) = show_job(job, service.list_attempts(session, job.id)).attempts or []
        assert session.get_one(AttemptRow, first.attempt_id).kept == "digest-1"
        assert [(part.node, part.members, part.tiles) for part in shown.parts] == [
            ("two", 1, None), ("three", 1, ["/NODE/RDU_0/TILE_0"]),
        ]  # fmt: skip


def test_a_pause_leaves_the_further_parts_to_the_first_one(database: Database) -> None:
    first, *others = begin(database)
    with database.write() as session:
        assert execution.ask_preemption(session, first.job_id, "job-other", 4.0)
        assert execution.beat(session, [first, *others], LEASE_S, 4.1) == [first]
        execution.fail(session, first, AttemptOutcome.INTERRUPTED, {}, 1.0, 5.0)
        assert execution.beat(session, others, LEASE_S, 5.1) == others
        assert session.get_one(AttemptRow, first.attempt_id).outcome == "preempted"


def test_what_is_decided_is_admitted_and_seen_with_its_parts_and_ends_with_a_node(tmp_path: Path) -> None:
    with fresh_database(tmp_path) as database:
        names = ("one", "two", "old")
        with database.write() as session:
            for name in names:
                node = NodeIdentity(name, f"h-{name}", name, {}, None if name == "old" else f"{name}.lan")
                join(session, node, 90.0)
                beat(session, node, NodeLook({}, CAPACITY), 100.0)
                beat_service(session, f"worker-{name}", "worker", 4, 100.0, node=name)
            job_id = submit(session)
        with database.read() as session:
            decision = decide(read_snapshot(session, 100.0))
        assert [(part.node, part.members) for part in decision.parts[job_id]] in (
            [("one", 2), ("two", 1)], [("two", 2), ("one", 1)],
        )  # fmt: skip
        first_node, second_node = (str(part.node) for part in decision.parts[job_id])
        with database.write() as session:
            first = execution.admit(session, job_id, 100.0, first_node)
            (second,) = add_parts(session, first, [PartPlace(second_node, 1)], 100.0)
            assert overdue.take_unclaimed(session, 5.0, 101.0) == []
            assert {token.part for token in overdue.take_unclaimed(session, 5.0, 106.0)} == {0, 1}
            assert execution.claim(session, first, "w", LEASE_S, 106.0, first_node) is not None
        with database.read() as session:
            (active,) = read_snapshot(session, 107.0).active
            assert [(part.node, part.tiles, part.members) for part in active.parts] == [
                (first_node, 8, 2), (second_node, 4, 1),
            ]  # fmt: skip
            assert is_in_use(session, second_node) and not is_in_use(session, "old")
        with database.write() as session:
            lose(session, [second_node], 108.0)
            release_absent(session, 108.0)
            found = overdue.read_part_leases(session)
            assert found == {f"{second.attempt_id}/1": LAPSED}
            assert [lease_of(row) for row in read_parts(session)[second.attempt_id]] == list(found)
            assert overdue.expire_attempts(session, found, 1.0, 108.0) == 1
            # Nobody had begun the part, so the attempt is as if it had not been.
            assert session.get_one(JobRow, job_id).losses == 0


def test_members_that_linked_nodes_have_together_are_not_refused() -> None:
    check_nodes(4, [CAPACITY] * 3, 4, [CAPACITY] * 2)
    with pytest.raises(IllegalValue, match="the 2 nodes that members may use have room for 4 of them"):
        check_nodes(4, [CAPACITY] * 3, 5, [CAPACITY] * 2)
    with pytest.raises(IllegalValue, match="members of a job run on one node"):
        check_nodes(4, [CAPACITY] * 3, 4, [CAPACITY])
