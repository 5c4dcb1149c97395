"""Tokens that an administrator blocks: who loads the gateway is seen, kept out at once, and let in again."""

from collections.abc import Iterator

import httpx
import pytest

from support import shows
from support.forked import run_rdukit_forked
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import run_rdukit, short_folder

pytestmark = shows("token", "status")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            monkeypatch.setenv("RDUKIT_GATEWAY_URL", running.url)
            monkeypatch.setenv("RDUKIT_TOKEN", running.admin)
            yield running


def test_a_blocked_token_is_kept_out_at_once_and_let_in_again(gateway: GatewayUnderTest) -> None:
    token_id, token = gateway.id_and_token("mallory", "read", "write")
    assert gateway.ask("GET", "/v1/me", token).status_code == 200
    blocked = gateway.ask("POST", f"/v1/tokens/{token_id}/block", gateway.admin)
    assert (blocked.status_code, blocked.json()["id"]) == (200, token_id)
    assert blocked.json()["blocked_at"] is not None
    status, said = gateway.refused("GET", "/v1/me", token)
    assert (status, "is blocked by an administrator" in said) == (401, True)
    assert gateway.ask("POST", f"/v1/tokens/{token_id}/unblock", gateway.admin).json()["blocked_at"] is None
    assert gateway.ask("GET", "/v1/me", token).status_code == 200
    actions = [entry["action"] for entry in gateway.entries(gateway.admin, f"?about={token_id}")]
    assert {"token.block", "token.unblock"} <= set(actions)


def test_nobody_but_an_administrator_blocks_and_sees_the_load_and_nobody_itself(gateway: GatewayUnderTest) -> None:
    token_id, token = gateway.id_and_token("mallory", "read", "write", "tokens")
    other_id, _ = gateway.id_and_token("alice", "read")
    for each in (token_id, other_id):
        assert gateway.ask("POST", f"/v1/tokens/{each}/block", token).status_code == 403
    assert gateway.ask("GET", "/v1/load", token).status_code == 403
    own = gateway.ask("GET", "/v1/me", gateway.admin).json()["token"]
    assert gateway.ask("POST", f"/v1/tokens/{own}/block", gateway.admin).status_code == 409
    assert gateway.ask("POST", "/v1/tokens/tok-none/block", gateway.admin).status_code == 404


def test_a_blocked_tokens_stream_ends(gateway: GatewayUnderTest) -> None:
    token_id, token = gateway.id_and_token("default", "read", "write")
    body = {"box": "logreg", "verb": "preprocess"}
    job_id = gateway.ask("POST", "/v1/jobs", token, json=body).json()["id"]
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    with httpx.stream("GET", f"{gateway.url}/v1/jobs/{job_id}/events", headers=headers, timeout=60) as stream:
        blocks = stream.iter_raw()
        next(blocks)
        gateway.ask("POST", f"/v1/tokens/{token_id}/block", gateway.admin)
        for _ in blocks:  # it ends
            pass


def test_an_administrator_sees_who_loads_the_gateway(gateway: GatewayUnderTest) -> None:
    token_id, token = gateway.id_and_token("mallory", "read", "write")
    for _ in range(30):
        gateway.ask("POST", "/v1/jobs/check", token, json={"box": "x" * 100_000, "verb": "y"})
    load = gateway.ask("GET", "/v1/load", gateway.admin).json()["load"]
    assert (load[0]["tenant"], load[0]["token"], load[0]["requests"]) == ("mallory", token_id, 30)
    assert load[0]["bytes_in"] > 3_000_000
    # Its status says that other parts are not up, which these tests do not start.
    assert f"mallory {token_id} 30 requests" in run_rdukit_forked(["status"]).stdout
    metrics = gateway.ask("GET", "/metrics", gateway.admin).text
    assert 'rdukit_gateway_tenant_requests_total{tenant="mallory"} 30.0' in metrics
    assert "rdukit token unblock" in run_rdukit("token", "block", token_id)
    assert gateway.ask("GET", "/v1/me", token).status_code == 401
    run_rdukit("token", "unblock", token_id)
    assert gateway.ask("GET", "/v1/me", token).status_code == 200
