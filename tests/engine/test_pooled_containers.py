"""Containers that stay for their tenant's next job: whose they are, and what a killed worker leaves of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_stack import PATIENCE_S

from rdukit_platform.backends.engines import PodmanBackend
from rdukit_platform.client.http import ApiClient
from rdukit_platform.settings import Home
from support import shows, wait_until
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [shows("job-boxes", "logreg"), pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def platform(podman_environment: dict[str, str], podman_image: str) -> Iterator[PlatformUnderTest]:
    settings = {
        "CONTAINER_HOST": podman_environment["RDUKIT_PODMAN_URL"],
        "RDUKIT_WORKER_BOX_BACKEND": "podman",
        "RDUKIT_WORKER_BOX_IMAGE": podman_image,
        "RDUKIT_WORKER_BOX_IDLE_S": "900",
        "RDUKIT_WORKER_LEASE_S": "4",
        "RDUKIT_JOB_BACKOFF_S": "0.1",
    }
    with short_folder() as home, platform_under_test(home, None, settings) as running:
        yield running


def preprocess(client: ApiClient, platform: PlatformUnderTest) -> str:
    """Have a job done. Returns its container."""
    job = client.submit("/v1/jobs", {"box": "logreg", "verb": "preprocess", "parameters": {"limit": 100}})
    wait_until(lambda: client.get(f"/v1/jobs/{job['id']}")["ended_at"] is not None, PATIENCE_S)
    done = client.get(f"/v1/jobs/{job['id']}")
    assert done["state"] == "succeeded" and done["outputs"], done
    (attempt,) = done["attempts"]
    assert attempt["box"]["backend"] == "podman"
    return str(attempt["box"]["id"])


def folders(platform: PlatformUnderTest) -> list[Path]:
    """What the jobs of the pool have in their boxes' folders."""
    return list(Home(platform.home).pools.glob("*/*/*/job-*"))


def test_jobs_of_a_tenant_have_the_same_container_and_others_another(
    platform: PlatformUnderTest, podman_backend: PodmanBackend
) -> None:
    first, second = (preprocess(platform.client, platform) for _ in range(2))
    assert first == second
    wait_until(lambda: not folders(platform))
    tenant = platform.client.post("/v1/tenants", {"name": "lab"})
    token = platform.client.post(f"/v1/tenants/{tenant['id']}/tokens", {"scopes": ["read", "write"]})["token"]
    with ApiClient(platform.running["url"], token) as other:
        third = preprocess(other, platform)
    owners = {box.id: box.owner.id for box in podman_backend.owned()}
    assert third != first and set(owners) == {first, third}
    assert len(set(owners.values())) == 1 and (Home(platform.home).pools / owners[first]).is_dir()


def test_a_job_that_is_cancelled_ends_its_container(platform: PlatformUnderTest, podman_backend: PodmanBackend) -> None:
    before = preprocess(platform.client, platform)
    job = platform.submit("compile", box="logreg", parameters={"mode": "o0"})
    running = platform.wait_job(job["id"], lambda job: job["state"] == "running", PATIENCE_S)
    assert running["attempts"][0]["box"]["id"] == before
    platform.client.post(f"/v1/jobs/{job['id']}/cancel")
    wait_until(lambda: before not in {box.id for box in podman_backend.owned()}, 60)
    assert preprocess(platform.client, platform) != before
    wait_until(lambda: not folders(platform))


def test_the_next_worker_ends_the_containers_of_a_killed_one(
    platform: PlatformUnderTest, podman_backend: PodmanBackend
) -> None:
    preprocess(platform.client, platform)
    left = {box.id for box in podman_backend.owned()}
    assert left
    platform.kill("worker")
    wait_until(lambda: not left & {box.id for box in podman_backend.owned()}, 120)
    assert preprocess(platform.client, platform) not in left
    wait_until(lambda: len([path for path in Home(platform.home).pools.iterdir() if path.is_dir()]) == 1)
