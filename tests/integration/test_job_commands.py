"""``rdukit job`` and ``rdukit node`` as a shell calls them, against a gateway."""

import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from rdukit.errors import InvalidArgument
from rdukit_platform.cli.job import job
from rdukit_platform.cli.node import chosen_part, node_row
from rdukit_platform.cli.token import token
from rdukit_platform.cli.webhook import webhook
from support import shows
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("job", "token", "webhook", "node")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.url)
            monkeypatch.setenv("RDUKIT_TOKEN", running.admin)
            yield running


def test_following_a_log_prints_lines_alone_and_tells_beside_them_what_becomes_of_the_job(
    gateway: GatewayUnderTest,
) -> None:
    tenant = gateway.ask("GET", "/v1/me", gateway.admin).json()["tenant"]["id"]
    example = Example(gateway.platform.database, gateway.platform.store, tenant, time.time())
    _, trained = example.run_pipeline()
    quiet = example.cancel()
    found = CliRunner().invoke(job, ["logs", "--follow", trained], catch_exceptions=False)
    assert found.exit_code == 0
    assert found.stdout == CliRunner().invoke(job, ["logs", trained]).stdout != ""
    assert "state     running" in found.stderr
    assert found.stderr.endswith("state     succeeded (completed)\n")
    nothing = CliRunner().invoke(job, ["logs", "--follow", quiet], catch_exceptions=False)
    assert nothing.stdout == ""
    assert "state     cancelled (cancelled-by-user)" in nothing.stderr


def test_a_submission_that_is_waited_for_prints_its_id_too(gateway: GatewayUnderTest) -> None:
    words = ["submit", "logreg", "preprocess", "--key", "night-7"]
    made = CliRunner().invoke(job, words, catch_exceptions=False).stdout
    gateway.ask("POST", f"/v1/jobs/{made.strip()}/cancel", gateway.admin)
    waited = CliRunner().invoke(job, [*words, "--wait"], catch_exceptions=False)
    assert (waited.exit_code, waited.stdout) == (4, made)


def test_a_token_that_has_ended_already_is_said_to_have(gateway: GatewayUnderTest) -> None:
    made = gateway.ask("POST", "/v1/tokens", gateway.admin, json={"scopes": ["read"]}).json()["id"]
    assert CliRunner().invoke(token, ["revoke", made], catch_exceptions=False).stdout == f"{made}\n"
    again = CliRunner().invoke(token, ["revoke", made], catch_exceptions=False)
    assert (again.stdout, again.stderr) == ("", f"{made} had ended already\n")


def test_deliveries_tell_when_the_next_try_is(gateway: GatewayUnderTest) -> None:
    hook = gateway.ask("POST", "/v1/webhooks", gateway.admin, json={"url": "https://example.org/"}).json()["id"]
    gateway.ask("POST", f"/v1/webhooks/{hook}/test", gateway.admin)
    listed = CliRunner().invoke(webhook, ["deliveries", hook], catch_exceptions=False).stdout
    assert listed.splitlines()[0].split("  ")[-2:] == ["NEXT IN", "LAST ERROR"]
    assert listed.splitlines()[1].endswith("0 s")


def test_a_part_of_a_node_is_a_path_and_a_node_is_a_name() -> None:
    assert chosen_part("-", "/NODE") == ("-", "/NODE")
    assert chosen_part("blade-7", "/NODE/XRDU_0") == ("blade-7", "/NODE/XRDU_0")
    assert chosen_part("-", "blade-7") == chosen_part("blade-7", "blade-7") == ("blade-7", "/NODE")
    with pytest.raises(InvalidArgument, match="'blade-7' is a node's name, but --node names 'blade-8'"):
        chosen_part("blade-8", "blade-7")


def test_the_list_of_nodes_tells_what_is_cordoned() -> None:
    tiles = [
        {"lease": None, "cordon": "drained"},
        {"lease": "lease-1", "cordon": None},
        {"lease": None, "cordon": None},
    ]
    node = {"name": "blade-7", "state": "up", "tiles": tiles}
    assert "1 of 3, 1 cordoned" in node_row(node)
    assert "2 of 2" in node_row({**node, "tiles": [{}, {}]})
