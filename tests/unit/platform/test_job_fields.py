"""Plain fields of a job: each face derives its part from the one model of requests."""

import inspect
import shlex

import click
import pytest
from click.testing import CliRunner

import job_fields
from rdukit.proto import jobs_pb2 as pb
from rdukit_platform.cli.job_control import queue_options
from rdukit_platform.client.jobs import Job as ClientJob
from rdukit_platform.client.jobs import Jobs
from rdukit_platform.console.run_form import Field, read_choice, submit_command, view_choice
from rdukit_platform.jobs.choices import JobChoice
from rdukit_platform.jobs.facts import queue_facts
from rdukit_platform.jobs.fields import CHOICES
from rdukit_platform.jobs.schemas import CloneRequest, Job, JobRequest
from support import shows

pytestmark = shows("job-fields", "python-client", "console", "grpc")

BY_NAME = {choice.name: choice for choice in CHOICES}
#: Values of each kind: as a model has it, as a form sends it, and as arguments of a command.
VALUES: list[tuple[str, object, str, str]] = [
    ("priority", 7, "7", "--priority 7"),
    ("preemptible", True, "true", "--preemptible"),
    ("profile", True, "true", "--profile"),
    ("constraint", {"zone": "a", "Rack": "r 1"}, "zone=a\nRack=r 1", "--constraint zone=a --constraint 'Rack=r 1'"),
]
#: Fields of a job that only REST has.
NOT_OVER_GRPC = {"references", "cached_from", "submitted_by", "attempts"}
COMMENT = JobChoice("some_comment", "text", "Remark.", highest=100)


def test_the_generated_module_has_the_fields_of_the_models() -> None:
    assert job_fields.read_choices() == list(CHOICES)
    assert {choice.name for choice in CHOICES} | job_fields.BY_HAND == set(JobRequest.model_fields)


@pytest.mark.parametrize(("name", "value", "text", "words"), VALUES)
def test_each_face_reads_and_writes_a_plain_field(name: str, value: object, text: str, words: str) -> None:
    choice = BY_NAME[name]
    assert read_choice(choice, text) == value
    assert submit_command("b", "train", {}, {}, {name: value}) == f"rdukit job submit b train {words}"
    job = {**{one.name: one.default for one in CHOICES}, "preemptions": 0, "run_limit_s": None, "deadline_at": None,
           "retry": None}  # fmt: skip
    assert queue_facts(job) == []
    shown = {"preemptible": "yes", "profile": "yes", "constraint": "zone=a, Rack=r 1"}.get(name, text)
    assert queue_facts({**job, name: value}) == [(name, shown)]

    @click.command()
    @queue_options
    def command(queue: dict[str, object]) -> None:
        click.echo(repr(queue))

    ran = CliRunner().invoke(command, shlex.split(words))
    assert (ran.exit_code, ran.output) == (0, f"{ {name: value} }\n")


def test_a_text_has_a_field_and_an_argument_of_its_own() -> None:
    assert view_choice(COMMENT, "a b", "") == Field(
        "some_comment", "some comment", "text", "a b", "Remark.", "up to 100 characters",
        attributes={"maxlength": "100"}, is_changed=True,
    )  # fmt: skip
    assert (read_choice(COMMENT, " a b "), read_choice(COMMENT, " ")) == ("a b", None)
    assert (COMMENT.arguments("a b"), COMMENT.arguments(None)) == (["--some-comment 'a b'"], [])


@pytest.mark.parametrize(("name", "text"), [("priority", "101"), ("priority", "x"), ("constraint", "zone")])
def test_a_form_refuses_what_is_not_of_the_kind(name: str, text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_choice(BY_NAME[name], text)


def test_the_faces_that_are_written_by_hand_have_each_field() -> None:
    asked = set(JobRequest.model_fields)
    assert set(CloneRequest.model_fields) == asked - {"box", "verb"} | {"defaults"}
    assert set(inspect.signature(Jobs.submit).parameters) - {"self"} == asked - {"deadline_s"}
    cloned = asked - {"deadline_s", "box", "verb"}
    assert set(inspect.signature(ClientJob.clone).parameters) - {"self"} == cloned
    assert {field.name for field in pb.SubmitRequest.DESCRIPTOR.fields} == asked
    assert {field.name for field in pb.Job.DESCRIPTOR.fields} == set(Job.model_fields) - NOT_OVER_GRPC
