"""A platform of two nodes with homes of their own and one bucket: jobs on both, a server that is away, a backup."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from rdukit_platform.artifacts.stores.bucket import Bucket
from rdukit_platform.artifacts.stores.cache import ContentCache
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.backup.restore import restore_backup
from rdukit_platform.backup.write import write_backup
from rdukit_platform.settings import Home
from support import shows, wait_until
from support.forked import fork_rdukit
from support.platform.bucket import NAME, SECRET, BucketServer, bucket_server
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

pytestmark = [shows("artifacts", "nodes", "backup"), pytest.mark.long]

BOX = Path(__file__).with_name("platform_box.py")
ADDRESS = f"s3://{NAME}/nodes"
FAST = {"RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_NODE_NAME": "one", "RDUKIT_ARTIFACTS_STORE": ADDRESS}
#: Half of a node's: two jobs fill it.
TILES = 32


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with bucket_server() as running:
        yield running


@pytest.fixture(scope="module")
def platform(server: BucketServer) -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, FAST) as running:
        yield running


@pytest.fixture(scope="module")
def dataset(platform: PlatformUnderTest) -> str:
    found: str = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    return found


@contextmanager
def joined(platform: PlatformUnderTest) -> Iterator[Path]:
    """Let a node called two, with a home of its own, be part of the platform. Yields its home."""
    first = Home(platform.home)
    with short_folder() as home:
        variables = {
            **os.environ, **FAST, "RDUKIT_HOME": str(home), "OMP_NUM_THREADS": "1",
            "RDUKIT_WORKER_BOX_COMMAND": f"{sys.executable} {BOX}",
            "RDUKIT_DATABASE_URL": f"sqlite:///{first.folder / 'db.sqlite'}",
            "RDUKIT_BROKER_URL": f"redis+socket://{first.broker_socket}",
        }  # fmt: skip
        process = fork_rdukit(["node", "join", "--json", "--name", "two"], variables)
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["name"] == "two"
            yield home
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


def train(platform: PlatformUnderTest, dataset: str, steps: int) -> str:
    body = {"inputs": {"dataset": dataset}, "parameters": {"steps": steps, "step_s": 0.05}, "tiles": TILES}
    job: str = platform.submit("train", **body)["id"]
    return job


def latest(platform: PlatformUnderTest, job: dict[str, Any]) -> bytes:
    content = BytesIO()
    platform.client.download(f"/v1/artifacts/{job['outputs']['checkpoint']}/content", content, path="latest.json")
    return content.getvalue()


def test_jobs_of_both_nodes_share_the_bucket_and_nothing_else(
    platform: PlatformUnderTest, dataset: str, server: BucketServer
) -> None:
    with joined(platform) as second:
        jobs = [platform.wait_end(job) for job in [train(platform, dataset, 20) for _ in range(4)]]
        assert {job["attempts"][-1]["node"] for job in jobs} == {"one", "two"}
        assert {job["state"] for job in jobs} == {"succeeded"}, jobs
        assert {latest(platform, job) for job in jobs} == {b'{"step": 20}'}
        homes = [platform.home, second]
        assert [(home / "artifacts").exists() for home in homes] == [False, False]
        assert all(any((home / "copies").glob("*/*")) for home in homes)
    verified = platform.client.post(f"/v1/artifacts/{dataset}/verify")
    assert (verified["files"], verified["problems"]) == (1, [])
    assert server.keys("nodes/holds/") == []


def test_a_job_waits_for_a_server_that_is_away_and_computes_nothing_twice(
    platform: PlatformUnderTest, dataset: str, server: BucketServer
) -> None:
    job = train(platform, dataset, 30)
    platform.wait_job(job, lambda found: (found["progress"] or {}).get("step", 0) > 3)
    log = platform.home / "logs" / "worker.log"
    server.go()
    try:
        wait_until(lambda: b"retrying in_s=" in log.read_bytes())
        late = train(platform, dataset, 5)
        assert platform.job(job)["state"] == "running"
    finally:
        server.come_back()
    done = [platform.wait_end(each) for each in (job, late)]
    assert [each["state"] for each in done] == ["succeeded", "succeeded"], done
    assert len(done[0]["attempts"]) == 1
    assert latest(platform, done[0]) == b'{"step": 30}'
    assert SECRET not in "".join(path.read_text() for path in (platform.home / "logs").glob("*.log"))


def test_a_backup_has_the_buckets_content_and_is_restored_to_another(
    platform: PlatformUnderTest, dataset: str, server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_ARTIFACTS_STORE", ADDRESS)
    written = write_backup(Home(platform.home), tmp_path / "backup", time.time())
    assert not written.damaged
    monkeypatch.setenv("RDUKIT_ARTIFACTS_STORE", f"s3://{NAME}/restored")
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        restore_backup(Home(folder), tmp_path / "backup", time.time())
        assert not (folder / "artifacts").exists()
        restored = S3Store(Bucket(f"s3://{NAME}/restored"), ContentCache(folder / "copies", 1 << 30))
        wanted = {file.sha256 for file in written.files if file.path.startswith("blobs/")}
        assert {blob.digest for blob in restored.blobs()} == wanted and len(wanted) > 2
        for digest in wanted:
            restored.check(digest)
    assert server.keys("nodes/alone/") == []
