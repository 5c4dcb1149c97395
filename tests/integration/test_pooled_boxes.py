"""Boxes that stay for their tenant's next job: whose they are, when they end, and what a kill leaves of them."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rdukit_platform.backends.process_tree import tree_of
from rdukit_platform.client.http import FINAL_STATES, ApiClient
from rdukit_platform.settings import Home
from support import shows, wait_until
from support.platform.processes import PlatformUnderTest, has_ended, platform_under_test, short_folder

pytestmark = shows("job-boxes", "jobs")

BOX = Path(__file__).parent / "platform_box.py"
FAST = {
    "RDUKIT_WORKER_LEASE_S": "2",
    "RDUKIT_JOB_BACKOFF_S": "0.1",
    "RDUKIT_WORKER_SLOTS": "1",
    "RDUKIT_WORKER_BOX_IDLE_S": "300",
}


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, FAST) as running:
        yield running


def box_of(job: dict[str, Any]) -> int:
    """Process id of the box of a job's last attempt."""
    return int(job["attempts"][-1]["box"]["id"])


def users_of(box: int) -> set[int]:
    """Whom the processes of a box run as, but for those that put up its fence."""
    return {Path(f"/proc/{facts.pid}").stat().st_uid for facts in tree_of(box)} - {os.getuid()}


def folders(platform: PlatformUnderTest) -> list[Path]:
    """What the jobs of the pool have in their boxes' folders."""
    while True:
        with suppress(FileNotFoundError):  # a folder went while it was looked into
            return list((Home(platform.home).pools).glob("*/*/*/job-*"))


def test_jobs_of_a_tenant_have_the_same_box_and_leave_nothing_in_it(platform: PlatformUnderTest) -> None:
    first, second = (platform.wait_end(platform.submit("preprocess")["id"]) for _ in range(2))
    assert (first["state"], second["state"]) == ("succeeded", "succeeded")
    assert box_of(first) == box_of(second)
    assert first["outputs"]["dataset"] != second["outputs"]["dataset"]
    wait_until(lambda: not folders(platform))
    # One that leases tiles has a box of its own.
    train = platform.submit("train", inputs={"dataset": first["outputs"]["dataset"]}, parameters={"steps": 2})
    assert box_of(platform.wait_end(train["id"])) != box_of(first)


def test_another_tenants_job_has_another_box(platform: PlatformUnderTest) -> None:
    own = platform.wait_end(platform.submit("preprocess")["id"])
    tenant = platform.client.post("/v1/tenants", {"name": "lab"})
    token = platform.client.post(f"/v1/tenants/{tenant['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    with ApiClient(platform.running["url"], token) as other:
        path = f"/v1/jobs/{other.submit('/v1/jobs', {'box': 'counter', 'verb': 'preprocess'})['id']}"
        wait_until(lambda: other.get(path)["state"] in FINAL_STATES)
        job = other.get(path)
    assert job["state"] == "succeeded"
    assert box_of(job) != box_of(own)
    if os.getuid() == 0:
        assert users_of(box_of(own)) and users_of(box_of(job)) and not users_of(box_of(own)) & users_of(box_of(job))


@pytest.mark.parametrize("mood", ["refuse", "crash"])
def test_a_job_that_fails_ends_its_box(platform: PlatformUnderTest, mood: str) -> None:
    before = box_of(platform.wait_end(platform.submit("preprocess")["id"]))
    failed = platform.wait_end(platform.submit("preprocess", parameters={"mood": mood}, max_attempts=1)["id"])
    assert failed["state"] == "failed" and has_ended(before)
    after = platform.wait_end(platform.submit("preprocess")["id"])
    assert after["state"] == "succeeded" and box_of(after) != before


def test_a_job_that_is_cancelled_ends_its_box(platform: PlatformUnderTest) -> None:
    job = platform.submit("preprocess", parameters={"pause_s": 600.0})
    box = box_of(platform.wait_job(job["id"], lambda job: job["state"] == "running"))
    platform.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert has_ended(box)
    wait_until(lambda: not folders(platform))
    assert platform.wait_end(platform.submit("preprocess")["id"])["state"] == "succeeded"


def test_jobs_of_a_batch_follow_each_other_and_a_killed_worker_takes_its_boxes_along(
    platform: PlatformUnderTest,
) -> None:
    idle = box_of(platform.wait_end(platform.submit("preprocess")["id"]))
    body = {"box": "counter", "verb": "preprocess", "parameters": {"pause_s": 1.0}}
    batch = {"jobs": [body] * 3, "idempotency_key": "night"}
    ids = platform.client.submit("/v1/jobs/batch", batch)["ids"]
    assert platform.client.submit("/v1/jobs/batch", batch)["ids"] == ids
    _, second, _ = sorted(ids)  # as those of one moment go
    box = box_of(platform.wait_job(second, lambda job: job["state"] == "running"))
    assert box == idle
    os.kill(platform.pid_of("worker"), signal.SIGKILL)
    assert has_ended(box)
    done = {id: platform.wait_end(id) for id in ids}
    outcomes = [[attempt["outcome"] for attempt in done[id]["attempts"]] for id in sorted(ids)]
    assert outcomes == [["succeeded"], ["expired", "succeeded"], ["succeeded"]]
    assert all(platform.states(id).count("succeeded") == 1 for id in ids) and box_of(done[second]) != box
    pools = Home(platform.home).pools
    # The new worker removes the folders of the old one.
    wait_until(lambda: len([path for path in pools.iterdir() if path.is_dir()]) == 1)
    assert not folders(platform)
