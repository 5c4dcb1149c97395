"""JSON in and out of the gateway: no key twice, and words for the floats that JSON lacks, also in the console."""

import json
import math
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from sqlalchemy import text

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import StrictJsonRoute
from rdukit_platform.db.models import JobRow
from rdukit_platform.gateway.app import create_app, prepare_routes
from rdukit_platform.gateway.middleware import REQUESTS
from rdukit_platform.jobs.changes import add_event
from rdukit_platform.settings import checked_home
from rdukit_platform.tenants.service import create_tenant, find_tenant
from rdukit_platform.tenants.tokens import create_token, ensure_first_token
from support import shows, wait_until
from support.platform.database import place_database
from support.platform.gateway import Example, open_known_platform, serving
from support.platform.processes import short_folder

pytestmark = shows("jobs", "artifacts", "pipelines", "sweeps", "experts", "errors", "console")

WRONG = {"stage": "train", "step": 3, "total": 4, "loss": math.nan, "throughput": math.inf, "eta_s": -math.inf}
WORDS = {"stage": "train", "step": 3, "total": 4, "loss": "NaN", "throughput": "Infinity", "eta_s": "-Infinity"}


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        place_database(checked_home().folder)
        opened = open_known_platform(checked_home())
        ensure_first_token(opened.database, opened.home, 1.0)
        yield opened
        opened.database.close()


@pytest.fixture
def client(platform: Platform) -> Iterator[httpx.Client]:
    token = platform.home.token_file.read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    with serving(platform) as address, httpx.Client(base_url=address, headers=headers, timeout=60.0) as client:
        yield client


@pytest.fixture
def jobs(platform: Platform) -> dict[str, str]:
    with platform.database.read() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
    return Example(platform.database, platform.store, tenant.id, 10.0).fill()


