"""Login by a real issuer: who gets in, who does not, and when a session ends."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import certifi
import httpx
import pytest

from rdukit_platform.console.access import COOKIE
from rdukit_platform.console.login_pages import BROWSER_COOKIE
from support import shows, wait_until
from support.forked import run_rdukit_forked
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.issuer import CLIENT_ID, Browser, LocalIssuer, local_issuer
from support.platform.processes import short_folder

pytestmark = shows("login", "logout", "whoami", "identity", "members")

RDUKIT = Path(sys.executable).with_name("rdukit")


@dataclass(frozen=True)
class Place:
    """A gateway, its issuer and its home folder."""

    gateway: GatewayUnderTest
    issuer: LocalIssuer
    browsers: ExitStack

    def person(self, name: str, tenant: str | None = "lab", role: str = "viewer", **claims: object) -> str:
        """Tell the issuer of a person, and invite it to a tenant. Returns its subject."""
        email = f"{name}@example.com"
        self.issuer.set_user(f"sub-{name}", **{"email": email, "email_verified": True, "name": name} | claims)
        if tenant is not None:
            answer = self.admin("POST", "/v1/members", json={"email": email, "role": role, "tenant": tenant})
            assert answer.status_code == 201, answer.text
        return f"sub-{name}"

    def admin(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return self.gateway.ask(method, path, self.gateway.admin, **arguments)

    def browser(self) -> Browser:
        browser = Browser(self.gateway.url)
        self.browsers.callback(browser.http.close)
        return browser


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch, short_folder() as folder, local_issuer() as issuer:
        patch.setenv("RDUKIT_HOME", str(folder))
        patch.setenv("RDUKIT_OIDC_ISSUER", issuer.url)
        patch.setenv("RDUKIT_OIDC_CLIENT_ID", CLIENT_ID)
        secret = folder / "oidc.secret"
        secret.write_text("s3cret:%/+\n")
        patch.setenv("RDUKIT_OIDC_CLIENT_SECRET_FILE", str(secret))
        patch.setenv("RDUKIT_OIDC_CLAIM_ROLES", "ml=lab:ml-engineer,all=annex:viewer")
        patch.setenv("RDUKIT_OIDC_ALLOWED_DOMAINS", "example.com,example.org")
        patch.setenv("RDUKIT_OIDC_GROUPS_CLAIM", "teams")
        patch.setenv("RDUKIT_OIDC_SCOPES", "openid email profile address")
        patch.setenv("RDUKIT_OIDC_TLS_CA", certifi.where())
        patch.setenv("RDUKIT_LOGIN_DAYS", "1")
        patch.setenv("RDUKIT_LOGIN_RATE", "0")
        with gateway_under_test() as gateway, ExitStack() as browsers:
            for tenant in ("lab", "annex", "victim"):
                gateway.token(tenant, "read")
            yield Place(gateway, issuer, browsers)


def test_an_invited_user_logs_in_and_out(place: Place) -> None:
    subject, browser = place.person("ada"), place.browser()
    assert "Sign in with 127.0.0.1" in browser.http.get("/console/login").text
    sent = browser.begin("/console/catalog")
    asked = parse_qs(urlsplit(sent.headers["location"]).query)
    assert asked["code_challenge_method"] == ["S256"] and asked["redirect_uri"][0].startswith(place.gateway.url)
    answer = browser.come_back(browser.consent(sent, subject))
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/console/catalog"
    cookie = next(c for c in answer.headers.get_list("set-cookie") if c.startswith(COOKIE))
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie
    page = browser.http.get("/console/members").text
    assert "ada@example.com" in page and ">you<" in page and "Invite" not in page
    stolen = dict(browser.http.cookies)
    assert browser.http.post("/console/logout").status_code == 303
    assert not browser.is_in()
    assert httpx.get(f"{place.gateway.url}/console/members", cookies=stolen).status_code == 303, "the session is over"
    acts = [e["action"] for e in place.gateway.entries(place.gateway.admin) if e["user"] == "ada@example.com"]
    assert {"console.login.oidc", "logout"} <= set(acts)


def id_token_of(place: Place, subject: str) -> str:
    """Return an ID token of the issuer's for a person, as a program gets it."""
    redirect = f"{place.gateway.url}/console/oidc/callback"
    asked = {"response_type": "code", "client_id": CLIENT_ID, "redirect_uri": redirect, "scope": "openid email",
             "nonce": "n", "state": "s"}  # fmt: skip
    sent = httpx.post(f"{place.issuer.url}/oauth2/authorize", params=asked, data={"sub": subject}, timeout=60)
    code = parse_qs(urlsplit(sent.headers["location"]).query)["code"][0]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect}
    answer = httpx.post(f"{place.issuer.url}/oauth2/token", data=form, auth=(CLIENT_ID, "any"), timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id_token"])


def test_a_secret_that_the_issuer_does_not_take_is_for_the_administrator_to_mend(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, browser = place.person("ian"), place.browser()
    monkeypatch.delenv("RDUKIT_OIDC_CLIENT_SECRET_FILE")
    refused = browser.log_in(subject)
    assert refused.status_code == 503
    assert "does not accept this platform (invalid_client)" in refused.text
    assert "oidc.client_secret_file" in refused.text and "log in again" not in refused.text


def test_nobody_is_invited_who_could_not_log_in(place: Place) -> None:
    invitation = {"email": "mallory@example.com.evil.com", "role": "viewer", "tenant": "lab"}
    answer = place.admin("POST", "/v1/members", json=invitation)
    assert answer.status_code == 400 and "an address of example.com, example.org" in answer.text, answer.text


def test_nobody_gets_in_without_an_invitation_or_with_an_address_that_is_not_verified(place: Place) -> None:
    stranger = place.browser().log_in(place.person("stranger", None))
    assert stranger.status_code == 403 and "a member of no tenant" in stranger.text
    unverified = place.browser().log_in(place.person("eve", email_verified=False))
    assert unverified.status_code == 403
    place.issuer.set_user("sub-thief", email="eve@example.com")
    assert place.browser().log_in("sub-thief").status_code == 403
    entry = place.gateway.entries(place.gateway.admin, "?outcome=refused")[0]
    assert (entry["reason"], entry["actor"]) == ("permission-denied", "nobody")


def test_an_address_that_somebody_else_has_now_opens_nothing(place: Place) -> None:
    assert place.browser().log_in(place.person("bob")).status_code == 303
    place.issuer.set_user("sub-successor", email="bob@example.com", email_verified=True)
    assert place.browser().log_in("sub-successor").status_code == 403


def test_a_login_is_used_once_and_by_the_browser_that_began_it(place: Place) -> None:
    subject, browser = place.person("carol"), place.browser()
    location = browser.consent(browser.begin(), subject)
    victim = place.browser()
    assert victim.come_back(location).status_code == 401, "login CSRF: this browser began none"
    victim.begin()
    assert victim.come_back(location).status_code == 401, "login CSRF: this browser began another one"
    kept = browser.http.cookies[BROWSER_COOKIE]
    assert browser.come_back(location).status_code == 303
    browser.http.cookies.set(BROWSER_COOKIE, kept, domain="127.0.0.1", path="/console/oidc")
    assert browser.come_back(location).status_code == 401, "the state was used"
    code = parse_qs(urlsplit(location).query)["code"][0]
    again = browser.begin()
    state = parse_qs(urlsplit(again.headers["location"]).query)["state"][0]
    assert browser.come_back(f"/console/oidc/callback?code={code}&state={state}").status_code == 401, (
        "the code was used"
    )


def test_a_code_of_another_login_is_refused_by_its_nonce(place: Place) -> None:
    subject, attacker, browser = place.person("dave"), place.browser(), place.browser()
    stolen = parse_qs(urlsplit(attacker.consent(attacker.begin(), subject)).query)["code"][0]
    state = parse_qs(urlsplit(browser.begin().headers["location"]).query)["state"][0]
    answer = browser.come_back(f"/console/oidc/callback?code={stolen}&state={state}")
    assert answer.status_code == 401 and "nonce" in answer.text


@pytest.mark.parametrize("path", [
    "", "?code=x", "?state=x", "?code=x&state=y", "?error=access_denied", "?code=%00&state=%00",
    "?error=%3Cscript%3E&state=x",
])  # fmt: skip
def test_what_comes_back_without_a_login_is_refused(place: Place, path: str) -> None:
    answer = place.browser().http.get(f"/console/oidc/callback{path}")
    assert answer.status_code == 401 and "<script>" not in answer.text.replace("<script src", "")


@pytest.mark.parametrize("following", [
    "https://evil.example/", "//evil.example", "/\\evil.example", "/console/../v1", "javascript:alert(1)",
    "/console//evil.example", "/console/oidc/callback/..//evil.example",
])  # fmt: skip
def test_a_login_leads_to_the_console_only(place: Place, following: str) -> None:
    place.issuer.set_user("sub-frank", email="frank@example.com", email_verified=True)
    place.admin("POST", "/v1/members", json={"email": "frank@example.com", "role": "viewer", "tenant": "lab"})
    answer = place.browser().log_in("sub-frank", following)
    where = urlsplit(answer.headers["location"])
    assert answer.status_code == 303 and not where.netloc and where.path.startswith("/console/")


def test_a_session_ends_with_its_membership_or_user_at_once(place: Place) -> None:
    for name, end in [
        ("gina", lambda: place.admin("DELETE", "/v1/members/gina@example.com?tenant=lab")),
        ("hans", lambda: place.admin("PATCH", "/v1/users/hans@example.com", json={"disabled": True})),
    ]:
        browser = place.browser()
        browser.log_in(place.person(name))
        assert browser.is_in()
        assert end().status_code == 200
        assert not browser.is_in()
        assert place.browser().log_in(f"sub-{name}").status_code == 403


def test_a_session_may_what_its_role_may_now(place: Place) -> None:
    browser = place.browser()
    browser.log_in(place.person("iris"))
    body = {"email": "guest@example.com", "role": "viewer"}
    assert browser.http.post("/console/members", data=body).status_code == 403
    place.admin("PATCH", "/v1/members/iris@example.com?tenant=lab", json={"role": "tenant-admin"})
    assert browser.http.post("/console/members", data=body).status_code == 303
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    for path in ("/console/members", "/console/tenant", "/console/device", "/console/logout"):
        assert browser.http.post(path, data=body, headers=foreign).status_code == 403, path
    assert browser.is_in()


def test_groups_give_roles_that_go_with_the_groups(place: Place) -> None:
    subject, browser = place.person("jane", None, teams=["ml", "all"]), place.browser()
    assert browser.log_in(subject).status_code == 303
    listed = {t: place.admin("GET", f"/v1/members?tenant={t}").json()["members"] for t in ("lab", "annex", "victim")}
    roles = {t: [(m["role"], m["by"]) for m in ms if m["name"] == "jane"] for t, ms in listed.items()}
    assert roles == {"lab": [("ml-engineer", "claims")], "annex": [("viewer", "claims")], "victim": []}
    assert browser.http.post("/console/tenant", data={"tenant": "victim"}).status_code == 404
    before = dict(browser.http.cookies)
    assert browser.http.post("/console/tenant", data={"tenant": "lab"}).status_code == 303
    assert "<option selected>lab</option>" in browser.http.get("/console/members").text
    assert httpx.get(f"{place.gateway.url}/console/members", cookies=before).status_code == 303, "the old one is over"
    place.issuer.set_user(subject, email="jane@example.com", email_verified=True, name="jane", teams=["all"])
    assert place.browser().log_in(subject).status_code == 303
    assert not browser.is_in(), "the session was in the tenant that the group gave"


def test_a_command_is_let_in_by_its_code_and_ends_with_its_user(place: Place, tmp_path: Path) -> None:
    browser = place.browser()
    browser.log_in(place.person("kim", role="data-scientist"))
    environ = {"RDUKIT_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    command = [RDUKIT, "login", "--url", place.gateway.url, "--name", "laptop", "--no-browser", "--json"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        process.stderr.readline()
        code = process.stderr.readline().rpartition("=")[2].strip()
        page = browser.http.get("/console/device", params={"code": code}).text
        assert "laptop" in page and "127.0.0.1" in page and code in page
        assert browser.http.post("/console/device", data={"code": code, "answer": "allow"}).status_code == 200
        assert browser.http.post("/console/device", data={"code": code, "answer": "allow"}).status_code == 404
        me = json.loads(process.stdout.read())
    assert 0 < me["expires_at"] - time.time() <= 86400
    assert process.returncode == 0 and me["user"]["email"] == "kim@example.com"
    file = tmp_path / "home" / "login.json"
    assert file.stat().st_mode & 0o777 == 0o600

    def whoami() -> subprocess.CompletedProcess[str]:
        return run_rdukit_forked(["whoami"], environ)

    assert "data-scientist" in whoami().stdout
    browser.http.post("/console/logout")
    assert whoami().returncode == 0, "the token is the user's, not the session's"
    place.admin("DELETE", "/v1/members/kim@example.com?tenant=lab")
    assert whoami().returncode != 0
    assert run_rdukit_forked(["logout"], environ).returncode == 0
    assert not file.exists()


def test_a_command_that_is_refused_or_asks_with_another_code_gets_nothing(place: Place) -> None:
    browser = place.browser()
    browser.log_in(place.person("lara"))
    begun = httpx.post(f"{place.gateway.url}/v1/login/device", json={"name": "x"}).json()
    poll = {"device_code": begun["device_code"]}
    ask = f"{place.gateway.url}/v1/login/token"
    assert httpx.post(ask, json=poll).json() == {"status": "pending", "token": None, "me": None}
    assert httpx.post(ask, json=poll).status_code == 429
    assert httpx.post(ask, json={"device_code": begun["user_code"]}).status_code == 404
    assert browser.http.post("/console/device", data={"code": begun["user_code"], "answer": "deny"}).status_code == 200
    assert httpx.post(ask, json=poll).status_code == 403
    allowed = httpx.post(f"{place.gateway.url}/v1/login/device", json={"name": "x"}).json()
    browser.http.post("/console/device", data={"code": allowed["user_code"], "answer": "allow"})
    browser.http.post("/console/logout")
    answer = httpx.post(ask, json={"device_code": allowed["device_code"]})
    assert answer.status_code == 401, "who let it in is logged out"


def test_new_keys_of_the_issuer_are_taken_and_while_it_is_down_sessions_go_on(place: Place) -> None:
    browser = place.browser()
    assert browser.log_in(place.person("mona")).status_code == 303
    place.issuer.stop()
    late = place.browser()
    sent = late.begin()
    state = parse_qs(urlsplit(sent.headers["location"]).query)["state"][0]
    answer = late.come_back(f"/console/oidc/callback?code=x&state={state}")
    assert answer.status_code == 503 and "does not answer at present" in answer.text
    assert browser.is_in()
    place.issuer.start()
    place.issuer.set_user("sub-mona", email="mona@example.com", email_verified=True, name="mona")
    wait_until(lambda: place.browser().log_in("sub-mona").status_code == 303, timeout_s=60)
    assert browser.is_in()


def test_an_issuer_that_says_nothing_of_addresses_is_believed_where_that_is_set(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.person("nora")
    place.issuer.set_user("sub-nora", email="nora@example.com")
    assert place.browser().log_in("sub-nora").status_code == 403
    monkeypatch.setenv("RDUKIT_OIDC_TRUST_EMAIL", "true")
    assert place.browser().log_in("sub-nora").status_code == 303


def test_logins_are_counted_by_address(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_LOGIN_RATE", "2")
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as gateway:
            codes = [httpx.get(f"{gateway.url}/console/oidc/login").status_code for _ in range(3)]
            assert codes == [303, 303, 429]
            assert httpx.post(f"{gateway.url}/console/login", data={"token": "x"}).status_code == 429


def test_a_token_of_the_issuers_is_its_users_session_in_api_calls(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = place.person("robot", role="ml-engineer")
    token = id_token_of(place, subject)
    status, said = place.gateway.refused("GET", "/v1/me", token)
    assert status == 401 and "oidc.bearer_audiences" in said, "it is asked for by a setting"
    monkeypatch.setenv("RDUKIT_OIDC_BEARER_AUDIENCES", f"api://other,{CLIENT_ID}")
    for _ in range(2):
        me = place.gateway.ask("GET", "/v1/me", token)
        assert (me.status_code, me.json()["tenant"]["name"], me.json()["user"]["email"]) == (
            200, "lab", "robot@example.com",
        )  # fmt: skip
    assert "jobs:write" in me.json()["scopes"] and "members" not in me.json()["scopes"]
    acts = [e["action"] for e in place.gateway.entries(place.gateway.admin) if e["user"] == "robot@example.com"]
    assert acts.count("login.bearer") == 1, "only the first call with a token is a login"
    elsewhere = {"headers": {"Rdukit-Tenant": "victim"}}
    assert place.gateway.refused("GET", "/v1/me", token, **elsewhere)[0] == 403
    assert place.gateway.refused("GET", "/v1/me", token, headers={"Rdukit-Tenant": "nowhere"})[0] == 403
    assert place.gateway.refused("GET", "/v1/me", token[:-8] + "AAAAAAAA")[0] == 401
    second = id_token_of(place, subject)
    assert place.gateway.ask("POST", "/v1/logout", second).status_code == 200
    for more in ({}, {"headers": {"Rdukit-Tenant": "lab"}}):
        assert place.gateway.refused("GET", "/v1/me", second, **more)[0] == 401, "a logout ends it in each tenant"
    monkeypatch.setenv("RDUKIT_OIDC_BEARER_AUDIENCES", "api://other")
    other = id_token_of(place, subject)
    assert "(aud)" in place.gateway.refused("GET", "/v1/me", other)[1]
    user = next(one for one in place.admin("GET", "/v1/members?tenant=lab").json()["members"]
                if one["email"] == "robot@example.com")  # fmt: skip
    assert place.admin("DELETE", f"/v1/members/{user['id']}?tenant=lab").status_code < 300
    assert place.gateway.refused("GET", "/v1/me", token)[0] == 401, "removal ends it, though the issuer says otherwise"
