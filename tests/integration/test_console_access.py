"""The console's pages of tenants, webhooks and the audit log: what they show, change and refuse, without a script."""

import html
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from rdukit_platform.db.models import DeliveryRow
from rdukit_platform.tenants.service import find_tenant
from rdukit_platform.webhooks.outbox import record_try, take_due, tell
from support import shows
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("console", "tenants", "webhooks", "audit", "members", "security")


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


Browser = Callable[[str], httpx.Client]


@pytest.fixture
def browser(gateway: GatewayUnderTest) -> Iterator[Browser]:
    """Open browsers without JavaScript, each logged in by a token."""
    with ExitStack() as opened:

        def log_in(token: str) -> httpx.Client:
            client = httpx.Client(base_url=gateway.url, timeout=60.0, follow_redirects=True)
            opened.enter_context(client)
            assert client.post("/console/login", data={"token": token}, follow_redirects=False).status_code == 303
            return client

        yield log_in


def tenant_id(gateway: GatewayUnderTest, name: str) -> str:
    with gateway.platform.database.read() as session:
        found = find_tenant(session, name)
        assert found is not None
        return found.id


def values(text: str) -> dict[str, str]:
    """Return the numbers that a page's form shows."""
    return dict(re.findall(r'<input id="\w+" type="number" name="(\w+)"[^>]* value="([^"]*)"', text))


def test_administrators_add_and_change_tenants_and_see_what_they_use(
    gateway: GatewayUnderTest, browser: Browser
) -> None:
    admin = browser(gateway.admin)
    made = admin.post("/console/tenants", data={"name": "lab", "quota": "8", "max_tiles": "16", "max_jobs": "4"})
    lab = tenant_id(gateway, "lab")
    assert made.url.path == f"/console/tenants/{lab}"
    assert values(made.text) == {"weight": "1", "quota": "8", "max_tiles": "16", "max_jobs": "4", "artifact_gib": ""}
    example = Example(gateway.platform.database, gateway.platform.store, lab, time.time())
    example.start_training(steps=20)
    example.add("next")
    all_ = admin.get("/console/tenants").text
    assert "2 of 16" in all_ and "1 of 4" in all_ and "1 waiting" in all_
    same = {**values(made.text), "weight": "2.5", "max_jobs": "", "artifact_gib": "0.5"}
    changed = admin.post(f"/console/tenants/{lab}", data=same).text
    assert values(changed)["weight"] == "2.5" and values(changed)["max_jobs"] == "" and "512 MiB" in changed
    told = gateway.ask("GET", "/v1/tenants/lab", gateway.admin).json()
    assert (told["weight"], told["max_jobs"], told["artifact_bytes"]) == (2.5, None, 1 << 29)
    assert (told["tiles"], told["active_jobs"], told["queued_jobs"]) == (2, 1, 1)
    entry = gateway.entries(gateway.admin, "?action=tenant.change")[0]
    assert "max_jobs 4 to none" in entry["detail"] and "quota" not in entry["detail"], "only what has changed"


def test_wrong_limits_are_told_and_change_nothing(gateway: GatewayUnderTest, browser: Browser) -> None:
    admin = browser(gateway.admin)
    gateway.token("other", "read")
    path = f"/console/tenants/{tenant_id(gateway, 'other')}"
    for wrong, words in (
        ({"quota": "9", "max_tiles": "3"}, "quota is 9"), ({"max_jobs": "many"}, "Most jobs"),
        ({"weight": "0"}, "Weight"), ({"weight": "x"}, "numbers"), ({"artifact_gib": "-1"}, "GiB of artifacts"),
        ({"artifact_gib": "inf"}, "numbers"),
    ):  # fmt: skip
        answer = admin.post(path, data=wrong)
        assert answer.status_code == 400 and words in answer.text, wrong
    assert "lower-case" in admin.post("/console/tenants", data={"name": "No!"}).text
    assert admin.post("/console/tenants", data={"name": "other"}).status_code == 400
    assert gateway.ask("GET", "/v1/tenants/other", gateway.admin).json()["quota"] is None


