"""A malformed request is told by its field, in words that say what is legal."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from rdukit_modelbox.rest.malformed import malformed_request
from rdukit_modelbox.rest.schemas import InferBody, VerbBody
from support import shows

pytestmark = shows("wire", "operations")

JSON = "application/json"


def told(body: Any, kind: Any = VerbBody, content_type: str = JSON) -> tuple[object, str]:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    error = malformed_request(errors, content_type)
    return error.detail["field"], error.message


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (
            {"parameter": {}},
            "parameter",
            "unknown field; did you mean 'parameters'? expected parameters, inputs, output",
        ),
        (
            {"idempotency_key": "k"},
            "idempotency_key",
            "removed after 0.1.0: a box runs every request; for idempotency submit",
        ),
        (
            {"resume": True},
            "resume",
            "removed after 0.1.0: operations end with their box; submit a job to the platform",
        ),
        ({"webhook": {"url": "http://x"}}, "webhook", "0.1.0: a box sends no notifications; submit a job"),
        ({"inputs": {"pef": {"uri": "x", "resume": True}}}, "inputs.pef.resume", "unknown field"),
        ({"inputs": {"pef": {"uri": "x", "sha": "0"}}}, "inputs.pef.sha", "expected uri, sha256"),
        ({"inputs": {"pef": {"uri": "x", "sha256": "0"}}}, "inputs.pef.sha256", "pattern"),
        ({"inputs": {"pef": 3}}, "inputs.pef", "valid string"),
        ({"timeout_s": "3"}, "timeout_s", "valid number"),
        ([], "body", "it is not a JSON object"),
    ],
)
def test_a_verbs_body(body: object, field: str, words: str) -> None:
    where, message = told(body)
    assert where == field
    assert words in message


@pytest.mark.parametrize("kind", [VerbBody, InferBody])
def test_removed_fields_that_ask_for_nothing_are_taken_as_clients_of_0_1_0_send_them(kind: Any) -> None:
    body = {"parameters": {"limit": 1}, "idempotency_key": None, "resume": False, "timeout_s": 2.0}
    asked = TypeAdapter(kind).validate_python(body).to_call()
    assert (asked.parameters, asked.timeout_s) == ({"limit": 1}, 2.0)


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"rows": [["a"]]}, "rows.0.0", "valid number"),
        ({"rows": []}, "rows", "at least 1"),
        ({"rows": [[1.0]], "row": 1}, "row", "did you mean 'rows'? expected rows, inputs"),
        ({"input": {}}, "input", "did you mean 'inputs'?"),
        ({"resume": True}, "resume", "removed after 0.1.0"),
        ({"inputs": {"pef": {"sha256": None}}}, "inputs.pef.uri", "Field required"),
    ],
)
def test_the_body_of_infer(body: object, field: str, words: str) -> None:
    where, message = told(body, InferBody)
    assert where == field
    assert words in message


def test_text_that_was_not_sent_as_json_is_told_by_its_content_type() -> None:
    assert "content-type is 'text/plain'; expected application/json" in told("{}", content_type="text/plain")[1]
    assert "content-type is ''; expected" in told("{}", content_type="")[1]
    missing = malformed_request([{"type": "missing", "loc": ("body",), "msg": "Field required"}], JSON)
    assert "the body is missing; expected a JSON object, such as {}" in missing.message
    query = malformed_request([{"type": "enum", "loc": ("query", "state"), "msg": "Input should be 'queued'"}], JSON)
    assert query.detail["field"] == "state"
