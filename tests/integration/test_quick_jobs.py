"""Many quick jobs whose worker is killed in the middle: each ends once, on a file and on a server."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows, wait_until
from support.platform.database import migrated_database
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder
from support.postgres import postgres_server

pytestmark = [shows("jobs", "job-boxes"), pytest.mark.long]

BOX = Path(__file__).parent / "platform_box.py"
FAST = {"RDUKIT_WORKER_LEASE_S": "2", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_WORKER_SLOTS": "2"}
JOBS = 60


@pytest.fixture(scope="module", params=["file", "server"])
def platform(request: pytest.FixtureRequest) -> Iterator[PlatformUnderTest]:
    if request.param == "file":
        with short_folder() as home, platform_under_test(home, BOX, FAST) as running:
            yield running
        return
    with postgres_server() as server, short_folder() as home:
        variables = {**FAST, "RDUKIT_DATABASE_URL": migrated_database(server, "quick")}
        with platform_under_test(home, BOX, variables) as running:
            yield running


def test_jobs_of_a_killed_worker_end_once_each_and_the_cancelled_and_paused_among_them_as_asked(
    platform: PlatformUnderTest,
) -> None:
    client = platform.client
    ids = client.submit("/v1/jobs/batch", {"jobs": [{"box": "counter", "verb": "preprocess"}] * JOBS})["ids"]
    cancelled, paused = sorted(ids)[-1], sorted(ids)[-2]
    for id, what in ((cancelled, "cancel"), (paused, "pause")):
        client.post(f"/v1/jobs/{id}/{what}")
    wait_until(lambda: client.get("/v1/jobs", state="succeeded", limit=5)["jobs"], 60, "some have ended")
    platform.kill("worker")
    held = {cancelled: "cancelled", paused: "paused"}
    for id in ids:
        job = platform.wait_job(id, lambda job: job["state"] in {"succeeded", "failed", "cancelled", "paused"})
        assert job["state"] == held.get(id, "succeeded"), job
        attempts, states = Counter(each["outcome"] for each in job["attempts"]), Counter(platform.states(id))
        if id not in held:
            assert attempts["succeeded"] == states["succeeded"] == 1 and len(job["outputs"]) == 1, job
        # Of what its worker was killed with, nothing is the job's failure.
        assert set(attempts) <= {"succeeded", "expired", "interrupted", "cancelled", "paused"}, job
        assert attempts["expired"] <= 2, job
    made = [artifact["job_id"] for artifact in client.get("/v1/artifacts", limit=200)["artifacts"]]
    assert set(Counter(made).values()) == {1}
    client.post(f"/v1/jobs/{paused}/resume")
    assert platform.wait_end(paused)["state"] == "succeeded"
