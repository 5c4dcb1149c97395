"""Sweeps in the database: trials begin and end as jobs do, whoever advances them and how often."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rdukit.errors import Conflict, IllegalValue, InvalidTransition, NotFound, UnknownParameter
from rdukit.telemetry.spans import collecting, find_traceparent
from rdukit_platform.artifacts.needs import read_needs
from rdukit_platform.artifacts.service import record_artifact
from rdukit_platform.artifacts.store import Content
from rdukit_platform.catalog.model import Boxes, VerbMetric
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow, SweepRow
from rdukit_platform.jobs import execution
from rdukit_platform.jobs.attempts import AttemptOutcome
from rdukit_platform.jobs.service import list_events
from rdukit_platform.sweeps import service
from rdukit_platform.sweeps.advance import advance_sweeps
from rdukit_platform.sweeps.model import Goal, SweepRequest
from rdukit_platform.sweeps.schemas import Sweep, show_sweep
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("sweeps")

BOX = {"backend": "process", "id": "42", "limits": {}}


@dataclass
class Lab:
    """A tenant with a sweep, at one second after the other."""

    database: Database
    now: float = 1.0
    tenant: str = field(init=False)
    data: str = field(init=False)

    def __post_init__(self) -> None:
        with self.database.write() as session:
            self.tenant = create_tenant(session, "lab", 0.0).id
            content = Content("d" * 64, 3, is_folder=True)
            self.data = record_artifact(session, self.tenant, "data", "dataset", content, 1.0).id

    def submit(self, **changes: object) -> str:
        """Submit a sweep. Returns its id."""
        self.now += 1
        body: dict[str, object] = {
            "job": {"box": "counter", "verb": "train", "inputs": {"dataset": self.data}, "parameters": {"mode": "o1"}},
            "space": {"steps": {"values": [1, 2, 3]}},
            "objective": {"metric": "loss"},
        }
        request = SweepRequest.model_validate(body | changes)
        with self.database.write() as session:
            checked = service.check_sweep(session, counter_boxes(), self.tenant, request)
            return service.submit_sweep(session, self.tenant, checked, self.now).id

    def advance(self) -> int:
        """Let a scheduler advance all sweeps."""
        self.now += 1
        return advance_sweeps(self.database, self.now)

    def look(self, sweep_id: str) -> Sweep:
        """Return a sweep as the API shows it."""
        with self.database.read() as session:
            row = service.get_sweep(session, self.tenant, sweep_id)
            return show_sweep(row, service.trials_of(session, row.id), with_trials=True)

    def jobs(self, sweep_id: str) -> list[str]:
        """Return the ids of its trials' jobs."""
        return [trial.job for trial in self.look(sweep_id).trials or []]

    def start(self, job_id: str, *losses: float) -> execution.FencingToken:
        """Let a job run and tell these losses, one a step."""
        self.now += 1
        with self.database.write() as session:
            fencing = execution.admit(session, job_id, self.now)
            execution.claim(session, fencing, "worker-1", 5.0, self.now)
            execution.start(session, fencing, BOX, self.now)
            for step, loss in enumerate(losses, start=1):
                execution.record_progress(session, fencing, {"step": step, "loss": loss}, self.now)
        return fencing

    def succeed(self, job_id: str, *losses: float, **result: object) -> None:
        """Let a job run and succeed."""
        fencing = self.start(job_id, *losses)
        with self.database.write() as session:
            execution.succeed(session, fencing, [], result, self.now)

    def fail(self, job_id: str) -> None:
        """Let a job run and fail."""
        fencing = self.start(job_id)
        with self.database.write() as session:
            error = {"code": "illegal-value", "message": "steps is odd"}
            execution.fail(session, fencing, AttemptOutcome.BOX_FAILED, error, 1.0, self.now)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with fresh_database(tmp_path) as database:
        yield Lab(database)


def test_the_trace_of_a_trial_begins_with_a_span_that_is_sent(lab: Lab) -> None:
    sweep = lab.submit()
    with collecting() as found:
        assert lab.advance() == 2
    with lab.database.read() as session:
        begun = [find_traceparent(session.get_one(JobRow, job).traceparent) for job in lab.jobs(sweep)]
    assert [(one.name, one.context) for one in found] == [("trial", context) for context in begun]


