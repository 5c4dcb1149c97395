"""The console's sessions: login, cookies, logout, what other tenants and strangers get, and the files it serves."""

import re
import time
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import select

from rdukit_platform.api.context import Platform
from rdukit_platform.console.access import COOKIE
from rdukit_platform.console.routes import STATIC
from rdukit_platform.db.models import TokenRow
from rdukit_platform.tenants.scopes import READ
from support import shows
from support.platform.console import browser, check_page, console_platform, example_of, first_token, log_in, other_token
from support.platform.gateway import Example

pytestmark = shows("console", "tenants", "security")


@pytest.fixture
def platform() -> Iterator[Platform]:
    with console_platform() as opened:
        yield opened


@pytest.fixture
def example(platform: Platform) -> Example:
    return example_of(platform)


@pytest.fixture
def jobs(example: Example) -> dict[str, str]:
    return example.fill()


@pytest.fixture
def client(platform: Platform) -> Iterator[httpx.Client]:
    with browser(platform) as opened:
        yield opened


def test_without_a_session_every_page_leads_to_the_login_and_back(client: httpx.Client, platform: Platform) -> None:
    for path in ("/console/", "/console/nodes", "/console/jobs/job-1", "/console/artifacts"):
        answer = client.get(path, follow_redirects=False)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/console/login?next={path}"
    renewed = client.get("/console/parts/jobs", headers={"HX-Request": "true"})
    assert (renewed.status_code, renewed.headers["HX-Redirect"]) == (401, "/console/login")


def test_a_wrong_token_is_refused_and_the_right_one_gives_a_safe_cookie(
    client: httpx.Client, platform: Platform
) -> None:
    refused = client.post("/console/login", data={"token": "rdk_wrong"})
    assert refused.status_code == 401
    assert "This token is not valid" in refused.text
    answer = client.post("/console/login", data={"token": f" {first_token(platform)}\n"}, follow_redirects=False)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert first_token(platform).lower() not in cookie
    assert (platform.home.folder / "console.key").stat().st_mode & 0o777 == 0o600


def test_logging_out_and_revoking_the_token_end_the_session(client: httpx.Client, platform: Platform) -> None:
    log_in(client, first_token(platform))
    assert client.get("/console/", follow_redirects=False).status_code == 200
    kept = client.cookies[COOKIE]
    client.post("/console/logout")
    assert client.get("/console/", follow_redirects=False).status_code == 303
    stolen = client.get("/console/", headers={"Cookie": f"{COOKIE}={kept}"}, follow_redirects=False)
    assert stolen.status_code == 303, "the server ended it, whoever has its cookie"
    log_in(client, first_token(platform))
    assert client.get("/console/", follow_redirects=False).status_code == 200, "the token itself goes on"
    with platform.database.write() as session:
        for row in session.scalars(select(TokenRow)):
            row.revoked_at = time.time()
    assert client.get("/console/", follow_redirects=False).status_code == 303


def test_a_forged_cookie_is_no_session(client: httpx.Client, platform: Platform) -> None:
    log_in(client, first_token(platform))
    genuine = client.cookies[COOKIE]
    client.cookies.clear()
    for cookie, status in ((genuine[:-4] + "0000", 303), (genuine, 200)):
        answer = client.get("/console/", headers={"Cookie": f"{COOKIE}={cookie}"}, follow_redirects=False)
        assert answer.status_code == status


def test_another_tenants_things_are_not_found(client: httpx.Client, platform: Platform, jobs: dict[str, str]) -> None:
    log_in(client, first_token(platform))
    artifact = re.search(r"/console/artifacts/art-\w+", client.get(f"/console/jobs/{jobs['succeeded']}").text)
    assert artifact is not None
    client.post("/console/logout")
    log_in(client, other_token(platform, [READ]))
    assert "No jobs yet" in client.get("/console/").text
    for path in (f"/console/jobs/{jobs['running']}", f"/console/jobs/{jobs['running']}/log", artifact[0]):
        assert client.get(path).status_code == 404


def test_the_gateways_address_leads_to_the_console(client: httpx.Client) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.url.path) == (200, "/console/login")


def test_a_path_that_is_no_page_is_answered_with_one(client: httpx.Client) -> None:
    answer = client.get("/console/nosuch")
    assert answer.status_code == 404
    check_page(answer.text)
    assert "the console has no page /console/nosuch" in answer.text


def test_only_the_consoles_own_files_are_served(client: httpx.Client) -> None:
    for name in STATIC.iterdir():
        assert client.get(f"/console/static/{name.name}").status_code == 200
    for path in ("/console/static/../access.py", "/console/static/%2e%2e%2faccess.py", "/console/static/none.css"):
        assert client.get(path).status_code == 404
