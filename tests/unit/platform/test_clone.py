"""Cloning a job: what the new request keeps and what it has otherwise."""

from dataclasses import dataclass, field

import pytest
from pydantic import ValidationError

from rdukit.errors import Conflict
from rdukit_platform.console.queries import clone_command
from rdukit_platform.jobs.clone import clone_request
from rdukit_platform.jobs.schemas import CloneRequest, Job, JobRequest
from support import shows

pytestmark = shows("sweeps", "jobs", "console")


@dataclass
class Row:
    """A job as its row keeps it."""

    id: str = "job-1"
    box: str = "logreg"
    box_version: int | None = 3
    verb: str = "train"
    parameters: dict[str, object] = field(default_factory=lambda: {"lr": 0.1, "epochs": 2})
    inputs: dict[str, str] = field(default_factory=lambda: {"pef": "art-1", "dataset": "art-2"})
    name: str = "first"
    tiles: int = 2
    max_attempts: int = 5


def test_a_clone_without_changes_is_the_same_request() -> None:
    assert clone_request(Row(), CloneRequest()) == JobRequest(
        box="logreg:3", verb="train", parameters={"lr": 0.1, "epochs": 2},
        inputs={"pef": "art-1", "dataset": "art-2"}, name="first", tiles=2, max_attempts=5,
    )  # fmt: skip


def test_a_clone_has_the_changes_and_keeps_the_rest() -> None:
    changes = CloneRequest(
        parameters={"lr": 0.5, "seed": 1}, defaults=["epochs"], inputs={"dataset": "art-9"}, name="b"
    )
    made = clone_request(Row(), changes)
    assert made.parameters == {"lr": 0.5, "seed": 1}
    assert made.inputs == {"pef": "art-1", "dataset": "art-9"}
    assert (made.name, made.tiles) == ("b", 2)


def test_a_clone_may_have_another_place_in_the_queue_and_other_labels() -> None:
    changes: dict[str, object] = {"priority": 7, "labels": {"run": "b"}, "tiles": 4, "max_attempts": 1}
    made = clone_request(Row(), CloneRequest.model_validate(changes))
    assert made.model_dump(include=set(changes)) == changes


def test_another_pef_has_its_own_tiles() -> None:
    assert clone_request(Row(), CloneRequest(inputs={"pef": "art-1"})).tiles == 2
    assert clone_request(Row(), CloneRequest(inputs={"pef": "art-9"})).tiles is None


def test_an_input_that_a_step_has_not_made_is_to_be_given() -> None:
    row = Row(inputs={"pef": "@compile.pef"})
    with pytest.raises(Conflict, match=r"input 'pef' of job job-1 is @compile\.pef.*--input pef=ARTIFACT"):
        clone_request(row, CloneRequest())
    assert clone_request(row, CloneRequest(inputs={"pef": "art-1"})).inputs == {"pef": "art-1"}


@pytest.mark.parametrize("body", [{"box": "b"}, {"name": ""}, {"inputs": {"a": 1}}, {"defaults": "lr"}])
def test_a_clone_is_of_the_same_verb_and_its_changes_have_their_types(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CloneRequest.model_validate(body)


def test_the_command_on_a_jobs_page_can_be_pasted_whatever_its_parameters_are() -> None:
    fields = dict.fromkeys(Job.model_fields) | {
        "id": "job-1", "name": "n", "box": "b", "verb": "train", "state": "queued", "parameters": {"text": "a; rm b"},
        "inputs": {}, "outputs": {}, "tiles": 1, "attempt": 0, "max_attempts": 1, "version": 0, "created_at": 0.0,
    }  # fmt: skip
    assert clone_command(Job.model_construct(**fields)) == "rdukit job clone job-1 --set 'text=a; rm b'"


def test_a_clone_takes_what_earlier_steps_have_made() -> None:
    job = Row(inputs={"pef": "@build.pef", "dataset": "@prepare.dataset"})
    made = clone_request(job, CloneRequest(inputs={"dataset": "art-2"}), {"pef": "art-1"})
    assert made.inputs == {"pef": "art-1", "dataset": "art-2"}
    with pytest.raises(Conflict, match=r"@prepare\.dataset"):
        clone_request(job, CloneRequest(), {"pef": "art-1"})
