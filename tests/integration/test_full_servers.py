"""PostgreSQL or the broker on a disk that is full for a while: callers are told, no job is lost, all goes on."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from rdukit_platform.settings import Home
from support import shows, wait_until
from support.platform.database import migrated_database
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder
from support.postgres import postgres_server

pytestmark = [shows("jobs", "health", "errors"), pytest.mark.long]

BOX = Path(__file__).with_name("platform_box.py")
FAST = {"RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_SCHEDULER_REPUBLISH_S": "1"}
#: Longer than the leases of attempts: whoever lost something by it has lost it.
FULL_S = 8.0
#: Outcomes of attempts that were nobody's fault; by the last one their connection to the database was gone.
LACKING = {"expired", "interrupted", "no-resources", "box-lost"}


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[None]:
    """Mount a disk of a few MiB at a folder while the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0755", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is free on a disk, until nothing more goes."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as out:
        try:
            while True:
                out.write(bytes(1 << 12))
        except OSError:
            return filler


def ask(platform: PlatformUnderTest, steps: int, dataset: str, label: str = "") -> httpx.Response:
    """Submit a training, whatever becomes of that."""
    token = (platform.home / "token").read_text().strip()
    parameters = {"steps": steps, "step_s": 0.05}
    labels = {f"l{number}": label for number in range(16) if label}
    body = {"box": "counter", "verb": "train", "inputs": {"dataset": dataset}, "parameters": parameters,
            "labels": labels}  # fmt: skip
    url = f"{platform.running['url']}/v1/jobs"
    return httpx.post(url, headers={"Authorization": f"Bearer {token}"}, json=body, timeout=60)


def has_begun(platform: PlatformUnderTest, job: str) -> None:
    platform.wait_job(job, lambda found: (found["progress"] or {}).get("step", 0) > 3)


def check_all_ended_once(platform: PlatformUnderTest, jobs: list[str]) -> None:
    for job in jobs:
        done = platform.wait_end(job, 240)
        assert done["state"] == "succeeded", done
        assert platform.states(job).count("succeeded") == 1
        lost = [each for each in done["attempts"][:-1] if each["outcome"] not in LACKING]
        assert not lost, lost
    wait_until(lambda: platform.client.get("/health")["status"] == "ready", 60, "ready again")


def test_a_full_disk_of_postgresql_refuses_what_it_cannot_keep_and_loses_no_job() -> None:
    with short_folder() as disk, small_disk(disk, 128), postgres_server(disk) as server, short_folder() as home:
        url = migrated_database(server, "full")
        with platform_under_test(home, BOX, {**FAST, "RDUKIT_DATABASE_URL": url}) as platform:
            dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
            jobs = [str(ask(platform, steps, dataset).json()["id"]) for steps in (60, 120)]
            for job in jobs:
                has_begun(platform, job)
            with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
                # What is written ahead has its place, so that it is the tables that do not grow.
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("CHECKPOINT")
            filler = fill(disk)
            full = time.monotonic()
            refused = None
            for number in range(400):
                answer = ask(platform, 1, dataset, f"{number:03}" * 40)
                if answer.status_code != 201:
                    refused = answer
                    break
                jobs.append(str(answer.json()["id"]))
            assert refused is not None, "the tables' own room has an end"
            assert (refused.status_code, refused.json()["error"]["code"]) == (507, "disk-full"), refused.text
            while time.monotonic() < full + FULL_S:
                states = {platform.job(job)["state"] for job in jobs[:2]}
                assert states <= {"running", "retrying", "starting", "queued", "succeeded"}
                time.sleep(0.5)
            filler.unlink()
            check_all_ended_once(platform, [*jobs, str(ask(platform, 5, dataset).json()["id"])])


def test_a_full_disk_of_the_broker_delays_jobs_and_loses_none() -> None:
    with short_folder() as home, small_disk(Home(home).broker, 4):
        os.chmod(Home(home).broker, 0o700)
        with platform_under_test(home, BOX, FAST) as platform:
            dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
            jobs = [str(ask(platform, steps, dataset).json()["id"]) for steps in (60, 120)]
            for job in jobs:
                has_begun(platform, job)
            worker = platform.pid_of("worker")
            filler = fill(Home(home).broker)
            full = time.monotonic()
            while time.monotonic() < full + FULL_S:
                answer = ask(platform, 1, dataset)
                assert answer.status_code == 201, "a job is a row of the database, which has room"
                jobs.append(str(answer.json()["id"]))
                time.sleep(0.5)
            log = (home / "logs/scheduler.log").read_text()
            assert "message not sent" in log and "No space left" in log, "the reason is told"
            filler.unlink()
            check_all_ended_once(platform, jobs)
            assert Path(f"/proc/{worker}").exists(), "the worker was not restarted"