def test_a_sweep_begins_its_trials_in_turn_and_ends_with_the_best(lab: Lab) -> None:
    sweep = lab.submit()
    assert lab.advance() == 2
    assert lab.advance() == 0, "there is no room"
    first, second = lab.jobs(sweep)
    with lab.database.read() as session:
        job = session.get_one(JobRow, first)
        assert (job.parameters, job.inputs, job.labels) == ({"mode": "o1", "steps": 1}, {"dataset": lab.data},
                                                            {"sweep": sweep})  # fmt: skip
        assert (job.state, job.name) == ("queued", "counter train #0")
    lab.succeed(first, 2.0, 1.0, loss=0.5)
    assert lab.advance() == 1
    third = lab.jobs(sweep)[2]
    lab.succeed(second, 4.0, 3.0)
    lab.succeed(third, loss="NaN")
    lab.advance()
    found = lab.look(sweep)
    assert (found.state, found.reason, found.counts) == ("succeeded", "all 3 trials have ended", {"succeeded": 3})
    assert [trial.value for trial in found.trials or []] == [0.5, 3.0, None]
    assert found.best is not None and found.best.parameters == {"steps": 1}
    assert lab.advance() == 0


def test_whoever_comes_back_goes_on_where_another_was_killed(lab: Lab) -> None:
    space = {"steps": {"low": 1, "high": 1000, "integer": True}}
    one, other = (lab.submit(algorithm="random", space=space, max_parallel=k, max_trials=6, seed=5) for k in (6, 1))
    lab.advance()
    for _ in range(6):
        lab.succeed(lab.jobs(other)[-1], loss=1.0)
        lab.advance()
    points = [[trial.parameters for trial in lab.look(sweep).trials or []] for sweep in (one, other)]
    assert points[0] == points[1]


