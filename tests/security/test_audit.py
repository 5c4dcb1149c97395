"""Whoever is refused is in the audit log, nobody reads another tenant's part of it, and nobody changes it."""

import contextlib
from collections.abc import Iterator

import httpx
import pytest

from rdukit_platform.audit.writer import ROWS_OF_ONE
from support import shows
from support.helpers import RawCaller
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder
from support.tiers import every_third_short

pytestmark = shows("audit", "security")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        yield


@pytest.fixture
def gateway(home: None) -> Iterator[GatewayUnderTest]:
    with gateway_under_test() as running:
        yield running


def test_a_stranger_who_knocks_is_recorded(gateway: GatewayUnderTest) -> None:
    assert gateway.ask("GET", "/v1/jobs", None).status_code == 401
    assert gateway.ask("POST", "/v1/jobs", "rdk_guess", json={}).status_code == 401
    found = gateway.entries(gateway.admin, "?outcome=refused")
    assert [(e["actor"], e["action"], e["target"], e["reason"]) for e in found] == [
        ("nobody", "request", "POST /v1/jobs", "unauthenticated"),
        ("nobody", "request", "GET /v1/jobs", "unauthenticated"),
    ]
    assert {e["address"] for e in found} == {"127.0.0.1"}
    assert "rdk_guess" not in str(found)


def test_a_tenant_who_reaches_beyond_its_scopes_is_recorded_with_its_token(gateway: GatewayUnderTest) -> None:
    reader = gateway.token("lab", "read")
    assert gateway.ask("GET", "/v1/tenants", reader).status_code == 403
    assert gateway.ask("POST", "/v1/jobs", reader, json={"box": "x", "verb": "train"}).status_code == 403
    found = gateway.entries(reader, "?outcome=refused")
    assert [(e["target"], e["reason"]) for e in found] == [
        ("POST /v1/jobs", "permission-denied"), ("GET /v1/tenants", "permission-denied"),
    ]  # fmt: skip
    assert all(e["actor"].startswith("tok-") and e["tenant"] for e in found)


