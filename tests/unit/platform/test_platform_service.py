"""Jobs on a real SQLite database: submit, admit, claim, fence, finish, expire, pipelines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event
from sqlalchemy.orm import Session

from rdukit.errors import Conflict, InvalidArgument, InvalidTransition, LeaseLost, NotFound
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import HEAD, MIGRATIONS, migrate
from rdukit_platform.db.models import ArtifactRow, Base, JobRow
from rdukit_platform.jobs import execution, listing, overdue, pipelines, service
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.changes import apply_event
from rdukit_platform.jobs.execution import FencingToken, Output
from rdukit_platform.jobs.schemas import JobRequest, PipelineRequest, StepRequest
from rdukit_platform.jobs.states import JobEvent, JobReason
from rdukit_platform.tenants.service import create_tenant, hash_token
from rdukit_platform.tenants.tokens import create_token
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("jobs", "pipelines")

BOXES = counter_boxes()
LEASE_S = 5.0
BOX = {"backend": "process", "id": "42", "limits": {}}
ERROR = {"code": "internal", "message": "it broke"}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def tenant(database: Database) -> str:
    with database.write() as session:
        return create_tenant(session, "lab", 0.0).id


def submit(database: Database, tenant: str, now: float = 1.0, **body: object) -> str:
    """A queued preprocess job."""
    with database.write() as session:
        request = JobRequest.model_validate({"box": "counter", "verb": "preprocess", **body})
        job = service.submit_job(session, BOXES, tenant, request, now)
        return job.id


def begin(database: Database, job_id: str, now: float = 2.0) -> FencingToken:
    """Admit, claim and start a job."""
    with database.write() as session:
        fencing = execution.admit(session, job_id, now)
    with database.write() as session:
        assert execution.claim(session, fencing, "worker-1", LEASE_S, now) is not None
        execution.start(session, fencing, BOX, now)
    return fencing


def read(database: Database, job_id: str) -> JobRow:
    with database.read() as session:
        row = session.get(JobRow, job_id)
    assert row is not None
    return row


def test_the_migrations_make_the_tables_that_the_code_expects(database: Database) -> None:
    with database.read() as session:
        context = MigrationContext.configure(session.connection())
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == HEAD
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [HEAD]


def test_jobs_of_one_state_are_found_without_reading_the_others(database: Database, tenant: str) -> None:
    asked: list[tuple[str, Any]] = []
    event.listen(database.engine, "before_cursor_execute", lambda *found: asked.append((found[2], found[3])))
    with database.read() as session:
        listing.list_jobs(session, tenant, "running")
        statement, parameters = asked[-1]
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    assert "tenant_id=? AND state=?" in str(plan)


def test_migrating_again_changes_nothing(database: Database) -> None:
    assert not migrate(database)


def test_a_message_is_claimed_once(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0)
    with database.write() as session:
        assert execution.claim(session, fencing, "worker-1", LEASE_S, 3.0) is not None
        assert execution.claim(session, fencing, "worker-2", LEASE_S, 3.0) is None
        forged = FencingToken(fencing.job_id, fencing.attempt_id, "guessed")
        assert execution.claim(session, forged, "worker-3", LEASE_S, 3.0) is None


def test_who_lost_its_lease_changes_nothing(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    old = begin(database, job_id)
    with database.write() as session:
        assert overdue.expire_attempts(session, silent(session), 1.0, 2.0 + LEASE_S + 0.1) == 1
        assert overdue.queue_due_jobs(session, 9.0) == 1
    new = begin(database, job_id, 10.0)
    output = Output("dataset", "dataset", "0" * 64, 3, True)
    with pytest.raises(LeaseLost), database.write() as session:
        execution.succeed(session, old, [output], {}, 11.0)
    with database.write() as session:
        assert execution.beat(session, [old, new], LEASE_S, 11.0) == [old]
        execution.succeed(session, new, [output], {"n": 1}, 12.0)
    job = read(database, job_id)
    assert (job.state, job.reason, job.attempt) == ("succeeded", "completed", 2)
    # A lost worker is none of the job's failures.
    assert (job.failures, job.losses) == (0, 1)
    with database.read() as session:
        assert session.query(ArtifactRow).count() == 1
    with pytest.raises(LeaseLost), database.write() as session:
        execution.succeed(session, new, [output], {}, 13.0)


def silent(session: Session) -> dict[str, float]:
    """All open attempts, as if their workers did not beat any more."""
    found = overdue.read_open_attempts(session)
    return {id: attempt.lease for id, attempt in found.items() if attempt.lease is not None}


def test_a_lease_that_is_beaten_after_it_was_found_silent_does_not_expire(database: Database, tenant: str) -> None:
    fencing = begin(database, submit(database, tenant), 2.0)
    with database.write() as session:
        found = silent(session)
        assert execution.beat(session, [fencing], LEASE_S, 6.0) == []
        assert overdue.expire_attempts(session, found, 1.0, 10.0) == 0
        assert overdue.expire_attempts(session, silent(session), 1.0, 11.1) == 1


def test_a_lease_that_is_beaten_while_the_job_is_locked_does_not_expire(
    database: Database, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fencing = begin(database, submit(database, tenant), 2.0)
    lock_job = execution.lock_job

    def beat_before(session: Session, job_id: str) -> JobRow:
        execution.beat(session, [fencing], LEASE_S, 10.0)
        return lock_job(session, job_id)

    monkeypatch.setattr(overdue, "lock_job", beat_before)
    with database.write() as session:
        assert overdue.expire_attempts(session, silent(session), 1.0, 10.0) == 0


def test_a_clock_that_is_set_back_prolongs_no_pause(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id, 10_000.0)
    with database.write() as session:
        execution.fail(session, fencing, AttemptOutcome.BOX_LOST, ERROR, 1.0, 10_000.0)
        assert overdue.queue_due_jobs(session, 10_000.5) == 0
        assert overdue.queue_due_jobs(session, 2_000.0) == 1
        admitted = execution.admit(session, job_id, 10_000.0)
        assert overdue.take_unclaimed(session, 5.0, 10_001.0) == []
        assert overdue.take_unclaimed(session, 5.0, 2_000.0) == [admitted]
        assert overdue.take_unclaimed(session, 5.0, 2_001.0) == []


def test_retries_stop_at_the_cap(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant, max_attempts=2)
    for now in (10.0, 20.0):
        fencing = begin(database, job_id, now)
        with database.write() as session:
            execution.fail(session, fencing, AttemptOutcome.BOX_LOST, ERROR, 1.0, now + 1)
            overdue.queue_due_jobs(session, now + 5)
    job = read(database, job_id)
    assert (job.state, job.reason, job.error) == ("failed", "attempts-exhausted", ERROR)


def test_a_job_whose_attempts_are_lost_again_and_again_has_an_end(
    database: Database, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_JOB_MAX_LOSSES", "2")
    job_id = submit(database, tenant, max_attempts=1)
    for now in (10.0, 20.0):
        begin(database, job_id, now)
        with database.write() as session:
            assert overdue.expire_attempts(session, silent(session), 1.0, now + LEASE_S + 1) == 1
            overdue.queue_due_jobs(session, now + LEASE_S + 3)
    job = read(database, job_id)
    assert (job.state, job.reason, job.failures, job.losses) == ("failed", "attempts-exhausted", 0, 2)


def test_a_retry_waits_for_its_time(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id)
    with database.write() as session:
        execution.fail(session, fencing, AttemptOutcome.BOX_LOST, ERROR, 4.0, 10.0)
        assert overdue.queue_due_jobs(session, 13.9) == 0
        assert overdue.queue_due_jobs(session, 14.0) == 1


def test_a_retried_job_keeps_the_time_of_its_first_start(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id, 2.0)
    with database.write() as session:
        execution.fail(session, fencing, AttemptOutcome.BOX_LOST, ERROR, 4.0, 10.0)
        assert overdue.queue_due_jobs(session, 14.0) == 1
    begin(database, job_id, 15.0)
    job = read(database, job_id)
    assert (job.state, job.attempt, job.started_at) == ("running", 2, 2.0)


def test_an_attempt_that_found_no_tiles_does_not_count(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0)
        execution.claim(session, fencing, "worker-1", LEASE_S, 2.0)
        execution.fail(session, fencing, AttemptOutcome.NO_RESOURCES, ERROR, 1.0, 3.0)
    job = read(database, job_id)
    assert (job.state, job.failures, job.not_before) == ("queued", 0, 4.0)


def test_an_unclaimed_message_is_sent_again_after_a_while(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0)
        assert overdue.take_unclaimed(session, 5.0, 6.0) == []
        assert overdue.take_unclaimed(session, 5.0, 8.0) == [fencing]
        assert overdue.take_unclaimed(session, 5.0, 9.0) == []


@pytest.mark.parametrize("stage", ["queued", "starting", "running", "retrying"])
def test_a_job_is_cancelled_in_any_state_and_its_worker_finds_out(database: Database, tenant: str, stage: str) -> None:
    job_id = submit(database, tenant)
    fencing = None
    if stage != "queued":
        with database.write() as session:
            fencing = execution.admit(session, job_id, 2.0)
            execution.claim(session, fencing, "worker-1", LEASE_S, 2.0)
            if stage in {"running", "retrying"}:
                execution.start(session, fencing, BOX, 2.0)
            if stage == "retrying":
                execution.fail(session, fencing, AttemptOutcome.BOX_LOST, ERROR, 1.0, 3.0)
    assert read(database, job_id).state == stage
    with database.write() as session:
        job = service.get_job(session, tenant, job_id, is_locked=True)
        service.cancel_job(session, job, 4.0)
    assert (read(database, job_id).state, read(database, job_id).reason) == ("cancelled", "cancelled-by-user")
    if fencing is not None:
        with database.write() as session:
            assert execution.beat(session, [fencing], LEASE_S, 5.0) == [fencing]
        with pytest.raises(LeaseLost), database.write() as session:
            execution.fail(session, fencing, AttemptOutcome.BOX_LOST, ERROR, 1.0, 5.0)


def test_cancelling_what_has_ended_says_how_it_ended(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id)
    with database.write() as session:
        execution.succeed(session, fencing, [], {}, 3.0)
    with pytest.raises(InvalidTransition, match="succeeded"), database.write() as session:
        service.cancel_job(session, service.get_job(session, tenant, job_id), 4.0)


def test_a_change_over_an_old_version_is_refused(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    stale = read(database, job_id)
    with database.write() as session:
        service.cancel_job(session, service.get_job(session, tenant, job_id), 4.0)
    with pytest.raises(Conflict), database.write() as session:
        apply_event(session, stale, JobEvent.CANCEL, 5.0, JobReason.CANCELLED_BY_USER)


def test_state_and_event_are_written_together_or_not_at_all(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    with database.read() as session:
        before = len(service.list_events(session, job_id))

    def admit_and_die() -> None:
        with database.write() as session:
            execution.admit(session, job_id, 2.0)
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        admit_and_die()
    assert (read(database, job_id).state, read(database, job_id).attempt) == ("queued", 0)
    with database.read() as session:
        assert len(service.list_events(session, job_id)) == before


def test_a_key_gives_the_same_job_and_refuses_another_request(database: Database, tenant: str) -> None:
    first = submit(database, tenant, idempotency_key="k")
    assert submit(database, tenant, idempotency_key="k") == first
    with pytest.raises(Conflict, match="new key"):
        submit(database, tenant, idempotency_key="k", inputs={"data": "art-1"})


def test_a_pipeline_runs_in_the_order_of_its_references(database: Database, tenant: str) -> None:
    steps = [
        StepRequest(name="prepare", box="counter", verb="preprocess"),
        StepRequest(name="learn", box="counter", verb="train", inputs={"dataset": "@prepare.dataset"}),
    ]
    with database.write() as session:
        _, jobs = pipelines.submit_pipeline(session, BOXES, tenant, PipelineRequest(name="p", steps=steps), 1.0)
        first, second = (job.id for job in jobs)
    assert read(database, second).state == "submitted"
    fencing = begin(database, first)
    with database.write() as session:
        made = execution.succeed(session, fencing, [Output("dataset", "dataset", "0" * 64, 3, True)], {}, 3.0)
    job = read(database, second)
    assert (job.state, job.inputs) == ("queued", made)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"dataset": "@later.dataset"}, "no step before it is called 'later'"),
        ({"dataset": "@prepare.model"}, "has the outputs dataset"),
        ({"dataset": "@prepare"}, "is not a reference"),
        ({}, "lacks the inputs dataset"),
        ({"dataset": "@prepare.dataset", "pef": "@prepare.dataset"}, "has no input 'pef'"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_whole(
    database: Database, tenant: str, inputs: dict[str, str], message: str
) -> None:
    steps = [
        StepRequest(name="prepare", box="counter", verb="preprocess"),
        StepRequest(name="learn", box="counter", verb="train", inputs=inputs),
        StepRequest(name="later", box="counter", verb="preprocess"),
    ]
    with pytest.raises(InvalidArgument, match=message), database.write() as session:
        pipelines.submit_pipeline(session, BOXES, tenant, PipelineRequest(name="p", steps=steps), 1.0)
    with database.read() as session:
        assert session.query(JobRow).count() == 0


def test_another_tenants_job_is_not_found(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    with database.write() as session:
        other = create_tenant(session, "other", 0.0).id
        with pytest.raises(NotFound):
            service.get_job(session, other, job_id)
        assert listing.list_jobs(session, other) == ([], None)


def test_another_tenants_job_is_not_locked_before_it_is_not_found(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    locked = []

    def notice(connection: object, statement: object, *more: object) -> None:
        if getattr(statement, "_for_update_arg", None) is not None:
            locked.append(str(statement))

    event.listen(database.engine, "before_execute", notice)
    with database.read() as session:
        with pytest.raises(NotFound, match="list yours"):
            service.get_job(session, "tenant-0", job_id, is_locked=True)
        with pytest.raises(NotFound, match="list yours"):
            service.get_job(session, tenant, "job-0", is_locked=True)
        assert locked == []
        assert service.get_job(session, tenant, job_id, is_locked=True).id == job_id
    assert locked


def test_a_token_is_kept_as_its_hash_only(database: Database, tenant: str) -> None:
    with database.write() as session:
        row, text = create_token(session, tenant, "ci", ["read"], 1.0)
        assert row.sha256 == hash_token(text)
        with pytest.raises(InvalidArgument, match="expected read, write, admin"):
            create_token(session, tenant, "ci", ["root"], 1.0)
    with database.read() as session:
        dumped = "".join(session.connection().connection.driver_connection.iterdump())  # type: ignore[union-attr]
    assert text not in dumped
