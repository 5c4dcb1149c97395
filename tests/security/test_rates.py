"""A token, and a tenant, is served so many requests a minute by all gateways together; others are not kept waiting."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from rdukit_platform.api.context import open_platform
from rdukit_platform.console.access import COOKIE
from rdukit_platform.settings import checked_home
from rdukit_platform.up.valkey import valkey_command
from support import shows, wait_until
from support.platform.gateway import GatewayUnderTest, gateway_under_test, serving
from support.platform.processes import short_folder

pytestmark = shows("security")

LIMIT = 5


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        yield folder


@contextmanager
def broker() -> Iterator[None]:
    """Run the real broker of the home folder."""
    home = checked_home()
    for folder in (home.broker, home.broker_socket.parent):
        folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(valkey_command(home), stdout=subprocess.DEVNULL)
    notifier = open_platform(home).notifier
    try:
        wait_until(notifier.is_up)
        yield
    finally:
        notifier.close()
        process.kill()
        process.wait()


def codes(gateway: GatewayUnderTest, token: str, count: int) -> list[int]:
    return [gateway.ask("GET", "/v1/me", token).status_code for _ in range(count)]


def test_a_token_beyond_its_rate_is_told_when_to_come_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_TOKEN_RATE", str(LIMIT))
    with broker(), gateway_under_test() as gateway:
        greedy, other = gateway.token("lab", "read", "jobs:write"), gateway.token("lab", "read")
        assert codes(gateway, greedy, LIMIT + 3) == [200] * LIMIT + [429] * 3
        for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/v1/nothing-here")):
            refused = gateway.ask(method, path, greedy, json={} if method == "POST" else None)
            if path == "/v1/nothing-here":
                assert refused.status_code == 404, "a route that there is not asks nobody"
                continue
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
            assert "gateway.token_rate" in refused.json()["error"]["message"]
        assert codes(gateway, other, 1) == [200], "another token of the tenant is served"
        assert gateway.ask("GET", "/health/live", None).status_code == 200
        recorded = gateway.entries(gateway.admin, "?outcome=refused")[0]
        assert (recorded["reason"], recorded["actor"][:4], recorded["tenant"][:4]) == ("overloaded", "tok-", "ten-")


def test_a_tenant_shares_its_rate_among_its_tokens_and_gateways(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_TENANT_RATE", str(LIMIT))
    with broker(), gateway_under_test() as one, serving(open_platform(checked_home())) as second:
        other = GatewayUnderTest(second, one.platform)
        tokens = [one.token("lab", "read") for _ in range(LIMIT + 1)]
        found = [codes((one, other)[k % 2], token, 1)[0] for k, token in enumerate(tokens)]
        assert found == [200] * LIMIT + [429]
        assert codes(other, one.token("quiet", "read"), 1) == [200], "another tenant is served"


def test_the_consoles_pages_count_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_TOKEN_RATE", str(LIMIT))
    with broker(), gateway_under_test() as gateway, httpx.Client(base_url=gateway.url, timeout=60.0) as browser:
        login = browser.post("/console/login", data={"token": gateway.token("lab", "read")})
        browser.cookies.set(COOKIE, login.cookies[COOKIE])
        found = [browser.get("/console/jobs/job-0").status_code for _ in range(LIMIT + 1)]
        assert found == [404] * LIMIT + [429]
        assert "gateway.token_rate" in browser.get("/console/").text


def test_a_gateway_whose_broker_is_away_counts_by_itself(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_TOKEN_RATE", str(LIMIT))
    with gateway_under_test() as gateway:
        token = gateway.token("lab", "read")
        assert codes(gateway, token, LIMIT + 2) == [200] * LIMIT + [429] * 2


def test_without_a_limit_nobody_is_counted(home: Path) -> None:
    with gateway_under_test() as gateway:
        assert set(codes(gateway, gateway.token("lab", "read"), 50)) == {200}
