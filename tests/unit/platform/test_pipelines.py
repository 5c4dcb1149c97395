"""Pipelines that fan out, choose the best, and do not run again what is there; on a real SQLite database."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit_platform.artifacts.removal import delete_artifact
from rdukit_platform.db.engine import Database
from rdukit_platform.db.models import JobRow
from rdukit_platform.db.references import read_reference
from rdukit_platform.jobs import execution, pipelines
from rdukit_platform.jobs.changes import lock_job
from rdukit_platform.jobs.execution import Output
from rdukit_platform.jobs.fan_out import choose, expand_steps, explain_none
from rdukit_platform.jobs.promotion import made_inputs, pipeline_jobs
from rdukit_platform.jobs.schemas import MAX_JOBS, PipelineRequest, StepRequest
from rdukit_platform.tenants.service import create_tenant
from support import shows
from support.platform.processes import counter_boxes, fresh_database

pytestmark = shows("pipelines")

BOXES = counter_boxes()
PREPARE = {"name": "prepare", "box": "counter", "verb": "preprocess"}
LEARN = {"name": "learn", "box": "counter", "verb": "train", "inputs": {"dataset": "@prepare.dataset"}}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with fresh_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def tenant(database: Database) -> str:
    with database.write() as session:
        return create_tenant(session, "lab", 0.0).id


def steps_of(*steps: Mapping[str, object]) -> list[StepRequest]:
    return [StepRequest.model_validate(step) for step in steps]


def submit(database: Database, tenant: str, *steps: Mapping[str, object], now: float = 1.0, **more: object) -> str:
    request = PipelineRequest.model_validate({"name": "p", "steps": list(steps), **more})
    with database.write() as session:
        return pipelines.submit_pipeline(session, BOXES, tenant, request, now)[0].id


def jobs_of(database: Database, pipeline: str) -> dict[str, JobRow]:
    with database.read() as session:
        return {job.step or "": job for job in pipeline_jobs(session, pipeline)}


def succeed(database: Database, job: JobRow, slot: str, now: float = 2.0, **result: object) -> str:
    """Let a queued job succeed with one output, whose id is returned."""
    with database.write() as session:
        fencing = execution.admit(session, job.id, now)
        execution.claim(session, fencing, "worker-1", 5.0, now)
        execution.start(session, fencing, {"backend": "process", "id": "1", "limits": {}}, now)
        digest = f"{abs(hash((slot, job.step))):064x}"[:64]
        return execution.succeed(session, fencing, [Output(slot, slot, digest, 3, True)], result, now)[slot]


def test_a_grid_becomes_a_job_for_each_combination_and_each_can_be_followed() -> None:
    grid = {**LEARN, "for_each": {"steps": [1, 2], "inputs.dataset": ["art-1", "art-2"]}}
    judge = {**LEARN, "name": "judge", "inputs": {"dataset": "@learn[*].checkpoint", "other": "@learn[*].report"}}
    found = expand_steps(steps_of(PREPARE, grid, judge))
    assert [step.name for step in found] == ["prepare", *(f"{n}[{i}]" for n in ("learn", "judge") for i in range(4))]
    assert [(step.parameters["steps"], step.inputs["dataset"]) for step in found[1:5]] == [
        (1, "art-1"), (1, "art-2"), (2, "art-1"), (2, "art-2"),
    ]  # fmt: skip
    assert found[7].inputs == {"dataset": "@learn[2].checkpoint", "other": "@learn[2].report"}
    assert expand_steps(found) == found


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{**PREPARE, "for_each": {"x": list(range(200)), "y": [1, 2]}}], f"400 jobs .*; expected at most {MAX_JOBS}"),
        ([PREPARE, {**LEARN, "inputs": {"dataset": "@prepare[*].dataset"}}], "takes each job of 'prepare'"),
        ([{**LEARN, "for_each": {"inputs.dataset": [1]}}], "must list artifact ids"),
    ],
)
def test_what_cannot_fan_out_is_refused_with_what_can(steps: list[dict[str, object]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        expand_steps(steps_of(*steps))


def test_what_is_refused_names_its_step(database: Database, tenant: str) -> None:
    late = {**PREPARE, "name": "again", "deadline": "2026-11-01T00:00:00Z"}
    for step, message in (
        (
            {**PREPARE, "name": "again", "parameters": {"steps": -1}},
            "step 'again': preprocess of .* no parameter 'steps'",
        ),
        ({**PREPARE, "name": "again", "verb": "fly"}, "step 'again': box"),
        (late, "step 'again': deadline has passed"),
    ):
        with pytest.raises((InvalidArgument, NotFound), match=message) as refused:
            submit(database, tenant, PREPARE, step, now=2e9)
        assert refused.value.detail["step"] == "again"


def test_the_best_is_the_first_with_the_most_or_the_least_of_a_finite_figure() -> None:
    results = {
        "t[0]": {"loss": 0.5},
        "t[1]": {"loss": 0.25},
        "t[2]": None,
        "t[3]": {"loss": "NaN"},
        "t[4]": {"loss": 0.25},
    }
    least, most, unknown = (read_reference(f"@t[{which}].c") for which in ("min: loss", "max:loss", "max: accuracy"))
    assert least is not None and most is not None and unknown is not None
    assert (choose(least, results), choose(most, results), choose(unknown, results)) == ("t[1]", "t[0]", None)
    assert least.candidates([*results, "u[0]"]) == list(results)


def test_a_step_waits_for_all_and_takes_the_best_and_a_plain_reference_to_many_is_refused(
    database: Database, tenant: str
) -> None:
    grid = {**LEARN, "for_each": {"steps": [1, 2]}}
    use = {**LEARN, "name": "use", "inputs": {"dataset": "@learn[max: score].checkpoint"}}
    with pytest.raises(InvalidArgument, match=r"'learn' is 2 jobs; expected @learn\[\*\]\.checkpoint for each"):
        submit(database, tenant, PREPARE, grid, {**use, "inputs": {"dataset": "@learn.checkpoint"}})
    with pytest.raises(InvalidArgument, match=r"'learn' has 2 jobs; expected learn\[0\] to learn\[1\]"):
        submit(database, tenant, PREPARE, grid, {**use, "inputs": {"dataset": "@learn[7].checkpoint"}})
    pipeline = submit(database, tenant, PREPARE, grid, use)
    succeed(database, jobs_of(database, pipeline)["prepare"], "dataset")
    first = succeed(database, jobs_of(database, pipeline)["learn[0]"], "checkpoint", score=2)
    assert jobs_of(database, pipeline)["use"].state == "submitted"
    with database.write() as session, pytest.raises(Conflict, match="is needed by job"):
        delete_artifact(session, tenant, first, 2.0)
    succeed(database, jobs_of(database, pipeline)["learn[1]"], "checkpoint", score=1)
    found = jobs_of(database, pipeline)["use"]
    assert (found.state, found.inputs) == ("queued", {"dataset": first})
    assert found.references == {"dataset": "@learn[max: score].checkpoint"}


def test_a_step_that_a_job_has_made_is_not_run_again(database: Database, tenant: str) -> None:
    first = submit(database, tenant, PREPARE, LEARN)
    dataset = succeed(database, jobs_of(database, first)["prepare"], "dataset", rows=3)
    checkpoint = succeed(database, jobs_of(database, first)["learn"], "checkpoint")
    again = jobs_of(database, submit(database, tenant, PREPARE, LEARN, now=5.0))
    assert {name: (job.state, job.reason) for name, job in again.items()} == dict.fromkeys(
        ("prepare", "learn"), ("succeeded", "cached")
    )
    source = jobs_of(database, first)["prepare"]
    prepare = again["prepare"]
    assert (prepare.outputs, prepare.cached_from) == ({"dataset": dataset}, source.id)
    assert (prepare.result, source.reason) == ({"rows": 3}, "completed")
    other = jobs_of(database, submit(database, tenant, PREPARE, {**LEARN, "parameters": {"steps": 7}}, now=6.0))
    assert (other["prepare"].state, other["learn"].state) == ("succeeded", "queued")
    for more in ({"cache": False}, {"steps": [{**PREPARE, "cache": False}]}):
        anew = jobs_of(database, submit(database, tenant, PREPARE, now=7.0, **more))
        assert anew["prepare"].state == "queued"
    with database.write() as session:
        stranger = create_tenant(session, "other", 0.0).id
        delete_artifact(session, tenant, checkpoint, 8.0)
    assert jobs_of(database, submit(database, stranger, PREPARE, now=9.0))["prepare"].state == "queued"
    gone = jobs_of(database, submit(database, tenant, PREPARE, LEARN, now=9.0))
    assert (gone["prepare"].state, gone["learn"].state) == ("succeeded", "queued")


def test_what_steps_have_made_so_far_for_one_that_waits_or_was_stranded(database: Database, tenant: str) -> None:
    grid = {**LEARN, "for_each": {"steps": [1, 2]}}
    use = {**LEARN, "name": "use", "inputs": {"dataset": "@learn[max: score].checkpoint"}}
    lost = {**use, "name": "lost", "inputs": {"dataset": "@learn[max: nosuch].checkpoint"}}
    pipeline = submit(database, tenant, PREPARE, grid, use, lost)

    def made(step: str) -> dict[str, str]:
        with database.read() as session:
            return made_inputs(session, session.get_one(JobRow, jobs_of(database, pipeline)[step].id))

    assert made("learn[0]") == {}
    dataset = succeed(database, jobs_of(database, pipeline)["prepare"], "dataset")
    assert jobs_of(database, pipeline)["learn[0]"].inputs == {"dataset": dataset} and made("learn[0]") == {}
    worse = succeed(database, jobs_of(database, pipeline)["learn[0]"], "checkpoint", score=1)
    assert (made("use"), made("lost")) == ({"dataset": worse}, {})
    with database.write() as session:
        pipelines.cancel_job(session, lock_job(session, jobs_of(database, pipeline)["use"].id), 3.0)
    better = succeed(database, jobs_of(database, pipeline)["learn[1]"], "checkpoint", score=2)
    assert (made("use"), made("lost")) == ({"dataset": better}, {})
    assert jobs_of(database, pipeline)["lost"].reason == "upstream-ended"


def test_a_cancelled_pipeline_has_ended_with_all_its_steps(database: Database, tenant: str) -> None:
    pipeline = submit(database, tenant, PREPARE, LEARN)
    for _ in range(2):
        with database.write() as session:
            pipelines.cancel_pipeline(session, tenant, pipeline, 3.0)
    reasons = {name: job.reason for name, job in jobs_of(database, pipeline).items()}
    assert reasons == dict.fromkeys(("prepare", "learn"), "cancelled-by-user")


@pytest.mark.parametrize("text", ["@build", "@build.pef\n", "@build.pef x", "@Build.pef", "@build[x].pef"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a reference"):
        read_reference(text)


def test_a_choice_by_a_metric_that_no_result_has_says_which_there_are() -> None:
    reference = read_reference("@train[min: nosuch].checkpoint")
    assert reference is not None
    results = {"train[0]": {"accuracy": 0.9, "note": "x"}, "train[1]": {"held_out_loss": 0.1}}
    assert explain_none(reference, results) == "no result of train has 'nosuch'; expected accuracy, held_out_loss"
    assert explain_none(reference, {}) == "no job of step 'train' has made 'checkpoint'"
