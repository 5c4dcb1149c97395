"""Schedules: due times, what becomes of them, and the pipelines that are submitted; on a real SQLite database."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from rdukit.errors import Conflict, IllegalValue, NotFound
from rdukit.telemetry.spans import collecting, find_traceparent
from rdukit_platform.artifacts.removal import delete_artifact
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import ArtifactRow, JobRow
from rdukit_platform.jobs import pipelines
from rdukit_platform.jobs.promotion import pipeline_jobs
from rdukit_platform.schedules import service
from rdukit_platform.schedules.keeper import advance_schedules
from rdukit_platform.schedules.service import Schedule, ScheduleRequest, check_schedule, get_schedule, show_schedule
from rdukit_platform.schedules.timing import (
    MAX_WAITING,
    Due,
    Missed,
    Overlap,
    RunState,
    decide_run,
    find_due,
    find_next,
    local_time,
)
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("schedules", "pipelines")

BERLIN = "Europe/Berlin"
BOXES = counter_boxes()
PIPELINE = {"name": "nightly", "steps": [{"name": "prepare", "box": "counter", "verb": "preprocess"}]}
HOUR = 3600.0
#: A full hour.
T0 = 1_800_000_000.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("cron", "after", "due"),
    [
        ("0 3 * * *", "2026-11-26T12:00+01:00", "2026-11-27T03:00+01:00"),
        ("0 3 * * MON-FRI", "2026-11-27T04:00+01:00", "2026-11-30T03:00+01:00"),
        ("30 2 * * *", "2026-03-28T12:00+01:00", "2026-03-29T03:00+02:00"),  # a time that spring skips
        ("30 2 * * *", "2026-10-25T02:31+02:00", "2026-10-26T02:30+01:00"),  # once where autumn has it twice
        ("*/30 * * * *", "2026-10-25T02:31+02:00", "2026-10-25T02:00+01:00"),  # every half hour that passes
    ],
)
def test_due_times_are_those_of_the_zones_clock(cron: str, after: str, due: str) -> None:
    assert find_next(cron, BERLIN, at(after)) == at(due)


def test_of_the_due_times_that_have_come_the_latest_is_found_however_many_there_are() -> None:
    year = T0 + 365 * 86400
    assert find_due("* * * * *", "UTC", T0, T0 - 1) is None
    assert find_due("* * * * *", "UTC", T0, T0 + 1) == Due(T0, False, T0 + 60)
    assert find_due("* * * * *", "UTC", T0, T0) == Due(T0, False, T0 + 60)
    assert find_due("* * * * *", "UTC", T0, year + 1) == Due(year, True, year + 60)


@pytest.mark.parametrize(
    ("late_s", "missed", "overlap", "before", "waiting", "state"),
    [
        (1, Missed.SKIP, Overlap.SKIP, None, 0, RunState.STARTED),
        (301, Missed.SKIP, Overlap.SKIP, None, 0, RunState.MISSED),
        (301, Missed.LATEST, Overlap.SKIP, None, 0, RunState.STARTED),
        (1, Missed.SKIP, Overlap.SKIP, "pipe-1", 0, RunState.SKIPPED),
        (1, Missed.SKIP, Overlap.QUEUE, "pipe-1", 0, RunState.WAITING),
        (1, Missed.SKIP, Overlap.QUEUE, None, 1, RunState.WAITING),
        (1, Missed.SKIP, Overlap.QUEUE, "pipe-1", MAX_WAITING, RunState.SKIPPED),
    ],
)
def test_what_becomes_of_a_due_time_is_what_its_policies_say(
    late_s: float, missed: Missed, overlap: Overlap, before: str | None, waiting: int, state: RunState
) -> None:
    found, why = decide_run(late_s, 300.0, missed, overlap, before, waiting)
    assert (found, why is None) == (state, state is RunState.STARTED)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cron": "0 3 * *"}, "which has 4 fields; expected five fields"),
        ({"cron": "61 * * * *"}, "bad minute; expected five fields"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"zone": "Berlin"}, "unknown time zone 'Berlin'; expected UTC, or a name"),
        ({"zone": "../../etc/passwd"}, "unknown time zone"),
        ({"pipeline": {**PIPELINE, "idempotency_key": "k"}}, "each run is a new pipeline"),
    ],
)
def test_what_can_be_no_schedule_is_refused_with_what_can(wrong: dict[str, object], words: str) -> None:
    request = ScheduleRequest.model_validate({"name": "n", "cron": "0 3 * * *", "pipeline": PIPELINE, **wrong})
    with pytest.raises(IllegalValue, match=words):
        check_schedule(request)


class Lab:
    """A tenant's schedules on a database, and a clock that stands still."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.database, self.store = database, FolderStore(folder / "artifacts")
        with database.write() as session:
            self.tenant = create_tenant(session, "lab", T0).id

    def create(self, name: str = "n", cron: str = "0 * * * *", **more: object) -> str:
        asked = ScheduleRequest.model_validate({"name": name, "cron": cron, "pipeline": PIPELINE, **more})
        with self.database.write() as session:
            return service.create_schedule(session, self.tenant, asked, T0 + 1, "usr-1").id

    def advance(self, now: float) -> int:
        return advance_schedules(self.database, self.store, lambda: BOXES, now)

    def show(self, named: str = "n") -> Schedule:
        with self.database.read() as session:
            row = get_schedule(session, self.tenant, named)
            return show_schedule(row, service.runs_of(session, row.id))

    def states(self, named: str = "n") -> list[tuple[float, str]]:
        return [((run.due_at - T0) / HOUR, str(run.state)) for run in reversed(self.show(named).runs)]

    def end(self, pipeline: str | None, now: float) -> None:
        assert pipeline is not None
        with self.database.write() as session:
            pipelines.cancel_pipeline(session, self.tenant, pipeline, now)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with fresh_database(tmp_path) as database:
        yield Lab(tmp_path, database)


