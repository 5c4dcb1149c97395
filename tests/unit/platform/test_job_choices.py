"""Priorities, run limits and labels of jobs: what is legal, what is kept, and what becomes of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from pydantic import ValidationError
from sqlalchemy import text

from rdukit.errors import Conflict, IllegalValue, InvalidArgument, LeaseLost
from rdukit_platform.cli import show
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import MIGRATIONS
from rdukit_platform.db.models import JobRow, TenantRow
from rdukit_platform.jobs import execution, listing, overdue, pipelines, service
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.schemas import MAX_LABELS, JobRequest, PipelineRequest, StepRequest, show_job
from rdukit_platform.tenants.service import create_tenant
from support import FakeClock, shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("jobs", "scheduler")

BOXES = counter_boxes()
CHOICES: dict[str, object] = {"priority": 7, "run_limit_s": 60.0, "labels": {"project": "genes", "a/b.c": "é x"}}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def tenant(database: Database) -> str:
    with database.write() as session:
        return create_tenant(session, "lab", 0.0).id


def request(**body: object) -> JobRequest:
    return JobRequest.model_validate({"box": "counter", "verb": "preprocess", **body})


def submit(database: Database, tenant: str, **body: object) -> str:
    with database.write() as session:
        return service.submit_job(session, BOXES, tenant, request(**body), 1.0).id


def begin(database: Database, job_id: str, claimed_at: float) -> FencingToken:
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0)
        execution.claim(session, fencing, "worker-1", 1e6, claimed_at)
    return fencing


def read(database: Database, job_id: str) -> JobRow:
    with database.read() as session:
        return session.get_one(JobRow, job_id)


def test_what_a_request_chooses_is_kept_and_shown(database: Database, tenant: str) -> None:
    shown = show_job(read(database, submit(database, tenant, **CHOICES))).model_dump()
    assert {name: shown[name] for name in CHOICES} == CHOICES
    plain = show_job(read(database, submit(database, tenant)))
    assert (plain.priority, plain.run_limit_s, plain.labels) == (0, None, {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 101}, {"priority": -101}, {"priority": 1.5}, {"run_limit_s": 0}, {"run_limit_s": float("inf")},
        {"labels": {"Big": "x"}}, {"labels": {"": "x"}}, {"labels": {"a" * 64: "x"}}, {"labels": {"-a": "x"}},
        {"labels": {"a": "x" * 129}}, {"labels": {"a": "nul\x00"}}, {"labels": {"a": 1}},
        {"labels": {f"k{i}": "" for i in range(MAX_LABELS + 1)}},
    ],
)  # fmt: skip
def test_what_is_not_legal_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        request(**wrong)
    with pytest.raises(ValidationError):
        StepRequest.model_validate({"name": "s", "box": "counter", "verb": "preprocess", **wrong})


def test_the_operator_says_how_high_priorities_go(
    database: Database, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_JOB_MAX_PRIORITY", "0")
    with pytest.raises(IllegalValue, match=r"priority is 1; expected -100 to 0 \(job.max_priority\)"):
        submit(database, tenant, priority=1)
    assert read(database, submit(database, tenant, priority=-1)).priority == -1


def test_the_steps_of_a_pipeline_choose_each_for_itself(database: Database, tenant: str) -> None:
    steps = [
        StepRequest.model_validate({"name": "a", "box": "counter", "verb": "preprocess", **CHOICES}),
        StepRequest(name="b", box="counter", verb="preprocess", labels={"step": "b"}),
    ]
    body = PipelineRequest(name="p", steps=steps, idempotency_key="k")
    with database.write() as session:
        _, jobs = pipelines.submit_pipeline(session, BOXES, tenant, body, 1.0)
        assert [(job.priority, job.run_limit_s) for job in jobs] == [(7, 60.0), (0, None)]
        assert jobs[1].labels == {"step": "b"}
        again, _ = pipelines.submit_pipeline(session, BOXES, tenant, body, 2.0)
        assert again.id == jobs[0].pipeline_id


@pytest.mark.parametrize("change", [{"priority": 8}, {"run_limit_s": None}, {"labels": {}}])
def test_a_key_belongs_to_a_request_with_its_choices(
    database: Database, tenant: str, change: dict[str, object]
) -> None:
    first = submit(database, tenant, idempotency_key="k", **CHOICES)
    assert submit(database, tenant, idempotency_key="k", **CHOICES) == first
    with pytest.raises(Conflict, match="new key"):
        submit(database, tenant, idempotency_key="k", **{**CHOICES, **change})


def test_jobs_are_found_by_all_of_their_labels(
    database: Database, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = submit(database, tenant, labels={"a/b.c": "x", "k": "1"})
    submit(database, tenant, labels={"a/b.c": "y", "k": "1"})
    submit(database, tenant, labels={"k": "x"})
    submit(database, tenant)

    def found(*texts: str, state: str | None = None) -> list[str]:
        with database.read() as session:
            rows, _ = listing.list_jobs(session, tenant, state, labels=service.read_labels(texts))
        return [row.id for row in rows]

    assert found("a/b.c=x", "k=1") == found("a/b.c=x") == [both]
    assert len(found("k=1")) == 2
    assert found("a/b.c=") == found("none=1") == []
    assert len(found("k=1", state="queued")) == 2 and not found("k=1", state="running")
    # The same where labels are of many jobs: then the state's index is followed.
    monkeypatch.setattr(listing, "RARE", 1)
    assert len(found("k=1", state="queued")) == 2 and found("a/b.c=x", "k=1", state="queued") == [both]


def test_pages_of_labelled_jobs_go_on_where_the_one_before_ended(database: Database, tenant: str) -> None:
    ids = {submit(database, tenant, labels={"k": "1"}) for _ in range(5)}
    pages, cursor = list[str](), None
    while len(pages) < 5:
        with database.read() as session:
            rows, cursor = listing.list_jobs(session, tenant, limit=2, cursor=cursor, labels={"k": "1"})
        pages += [row.id for row in rows]
    assert (len(pages), set(pages), cursor) == (5, ids, None)


@pytest.mark.parametrize("wrong", ["", "k", "=v", "K=v", '"]=1', "a b=c"])
def test_a_text_that_is_no_label_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match="expected KEY=VALUE"):
        service.read_labels([wrong])


@pytest.mark.parametrize("is_running", [False, True])
def test_a_job_that_exceeds_its_run_limit_fails_for_good_and_its_worker_finds_out(
    database: Database, tenant: str, is_running: bool
) -> None:
    job_id = submit(database, tenant, run_limit_s=60.0)
    fencing = begin(database, job_id, claimed_at=10.0)
    with database.write() as session:
        if is_running:
            execution.start(session, fencing, {}, 20.0)
        assert overdue.end_overruns(session, [], 70.0) == 0
        assert overdue.end_overruns(session, [fencing.attempt_id], 70.1) == 1
        assert overdue.end_overruns(session, [fencing.attempt_id], 70.2) == 0
    job = read(database, job_id)
    assert (job.state, job.reason, job.failures) == ("failed", "run-limit-exceeded", 1)
    assert job.error == {"code": "deadline-exceeded", "message": "it took longer than its run limit of 60 s"}
    with database.write() as session:
        assert execution.beat(session, [fencing], 5.0, 71.0) == [fencing]
    with pytest.raises(LeaseLost), database.write() as session:
        execution.succeed(session, fencing, [], {}, 71.0)


def test_each_attempt_has_the_whole_run_limit_and_who_has_none_runs_on(database: Database, tenant: str) -> None:
    again, endless = submit(database, tenant, run_limit_s=60.0), submit(database, tenant)
    fencing = begin(database, again, claimed_at=10.0)
    other = begin(database, endless, claimed_at=10.0)
    with database.write() as session:
        execution.fail(session, fencing, AttemptOutcome.NO_RESOURCES, {"code": "no-resources"}, 1.0, 60.0)
    late = [fencing.attempt_id, other.attempt_id]
    fencing = begin(database, again, claimed_at=65.0)
    with database.write() as session:
        assert overdue.read_open_attempts(session)[fencing.attempt_id].claimed_at == 65.0
        assert overdue.end_overruns(session, late, 100.0) == 0
    assert {read(database, job_id).state for job_id in (again, endless)} == {"starting"}


def test_the_end_of_a_step_by_its_run_limit_ends_what_waits_for_it(database: Database, tenant: str) -> None:
    steps = [
        StepRequest(name="prepare", box="counter", verb="preprocess", run_limit_s=5.0),
        StepRequest(name="learn", box="counter", verb="train", inputs={"dataset": "@prepare.dataset"}),
    ]
    with database.write() as session:
        _, jobs = pipelines.submit_pipeline(session, BOXES, tenant, PipelineRequest(name="p", steps=steps), 1.0)
        first, second = (job.id for job in jobs)
    waiting = show_job(read(database, second))
    assert waiting.wait_code == "Dependency"
    assert waiting.waits_for == "earlier steps have not all ended: prepare"
    fencing = begin(database, first, claimed_at=10.0)
    with database.write() as session:
        overdue.end_overruns(session, [fencing.attempt_id], 100.0)
    assert (read(database, second).state, read(database, second).reason) == ("cancelled", "upstream-ended")


def test_a_job_that_is_tried_again_waits_for_its_time(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id, claimed_at=3.0)
    with database.write() as session:
        execution.start(session, fencing, {}, 3.0)
        execution.fail(session, fencing, AttemptOutcome.BOX_LOST, {"code": "internal"}, 2.0, 4.0)
    shown = show_job(read(database, job_id))
    assert (shown.state, shown.wait_code, shown.estimated_start) == ("retrying", "BeginTime", 6.0)


def test_why_a_job_waits_is_said_in_a_code_a_sentence_and_a_time(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    told = {**show_job(read(database, job_id)).model_dump(), "wait_code": "Resources", "waits_for": "no tiles"}
    assert show.describe_wait(told) == [("state", "queued"), ("code", "Resources"), ("why", "no tiles")]
    name, words = show.describe_wait({**told, "estimated_start": 1e9})[-1]
    assert (name, words[:22]) == ("starts", "by 2001-09-09 01:46:40")
    error = {"code": "deadline-exceeded", "message": "it took too long"}
    ended = {**told, "state": "failed", "wait_code": None, "reason": "run-limit-exceeded", "error": error}
    assert show.describe_wait(ended) == [("state", "failed"), ("why", "run-limit-exceeded: it took too long")]
    assert show.describe_wait({**told, "wait_code": None, "waits_for": None, "state": "running"})[-1][0] == "why"


def test_jobs_and_tenants_of_the_schema_before_get_the_usual_choices(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'db.sqlite'}")
    move(database, command.upgrade, "0007")
    with database.write_connection() as connection:
        connection.execute(text("INSERT INTO tenants (id, name, created_at) VALUES ('t', 'lab', 0)"))
        connection.execute(text(
            "INSERT INTO jobs (id, tenant_id, name, box, verb, parameters, inputs, outputs, tiles, max_attempts, "
            "state, version, attempt, failures, created_at) "
            "VALUES ('j', 't', 'n', 'b', 'train', '{}', '{}', '{}', 1, 1, 'queued', 0, 0, 0, 0)"
        ))  # fmt: skip
    move(database, command.upgrade, "0008")
    move(database, command.downgrade, "0007")
    move(database, command.upgrade, "head")
    job = read(database, "j")
    assert (job.priority, job.run_limit_s, job.labels, job.wait_code) == (0, None, {}, None)
    with database.read() as session:
        assert session.get_one(TenantRow, "t").weight == 1.0
    database.close()


def move(database: Database, step: Callable[[Config, str], None], revision: str) -> None:
    with database.write_connection() as connection:
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        step(config, revision)


def test_counts_that_took_long_are_kept_for_a_while_and_others_are_not(database: Database, tenant: str) -> None:
    class SlowClock(FakeClock):
        took_s = 0.0

        def monotonic(self) -> float:
            self.advance(self.took_s)
            return super().monotonic()

    clock, counts = SlowClock(), listing.JobCounts()

    def count() -> dict[str, int]:
        with database.read() as session:
            return dict(counts.read(session, tenant, clock))

    for number in (1, 2):
        submit(database, tenant)
        assert count() == {"queued": number}
    clock.took_s = 0.1
    assert count() == {"queued": 2}
    submit(database, tenant)
    assert count() == {"queued": 2}
    clock.advance(5.0)
    assert count() == {"queued": 3}
