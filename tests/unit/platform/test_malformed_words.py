"""Words of the gateway for bodies that are not valid, as their schemas have them."""

from collections.abc import Mapping

import pytest
from pydantic import BaseModel, ValidationError

from rdukit_platform.gateway.malformed import find_malformed, refusal_of
from rdukit_platform.jobs.schemas import JobRequest, PipelineRequest
from rdukit_platform.sweeps.model import SweepRequest
from support import shows

pytestmark = shows("jobs", "pipelines", "sweeps")

JOB = {"box": "logreg", "verb": "train"}
STEP = {**JOB, "name": "a"}
MISTYPED = {"name": "p", "steps": [{**STEP, "prioritty": 1}]}
SWEEP = {"job": JOB, "objective": {"metric": "loss"}}


def said(model: type[BaseModel], body: object) -> str:
    """Return what is said of a body that is not valid, without its beginning."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    errors: list[Mapping[str, object]] = [{**each, "loc": ("body", *each["loc"])} for each in caught.value.errors()]
    schema = model.model_json_schema()
    problems = find_malformed(errors, body, {"body": schema}, schema["$defs"])
    return refusal_of(problems).message.removeprefix("the request is not valid: ")


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        (JobRequest, {**JOB, "priority": "abc"}, "priority is 'abc'; expected a whole number from -100 to 100"),
        (JobRequest, {**JOB, "run_limit_s": 1e9}, "run_limit_s is 1000000000; expected a number from 1 to 31536000"),
        (JobRequest, {**JOB, "labels": {"a": 1}}, "labels.a is 1; expected a text of up to 128 characters"),
        (JobRequest, {**JOB, "labels": {"My Project": "a"}}, "labels has the key 'My Project'; expected a key that "),
        (JobRequest, {**JOB, "retry": {"on": ["x"]}}, "retry.on: 'x' cannot be retried; expected "),
        (JobRequest, {**JOB, "deadline": "soon"}, "deadline is 'soon'; expected a time with its zone, such as "),
        (JobRequest, {"box": "logreg"}, "verb is missing; expected a text of 1 to 128 characters"),
        (JobRequest, [], "the body is []; expected the keys box, constraint, deadline, "),
        (PipelineRequest, {"name": "p", "steps": []}, "steps is []; expected a list of 1 to 64 entries"),
        (PipelineRequest, MISTYPED, "there is no key 'prioritty' in steps[0]; "),
        (PipelineRequest, MISTYPED, "verb. Did you mean 'priority'?"),
        (PipelineRequest, {"name": "p", "step": [STEP]}, "there is no key 'step'; expected cache, "),
        (SweepRequest, {**SWEEP, "space": {"lr": {"value": [1]}}},
         "space.lr is not valid; expected the keys values, or the keys high, integer, log, low"),
        (SweepRequest, {**SWEEP, "space": {"lr": {"low": 2, "high": 1}}},
         "low is 2 and high 1; expected low below high"),
        (SweepRequest, {**SWEEP, "space": {"lr": {"values": [1]}}, "algorithm": "guess"},
         "algorithm is 'guess'; expected grid or random or optuna"),
    ],
)  # fmt: skip
def test_a_wrong_body_is_answered_with_the_key_its_value_and_what_is_legal(
    model: type[BaseModel], body: object, words: str
) -> None:
    assert words in said(model, body)


def test_of_a_body_that_is_not_json_it_is_said_where_and_why() -> None:
    broken = {
        "type": "json_invalid",
        "loc": ("body", 7),
        "msg": "JSON decode error",
        "ctx": {"error": "Expecting value"},
    }
    problems = find_malformed([broken], {}, {}, {})
    assert [one["problem"] for one in problems.said] == ["the body is not JSON: Expecting value, at character 7"]


def test_all_that_is_wrong_is_said_and_each_key_once() -> None:
    body = {"job": {"box": 7}, "space": {"lr": 5}, "objective": {"metric": ""}}
    assert said(SweepRequest, body).split("; expected ")[0] == "job.box is 7"
    assert said(SweepRequest, body).count("space.lr") == 1
    assert ".;" not in said(JobRequest, {**JOB, "zzz": 1, "yyy": 2})


def test_the_first_twenty_keys_are_described_and_the_others_counted() -> None:
    body = {**JOB, **{f"key{number}": 0 for number in range(50)}}
    words = said(JobRequest, body)
    assert words.count("there is no key") == 20
    assert words.endswith("; and 30 more")


def test_a_long_key_is_said_in_part() -> None:
    words = said(JobRequest, {**JOB, "k" * 100_000: {"m" * 100_000: 1}})
    assert len(words) < 1000