def test_a_due_time_submits_the_pipeline_once_and_its_jobs_have_a_label(lab: Lab) -> None:
    lab.create()
    assert [lab.advance(T0 + HOUR + second) for second in (-1, 1, 1, 2)] == [0, 1, 0, 0]
    found = lab.show()
    assert (lab.states(), found.next_at, found.words) == ([(1, "started")], T0 + 2 * HOUR, "At the start of every hour")
    with lab.database.read() as session:
        (job,) = pipeline_jobs(session, str(found.runs[0].pipeline))
        assert (job.labels, job.state, job.step) == ({"schedule": "n"}, "queued", "prepare")
        assert job.submitted_by == "usr-1", "who made the schedule"


def test_the_trace_of_a_scheduled_run_begins_with_a_span_that_is_sent(lab: Lab) -> None:
    lab.create()
    with collecting() as found:
        assert lab.advance(T0 + HOUR + 1) == 1
    with lab.database.read() as session:
        (begun,) = (find_traceparent(job.traceparent) for job in session.scalars(select(JobRow)))
    assert [(one.name, one.context) for one in found] == [("scheduled run", begun)]


def test_a_run_that_would_overlap_is_skipped_or_waits_for_the_one_before(lab: Lab) -> None:
    lab.create()
    lab.create("q", overlap="queue")
    for hour in (1, 2, 3):
        lab.advance(T0 + hour * HOUR)
    assert lab.states() == [(1, "started"), (2, "skipped"), (3, "skipped")]
    assert lab.states("q") == [(1, "started"), (2, "waiting"), (3, "waiting")]
    first = lab.show("q").runs[-1].pipeline
    assert lab.show().runs[0].why == f"pipeline {lab.show().runs[-1].pipeline} of the previous run has not ended"
    lab.end(first, T0 + 3.1 * HOUR)
    assert [lab.advance(T0 + 3.2 * HOUR) for _ in range(2)] == [1, 0]
    assert lab.states("q") == [(1, "started"), (2, "started"), (3, "waiting")]


