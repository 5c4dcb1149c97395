"""The client's values beside the schemas of the API."""

from dataclasses import fields

import pytest
from pydantic import BaseModel

from rdukit.errors import InvalidArgument, NotFound
from rdukit_platform.artifacts import service
from rdukit_platform.client import values
from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.jobs import Job
from rdukit_platform.client.platform import Platform
from rdukit_platform.jobs import metrics, schemas


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (values.JobInfo, schemas.Job),
        (values.AttemptInfo, schemas.Attempt),
        (values.Event, schemas.EventRecord),
        (values.MetricPoint, metrics.MetricPoint),
        (values.ArtifactInfo, service.Artifact),
        (values.FileInfo, service.File),
    ],
)
def test_a_value_has_the_keys_of_its_schema(value: type, schema: type[BaseModel]) -> None:
    assert [field.name for field in fields(value)] == list(schema.model_fields)


def test_a_value_leaves_out_what_it_does_not_know_and_has_defaults_for_what_is_missing() -> None:
    job = values.JobInfo.of(
        {"id": "job-1", "name": "n", "box": "b", "verb": "train", "state": "running", "colour": "red",
         "attempts": [{"number": 1, "mood": "good"}]}
    )  # fmt: skip
    assert (job.labels, job.attempts) == ({}, (values.AttemptInfo(1),))


def test_an_address_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'nonsense' is no address"):
        Platform("nonsense", "token")


def test_inputs_that_are_no_mapping_are_refused() -> None:
    with Platform("http://127.0.0.1:1", "token") as platform, pytest.raises(InvalidArgument, match="mapping of slots"):
        platform.jobs.submit("logreg", "train", inputs=3)  # type: ignore[arg-type]


def test_an_output_that_is_not_there_is_answered_with_those_that_are() -> None:
    info = values.JobInfo.of(
        {"id": "job-1", "name": "n", "box": "b", "verb": "compile", "state": "succeeded", "outputs": {"pef": "art-1"}}
    )
    with ApiClient("http://127.0.0.1:1", "token") as api:
        outputs = Job(api, info).outputs
        assert (outputs["pef"].id, "pev" in outputs, outputs.get("pev")) == ("art-1", False, None)
        with pytest.raises(NotFound, match=r"job job-1, which is succeeded, has no output 'pev'. Did you mean 'pef'\?"):
            outputs["pev"]