def test_a_tenant_sees_its_own_line_only_and_changes_nothing(gateway: GatewayUnderTest, browser: Browser) -> None:
    gateway.token("victim", "read")
    own = browser(gateway.token("mine", "read", "write"))
    shown = own.get("/console/tenants").text
    assert ">mine</a>" in shown and "victim" not in shown and 'method="post" action="/console/tenants' not in shown
    assert own.get(f"/console/tenants/{tenant_id(gateway, 'victim')}").status_code == 404
    path = f"/console/tenants/{tenant_id(gateway, 'mine')}"
    assert "Change it" not in own.get(path).text
    assert own.post(path, data={"quota": "99"}).status_code == 403
    admin = browser(gateway.admin)
    foreign = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
    assert admin.post(path, data={"quota": "99"}, headers=foreign).status_code == 403
    assert gateway.ask("GET", "/v1/tenants/mine", gateway.admin).json()["quota"] is None


def test_a_webhook_is_added_tried_rotated_and_removed(gateway: GatewayUnderTest, browser: Browser) -> None:
    hooks = browser(gateway.token("hooks", "read", "write"))
    assert "No webhooks yet" in hooks.get("/console/webhooks").text
    refused = hooks.post("/console/webhooks", data={"url": "ftp://a"})
    assert refused.status_code == 400 and "expected" in refused.text and 'value="ftp://a"' in refused.text
    url = "https://example.org/<b>?a=1&b=2"
    made = hooks.post("/console/webhooks", data={"url": url, "event": ["job.failed", "job.running"]})
    (secret,) = re.findall(r"<code>(whsec_[^<]*)</code>", made.text)
    assert html.escape(url) in made.text and "job.failed, job.running" in made.text
    (path,) = set(re.findall(r'href="(/console/webhooks/hook-\w+)"', hooks.get("/console/webhooks").text))
    assert secret not in hooks.get(path).text
    rotated = hooks.post(f"{path}/rotate").text
    assert "whsec_" in rotated and secret not in rotated and "also signs messages until" in rotated
    tested = hooks.post(f"{path}/test").text
    assert "webhook.test" in tested and "not tried yet" in tested
    disabled = hooks.post(f"{path}/disable").text
    assert "somebody disabled it" in disabled and "Send a test" not in disabled and "Try now" not in disabled
    assert 'class="pill bad">disabled' in hooks.get("/console/webhooks").text
    assert "Send a test" in hooks.post(f"{path}/enable").text
    foreign = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
    for act in ("test", "disable", "enable", "rotate", "remove"):
        assert hooks.post(f"{path}/{act}", headers=foreign).status_code == 403
        assert browser(gateway.token("hooks", "read")).post(f"{path}/{act}").status_code == 403
        assert browser(gateway.token("strangers", "read", "write")).post(f"{path}/{act}").status_code == 404
    assert "No webhooks yet" in hooks.post(f"{path}/remove").text
    assert hooks.get(path).status_code == 404


def test_messages_say_how_their_last_try_ended_and_when_the_next_one_is(
    gateway: GatewayUnderTest, browser: Browser
) -> None:
    token, database = gateway.token("told", "read", "write"), gateway.platform.database
    client, now, tenant = browser(token), time.time(), tenant_id(gateway, "told")
    path = client.post("/console/webhooks", data={"url": "https://example.org/a"}).request.url.path
    (path,) = set(re.findall(r'href="(/console/webhooks/hook-\w+)"', client.get(path).text))
    with database.write() as session:
        for state in ("succeeded", "failed"):
            tell(session, tenant, [(f"job.{state}", lambda: {"id": "job-0123456789ab"})], now)
        first, second = take_due(session, tenant, 2, now, 60.0)
        record_try(session, first.id, 204, "", now, 0.5)
        record_try(session, second.id, 503, "", now + 3600, 0.5)
    shown = client.get(path).text
    assert "answered 204" in shown and "answered 503" in shown
    assert re.search(r"next try in (1 h|59 min)", shown) and 'href="/console/jobs/job-0123456789ab"' in shown
    assert "answered 503" not in client.get(f"{path}?state=delivered").text
    assert "No message is dead" in client.get(f"{path}?state=dead").text
    assert client.get(f"{path}?state=lost").status_code == 400
    again = client.post(f"{path}/deliveries/{second.id}/redeliver").text
    assert "next try now" in again
    with database.read() as session:
        assert session.get_one(DeliveryRow, second.id).due_at <= time.time()