def test_two_schedulers_begin_no_trial_twice(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = lab.submit()
    lock = service.lock_sweep

    def lock_late(session: object, sweep_id: str) -> SweepRow:
        row = lock(session, sweep_id)  # type: ignore[arg-type]
        row.version += 1  # another one was here since this one decided
        return row

    monkeypatch.setattr("rdukit_platform.sweeps.advance.lock_sweep", lock_late)
    assert lab.advance() == 0
    assert lab.jobs(sweep) == []
    monkeypatch.undo()
    assert lab.advance() == 2


def test_a_hopeless_trial_is_cancelled_and_says_why(lab: Lab) -> None:
    rule = {"metric": "loss", "min_trials": 1}
    sweep = lab.submit(early_stopping=rule)
    lab.advance()
    good, bad = lab.jobs(sweep)
    lab.succeed(good, 0.5, 0.25, loss=0.25)
    fencing = lab.start(bad, 9.0, 8.0)
    assert lab.advance() == 2, "one was stopped; in its place, or the other's, one begins"
    trial = (lab.look(sweep).trials or [])[1]
    assert (trial.state, trial.reason) == ("cancelled", "stopped-early")
    assert trial.why == "loss was 8 at best by step 2, above 0.375, the median of 1 trials"
    with lab.database.read() as session:
        last = list_events(session, bad, kind="state")[-1].data
        assert (last["reason"], last["error"]["message"]) == ("stopped-early", trial.why)  # type: ignore[index]
    with lab.database.write() as session:
        assert execution.beat(session, [fencing], 5.0, lab.now) == [fencing], "its worker learns that it is over"
    lab.succeed(lab.jobs(sweep)[2], 0.4, loss=0.4)
    lab.advance()
    assert lab.look(sweep).state == "succeeded"


def test_a_sweep_whose_trials_fail_ends_and_cancels_the_others(lab: Lab) -> None:
    sweep = lab.submit(max_failures=2, max_parallel=3)
    lab.advance()
    for job in lab.jobs(sweep)[:2]:
        lab.fail(job)
    lab.advance()
    found = lab.look(sweep)
    assert found.state == "failed"
    assert found.reason == "2 trials have failed and none has succeeded (max_failures)"
    assert found.counts == {"failed": 2, "cancelled": 1}
    assert (found.trials or [])[0].why == "steps is odd"


def test_a_sweep_that_cannot_go_on_fails_and_the_others_do(lab: Lab) -> None:
    broken, sound = lab.submit(), lab.submit()
    with lab.database.write() as session:
        row = session.get_one(SweepRow, broken)
        row.request = {**row.request, "algorithm": "genetic"}
    assert lab.advance() == 2
    with lab.database.read() as session:
        assert session.get_one(SweepRow, broken).state == "failed"
        assert "genetic" in str(session.get_one(SweepRow, broken).reason)
    assert len(lab.jobs(sound)) == 2


def test_cancelling_ends_the_sweep_and_its_trials_and_is_no_error_twice(lab: Lab) -> None:
    sweep = lab.submit()
    lab.advance()
    lab.start(lab.jobs(sweep)[0])
    for _ in range(2):
        with lab.database.write() as session:
            service.cancel_sweep(session, service.get_sweep(session, lab.tenant, sweep, is_locked=True), lab.now)
    found = lab.look(sweep)
    assert (found.state, found.reason, found.counts) == ("cancelled", "cancelled by a user", {"cancelled": 2})
    assert lab.advance() == 0
    done = lab.submit(max_trials=1)
    lab.advance()
    lab.succeed(lab.jobs(done)[0], loss=1.0)
    lab.advance()
    with pytest.raises(InvalidTransition, match="has ended: succeeded"), lab.database.write() as session:
        service.cancel_sweep(session, service.get_sweep(session, lab.tenant, done), lab.now)


def test_the_same_key_is_the_same_sweep_and_another_request_is_refused(lab: Lab) -> None:
    assert lab.submit(idempotency_key="k") == lab.submit(idempotency_key="k")
    with pytest.raises(Conflict, match="belongs to sweep"):
        lab.submit(idempotency_key="k", seed=1)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"space": {"steps": {"values": [1, 0]}}}, IllegalValue, "'steps' of train of box 'counter' is 0"),
        ({"space": {"steps": {"low": 1, "high": 2000}}, "algorithm": "random"}, IllegalValue, "'steps'"),
        ({"space": {"speed": {"values": [1]}}}, UnknownParameter, "no parameter 'speed'"),
        ({"job": {"box": "none", "verb": "train"}}, NotFound, "none"),
        ({"job": {"box": "counter", "verb": "train", "inputs": {"dataset": "art-x"}}}, NotFound, "art-x"),
    ],
)
def test_what_is_not_legal_is_refused_before_any_trial(
    lab: Lab, changes: dict[str, object], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        lab.submit(**changes)


def test_the_inputs_of_a_sweep_are_needed_until_it_has_ended(lab: Lab) -> None:
    sweep = lab.submit()
    with lab.database.write() as session:
        assert [need.kind for need in read_needs(session, lab.tenant)[lab.data]] == ["sweep"]
        service.cancel_sweep(session, service.get_sweep(session, lab.tenant, sweep), lab.now)
        assert read_needs(session, lab.tenant) == {}


def test_another_tenants_sweep_is_not_found(lab: Lab) -> None:
    sweep = lab.submit()
    with lab.database.write() as session:
        other = create_tenant(session, "other", 0.0).id
    with pytest.raises(NotFound), lab.database.read() as session:
        service.get_sweep(session, other, sweep)
    with lab.database.read() as session:
        assert service.list_sweeps(session, other) == ([], None)


def test_a_goal_that_is_not_given_is_what_the_box_says_is_better(lab: Lab) -> None:
    plain = lab.look(lab.submit(early_stopping={"metric": "loss"}))
    assert (plain.objective["goal"], (plain.early_stopping or {})["goal"]) == ("minimize", "minimize")
    box = counter_boxes().box("counter")
    metrics = (VerbMetric("accuracy", better="higher", reported="both"), VerbMetric("loss", better="lower"))
    told = replace(box, verbs=tuple(replace(verb, metrics=metrics) for verb in box.verbs))
    asked = {"metric": "accuracy"}
    body = {
        "job": {"box": "counter", "verb": "train", "inputs": {"dataset": lab.data}}, "objective": asked,
        "space": {"steps": {"values": [1, 2]}}, "early_stopping": asked,
    }  # fmt: skip
    with lab.database.read() as session:
        request = SweepRequest.model_validate(body)
        found = service.check_sweep(session, Boxes({"counter": told}), lab.tenant, request)
        assert found.objective.goal is Goal.MAXIMIZE and found.early_stopping is not None
        assert found.early_stopping.goal is Goal.MAXIMIZE
        given = SweepRequest.model_validate({**body, "objective": {**asked, "goal": "minimize"}})
        kept = service.check_sweep(session, Boxes({"counter": told}), lab.tenant, given)
        assert kept.objective.goal is Goal.MINIMIZE