def read(answer: httpx.Response | str) -> Any:
    """As a reader that knows no more than JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(answer if isinstance(answer, str) else answer.content, parse_constant=refuse)


def test_what_a_box_reports_is_told_in_words(platform: Platform, client: httpx.Client, jobs: dict[str, str]) -> None:
    job_id = jobs["running"]
    with platform.database.write() as session:
        row = session.get(JobRow, job_id)
        assert row is not None
        row.progress, row.result = dict(WRONG), {"held_out_loss": math.inf, "parts": [{"at": math.nan}]}
        add_event(session, job_id, row.attempt, "progress", 1.0, WRONG)
    if platform.database.url.get_backend_name() == "sqlite":  # as a version before this one has written them
        with platform.database.write() as session:
            session.execute(
                text("UPDATE job_events SET data = :data WHERE job_id = :job AND kind = 'progress'"),
                {"data": json.dumps(WRONG), "job": job_id},
            )
    told = read(client.get(f"/v1/jobs/{job_id}"))
    assert told["progress"] == WORDS
    assert told["result"] == {"held_out_loss": "Infinity", "parts": [{"at": "NaN"}]}
    events = read(client.get(f"/v1/jobs/{job_id}/events"))["events"]
    assert [event["data"] for event in events if event["kind"] == "progress"][-1] == WORDS
    with client.stream("GET", f"/v1/jobs/{job_id}/events", headers={"Accept": "text/event-stream"}) as stream:
        lines = (line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: "))
        told = (found["data"] for line in lines if (found := read(line))["kind"] == "progress")
        assert WORDS in told
    login = {"token": client.headers["Authorization"].removeprefix("Bearer "), "next": f"/console/jobs/{job_id}"}
    page = client.post("/console/login", data=login, follow_redirects=True)
    assert page.status_code == 200
    assert "loss NaN" in page.text
    assert "Infinity" in page.text


def test_another_tenants_job_is_not_found_without_waiting_for_anybody(
    platform: Platform, client: httpx.Client, jobs: dict[str, str]
) -> None:
    with platform.database.write() as session:
        token = create_token(session, create_tenant(session, "other", 1.0).id, "t", ["read", "write"], 1.0)[1]
    client.headers["Authorization"] = f"Bearer {token}"
    with platform.database.write():  # of SQLite there is one writer at a time
        answer = client.post(f"/v1/jobs/{jobs['running']}/cancel", timeout=10.0)
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/v1/jobs", '{"box": "logreg", "verb": "train", "verb": "compile"}', "verb"),
        ("/v1/jobs", '{"box": "logreg", "verb": "train", "parameters": {"lr": 1, "lr": 2}}', "lr"),
        ("/v1/jobs/job-1/clone", '{"parameters": {"lr": 1, "lr": 2}}', "lr"),
        ("/v1/sweeps", '{"space": {"lr": {"values": [1]}, "lr": {"values": [2]}}}', "lr"),
        ("/v1/pipelines", '{"name": "p", "steps": [{"name": "a", "name": "b"}]}', "name"),
        ("/v1/experts", '{"job": "job-1", "name": "a", "job": "job-2"}', "job"),
        ("/v1/experts/a/deprecate", '{"reason": "a", "reason": "b"}', "reason"),
        ("/v1/tenants", '{"name": "a", "name": "b"}', "name"),
        ("/v1/tenants/default/tokens", '{"scopes": ["read"], "scopes": ["admin"]}', "scopes"),
    ],
)
def test_a_key_that_comes_twice_is_refused_by_its_name(client: httpx.Client, path: str, body: str, key: str) -> None:
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["detail"]["field"]) == ("invalid-argument", key)
    assert f"the key '{key}' twice" in error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]


def test_gateways_of_a_process_share_their_routes_and_get_none_of_each_others_own(platform: Platform) -> None:
    prepare_routes()
    first, second = create_app(platform), create_app(platform)
    first.get("/v1/own")(lambda: None)
    assert first.router.routes[:-1] == second.router.routes
    assert all(one is other for one, other in zip(first.router.routes, second.router.routes, strict=False))


def test_every_route_with_a_json_body_reads_it_strictly(platform: Platform) -> None:
    app = create_app(platform)
    described = app.openapi()["paths"]
    found = {
        path
        for path, methods in described.items()
        for operation in methods.values()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    strict = {route.path for route in _all_routes(app.routes) if isinstance(route, StrictJsonRoute)}
    assert found
    assert found <= strict


def test_a_caller_that_goes_away_within_its_request_is_no_error_of_the_platform(
    platform: Platform, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    upload = {"kind": "data", "name": "a", "folder": False, "files": [{"path": "a", "bytes": 9, "digest": "0" * 64}]}
    begun = client.post("/v1/uploads", json=upload).json()["id"]
    head = f"PUT /v1/uploads/{begun}/files/0?offset=0 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
    token = f"Authorization: Bearer {platform.home.token_file.read_text().strip()}\r\n\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
        connection.sendall(f"{head}{token}four".encode())
    counted = {"method": "PUT", "route": "/v1/uploads/{upload_id}/files/{number}"}

    def count(status: int) -> float:
        labels = counted | {"status": str(status)}
        return sum(s.value for each in REQUESTS.collect() for s in each.samples if s.labels == labels)

    wait_until(lambda: count(499) + count(500) > 0, timeout_s=30)
    assert count(500) == 0 and "Traceback" not in caplog.text, caplog.text


def test_every_parameter_that_is_no_part_of_a_path_is_described(platform: Platform) -> None:
    described = create_app(platform).openapi()["paths"]
    bare = [
        f"{method.upper()} {path}: {parameter['name']}"
        for path, methods in described.items()
        for method, operation in methods.items()
        for parameter in operation.get("parameters", ())
        if parameter["in"] != "path" and not parameter.get("description")
    ]
    assert "/v1/jobs" in described and bare == []
    assert described["/v1/jobs"]["post"]["summary"] == "Submit a job"


def _all_routes(routes: Any) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        original = getattr(route, "original_router", None) or getattr(route, "router", None)
        if original is not None:
            yield from _all_routes(original.routes)
