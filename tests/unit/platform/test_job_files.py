"""Files of jobs: what is read, and how what is wrong is told."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit_platform.cli.job import job, read_pipeline
from rdukit_platform.cli.job_files import read_jobs
from support import shows

pytestmark = shows("job", "jobs")

HEAD = "apiVersion: rdukit.dev/v1\nkind: Job\n"
JOB = HEAD + "box: logreg\nverb: train\n"
SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "job.schema.json").read_text())


def test_documents_are_requests_of_the_same_keys() -> None:
    text = JOB + "parameters: {epochs: 2}\ndeadline: 2030-01-01T08:00:00Z\nretry: {on: [box-lost]}\n---\n" + JOB
    first, second = read_jobs(text, "jobs.yaml")
    assert first == {
        "box": "logreg", "verb": "train", "parameters": {"epochs": 2}, "deadline": "2030-01-01T08:00:00+00:00",
        "retry": {"on": ["box-lost"]},
    }  # fmt: skip
    assert second == {"box": "logreg", "verb": "train"}
    jsonschema.validate({**first, "apiVersion": "rdukit.dev/v1", "kind": "Job"}, SCHEMA)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB + "paramters: {}\n", r"^f: paramters: unknown key\. Did you mean 'parameters'\?$"),
        (JOB + "retry: {backof_s: 1}\n", r"retry\.backof_s: unknown key\. Did you mean 'backoff_s'"),
        (JOB + "colour: red\n", r"colour: unknown key\. Legal: .*priority"),
        (JOB + "tiles: '2'\n", r"tiles: .*integer"),
        (JOB + "priority: true\n", r"priority: .*integer"),
        (JOB + "verb: infer\n", r"the key 'verb' comes twice"),
        (HEAD + "box: logreg\n", r"verb: Field required"),
        ("kind: Job\nbox: b\nverb: v\n", r"apiVersion is missing; legal: rdukit\.dev/v1"),
        ("apiVersion: rdukit.dev/v1\nkind: ModelBox\n", r"kind is 'ModelBox'; legal: Job"),
        (JOB + "---\n[1]\n", r"^f, document 2 is no mapping"),
        ("", r"has 0 documents"),
        ("a: [", r"is not valid YAML"),
        (JOB + "name: !!python/object/apply:os.getcwd []\n", r"is not valid YAML"),
    ],
)
def test_what_is_wrong_is_told_by_document_and_key(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        read_jobs(text, "f")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--pipeline", "p.yaml", "--priority", "0", "--label", "a=b"],
            "--pipeline does not go with --priority, --label",
        ),
        (["--pipeline", "p.yaml", "logreg"], "--pipeline does not go with BOX"),
        (["-f", "jobs.yaml", "--key", "night-7"], "-f does not go with --key"),
    ],
)
def test_what_a_file_says_is_not_said_next_to_it(words: list[str], said: str) -> None:
    refused = CliRunner().invoke(job, ["submit", *words])
    assert isinstance(refused.exception, InvalidArgument)
    assert refused.exception.message == f"{said}; the file says it"


def test_the_cause_of_a_retry_in_a_pipeline_file_is_the_word_on_and_no_truth_value(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: p\nsteps:\n  - {name: a, box: logreg, verb: compile, retry: {on: [box-lost]}}\n")
    steps = read_pipeline(file, None)["steps"]
    assert isinstance(steps, list)
    assert steps[0]["retry"] == {"on": ["box-lost"]}
