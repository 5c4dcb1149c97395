"""What the command line says of endpoints, and of what their boxes refuse."""

import click
import httpx
import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit_platform.cli.endpoint import endpoint, ready_words, wanted_replicas
from rdukit_platform.client.http import check_answer
from support import shows

pytestmark = shows("endpoint", "endpoints")


@pytest.mark.parametrize(("status", "kind"), [(400, InvalidArgument), (404, NotFound), (500, RdukitError)])
def test_an_error_of_the_open_inference_protocol_is_its_text(status: int, kind: type[RdukitError]) -> None:
    with pytest.raises(RdukitError) as caught:
        check_answer(httpx.Response(status, json={"error": "data has 2 elements"}))
    assert type(caught.value) is kind
    assert caught.value.message == "data has 2 elements"


def test_ready_replicas_are_told_by_revision_during_a_canary() -> None:
    found = {
        "revision": 1, "ready": 2, "replicas": 1, "canary": {"revision": 2, "percent": 25, "replicas": 1},
        "instances": [
            {"revision": 1, "state": "ready"}, {"revision": 2, "state": "ready"}, {"revision": 2, "state": "ended"},
        ],
    }  # fmt: skip
    assert ready_words(found) == "revision 1 (75 %), 1 of 1 ready; canary revision 2 (25 %), 1 of 1 ready"
    assert ready_words({**found, "ready": 1, "canary": None}) == "revision 1, 1 of 1 replicas ready"
    assert (wanted_replicas(found), wanted_replicas({**found, "canary": None})) == (2, 1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rows", "rows.json", "--model", "poet"], "--model chooses the expert for a --prompt"),
        (["--rows", "rows.json", "--temperature", "0"], "--temperature needs --prompt"),
        (["--prompt", "Hi", "--temperature", "3"], "Invalid value for '--temperature'"),
    ],
)
def test_what_a_call_cannot_mean_is_refused(words: list[str], why: str) -> None:
    refused = CliRunner().invoke(endpoint, ["call", "read", *words])
    assert refused.exit_code == 2
    assert why in refused.output


def test_idle_takes_a_length_of_time() -> None:
    create = endpoint.get_command(click.Context(endpoint), "create")
    assert create is not None
    idle = next(one for one in create.params if one.name == "idle_s")
    assert idle.type.convert("31d", idle, None) == 31 * 86400
    assert idle.type.convert("0", idle, None) == 0
