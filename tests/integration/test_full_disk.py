"""A platform whose disk is full for a while: callers are told, jobs wait, and all goes on when there is room again."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rdukit_platform.worker.patience import MIN_FREE_BYTES, NO_ROOM
from support import shows
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = shows("artifacts", "jobs", "health", "artifact-store")

BOX = Path(__file__).with_name("platform_box.py")
DISK_MIB = 48


@pytest.fixture
def platform() -> Iterator[PlatformUnderTest]:
    """A platform whose home is a small disk of its own."""
    with short_folder() as home:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0700", "tmpfs", str(home)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if mounted.returncode:
            pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
        try:
            with platform_under_test(home, BOX, {"RDUKIT_JOB_BACKOFF_S": "0.1"}) as running:
                yield running
        finally:
            subprocess.run(["umount", "--lazy", str(home)], check=True)


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def fill(folder: Path) -> Path:
    """Take all that is free on a disk, until nothing more goes."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as out:
        try:
            while True:
                out.write(bytes(1 << 16 if free_bytes(folder) > 1 << 17 else 4096))
        except OSError:
            return filler


def upload(platform: PlatformUnderTest, data: bytes) -> httpx.Response:
    token = (platform.home / "token").read_text().strip()
    return httpx.post(
        f"{platform.running['url']}/v1/artifacts", headers={"Authorization": f"Bearer {token}"},
        files={"files": ("a.bin", data)}, data={"kind": "data"}, timeout=60,
    )  # fmt: skip


def train(platform: PlatformUnderTest, dataset: str, steps: int) -> httpx.Response:
    token = (platform.home / "token").read_text().strip()
    body = {"box": "counter", "verb": "train", "inputs": {"dataset": dataset},
            "parameters": {"steps": steps, "step_s": 0.05}}  # fmt: skip
    url = f"{platform.running['url']}/v1/jobs"
    return httpx.post(url, headers={"Authorization": f"Bearer {token}"}, json=body, timeout=60)


@pytest.mark.long
def test_a_full_disk_fails_no_job_and_leaves_nothing_half_written(platform: PlatformUnderTest) -> None:
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    jobs = [train(platform, dataset, steps).json()["id"] for steps in (60, 120)]
    for job in jobs:
        platform.wait_job(job, lambda found: (found["progress"] or {}).get("step", 0) > 3)
    before = dict(platform.running["pids"])
    filler = fill(platform.home)
    for refused in (upload(platform, os.urandom(1 << 20)), train(platform, dataset, 5)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk-full"), refused.text
        assert str(platform.home) not in refused.text
    # For longer than a lease lasts, so that whoever lost something by it has lost it.
    lease_ends = time.monotonic() + 8.0
    while time.monotonic() < lease_ends:
        assert {platform.job(job)["state"] for job in jobs} <= {"running", "retrying", "starting", "queued"}
        time.sleep(0.5)
    filler.unlink()
    done = [platform.wait_end(job) for job in jobs]
    assert [job["state"] for job in done] == ["succeeded", "succeeded"], done
    assert [job["result"]["steps"] for job in done] == [60, 120]
    late = platform.wait_end(train(platform, dataset, 5).json()["id"])
    assert late["state"] == "succeeded"
    added: dict[str, Any] = upload(platform, b"room again").json()
    assert platform.client.post(f"/v1/artifacts/{added['id']}/verify")["problems"] == []
    assert platform.client.get("/health")["status"] == "ready"
    assert all(Path(f"/proc/{pid}").exists() for pid in before.values()), "no part was restarted"
    assert list((platform.home / "artifacts" / "incoming").iterdir()) == []
    assert [path for path in (platform.home / "work").rglob("*") if path.is_file()] == []


def test_a_job_that_lacks_room_tells_so_until_there_is_some(platform: PlatformUnderTest) -> None:
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    filler = platform.home / "filler"
    filler.write_bytes(bytes(free_bytes(platform.home) - (MIN_FREE_BYTES // 2)))
    job_id = train(platform, dataset, 5).json()["id"]
    waits = platform.wait_job(job_id, lambda job: bool(job["waits_for"]) and job["state"] == "starting")
    assert (waits["waits_for"], waits["wait_code"]) == (NO_ROOM, "Resources")
    filler.unlink()
    done = platform.wait_end(job_id)
    assert (done["state"], done["waits_for"], len(done["attempts"])) == ("succeeded", None, 1), done