def test_an_endpoint_that_makes_no_text_shows_no_call_of_a_chat(gateway: GatewayUnderTest, browser: Browser) -> None:
    token = gateway.token("caller", "read", "write")
    example = Example(gateway.platform.database, gateway.platform.store, tenant_id(gateway, "caller"), time.time())
    example.promote(example.run_pipeline()[1])
    example.serve("read", "digits:1")
    example.serve_bundle("chat", "digits:1")
    client = browser(token)
    rows, chat = (client.get(f"/console/endpoints/{name}").text for name in ("read", "chat"))
    assert "v2/models/read/infer" in rows and "chat/completions" not in rows
    assert "chat/completions" in chat


def test_a_refused_invitation_or_token_loses_nothing_that_was_filled_in(
    gateway: GatewayUnderTest, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browser(gateway.admin)
    assert "<h2>Invite</h2>" not in client.get("/console/members").text, "nobody can log in"
    monkeypatch.setenv("RDUKIT_OIDC_ISSUER", "https://login.example.com")
    told = client.post("/console/members", data={"email": "nobody", "role": "viewer"})
    assert told.status_code == 400 and "is not an e-mail address" in told.text
    assert 'value="nobody"' in told.text and '<option value="viewer" selected>' in told.text
    told = client.post("/console/tokens", data={"name": "mine", "scope": "bad", "days": "7"})
    assert told.status_code == 400
    assert 'value="mine"' in told.text and '<option value="7" selected>' in told.text
    told = client.post("/console/tokens", data={"name": "two", "role": "viewer", "scope": "jobs:read", "days": "7"})
    assert told.status_code == 400
    assert 'value="jobs:read" checked' in told.text and '<option value="viewer" selected>' in told.text


def test_the_audit_log_is_filtered_by_outcome_act_and_whom_it_is_about(
    gateway: GatewayUnderTest, browser: Browser
) -> None:
    mine, token = gateway.id_and_token("audited", "read", "write", "tokens")
    client = browser(token)
    made = gateway.ask("POST", "/v1/tokens", token, json={"name": "second"}).json()["id"]
    assert gateway.ask("GET", "/v1/users", token).status_code == 403
    about = client.get("/console/audit", params={"about": made}).text
    assert "<td>token.create" in about and "<td>console.login" not in about
    by = client.get("/console/audit", params={"about": mine, "action": "token.create"}).text
    assert made in by and f'value="{mine}"' in by
    assert "No matching entry" in client.get("/console/audit?outcome=refused&action=token.create").text
    assert client.get("/console/audit?action=nonsense").status_code == 400
    assert [e["action"] for e in gateway.entries(token, f"?about={mine}&outcome=refused")] == ["request"]
    elsewhere = gateway.ask("GET", "/v1/me", gateway.admin).json()["token"]
    with_admin = f"/v1/tenants/{tenant_id(gateway, 'audited')}/tokens"
    assert gateway.ask("POST", with_admin, gateway.admin, json={"name": "given"}).status_code == 201
    assert "administrator" in {entry["actor"] for entry in gateway.entries(token)}
    assert gateway.entries(token, f"?about={elsewhere}") == [], "another tenant's token is not found by its id"
    assert gateway.entries(gateway.admin, f"?about={elsewhere}&action=token.create")