def test_what_came_while_nobody_was_there_is_skipped_or_its_latest_is_run(lab: Lab) -> None:
    lab.create()
    lab.create("latest", missed="latest")
    assert lab.advance(T0 + 9.5 * HOUR) == 1
    assert lab.states() == [(1, "missed"), (9, "missed")]
    assert lab.states("latest") == [(1, "missed"), (9, "started")]
    assert lab.show().next_at == lab.show("latest").next_at == T0 + 10 * HOUR


def test_a_paused_schedule_submits_nothing_and_goes_on_with_the_next_due_time(lab: Lab) -> None:
    schedule = lab.create(overlap="queue")
    lab.advance(T0 + HOUR)
    lab.advance(T0 + 2 * HOUR)
    with lab.database.write() as session:
        service.pause_schedule(get_schedule(session, lab.tenant, schedule, is_locked=True), T0 + 2 * HOUR)
    lab.end(lab.show().runs[-1].pipeline, T0 + 2 * HOUR)
    assert (lab.advance(T0 + 5 * HOUR), lab.show().next_at) == (0, None)
    with lab.database.write() as session:
        service.resume_schedule(get_schedule(session, lab.tenant, schedule, is_locked=True), T0 + 5.5 * HOUR)
    assert (lab.advance(T0 + 5.6 * HOUR), lab.show().next_at) == (1, T0 + 6 * HOUR)
    assert lab.states() == [(1, "started"), (2, "started")]


def test_a_pipeline_that_is_not_legal_any_more_is_a_failed_run_that_says_why(lab: Lab) -> None:
    step = {**PIPELINE["steps"][0], "box": "gone"}  # type: ignore[dict-item]
    lab.create(pipeline={"name": "p", "steps": [step]})
    lab.create("good")
    assert lab.advance(T0 + HOUR) == 1
    (run,) = lab.show().runs
    assert (run.state, run.pipeline, lab.states("good")) == ("failed", None, [(1, "started")])
    assert "unknown ModelBox 'gone'" in str(run.why)


def test_what_a_schedule_takes_stays_until_it_is_removed(lab: Lab) -> None:
    step = {"name": "learn", "box": "counter", "verb": "train", "inputs": {"dataset": "art-1"}}
    lab.create(pipeline={"name": "p", "steps": [step]})
    with lab.database.write() as session:
        session.add(ArtifactRow(
            id="art-1", tenant_id=lab.tenant, name="d", kind="dataset", digest="0" * 64, bytes=1, is_folder=True,
            created_at=T0,
        ))  # fmt: skip
    with lab.database.write() as session, pytest.raises(Conflict, match="schedule n; remove the schedule"):
        delete_artifact(session, lab.tenant, "art-1", T0)
    with lab.database.write() as session:
        service.remove_schedule(session, get_schedule(session, lab.tenant, "n", is_locked=True))
        delete_artifact(session, lab.tenant, "art-1", T0)
    with pytest.raises(NotFound, match="there is no schedule 'n'"):
        lab.show()


def test_the_same_schedule_twice_is_one_and_another_of_its_name_is_refused(lab: Lab) -> None:
    assert lab.create() == lab.create()
    with pytest.raises(Conflict, match="schedule 'n' already exists"):
        lab.create(cron="1 * * * *")
    assert local_time(at("2026-11-30T03:00+01:00"), BERLIN) == "2026-11-30 03:00 +01:00"


def test_how_late_a_run_may_be_is_a_setting(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_SCHEDULE_LATE_S", "3000")
    lab.create()
    assert [lab.advance(T0 + hours * HOUR) for hours in (1.8, 2.9)] == [1, 0]
    assert lab.states() == [(1, "started"), (2, "missed")]
