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
        "box": "logreg", "verb": "train", "parameters": {"epochs": 2}, "deadline": "2030-01-01T08:00:00Z",
        "retry": {"on": ["box-lost"]},
    }  # fmt: skip
    assert second == {"box": "logreg", "verb": "train"}
    jsonschema.validate({**first, "apiVersion": "rdukit.dev/v1", "kind": "Job"}, SCHEMA)


def test_a_merge_key_gives_a_mapping_the_keys_that_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "name: p\nsizes: &sizes {width: 8, batch: 2}\nsteps:\n  - parameters: {batch: 4, <<: *sizes, depth: 1}\n"
    )
    assert read_pipeline(file, None)["steps"] == [{"parameters": {"width": 8, "batch": 4, "depth": 1}}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB + "paramters: {}\n", r"^f: paramters: unknown key\. Did you mean 'parameters'\?$"),
        (JOB + "retry: {backof_s: 1}\n", r"retry\.backof_s: unknown key\. Did you mean 'backoff_s'"),
        (JOB + "colour: red\n", r"colour: unknown key\. Legal: .*priority"),
        (JOB + "tiles: '2'\n", r"tiles: .*integer"),
        (JOB + "priority: true\n", r"priority: .*integer"),
        (JOB + "verb: infer\n", r"^f: line 5, verb: duplicate key; the first is in line 4$"),
        (JOB + "parameters: {test_ratio: .inf}\n", r"line 5, parameters\.test_ratio: inf is not valid in a request"),
        (JOB + "parameters: {rates: [1, .nan]}\n", r"parameters\.rates\.1: nan is not valid"),
        (JOB + "parameters: {limit: 010}\n", r"parameters\.limit: 010 is octal to some readers; write 10"),
        (JOB + "parameters: {limit: 1_000}\n", r"parameters\.limit: 1_000 is a number to some readers; write 1000"),
        (JOB + 'name: "a\\0b"\n', r"line 5, name: a text has the character NUL"),
        (JOB + 'name: "a\\nb"\n', r"^f: name: String should match pattern"),
        (
            JOB + "labels: " + "[" * 3000 + "]" * 3000,
            r"line 5, .*(nested more than 40 levels deep|maximum nesting depth)",
        ),
        (
            JOB
            + "a: &a [1, 1, 1]\n"
            + "".join(f"a{n}: &a{n} [{', '.join(['*a' + str(n - 1 or '')] * 9)}]\n" for n in range(1, 9)),
            r"more than 50000 values",
        ),
        (JOB + "labels: {<<: 3}\n", r"a merge key takes the keys of one mapping"),
        (HEAD + "box: logreg\n", r"verb: Field required"),
        ("kind: Job\nbox: b\nverb: v\n", r"apiVersion is missing; expected rdukit\.dev/v1"),
        ("apiVersion: rdukit.dev/v1\nkind: ModelBox\n", r"kind is 'ModelBox'; expected Job"),
        (JOB + "---\n[1]\n", r"^f, document 2 is not a mapping"),
        ("", r"has 0 documents"),
        ("a: [", r"^f: line 2, file: not valid YAML"),
        (JOB + "name: !!python/object/apply:os.getcwd []\n", r"line 5, name: tag .* is not valid"),
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
            "--pipeline cannot be combined with --priority, --label",
        ),
        (["--pipeline", "p.yaml", "logreg"], "--pipeline cannot be combined with BOX"),
        (["-f", "jobs.yaml", "--key", "night-7"], "-f cannot be combined with --key"),
    ],
)
def test_what_a_file_says_is_not_said_next_to_it(words: list[str], said: str) -> None:
    refused = CliRunner().invoke(job, ["submit", *words])
    assert isinstance(refused.exception, InvalidArgument)
    assert refused.exception.message == f"{said}; set it in the file"


def test_the_cause_of_a_retry_in_a_pipeline_file_is_the_word_on_and_no_truth_value(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("name: p\nsteps:\n  - {name: a, box: logreg, verb: compile, retry: {on: [box-lost]}}\n")
    steps = read_pipeline(file, None)["steps"]
    assert isinstance(steps, list)
    assert steps[0]["retry"] == {"on": ["box-lost"]}
