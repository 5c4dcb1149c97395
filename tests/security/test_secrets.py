"""Tokens, cookies, keys and passwords are nowhere in logs, answers, errors or the audit log, whatever is asked."""

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rdukit_platform.audit.chain import export
from rdukit_platform.console.access import COOKIE
from rdukit_platform.db.models import TokenRow
from rdukit_platform.gateway.routes import PERMISSIONS
from support import shows
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("security", "audit")

BROKER_PASSWORD = "hunter2-of-the-broker"


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        # Nobody listens there, so that what fails says where it could not go.
        monkeypatch.setenv("RDUKIT_BROKER_URL", f"redis://user:{BROKER_PASSWORD}@127.0.0.1:1/0")
        monkeypatch.setenv("RDUKIT_GATEWAY_TOKEN_RATE", "100000")
        with gateway_under_test() as running:
            yield running


def paths(method_and_path: str, value: str) -> tuple[str, str]:
    """Return method and path of a route with ``value`` for each of its parameters."""
    method, path = method_and_path.split(" ")
    parts = [value if part.startswith("{") else part for part in path.split("/")]
    return method, "/".join(parts)


def test_no_secret_is_in_logs_answers_errors_or_the_audit_log(
    gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # the caller's own words, not the platform's
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    platform, admin = gateway.platform, gateway.admin
    given = {"reader": ["read"], "keeper": ["read", "write", "tokens"], "revoked": ["read"],
             "application": ["endpoints:call"]}  # fmt: skip
    texts = {name: gateway.id_and_token("lab", *scopes) for name, scopes in given.items()}
    gateway.ask("DELETE", f"/v1/tokens/{texts['revoked'][0]}", admin)
    answers: list[tuple[str, str]] = []
    with httpx.Client(base_url=gateway.url, timeout=60.0) as client:
        login = client.post("/console/login", data={"token": texts["keeper"][1]})
        cookie = login.cookies[COOKIE]
        client.cookies.clear()
        wrong = client.post("/console/login", data={"token": "rdk_a-wrong-token-of-somebody"})
        answers.append(("wrong login", wrong.text))
        for route in PERMISSIONS:
            if route in {"POST /v1/tokens", "POST /console/tokens"} or route.endswith("/rotate"):
                continue  # the answers that give a new token
            for who, token in [*((name, text) for name, (_, text) in texts.items()), ("admin", admin)]:
                # Where an id belongs stands somebody else's token, and one is in the query, as by mistake.
                method, path = paths(route, texts["reader"][1] if who != "reader" else texts["keeper"][1])
                headers = {"Authorization": f"Bearer {token}"}
                if path.startswith("/console"):
                    headers = {"Cookie": f"{COOKIE}={cookie if who == 'keeper' else cookie + 'x'}"}
                query = {"key": texts["application"][1]}
                answer = client.request(method, path, headers=headers, params=query, follow_redirects=False)
                shown = answer.text + str(dict(answer.headers))
                for own in (
                    path.rsplit("/", 1)[-1],
                    *path.split("/"),
                ):  # what the caller named is said back to it alone
                    shown = shown.replace(own, "") if own.startswith("rdk_") else shown
                answers.append((f"{who}: {route}: {answer.status_code}", shown))
        with client.stream("GET", "/v1/audit", headers={"Authorization": f"Bearer {admin}"}) as answer:
            answers.append(("audit", answer.read().decode()))
    with platform.database.read() as session:
        hashes = [row.sha256 for row in session.query(TokenRow)]
    key = (platform.home.folder / "console.key").read_bytes()
    secrets = {
        **{f"token of {name}": text for name, (_, text) in texts.items()}, "first token": admin, "cookie": cookie,
        "wrong token": "rdk_a-wrong-token-of-somebody", "broker password": BROKER_PASSWORD, "key": key.hex(),
        **{f"hash {k}": text for k, text in enumerate(hashes)},
    }  # fmt: skip
    assert len(answers) > 400
    for where, text in answers:
        assert [name for name, secret in secrets.items() if secret in text] == [], where
    # The gateway's process has no access log; in this one it is captured although nothing handles it.
    records = [record for record in caplog.records if record.name != "uvicorn.access"]
    logged = "\n".join(record.getMessage() + (record.exc_text or "") for record in records)
    assert "not woken" in logged or "counted by this gateway alone" in logged, "the broker's absence is logged"
    platform.audit.flush()
    written = b"".join(export(platform.database)).decode()
    assert '"action":"request"' in written, "refusals are recorded"
    for where, text in (("log", logged), ("audit log", written)):
        assert [name for name, secret in secrets.items() if secret in text] == [], where


def test_a_token_in_the_place_of_an_id_is_not_written_down(gateway: GatewayUnderTest) -> None:
    reader = gateway.token("lab", "read")
    assert gateway.ask("DELETE", f"/v1/tokens/{reader}", reader).status_code == 403
    (entry,) = gateway.entries(reader, "?outcome=refused")
    assert (entry["target"], reader in str(entry)) == ("DELETE /v1/tokens/rdk_…", False)


def test_files_of_the_home_folder_that_hold_secrets_are_its_owners_alone(gateway: GatewayUnderTest) -> None:
    httpx.post(f"{gateway.url}/console/login", data={"token": gateway.token("lab", "read")}, timeout=60.0)
    folder: Path = gateway.platform.home.folder
    for name in ("token", "console.key"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name
