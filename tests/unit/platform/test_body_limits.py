"""What a route takes of a body, by its method and path; and what is said of bodies with very many faults."""

import json

import pytest
from pydantic import TypeAdapter

from rdukit.errors import RequestTooLarge
from rdukit_platform.api.bodies import MAX_VALUES, MalformedBody, parse_body
from rdukit_platform.gateway.body_limits import BODY_BYTES, JOB_BYTES, PLAIN_BYTES, STRANGERS_BYTES, bound_of
from rdukit_platform.gateway.malformed import find_malformed
from rdukit_platform.gateway.routes import PERMISSIONS
from rdukit_platform.jobs.schemas import JobBatchRequest, JobRequest
from rdukit_platform.settings import MAX_BODY_BYTES, MAX_UPLOAD_BYTES
from support import shows

pytestmark = shows("jobs", "errors", "security")

JOB = {"box": "logreg", "verb": "train"}
MANY = 90_000


@pytest.mark.parametrize(
    ("method", "path", "bound"),
    [
        ("POST", "/v1/login/device", STRANGERS_BYTES),
        ("POST", "/v1/login/device/", STRANGERS_BYTES),
        ("POST", "/console/login", STRANGERS_BYTES),
        ("POST", "/v1/jobs", JOB_BYTES),
        ("POST", "/v1/jobs/job-1/clone", JOB_BYTES),
        ("POST", "/v1/jobs/job-1/cancel", PLAIN_BYTES),
        ("POST", "/v1/tenants", PLAIN_BYTES),
        ("POST", "/nowhere", PLAIN_BYTES),
        ("POST", "/v1/jobs/batch", MAX_BODY_BYTES),
        ("POST", "/v1/endpoints/e/v1/chat/completions", MAX_BODY_BYTES),
        ("PUT", "/v1/uploads/up-1/files/3", MAX_BODY_BYTES),
        ("POST", "/v1/artifacts", MAX_UPLOAD_BYTES),
    ],
)
def test_a_route_takes_what_it_needs(method: str, path: str, bound: object) -> None:
    assert bound_of(method, path) == bound


def test_every_listed_route_is_one() -> None:
    assert set(BODY_BYTES) <= set(PERMISSIONS)
    of_strangers = {route for route, permission in PERMISSIONS.items() if not permission.needs_token}
    assert {route for route, bound in BODY_BYTES.items() if bound == STRANGERS_BYTES} == {
        route for route in of_strangers if not route.startswith("GET ")
    }


def test_a_hundred_thousand_unknown_keys_give_twenty_sentences_and_a_number() -> None:
    body = json.dumps({**JOB, **{f"k{number}": 0 for number in range(MANY)}}).encode()
    with pytest.raises(MalformedBody) as refused:
        parse_body(body, TypeAdapter(JobRequest))
    error = refused.value
    assert error.total == MANY and len(error.errors()) < 100
    found = find_malformed(error.errors(), error.body, {}, {}, error.total)
    assert (len(found.said), found.others) == (20, MANY - 20)


def test_many_wrong_entries_of_a_list_are_bounded_too() -> None:
    body = json.dumps({"jobs": [{**JOB, "labels": dict.fromkeys(map(str, range(60)), 1)}] * 1000}).encode()
    with pytest.raises(MalformedBody) as refused:
        parse_body(body, TypeAdapter(JobBatchRequest))
    assert refused.value.errors()[0]["loc"][:3] == ("body", "jobs", 0)


@pytest.mark.parametrize("body", [b"[" + b"0," * MAX_VALUES + b"0]", b'{"a":[' + b'",",' * MAX_VALUES + b'"" ]}'])
def test_a_body_has_so_many_values_at_most(body: bytes) -> None:
    with pytest.raises(RequestTooLarge, match="values"):
        parse_body(body, None)


def test_commas_in_texts_are_no_values() -> None:
    text = ',"\\' * MAX_VALUES
    assert parse_body(json.dumps([text, 1]).encode(), None) == [text, 1]


def test_a_body_that_its_route_takes_is_read() -> None:
    assert parse_body(json.dumps(JOB).encode(), TypeAdapter(JobRequest)) == JobRequest(**JOB)
