"""Query parameters that a route of the API does not have are refused, as they would filter nothing."""

from collections.abc import Iterator

import pytest

from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("jobs", "endpoint calls", "errors")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


def test_a_parameter_that_there_is_not_is_refused_with_those_that_there_are(gateway: GatewayUnderTest) -> None:
    token = gateway.token("lab", "read", "write")
    assert gateway.ask("GET", "/v1/jobs?state=queued&limit=5", token).status_code == 200
    status, message = gateway.refused("GET", "/v1/jobs?state=queued&boxx=logreg", token)
    assert (status, message.partition(";")[0]) == (422, "there is no query parameter 'boxx'")
    assert "cursor" in message and "limit" in message and "state" in message
    _, message = gateway.refused("GET", "/v1/jobs?lable=a", token)
    assert message.endswith("Did you mean 'label'?")
    assert gateway.refused("GET", "/v1/me?x=1", token) == (422, "there is no query parameter 'x'; expected none.")
    sent = {"box": "logreg", "verb": "compile"}
    assert gateway.refused("POST", "/v1/jobs?priority=9", token, json=sent)[0] == 422


def test_who_may_not_ask_is_told_that_first(gateway: GatewayUnderTest) -> None:
    assert gateway.refused("GET", "/v1/jobs?boxx=logreg", None)[0] == 401
    assert gateway.refused("GET", "/v1/tenants?x=1", gateway.token("lab", "jobs:read"))[0] == 403


def test_what_is_passed_on_to_an_endpoint_is_for_its_box_to_know(gateway: GatewayUnderTest) -> None:
    token = gateway.token("lab", "read", "write")
    status, message = gateway.refused("GET", "/v1/endpoints/digits/v2/models/digits/ready?x=1", token)
    assert (status, message.partition(";")[0]) == (404, "unknown endpoint 'digits'")
