"""Jobs of one request and admissions of one pass: as if each had come by itself. Webhooks are told of both ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from rdukit.errors import Conflict, IllegalValue, LeaseLost, NotFound, RdukitError
from rdukit_platform.catalog.model import Boxes
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import DeliveryRow, JobRow
from rdukit_platform.jobs import execution, listing, service
from rdukit_platform.jobs.execution import FencingToken, Output
from rdukit_platform.jobs.schemas import JobRequest
from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.webhooks import service as webhooks
from support import shows
from support.platform.processes import fresh_database
from support.platform.worker import BOX, BOXES, batch, facts, request

pytestmark = shows("jobs", "webhooks")

PEF = Output("pef", "pef", "d" * 64, 10, is_folder=False)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def tenant(database: Database) -> str:
    with database.write() as session:
        return create_tenant(session, "lab", 0.0).id


def test_jobs_of_a_batch_are_as_if_each_had_come_by_itself(database: Database, tenant: str) -> None:
    bodies: list[dict[str, Any]] = [{"labels": {"a": "1"}, "priority": 3}, {"run_limit_s": 5.0}, {"deadline_s": 60.0}]
    ids = batch(database, tenant, *(request(**body) for body in bodies))
    for job_id, body in zip(ids, bodies, strict=True):
        with database.write() as session:
            alone = service.submit_job(session, BOXES, tenant, request(**body), 1.0, "ada").id
        assert facts(database, job_id) == facts(database, alone)
    with database.read() as session:
        found = listing.find_jobs(session, tenant, "", None, 50, None, {"a": "1"}).jobs
    assert ids[0] in {job.id for job in found} and ids[1] not in {job.id for job in found}


def test_a_key_gives_the_same_job_in_a_batch_and_before_it(database: Database, tenant: str) -> None:
    (before,) = batch(database, tenant, request(idempotency_key="one"))
    again, new, twice = batch(
        database, tenant, *(request(idempotency_key=key) for key in ("one", "two", "two"))
    )  # fmt: skip
    assert again == before and new == twice != before
    with database.read() as session:
        assert len(listing.find_jobs(session, tenant, "", None, 50, None, {}).jobs) == 2


def test_a_key_gives_its_job_when_the_box_of_that_is_gone(database: Database, tenant: str) -> None:
    known = request(idempotency_key="one")
    (before,) = batch(database, tenant, known)
    with database.write() as session:
        assert service.submit_jobs(session, Boxes({}), tenant, [known], 2.0) == [before]
        with pytest.raises(NotFound, match="counter"):
            service.submit_jobs(session, Boxes({}), tenant, [known, request()], 2.0)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"parameters": {"nothing": 1}}, RdukitError),
        ({"idempotency_key": "one", "name": "another"}, Conflict),
        ({"priority": 1 << 20}, IllegalValue),
    ],
)
def test_a_batch_with_a_wrong_job_is_refused_whole_and_says_which(
    database: Database, tenant: str, wrong: dict[str, Any], error: type[RdukitError]
) -> None:
    batch(database, tenant, request(idempotency_key="one"))
    good, bad = request(), JobRequest.model_construct(**{**request().__dict__, **wrong})
    with pytest.raises(error) as refused:
        batch(database, tenant, good, bad, good)
    assert refused.value.detail["job"] == 1
    with database.read() as session:
        assert len(listing.find_jobs(session, tenant, "", None, 50, None, {}).jobs) == 1


def test_jobs_of_one_pass_are_admitted_but_those_that_are_gone(database: Database, tenant: str) -> None:
    ids = batch(database, tenant, *(request() for _ in range(4)))
    with database.write() as session:
        service.cancel_job(session, session.get_one(JobRow, ids[1]), 2.0)
        alone = execution.admit(session, ids[3], 2.0, "n1")
    with database.write() as session:
        tokens = execution.admit_all(session, {ids[0]: "n1", ids[1]: "n1", ids[2]: "n2", "job-none": "n1"}, 2.0)
        assert execution.admit_all(session, {}, 2.0) == []
    assert [(token.job_id, token.node) for token in tokens] == [(ids[0], "n1"), (ids[2], "n2")]
    assert len({token.token for token in (*tokens, alone)}) == 3
    assert facts(database, ids[0]) == facts(database, ids[3])
    with database.write() as session:
        assert execution.claim(session, tokens[0], "w", 5.0, 3.0, "n1") is not None


def claimed(database: Database, tenant: str) -> FencingToken:
    (job_id,) = batch(database, tenant, request())
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0, "n1")
    with database.write() as session:
        assert execution.claim(session, fencing, "w", 5.0, 3.0, "n1") is not None
    return fencing


def test_a_start_is_written_once_and_not_after_the_end(database: Database, tenant: str) -> None:
    fencing = claimed(database, tenant)
    for at in (4.0, 4.5):
        with database.write() as session:
            execution.start(session, fencing, BOX, at)
    with database.write() as session:
        execution.succeed(session, fencing, [], {"samples": 1}, 5.0)
    with database.write() as session, pytest.raises(LeaseLost):
        execution.start(session, fencing, BOX, 6.0)
    columns, events = facts(database, fencing.job_id)
    assert (columns["state"], columns["started_at"], columns["ended_at"]) == ("succeeded", 4.0, 5.0)
    assert [event["to"] for event in events] == ["submitted", "queued", "starting", "running", "succeeded"]


def test_webhooks_are_told_of_a_start_and_an_end(database: Database, tenant: str) -> None:
    with database.write() as session:
        webhooks.create_webhook(session, tenant, "https://example.org/x", ("job.running", "job.succeeded"), 0.0)
    fencing = claimed(database, tenant)
    with database.write() as session:
        execution.start(session, fencing, BOX, 4.0)
    with database.write() as session:
        made = execution.succeed(session, fencing, [PEF], {"samples": 1}, 5.0)
    with database.read() as session:
        told = session.scalars(select(DeliveryRow).order_by(DeliveryRow.event)).all()
        job = session.get_one(JobRow, fencing.job_id)
    running, ended = (row.body["data"] for row in told)
    assert isinstance(running, dict) and isinstance(ended, dict)
    assert [row.event for row in told] == ["job.running", "job.succeeded"]
    both = {"id": job.id, "attempt": 1, "started_at": 4.0, "error": None, "pipeline": None}
    assert {name: running[name] for name in both} == {name: ended[name] for name in both} == both
    changed = ("state", "reason", "outputs", "result", "ended_at")
    assert [running[name] for name in changed] == ["running", None, {}, None, None]
    assert [ended[name] for name in changed] == ["succeeded", "completed", made, {"samples": 1}, 5.0]