def test_a_body_that_is_too_long_is_recorded(home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_MAX_BODY_BYTES", "1000")
    with gateway_under_test() as gateway:
        assert gateway.ask("POST", "/v1/jobs", None, content=b" " * 1001).status_code == 413
        assert gateway.entries(gateway.admin, "?outcome=refused")[0]["reason"] == "request-too-large"


@pytest.mark.parametrize(
    ("sent", "status", "target", "reason"),
    every_third_short([
        (b"\x16\x03\x01 no HTTP\r\n\r\n", 400, "", "malformed-request"),
        (b"GET /v1/jobs?key=secret HTTP/1.1\r\n\r\n", 400, "GET /v1/jobs", "malformed-request"),
        (b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
         "POST /v1/jobs", "malformed-request"),
        (b"GET /v1/me HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 6000 + b"\r\n\r\n", 431, "GET /v1/me", "headers-too-large"),
        (b"GET /" + b"x" * 6000, 431, "GET /" + "x" * 250 + "…", "headers-too-large"),
        (b"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: secret", 408, "GET /v1/me", "request-timeout"),
        (b"GE", 408, "", "request-timeout"),
    ]),
)  # fmt: skip
def test_what_is_refused_before_it_is_a_request_is_recorded(
    home: None, monkeypatch: pytest.MonkeyPatch, sent: bytes, status: int, target: str, reason: str
) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_MAX_HEADER_BYTES", "5000")
    monkeypatch.setenv("RDUKIT_GATEWAY_SILENCE_S", "3")
    with gateway_under_test() as gateway, contextlib.closing(RawCaller(gateway.url)) as stranger:
        assert stranger.send(sent)[0] == status
        (found,) = gateway.entries(gateway.admin, "?outcome=refused")
    assert (found["actor"], found["action"], found["tenant"]) == ("nobody", "request", None)
    assert (found["target"], found["reason"], found["address"]) == (target, reason, "127.0.0.1")
    assert "secret" not in str(found)


def test_a_connection_that_idles_is_closed_and_is_no_refusal(home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_SILENCE_S", "3")
    with gateway_under_test() as gateway, contextlib.closing(RawCaller(gateway.url)) as idle:
        assert idle.connect().recv(1) == b""
        assert gateway.entries(gateway.admin, "?outcome=refused") == []


def test_a_flood_of_what_is_no_request_does_not_fill_the_log_either(gateway: GatewayUnderTest) -> None:
    with contextlib.closing(RawCaller(gateway.url)) as stranger:
        for _ in range(50):
            assert stranger.send(b"\x00\r\n\r\n")[0] == 400
    assert len(gateway.entries(gateway.admin, "?outcome=refused")) == ROWS_OF_ONE


def test_a_flood_of_one_address_does_not_fill_the_log(gateway: GatewayUnderTest) -> None:
    with httpx.Client(base_url=gateway.url) as client:
        for _ in range(200):
            assert client.get("/v1/jobs").status_code == 401
    assert len(gateway.entries(gateway.admin, "?outcome=refused")) == ROWS_OF_ONE


def test_a_forged_forwarding_header_makes_nobody_another_address(gateway: GatewayUnderTest) -> None:
    for k in range(20):
        gateway.ask("GET", "/v1/jobs", None, headers={"X-Forwarded-For": f"192.0.2.{k}"})
    found = gateway.entries(gateway.admin, "?outcome=refused")
    assert {e["address"] for e in found} == {"127.0.0.1"}
    assert len(found) == ROWS_OF_ONE


def test_a_proxy_that_the_operator_named_is_believed(home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_GATEWAY_PROXIES", "127.0.0.1")
    with gateway_under_test() as gateway:
        gateway.ask("GET", "/v1/jobs", None, headers={"X-Forwarded-For": "192.0.2.7"})
        assert gateway.entries(gateway.admin, "?outcome=refused")[0]["address"] == "192.0.2.7"


def test_a_tenant_sees_nothing_of_another_or_of_strangers(gateway: GatewayUnderTest) -> None:
    one, other = gateway.token("one", "read"), gateway.token("other", "read")
    gateway.ask("GET", "/v1/tenants", other)
    gateway.ask("GET", "/v1/tenants", None)
    assert gateway.entries(one) == []
    assert len(gateway.entries(other)) == 1


def test_a_tenant_does_not_see_which_administrator_made_its_token(gateway: GatewayUnderTest) -> None:
    admin = gateway.admin
    lab = gateway.ask("POST", "/v1/tenants", admin, json={"name": "lab"}).json()["id"]
    made = gateway.ask("POST", f"/v1/tenants/{lab}/tokens", admin, json={}).json()
    (token, tenant) = gateway.entries(made["token"])
    assert (token["action"], token["target"], token["actor"]) == ("token.create", made["id"], "administrator")
    assert (tenant["action"], tenant["address"]) == ("tenant.create", "")
    assert [e["actor"][:4] for e in gateway.entries(admin, "?action=tenant.create")] == ["tok-"]


def test_the_log_has_no_route_that_changes_it(gateway: GatewayUnderTest) -> None:
    admin = gateway.admin
    found = gateway.entries(admin)[0]
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert gateway.ask(method, "/v1/audit", admin).status_code == 405
        assert gateway.ask(method, f"/v1/audit/{found['id']}", admin).status_code == 404


def test_control_characters_of_a_path_do_not_reach_whoever_reads_the_log(gateway: GatewayUnderTest) -> None:
    gateway.ask("GET", "/v1/jobs/%1b%5b2J%0aok", None)
    target = gateway.entries(gateway.admin, "?outcome=refused")[0]["target"]
    assert target.isprintable()


def test_a_wrong_token_at_the_consoles_login_is_recorded_and_a_right_one_too(gateway: GatewayUnderTest) -> None:
    assert httpx.post(f"{gateway.url}/console/login", data={"token": "rdk_guess"}).status_code == 401
    assert httpx.post(f"{gateway.url}/console/login", data={"token": gateway.admin}).status_code == 303
    login, refused = gateway.entries(gateway.admin)[:2]
    assert (login["action"], login["outcome"], login["actor"]) == ("console.login", "done", login["target"])
    assert (refused["target"], refused["reason"]) == ("POST /console/login", "unauthenticated")


def test_the_consoles_page_shows_a_tenant_its_own_entries(gateway: GatewayUnderTest) -> None:
    lab = gateway.token("lab", "read")
    gateway.ask("GET", "/v1/jobs", None)
    with httpx.Client(base_url=gateway.url) as browser:
        browser.post("/console/login", data={"token": lab})
        shown = browser.get("/console/audit").text
    assert "console.login" in shown
    assert "unauthenticated" not in shown
