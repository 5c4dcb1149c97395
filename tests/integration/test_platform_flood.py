"""One tenant's flood of jobs: submissions are taken, leases hold, and another tenant's job is served beside it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rdukit_platform.client.http import ApiClient
from support import shows
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [shows("jobs", "scheduler", "tenants"), pytest.mark.long]

BOX = Path(__file__).parent / "platform_box.py"
FLOOD = 200
CALLERS = 8


@pytest.fixture
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, {"RDUKIT_WORKER_SLOTS": "2"}) as running:
        yield running


def test_a_flood_of_one_tenant_keeps_no_other_waiting(platform: PlatformUnderTest) -> None:
    tenant = platform.client.post("/v1/tenants", {"name": "quiet"})
    token = platform.client.post(f"/v1/tenants/{tenant['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    with ThreadPoolExecutor(CALLERS) as callers:
        # Whatever the gateway answers but 201 raises here.
        flood = [job["id"] for job in callers.map(lambda _: platform.submit("preprocess"), range(FLOOD))]
    assert len(set(flood)) == FLOOD
    with ApiClient(platform.running["url"], token) as quiet:
        job = quiet.submit("/v1/jobs", {"box": "counter", "verb": "preprocess"})
        *_, last = quiet.follow(job["id"])
        assert last["data"]["to"] == "succeeded"
        assert [attempt["outcome"] for attempt in quiet.get(f"/v1/jobs/{job['id']}")["attempts"]] == ["succeeded"]
    waiting = platform.client.get("/v1/jobs", state="queued", limit=200)["jobs"]
    assert waiting, "the flood was over before the other tenant's job, so nothing was tried"
    begun = [platform.job(job_id) for job_id in flood[:20]]
    assert {attempt["outcome"] for found in begun for attempt in found["attempts"]} <= {"succeeded", None}
    reasons = {found["waits_for"] for found in waiting}
    assert reasons <= {None, "all 2 worker slots are taken", "the last free worker slot is kept for other tenants"}
