"""Deadlines, pauses and retry policies of jobs: what is legal, what is kept, and what becomes of them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from pydantic import ValidationError

from rdukit.errors import Conflict, IllegalValue, InvalidTransition, LeaseLost
from rdukit_platform.cli import show
from rdukit_platform.cli.job_control import Deadline
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import AttemptRow, JobRow
from rdukit_platform.jobs import execution, overdue, pipelines, service
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.changes import lock_job
from rdukit_platform.jobs.clone import clone_request
from rdukit_platform.jobs.execution import FencingToken
from rdukit_platform.jobs.schemas import CloneRequest, JobRequest, PipelineRequest, StepRequest, show_job
from rdukit_platform.jobs.service import list_attempts
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("jobs")

BOXES = counter_boxes()


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


def submit(database: Database, tenant: str, now: float = 1.0, **body: object) -> str:
    with database.write() as session:
        return service.submit_job(session, BOXES, tenant, request(**body), now).id


def begin(database: Database, job_id: str, *, is_claimed: bool = True, is_running: bool = False) -> FencingToken:
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0)
        if is_claimed:
            execution.claim(session, fencing, "worker-1", 1e6, 3.0)
        if is_running:
            execution.start(session, fencing, {}, 4.0)
    return fencing


def read(database: Database, job_id: str) -> JobRow:
    with database.read() as session:
        return session.get_one(JobRow, job_id)


def attempts(database: Database, job_id: str) -> list[AttemptRow]:
    with database.read() as session:
        return list(list_attempts(session, job_id))


def change(database: Database, job_id: str, act: str, now: float = 5.0) -> str:
    with database.write() as session:
        return {"pause": service.pause_job, "resume": service.resume_job, "cancel": service.cancel_job}[act](
            session, lock_job(session, job_id), now
        ).state


def end_late(database: Database, now: float) -> int:
    with database.write() as session:
        return overdue.end_late_jobs(session, now)


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline_s": 0}, {"deadline_s": float("inf")}, {"deadline_s": 5, "deadline": "2026-11-30T08:00Z"},
        {"deadline": "2026-11-30T08:00"}, {"deadline": "tomorrow"}, {"retry": {"on": ["box-eaten"]}},
        {"retry": {"on": ["cancelled-by-user"]}}, {"retry": {"backoff_s": -1}}, {"retry": {"times": 3}},
    ],
)  # fmt: skip
def test_what_is_not_legal_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        request(**wrong)


def test_what_to_retry_on_is_listed_where_it_is_wrong() -> None:
    with pytest.raises(
        ValidationError,
        match="expected box-failed, box-killed, box-lost, box-slow, disk-full, expired, node-failed, and error",
    ):
        request(retry={"on": ["box-eaten"]})


def test_the_command_says_both_ways_of_a_deadline_where_it_is_neither() -> None:
    for wrong in ("yesterday", "2026-13-01T08:00Z"):
        with pytest.raises(click.BadParameter, match=r"expected a value such as 2h or 2026-11-30T08:00Z"):
            Deadline().convert(wrong, None, None)
    assert Deadline().convert("2h", None, None) == {"deadline_s": 7200.0}


def test_a_deadline_is_a_time_or_a_length_of_time(database: Database, tenant: str) -> None:
    at = datetime(2030, 1, 1, 8, tzinfo=UTC).timestamp()
    named = read(database, submit(database, tenant, deadline="2030-01-01T09:00+01:00", run_limit_s=60.0))
    assert (named.deadline_at, named.start_by) == (at, at - 60.0)
    shown = show_job(read(database, submit(database, tenant, now=10.0, deadline_s=30.0)))
    assert shown.deadline_at == 40.0
    assert show_job(read(database, submit(database, tenant))).deadline_at is None


def test_a_deadline_that_cannot_be_kept_is_refused(database: Database, tenant: str) -> None:
    with pytest.raises(IllegalValue, match="has passed"):
        submit(database, tenant, now=2e9, deadline="2026-11-30T08:00Z")
    with pytest.raises(IllegalValue, match="expected a run limit of 30 s at most, or a later deadline"):
        submit(database, tenant, run_limit_s=60.0, deadline_s=30.0)
    steps = [StepRequest(name="a", box="counter", verb="preprocess", run_limit_s=60.0, deadline_s=30.0)]
    with pytest.raises(IllegalValue, match="run limit of 30 s"), database.write() as session:
        pipelines.submit_pipeline(session, BOXES, tenant, PipelineRequest(name="p", steps=steps), 1.0)


def test_a_key_belongs_to_a_request_with_its_deadline_and_policy(database: Database, tenant: str) -> None:
    body: dict[str, object] = {"deadline_s": 30.0, "retry": {"on": ["box-lost"]}, "idempotency_key": "k"}
    first = submit(database, tenant, now=1.0, **body)
    assert submit(database, tenant, now=20.0, **body) == first
    for other in ({"deadline_s": 31.0}, {"retry": None}):
        with pytest.raises(Conflict, match="new key"):
            submit(database, tenant, now=20.0, **{**body, **other})


@pytest.mark.parametrize("how", ["queued", "paused", "retrying"])
def test_who_waits_fails_as_soon_as_its_run_limit_comes_after_its_deadline(
    database: Database, tenant: str, how: str
) -> None:
    late = submit(database, tenant, run_limit_s=60.0, deadline_s=100.0)
    open_end, no_limit = submit(database, tenant), submit(database, tenant, deadline_s=100.0)
    if how == "paused":
        change(database, late, "pause")
    if how == "retrying":
        fencing = begin(database, late, is_running=True)
        with database.write() as session:
            execution.fail(session, fencing, AttemptOutcome.BOX_LOST, {"code": "internal"}, 500.0, 5.0)
    assert read(database, late).state == how
    assert end_late(database, 41.0) == 0
    assert end_late(database, 41.1) == 1
    job = read(database, late)
    assert (job.state, job.reason, job.ended_at) == ("failed", "deadline-exceeded", 41.1)
    assert job.error is not None
    assert "run limit of 60 s would end after its deadline, 1970-01-01 00:01:41 UTC" in str(job.error["message"])
    assert show_job(job).advice is not None
    assert "--deadline" in str(show_job(job).advice)
    assert end_late(database, 101.1) == 1
    assert "had not started by its deadline" in str((read(database, no_limit).error or {})["message"])
    assert end_late(database, 1e9) == 0
    assert read(database, open_end).state == "queued"


@pytest.mark.parametrize("is_running", [False, True])
def test_an_attempt_that_is_not_done_by_the_deadline_is_ended_and_its_worker_finds_out(
    database: Database, tenant: str, is_running: bool
) -> None:
    job_id = submit(database, tenant, run_limit_s=60.0, deadline_s=100.0)
    fencing = begin(database, job_id, is_running=is_running)
    assert end_late(database, 101.0) == 0
    assert end_late(database, 101.1) == 1
    assert (read(database, job_id).state, read(database, job_id).reason) == ("failed", "deadline-exceeded")
    assert [attempt.outcome for attempt in attempts(database, job_id)] == ["deadline-exceeded"]
    with pytest.raises(LeaseLost), database.write() as session:
        execution.succeed(session, fencing, [], {}, 102.0)


def test_the_end_of_a_step_by_its_deadline_ends_what_waits_for_it(database: Database, tenant: str) -> None:
    steps = [
        StepRequest(name="prepare", box="counter", verb="preprocess", deadline_s=5.0),
        StepRequest(name="learn", box="counter", verb="train", inputs={"dataset": "@prepare.dataset"}),
    ]
    with database.write() as session:
        _, jobs = pipelines.submit_pipeline(session, BOXES, tenant, PipelineRequest(name="p", steps=steps), 1.0)
        second = jobs[1].id
    end_late(database, 7.0)
    assert (read(database, second).state, read(database, second).reason) == ("cancelled", "upstream-ended")
    error = read(database, second).error
    assert error is not None and "no job of step 'prepare' has made 'dataset'" in str(error["message"])


def test_what_is_queued_is_held_and_goes_on_when_it_is_resumed(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    assert change(database, job_id, "pause") == change(database, job_id, "pause") == "paused"
    shown = show_job(read(database, job_id))
    assert (shown.wait_code, shown.waits_for) == (
        "JobHeldUser", f"it is paused; resume it with: rdukit job resume {job_id}",
    )  # fmt: skip
    with pytest.raises(InvalidTransition), database.write() as session:
        execution.admit(session, job_id, 6.0)
    assert change(database, job_id, "resume") == change(database, job_id, "resume") == "queued"
    begin(database, job_id, is_running=True)


def test_an_attempt_that_nobody_has_is_paused_at_once(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id, is_claimed=False)
    assert change(database, job_id, "pause") == "paused"
    with database.write() as session:
        assert execution.claim(session, fencing, "worker-1", 8.0, 6.0) is None
    assert [attempt.outcome for attempt in attempts(database, job_id)] == ["paused"]


@pytest.mark.parametrize("is_running", [False, True])
def test_the_worker_of_a_job_to_pause_is_told_and_ends_its_attempt(
    database: Database, tenant: str, is_running: bool
) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id, is_running=is_running)
    with database.write() as session:
        assert execution.beat(session, [fencing], 8.0, 4.0) == []
    before = "running" if is_running else "starting"
    assert change(database, job_id, "pause") == change(database, job_id, "pause") == before
    assert read(database, job_id).waits_for == "it is being paused: its attempt ends"
    with database.write() as session:
        assert execution.beat(session, [fencing], 8.0, 6.0) == [fencing]
    with database.write() as session:
        why = {"code": "unavailable", "message": "the worker was stopped"}
        execution.fail(session, fencing, AttemptOutcome.INTERRUPTED, why, 1.0, 7.0)
    job = read(database, job_id)
    assert (job.state, job.failures, job.losses, job.waits_for) == ("paused", 0, 0, None)
    assert [(a.outcome, a.error) for a in attempts(database, job_id)] == [("paused", None)]
    assert change(database, job_id, "resume") == "queued"


def test_a_worker_that_dies_over_a_pause_leaves_the_job_paused(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    with database.write() as session:
        fencing = execution.admit(session, job_id, 2.0)
        execution.claim(session, fencing, "worker-1", 8.0, 3.0)
        execution.start(session, fencing, {}, 4.0)
    change(database, job_id, "pause")
    with database.write() as session:
        silent = {id: attempt.lease or 0.0 for id, attempt in overdue.read_open_attempts(session).items()}
        assert overdue.expire_attempts(session, silent, 1.0, 20.0) == 1
    assert read(database, job_id).state == "paused"
    assert [attempt.outcome for attempt in attempts(database, job_id)] == ["expired"]


def test_what_ends_by_itself_before_the_pause_has_ended(database: Database, tenant: str) -> None:
    done, wrong = submit(database, tenant), submit(database, tenant)
    tokens = [begin(database, job_id, is_running=True) for job_id in (done, wrong)]
    for job_id in (done, wrong):
        change(database, job_id, "pause")
    with database.write() as session:
        execution.succeed(session, tokens[0], [], {}, 6.0)
        execution.fail(session, tokens[1], AttemptOutcome.BOX_FAILED, {"code": "illegal-value"}, 1.0, 6.0)
    assert [read(database, job_id).state for job_id in (done, wrong)] == ["succeeded", "failed"]
    for act in ("pause", "resume"):
        with pytest.raises(InvalidTransition, match="has ended"):
            change(database, done, act)


@pytest.mark.parametrize("is_pause", [True, False])
def test_an_attempt_that_is_asked_to_end_is_its_worker_s_until_it_has(
    database: Database, tenant: str, is_pause: bool
) -> None:
    job_id = submit(database, tenant, preemptible=True)
    fencing = begin(database, job_id, is_running=True)
    if is_pause:
        change(database, job_id, "pause")
    else:
        ask(database, job_id, submit(database, tenant, priority=20))
    for now in (6.0, 12.0, 18.0):  # its box writes a large checkpoint
        with database.write() as session:
            assert execution.beat(session, [fencing], 8.0, now) == [fencing]
    (attempt,) = attempts(database, job_id)
    assert (attempt.ended_at, attempt.lease_expires_at) == (None, 26.0)


def test_a_pause_that_has_not_come_is_taken_back(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id, is_running=True)
    change(database, job_id, "pause")
    assert change(database, job_id, "resume") == "running"
    assert read(database, job_id).waits_for is None
    with database.write() as session:
        assert execution.beat(session, [fencing], 8.0, 6.0) == []


def test_a_step_is_held_while_earlier_ones_go_on(database: Database, tenant: str) -> None:
    steps = [
        StepRequest(name="prepare", box="counter", verb="preprocess"),
        StepRequest(name="learn", box="counter", verb="train", inputs={"dataset": "@prepare.dataset"}),
    ]
    with database.write() as session:
        _, jobs = pipelines.submit_pipeline(session, BOXES, tenant, PipelineRequest(name="p", steps=steps), 1.0)
        first, second = (job.id for job in jobs)
    assert change(database, second, "pause") == "paused"
    assert change(database, second, "resume") == "submitted"
    change(database, second, "pause")
    change(database, first, "cancel")
    assert read(database, second).state == "paused"
    assert change(database, second, "resume") == "cancelled"
    assert read(database, second).reason == "upstream-ended"


def test_a_paused_job_can_be_cancelled(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    change(database, job_id, "pause")
    assert change(database, job_id, "cancel") == "cancelled"


def test_a_clone_has_the_policy_and_no_deadline_but_its_own(database: Database, tenant: str) -> None:
    body: dict[str, object] = {"deadline_s": 30.0, "run_limit_s": 9.0, "retry": {"backoff_s": 2.0, "on": ["expired"]}}
    job = read(database, submit(database, tenant, **body))
    plain = clone_request(job, CloneRequest())
    assert (plain.deadline, plain.deadline_s, plain.run_limit_s) == (None, None, 9.0)
    assert plain.retry is not None
    assert plain.retry.model_dump(exclude_none=True) == body["retry"]
    changes = CloneRequest.model_validate({"deadline_s": 60.0, "run_limit_s": 20.0, "retry": {"on": ["box-lost"]}})
    changed = clone_request(job, changes)
    assert (changed.deadline_s, changed.run_limit_s) == (60.0, 20.0)
    assert changed.retry is not None
    assert changed.retry.model_dump(exclude_none=True) == {"on": ["box-lost"]}


def ask(database: Database, job_id: str, for_job: str = "job-gone", now: float = 6.0) -> bool:
    with database.write() as session:
        return execution.ask_preemption(session, job_id, for_job, now)


def interrupt(database: Database, fencing: FencingToken, outcome: AttemptOutcome = AttemptOutcome.INTERRUPTED) -> str:
    with database.write() as session:
        return execution.fail(session, fencing, outcome, {"code": "unavailable", "message": "m"}, 1.0, 8.0)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_preempted_job_is_queued_again_with_its_age_and_nothing_counts(
    database: Database, tenant: str, is_running: bool
) -> None:
    job_id = submit(database, tenant, preemptible=True)
    fencing = begin(database, job_id, is_running=is_running)
    winner = submit(database, tenant, priority=20)
    assert (ask(database, job_id, winner), ask(database, job_id, winner)) == (True, False)
    with database.write() as session:
        assert execution.beat(session, [fencing], 5.0, 7.0) == [fencing], "its worker is told"
    assert (
        read(database, job_id).waits_for == f"it is preempted by job {winner}, which precedes it, so its attempt ends"
    )
    assert interrupt(database, fencing) == "queued"
    job = read(database, job_id)
    assert (job.queued_at, job.not_before, job.failures, job.losses, job.preemptions) == (1.0, None, 0, 0, 1)
    error = {"code": "preempted", "message": f"job {winner} precedes it and gets its tiles"}
    assert [(a.outcome, a.error) for a in attempts(database, job_id)] == [("preempted", error)]
    shown = show_job(job, attempts(database, job_id)).model_dump()
    told = dict(show.describe_wait(shown))["preempted"]
    assert told == f"attempt 1, at 1970-01-01 00:00:08 UTC: job {winner} precedes it and gets its tiles"
    assert "preempted" not in dict(show.describe_wait({**shown, "state": "running"}))
    assert begin(database, job_id).attempt_id != fencing.attempt_id


def test_a_victim_of_another_tenant_s_job_is_not_told_which(database: Database, tenant: str) -> None:
    with database.write() as session:
        other = create_tenant(session, "other", 0.0).id
    winner, victim = submit(database, other), submit(database, tenant)
    begin(database, victim, is_running=True)
    assert ask(database, victim, winner)
    (attempt,) = attempts(database, victim)
    words = f"{read(database, victim).waits_for} {(attempt.error or {}).get('message')}"
    assert words.count("a job of another tenant") == 2 and winner not in words


def test_an_attempt_that_succeeds_before_it_is_ended_was_not_preempted(database: Database, tenant: str) -> None:
    job_id = submit(database, tenant)
    fencing = begin(database, job_id, is_running=True)
    assert ask(database, job_id)
    with database.write() as session:
        execution.succeed(session, fencing, [], None, 7.0)
    assert [(a.outcome, a.error) for a in attempts(database, job_id)] == [("succeeded", None)]


def test_who_has_nothing_to_give_is_not_asked(database: Database, tenant: str) -> None:
    waiting, unclaimed = submit(database, tenant), submit(database, tenant)
    begin(database, unclaimed, is_claimed=False)
    assert not ask(database, waiting) and not ask(database, unclaimed)


def test_a_user_s_pause_goes_before_a_preemption_and_other_ends_are_what_they_are(
    database: Database, tenant: str
) -> None:
    held, broken = submit(database, tenant), submit(database, tenant)
    fencing, other = begin(database, held, is_running=True), begin(database, broken, is_running=True)
    assert ask(database, held) and ask(database, broken)
    change(database, held, "pause", 7.0)
    assert (interrupt(database, fencing), read(database, held).preemptions) == ("paused", 0)
    assert interrupt(database, other, AttemptOutcome.BOX_LOST) == "retrying"
    assert (read(database, broken).failures, read(database, broken).preemptions) == (1, 0)
