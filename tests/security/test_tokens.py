"""Nobody gets more from a token than it says, longer than it says, or unseen."""

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit_platform.console.access import COOKIE
from rdukit_platform.db.models import TokenRow
from rdukit_platform.tenants.service import authenticate
from rdukit_platform.tenants.tokens import MAX_TOKENS
from support import FakeClock, shows, wait_until
from support.forked import run_rdukit_forked
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("token", "tenant", "security", "permissions", "tenants", "audit", "console")

DAY_S = 86400.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        yield folder


@pytest.fixture
def gateway(home: Path, clock: FakeClock) -> Iterator[GatewayUnderTest]:
    with gateway_under_test(clock) as running:
        yield running


def make(gateway: GatewayUnderTest, token: str, *scopes: str, **body: object) -> dict[str, Any]:
    answer = gateway.ask("POST", "/v1/tokens", token, json={"scopes": list(scopes), **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def status(gateway: GatewayUnderTest, token: str, path: str = "/v1/me") -> int:
    return gateway.ask("GET", path, token).status_code


#: A request for each group of routes, and the scope that it needs; nodes are for read and for metrics.
NEEDS = [
    ("GET", "/v1/jobs", "jobs:read"),
    ("GET", "/v1/pipelines", "jobs:read"),
    ("POST", "/v1/jobs", "jobs:write"),
    ("POST", "/v1/jobs/job-0/cancel", "jobs:write"),
    ("POST", "/v1/jobs/job-0/pause", "jobs:write"),
    ("POST", "/v1/jobs/job-0/resume", "jobs:write"),
    ("POST", "/v1/jobs/job-0/clone", "jobs:write"),
    ("GET", "/v1/jobs/compare?ids=job-0,job-1", "jobs:read"),
    ("GET", "/v1/jobs/job-0/metrics", "jobs:read"),
    ("GET", "/v1/sweeps", "jobs:read"),
    ("GET", "/v1/sweeps/sweep-0", "jobs:read"),
    ("POST", "/v1/sweeps", "jobs:write"),
    ("POST", "/v1/sweeps/sweep-0/cancel", "jobs:write"),
    ("GET", "/v1/artifacts", "artifacts:read"),
    ("POST", "/v1/artifacts", "artifacts:write"),
    ("GET", "/v1/artifacts/usage", "artifacts:read"),
    ("POST", "/v1/artifacts/art-0/verify", "artifacts:read"),
    ("GET", "/v1/artifacts/art-0/lineage", "artifacts:read"),
    ("DELETE", "/v1/artifacts/art-0", "artifacts:write"),
    ("PUT", "/v1/artifacts/art-0/pin", "artifacts:write"),
    ("DELETE", "/v1/artifacts/art-0/pin", "artifacts:write"),
    ("POST", "/v1/artifacts/gc", "admin"),
    ("GET", "/v1/tenants/lab", "read"),
    ("PATCH", "/v1/tenants/lab", "admin"),
    ("POST", "/v1/uploads", "artifacts:write"),
    ("GET", "/v1/uploads/upl-0", "artifacts:write"),
    ("PUT", "/v1/uploads/upl-0/files/0", "artifacts:write"),
    ("POST", "/v1/uploads/upl-0/finish", "artifacts:write"),
    ("DELETE", "/v1/uploads/upl-0", "artifacts:write"),
    ("GET", "/v1/boxes", "boxes:read"),
    ("POST", "/v1/boxes", "boxes:write"),
    ("DELETE", "/v1/boxes/x", "boxes:write"),
    ("GET", "/v1/experts", "boxes:read"),
    ("GET", "/v1/experts/x:1", "boxes:read"),
    ("POST", "/v1/experts", "boxes:write"),
    ("POST", "/v1/experts/x/deprecate", "boxes:write"),
    ("GET", "/v1/endpoints", "endpoints:read"),
    ("GET", "/v1/endpoints/x", "endpoints:read"),
    ("POST", "/v1/endpoints", "endpoints:write"),
    ("POST", "/v1/endpoints/x/update", "endpoints:write"),
    ("POST", "/v1/endpoints/x/promote", "endpoints:write"),
    ("POST", "/v1/endpoints/x/rollback", "endpoints:write"),
    ("DELETE", "/v1/endpoints/x", "endpoints:write"),
    ("GET", "/v1/endpoints/x/v2/models/x", "endpoints:call"),
    ("POST", "/v1/endpoints/x/v2/models/x/infer", "endpoints:call"),
    ("POST", "/v1/endpoints/x/v1/chat/completions", "endpoints:call"),
    ("GET", "/v1/tokens", "tokens"),
    ("POST", "/v1/tokens", "tokens"),
    ("DELETE", "/v1/tokens/tok-0", "tokens"),
    ("GET", "/v1/members", "read"),
    ("POST", "/v1/members", "members"),
    ("PATCH", "/v1/members/usr-0", "members"),
    ("DELETE", "/v1/members/usr-0", "members"),
    ("GET", "/v1/users", "admin"),
    ("PATCH", "/v1/users/usr-0", "admin"),
    ("GET", "/v1/organisations", "admin"),
    ("GET", "/v1/audit", "read"),
    ("GET", "/v1/audit/verify", "read"),
    ("GET", "/v1/audit/export", "admin"),
    ("GET", "/v1/nodes", "nodes"),
    ("GET", "/v1/tenants", "admin"),
    ("POST", "/v1/nodes/-/cordon", "admin"),
    ("POST", "/v1/nodes/-/uncordon", "admin"),
    ("POST", "/v1/nodes/-/drain", "admin"),
    ("POST", "/v1/nodes/-/maintenance", "admin"),
    ("DELETE", "/v1/nodes/-/maintenance/mw-0", "admin"),
    ("POST", "/v1/nodes/-/leases/lease-0/release", "admin"),
]
ALL = ["jobs:read", "jobs:write", "artifacts:read", "artifacts:write", "boxes:read", "boxes:write",
       "endpoints:read", "endpoints:write", "endpoints:call", "tokens", "members", "metrics"]  # fmt: skip
INCLUDED = {
    "metrics": {"metrics", "nodes"},
    "read": {"read", "nodes", "jobs:read", "artifacts:read", "boxes:read", "endpoints:read"},
    "write": {"write", "jobs:write", "artifacts:write", "boxes:write", "endpoints:write", "endpoints:call"},
}


def test_each_scope_opens_its_routes_and_no_other(gateway: GatewayUnderTest) -> None:
    for scope in [*ALL, "read", "write"]:
        token = gateway.token("lab", scope)
        opened = INCLUDED.get(scope, {scope})
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=gateway.url, headers=headers, timeout=60.0) as client:
            for method, path, needed in NEEDS:
                code = client.request(method, path).status_code
                assert (code != 403) is (needed in opened), (scope, method, path, code)


@pytest.mark.parametrize("more", ["admin", "write", "read", "jobs:write", "metrics"])
def test_a_tenant_does_not_give_itself_more_than_it_has(gateway: GatewayUnderTest, more: str) -> None:
    token = gateway.token("lab", "tokens", "jobs:read")
    code, said = gateway.refused("POST", "/v1/tokens", token, json={"scopes": ["jobs:read", more]})
    assert (code, "a token cannot give scopes that it lacks" in said) == (403, True)
    assert gateway.entries(gateway.admin, "?outcome=refused")[0]["reason"] == "permission-denied"
    assert make(gateway, token, "jobs:read", "tokens")["scopes"] == ["jobs:read", "tokens"]


def test_a_token_is_made_with_a_role_within_its_makers_scopes(gateway: GatewayUnderTest) -> None:
    scientist = gateway.token("lab", "read", "write", "tokens")
    made = gateway.ask("POST", "/v1/tokens", scientist, json={"role": "app-developer"}).json()
    assert (made["role"], made["scopes"]) == ("app-developer", ["endpoints:call", "endpoints:write", "read"])
    rotated = gateway.ask("POST", f"/v1/tokens/{made['id']}/rotate", scientist).json()
    assert (rotated["role"], rotated["scopes"]) == (made["role"], made["scopes"])
    listed = {token["id"]: token["role"] for token in gateway.ask("GET", "/v1/tokens", scientist).json()["tokens"]}
    assert listed[rotated["id"]] == "app-developer"
    viewer = gateway.token("lab", "read", "tokens")
    code, said = gateway.refused("POST", "/v1/tokens", viewer, json={"role": "ml-engineer"})
    assert (code, "a token cannot give scopes that it lacks" in said) == (403, True)
    code, said = gateway.refused("POST", "/v1/tokens", scientist, json={"role": "king"})
    assert (code, "data-scientist" in said) == (400, True)
    assert gateway.refused("POST", "/v1/tokens", scientist, json={"role": "viewer", "scopes": ["read"]})[0] == 400
    shown = gateway.ask("GET", "/v1/roles", viewer).json()["roles"]
    assert [role["name"] for role in shown][-2:] == ["viewer", "tenant-admin"]


def test_write_is_not_enough_to_make_tokens(gateway: GatewayUnderTest) -> None:
    assert gateway.refused("POST", "/v1/tokens", gateway.token("lab", "read", "write"), json={})[0] == 403


def test_a_tenant_does_not_rotate_or_revoke_a_token_that_may_more(gateway: GatewayUnderTest) -> None:
    stronger, _ = gateway.id_and_token("lab", "read", "write", "tokens")
    weak = gateway.token("lab", "read", "tokens")
    for method, path in (("POST", f"/v1/tokens/{stronger}/rotate"), ("DELETE", f"/v1/tokens/{stronger}")):
        code, said = gateway.refused(method, path, weak)
        assert (code, stronger in said) == (403, True)


def test_another_tenant_is_not_told_from_none(gateway: GatewayUnderTest) -> None:
    own = gateway.token("lab", "read", "tokens")
    gateway.token("annex", "read")
    for path in ("/v1/tenants/{}", "/v1/tokens?tenant={}"):
        there, none = (gateway.refused("GET", path.format(name), own) for name in ("annex", "nobody"))
        assert (there[0], there[1].replace("annex", "nobody")) == none
        assert there == (404, "there is no tenant 'annex' that this token may see; the token belongs to 'lab'")


def test_a_tenant_does_not_find_another_tenants_token(gateway: GatewayUnderTest) -> None:
    theirs, text = gateway.id_and_token("other", "read")
    own = gateway.token("lab", "read", "tokens")
    strange = gateway.refused("DELETE", "/v1/tokens/tok-000000000000", own)
    for method, path in (("POST", f"/v1/tokens/{theirs}/rotate"), ("DELETE", f"/v1/tokens/{theirs}")):
        code, said = gateway.refused(method, path, own)
        assert (code, said.replace(theirs, "X")) == (404, strange[1].replace("tok-000000000000", "X"))
    assert theirs not in gateway.ask("GET", "/v1/tokens", own).text
    assert gateway.refused("GET", "/v1/tokens?tenant=other", own)[0] == 404
    assert gateway.refused("GET", "/v1/tokens?tenant=none", own)[0] == 404
    assert status(gateway, text) == 200


def test_a_revoked_token_opens_nothing_and_its_use_is_in_its_tenants_log(gateway: GatewayUnderTest) -> None:
    keeper = gateway.token("lab", "read", "tokens")
    stolen, text = gateway.id_and_token("lab", "read")
    assert gateway.ask("DELETE", f"/v1/tokens/{stolen}", keeper).json() == {"revoked": [stolen]}
    for method, path, _ in NEEDS:
        assert gateway.ask(method, path, text).status_code == 401, path
    refused = gateway.entries(keeper, "?outcome=refused")
    assert {(e["actor"], e["reason"]) for e in refused} == {(stolen, "unauthenticated")}
    assert "was revoked" in refused[0]["detail"]
    assert gateway.entries(keeper, "?action=token.revoke")[0]["target"] == stolen


def test_a_token_ends_to_the_second(gateway: GatewayUnderTest, clock: FakeClock) -> None:
    token = gateway.token("lab", "read", life_s=60.0)
    clock.advance(59.9)
    assert status(gateway, token) == 200
    clock.advance(0.1)
    code, said = gateway.refused("GET", "/v1/me", token)
    assert (code, "has expired" in said) == (401, True)
    assert gateway.ask("POST", "/v1/jobs", token, json={}).status_code == 401


def test_a_token_makes_none_that_outlives_it(gateway: GatewayUnderTest, clock: FakeClock) -> None:
    maker = gateway.token("lab", "read", "tokens", life_s=3600.0)
    clock.advance(600.0)
    code, said = gateway.refused("POST", "/v1/tokens", maker, json={"scopes": ["read"], "expires_in_s": 3001})
    assert (code, "cannot end later" in said) == (403, True)
    assert make(gateway, maker, "read")["expires_at"] == clock.now() + 3000.0
    assert make(gateway, maker, "read", expires_in_s=100)["expires_at"] == clock.now() + 100.0


def test_no_token_lives_longer_than_the_operator_allows(
    gateway: GatewayUnderTest, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_TOKEN_MAX_DAYS", "90")
    assert make(gateway, gateway.admin, "read")["expires_at"] == clock.now() + 90 * DAY_S
    body = {"scopes": ["read"], "expires_in_s": 91 * DAY_S}
    assert gateway.refused("POST", "/v1/tokens", gateway.admin, json=body)[0] == 400
    first = gateway.ask("GET", "/v1/me", gateway.admin).json()["token"]
    rotated = gateway.ask("POST", f"/v1/tokens/{first}/rotate", gateway.admin).json()
    assert rotated["expires_at"] == clock.now() + 90 * DAY_S


@pytest.mark.parametrize("life", [0, -1, 1e11, "NaN", "Infinity", "x"])
def test_a_life_that_is_none_is_refused(gateway: GatewayUnderTest, life: object) -> None:
    text = json.dumps({"scopes": ["read"], "expires_in_s": life})
    headers = {"Content-Type": "application/json"}
    assert gateway.refused("POST", "/v1/tokens", gateway.admin, content=text, headers=headers)[0] == 400


def test_a_rotated_token_ends_after_its_grace_and_the_new_one_has_its_life(
    gateway: GatewayUnderTest, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_TOKEN_GRACE_S", "300")
    old, text = gateway.id_and_token("lab", "read", "tokens", life_s=1000.0)
    clock.advance(500.0)
    made = gateway.ask("POST", f"/v1/tokens/{old}/rotate", text).json()
    assert made["scopes"] == ["read", "tokens"]
    assert made["expires_at"] == clock.now() + 1000.0
    assert gateway.refused("POST", f"/v1/tokens/{old}/rotate", text)[0] == 409, "a thief does not rotate it once more"
    clock.advance(299.0)
    assert (status(gateway, text), status(gateway, made["token"])) == (200, 200)
    clock.advance(1.0)
    assert (status(gateway, text), status(gateway, made["token"])) == (401, 200)


def test_a_grace_does_not_lengthen_a_tokens_life(gateway: GatewayUnderTest, clock: FakeClock) -> None:
    old, text = gateway.id_and_token("lab", "read", "tokens", life_s=100.0)
    gateway.ask("POST", f"/v1/tokens/{old}/rotate", text, json={"grace_s": 5000})
    clock.advance(100.0)
    assert status(gateway, text) == 401


@pytest.mark.parametrize("grace", [False, True, "60", "NaN"])
def test_a_grace_that_is_no_number_is_refused_and_nothing_is_rotated(gateway: GatewayUnderTest, grace: object) -> None:
    old, text = gateway.id_and_token("lab", "read", "tokens")
    assert gateway.refused("POST", f"/v1/tokens/{old}/rotate", text, json={"grace_s": grace})[0] == 400
    assert [each["id"] for each in gateway.ask("GET", "/v1/tokens", text).json()["tokens"]] == [old]


def test_what_a_stolen_token_made_can_be_ended_with_it(gateway: GatewayUnderTest) -> None:
    stolen, text = gateway.id_and_token("lab", "read", "tokens")
    child = make(gateway, text, "read", "tokens")
    grandchild = make(gateway, child["token"], "read")
    rotated = gateway.ask("POST", f"/v1/tokens/{stolen}/rotate", text).json()
    keeper = gateway.token("lab", "read", "tokens")
    gone = gateway.ask("DELETE", f"/v1/tokens/{stolen}?with_made=true", keeper).json()["revoked"]
    assert set(gone) == {stolen, child["id"], grandchild["id"], rotated["id"]}
    assert {status(gateway, each["token"]) for each in (child, grandchild, rotated)} == {401}


def test_a_token_that_is_being_revoked_makes_no_heir(gateway: GatewayUnderTest) -> None:
    keeper = gateway.token("lab", "read", "tokens")
    for _ in range(5):
        stolen, text = gateway.id_and_token("lab", "read", "tokens")
        answers: list[httpx.Response] = []
        thief = threading.Thread(
            target=lambda text=text, answers=answers: answers.extend(
                gateway.ask("POST", "/v1/tokens", text, json={"scopes": ["read"]}) for _ in range(4)
            )
        )
        thief.start()
        gone = gateway.ask("DELETE", f"/v1/tokens/{stolen}?with_made=true", keeper).json()["revoked"]
        thief.join()
        made = [answer.json() for answer in answers if answer.status_code == 201]
        assert {each["id"] for each in made} <= set(gone)
        assert {status(gateway, each["token"]) for each in made} <= {401}


def test_a_tenant_has_no_endless_number_of_tokens(gateway: GatewayUnderTest) -> None:
    keeper = gateway.token("lab", "tokens", "read")
    tenant = gateway.ask("GET", "/v1/me", keeper).json()["tenant"]["id"]
    with gateway.platform.database.write() as session:
        for k in range(MAX_TOKENS - 1):
            session.add(TokenRow(
                id=f"tok-{k}", tenant_id=tenant, sha256=f"{k}", name="x", scopes=["read"], created_at=1.0
            ))  # fmt: skip
    assert gateway.refused("POST", "/v1/tokens", keeper, json={"scopes": ["read"]})[0] == 409


def test_no_answer_has_a_tokens_text_or_hash_again(gateway: GatewayUnderTest) -> None:
    keeper = gateway.token("lab", "read", "tokens")
    made = make(gateway, keeper, "read")
    with gateway.platform.database.read() as session:
        row = session.get(TokenRow, made["id"])
        assert row is not None
        secrets = (made["token"], row.sha256)
    for path in ("/v1/tokens", "/v1/audit", "/v1/me"):
        shown = gateway.ask("GET", path, keeper).text
        assert not any(secret in shown for secret in secrets)


def test_a_stream_ends_with_its_token(gateway: GatewayUnderTest, clock: FakeClock) -> None:
    platform = gateway.platform
    lab, text = gateway.id_and_token("lab", "read", "write")
    tenant = gateway.ask("GET", "/v1/me", text).json()["tenant"]["id"]
    job = Example(platform.database, platform.store, tenant, clock.now()).fill()["running"]
    headers = {"Authorization": f"Bearer {text}", "Accept": "text/event-stream"}
    with (
        httpx.Client(base_url=gateway.url, headers=headers, timeout=60.0) as client,
        client.stream("GET", f"/v1/jobs/{job}/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith("event: ")
        assert gateway.ask("DELETE", f"/v1/tokens/{lab}", gateway.admin).status_code == 200
        assert len(list(lines)) > 0, "it comes to its end, though the job goes on"
    assert status(gateway, text, f"/v1/jobs/{job}") == 401


def test_a_console_session_ends_with_its_token(gateway: GatewayUnderTest, clock: FakeClock) -> None:
    short = gateway.token("lab", "read", life_s=60.0)
    revoked_id, revoked = gateway.id_and_token("lab", "read")
    for token, end in (
        (short, lambda: clock.advance(60.0)),
        (revoked, lambda: gateway.ask("DELETE", f"/v1/tokens/{revoked_id}", gateway.admin)),
    ):
        login = httpx.post(f"{gateway.url}/console/login", data={"token": token})
        cookie = {"Cookie": f"{COOKIE}={login.cookies[COOKIE]}"}
        assert httpx.get(f"{gateway.url}/console/", headers=cookie).status_code == 200
        end()
        assert httpx.get(f"{gateway.url}/console/", headers=cookie).status_code == 303


def test_the_last_use_is_known_and_no_request_writes_it(gateway: GatewayUnderTest, clock: FakeClock) -> None:
    token_id, text = gateway.id_and_token("lab", "read")

    def last_use() -> float | None:
        gateway.platform.audit.flush()
        with gateway.platform.database.read() as session:
            row = session.get(TokenRow, token_id)
            assert row is not None
            return row.last_used_at

    assert last_use() is None
    began = clock.now()
    status(gateway, text)
    assert last_use() == began
    clock.advance(30.0)
    status(gateway, text)
    assert last_use() == began, "at most once a minute"
    clock.advance(31.0)
    with gateway.platform.database.write():  # nobody else can write now, and requests do not wait
        assert status(gateway, text) == 200
    assert last_use() == began + 61.0
    status(gateway, "rdk_unknown")
    assert last_use() == began + 61.0


def test_the_form_of_another_site_makes_and_revokes_no_token(gateway: GatewayUnderTest) -> None:
    own = gateway.ask("GET", "/v1/me", gateway.admin).json()["token"]
    with httpx.Client(base_url=gateway.url, headers={"Origin": "http://elsewhere"}) as browser:
        login = httpx.post(f"{gateway.url}/console/login", data={"token": gateway.admin})
        browser.cookies.set(COOKIE, login.cookies[COOKIE])
        assert browser.post("/console/tokens", data={"name": "x", "scope": "admin"}).status_code == 403
        assert browser.post(f"/console/tokens/{own}/revoke").status_code == 403
    assert status(gateway, gateway.admin) == 200


def test_the_console_shows_a_new_token_once_and_offers_no_scope_that_is_not_had(gateway: GatewayUnderTest) -> None:
    keeper = gateway.token("lab", "read", "tokens")
    with httpx.Client(base_url=gateway.url) as browser:
        browser.cookies.set(COOKIE, httpx.post(f"{gateway.url}/console/login", data={"token": keeper}).cookies[COOKIE])
        offered = set(re.findall(r'name="scope" value="([^"]+)"', browser.get("/console/tokens").text))
        assert offered == {"read", "jobs:read", "artifacts:read", "boxes:read", "endpoints:read", "tokens"}
        made = browser.post("/console/tokens", data={"name": "<b>x", "scope": ["jobs:read"], "days": "7"}).text
        (text,) = re.findall(r"rdk_[\w-]+", made)
        assert "<b>x" not in made
        assert "rdk_" not in browser.get("/console/tokens").text
        assert status(gateway, text, "/v1/jobs") == 200
        assert browser.post("/console/tokens", data={"name": "x", "scope": ["admin"]}).status_code == 403
        assert browser.post("/console/tokens", data={"name": "x", "days": "99999"}).status_code == 400
        viewer = browser.post("/console/tokens", data={"name": "x", "role": "viewer"}).text
        (text,) = re.findall(r"rdk_[\w-]+", viewer)
        assert gateway.ask("GET", "/v1/me", text).json()["scopes"] == ["read"]
        both = {"name": "x", "role": "viewer", "scope": ["read"]}
        assert browser.post("/console/tokens", data=both).status_code == 400
        assert browser.post("/console/tokens", data={"name": "x", "role": "ml-engineer"}).status_code == 403
        reader = gateway.token("lab", "read")
        browser.cookies.set(COOKIE, httpx.post(f"{gateway.url}/console/login", data={"token": reader}).cookies[COOKIE])
        assert browser.get("/console/tokens").status_code == 403
        assert 'href="/console/tokens"' not in browser.get("/console/").text


def rdukit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_rdukit_forked(arguments)


def test_breaking_the_glass_needs_the_host_a_reason_and_leaves_an_entry(home: Path) -> None:
    refused = rdukit("tenant", "token", "--break-glass", "--reason", "nobody is in")
    assert (refused.returncode, "no platform has run here" in refused.stderr) == (3, True)
    assert list(home.iterdir()) == [], "asking made nothing"
    with gateway_under_test() as gateway:
        assert rdukit("tenant", "token", "--break-glass").returncode == 2
        assert rdukit("tenant", "token", "--break-glass", "--reason", "x", "--expires-in", "2h").returncode == 2
        (home / "token").unlink()
        shown = rdukit("tenant", "token", "--break-glass", "--reason", "the file is gone", "--json")
        made = json.loads(shown.stdout)
        assert gateway.ask("GET", "/v1/tenants", made["token"]).status_code == 200
        entry = gateway.entries(made["token"], "?action=token.break-glass")[0]
        assert (entry["actor"], entry["target"]) == ("host", made["id"])
        assert "the file is gone" in entry["detail"]
        code, said = gateway.refused("POST", f"/v1/tokens/{made['id']}/rotate", made["token"])
        assert (code, "cannot be rotated" in said) == (403, True)
        with gateway.platform.database.read() as session:
            assert authenticate(session, made["token"], made["expires_at"] - 1).scopes == {"admin"}
            row = session.get(TokenRow, made["id"])
            assert row is not None and row.expires_at is not None
            assert row.expires_at - row.created_at == 900.0


def test_the_command_lists_makes_rotates_and_revokes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway_under_test() as gateway:
        monkeypatch.setenv("RDUKIT_GATEWAY_URL", gateway.url)
        made = json.loads(rdukit("token", "create", "--scope", "read", "--expires-in", "30d", "--json").stdout)
        assert "tok-" in rdukit("token", "list").stdout
        assert rdukit("token", "revoke", made["id"]).stdout.strip() == made["id"]
        assert status(gateway, made["token"]) == 401
        before = gateway.admin
        assert rdukit("token", "rotate", "--grace", "0").returncode == 0
        assert gateway.admin != before
        assert (home / "token").stat().st_mode & 0o777 == 0o600
        wait_until(lambda: status(gateway, before) == 401)
        assert status(gateway, gateway.admin) == 200
        assert rdukit("token", "create", "--expires-in", "soon").returncode == 2
