"""Requests that read much: logs come page by page, and verifying artifacts keeps no thread from others."""

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from rdukit_platform.api import jobs as job_routes
from rdukit_platform.api.content_threads import MAX_OF_TENANT, MAX_THREADS, ContentThreads
from rdukit_platform.api.jobs import LOG_PAGE, log_pages
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.jobs.changes import add_event
from rdukit_platform.tenants.service import find_tenant
from support import shows
from support.helpers import wait_until
from support.platform.gateway import Example, GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("jobs", "artifacts", "security")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayUnderTest]:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            yield running


def job_with_log(gateway: GatewayUnderTest, lines: int) -> str:
    platform = gateway.platform
    with platform.database.read() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
    job_id = next(iter(Example(platform.database, platform.store, tenant.id, 10.0).fill().values()))
    with platform.database.write() as session:
        for number in range(lines):
            add_event(session, job_id, 1, "log", 11.0, {"line": f"line {number}"})
    return job_id


@pytest.mark.parametrize("lines", [0, 1, LOG_PAGE, 2 * LOG_PAGE + 1])
def test_a_log_is_all_there_and_comes_page_by_page(gateway: GatewayUnderTest, lines: int) -> None:
    job_id = job_with_log(gateway, lines)
    wanted = [f"line {number}" for number in range(lines)]
    pages = [page.decode().splitlines() for page in log_pages(gateway.platform, job_id)]
    assert all(len(page) <= LOG_PAGE for page in pages)
    assert [line for page in pages for line in page if line.startswith("line ")] == wanted
    answer = gateway.ask("GET", f"/v1/jobs/{job_id}/logs", gateway.admin)
    assert answer.headers["content-type"].startswith("text/plain")
    assert [line for line in answer.text.splitlines() if line.startswith("line ")] == wanted


def test_a_page_is_read_when_the_one_before_is_taken(
    gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, read = job_with_log(gateway, 3 * LOG_PAGE), []
    plain = job_routes.list_events

    def counted(*arguments: Any, **named: Any) -> Any:
        read.append(arguments[2])
        return plain(*arguments, **named)

    monkeypatch.setattr(job_routes, "list_events", counted)
    pages = log_pages(gateway.platform, job_id)
    next(pages)
    assert len(read) == 1


def test_who_verifies_much_keeps_no_thread_from_others(
    gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = gateway.token("mallory", "read", "write")
    added = gateway.ask("POST", "/v1/artifacts", token, files={"files": b"x"}, data={"kind": "data"}).json()["id"]
    go_on, reading = threading.Event(), []
    plain = BlobStore.read_kept

    def slowly(self: BlobStore, digest: str) -> Iterator[bytes]:
        reading.append(digest)
        assert go_on.wait(60)
        return plain(self, digest)

    monkeypatch.setattr(type(gateway.platform.store), "read_kept", slowly)
    path, statuses = f"/v1/artifacts/{added}/verify", list[int]()

    def verify() -> None:
        statuses.append(gateway.ask("POST", path, token).status_code)

    callers = [threading.Thread(target=verify) for _ in range(80)]
    for each in callers:
        each.start()
    try:
        wait_until(lambda: len(reading) == MAX_OF_TENANT, timeout_s=60)
        assert gateway.ask("GET", "/v1/me", gateway.admin).status_code == 200
        assert gateway.ask("GET", "/v1/jobs", token).status_code == 200
        assert len(reading) == MAX_OF_TENANT
    finally:
        go_on.set()
        for each in callers:
            each.join()
    assert statuses == [200] * len(callers)


async def test_a_tenant_has_its_share_of_the_threads_and_leaves_nothing() -> None:
    threads, under_way, most = ContentThreads(), 0, 0
    lock = threading.Lock()
    gate = threading.Barrier(MAX_OF_TENANT + 1)

    def work() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        gate.wait(60)
        with lock:
            under_way -= 1

    async with anyio.create_task_group() as group:
        for _ in range(2 * MAX_OF_TENANT):
            group.start_soon(threads.run, "mallory", work)
        for _ in range(2):
            await anyio.to_thread.run_sync(gate.wait, 60)
    assert most == MAX_OF_TENANT < MAX_THREADS
    assert threads._shares == {}
