"""kill -9 of any part of the platform, again and again, while jobs run: each job ends once, with the right artifacts.

The short form takes about a minute. ``RDUKIT_CHAOS_KILLS``, ``RDUKIT_CHAOS_JOBS``, ``RDUKIT_CHAOS_PAUSE_S`` and
``RDUKIT_CHAOS_SEED`` make it longer or another one; ``RDUKIT_DATABASE_URL`` gives it another database.
"""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import RdukitError
from rdukit.testing.waiting import wait_until
from rdukit_modelbox.backends.process_tree import tree_of
from rdukit_platform.cli.client import FINAL_STATES
from rdukit_platform.testing import PlatformUnderTest, platform_under_test, short_folder

BOX = Path(__file__).parent / "platform_box.py"
KILLS = int(os.environ.get("RDUKIT_CHAOS_KILLS", "12"))
JOBS = int(os.environ.get("RDUKIT_CHAOS_JOBS", "24"))
PAUSE_S = float(os.environ.get("RDUKIT_CHAOS_PAUSE_S", "1.0"))
SEED = int(os.environ.get("RDUKIT_CHAOS_SEED", "19"))
STEPS = 40
#: What the command line of each part has in it.
PARTS = {
    "valkey": "valkey", "snd": "node start", "gateway": "rdukit_platform.gateway",
    "scheduler": "rdukit_platform.scheduler", "worker": "rdukit_platform.worker", "box": str(BOX),
}  # fmt: skip
FAST = {"RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_SCHEDULER_REPUBLISH_S": "1"}


@pytest.fixture
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, FAST) as running:
        yield running


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def pids_of(platform: PlatformUnderTest, part: str) -> list[int]:
    """Processes of one part that run now."""
    mine = [facts.pid for facts in tree_of(int(platform.running["pid"]))[1:]]
    return [pid for pid in mine if PARTS[part] in command_of(pid)]


def submit_all(platform: PlatformUnderTest) -> list[str]:
    """Trainings that go on from their checkpoints; each has a data set of its own making."""
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    parameters = {"steps": STEPS, "step_s": 0.05}
    return [
        str(platform.submit("train", inputs={"dataset": dataset}, parameters=parameters, tiles=1)["id"])
        for _ in range(JOBS)
    ]


def kill_parts(platform: PlatformUnderTest) -> list[str]:
    """Kill something every ``PAUSE_S``. Returns what."""
    dice, killed = random.Random(SEED), list[str]()
    while len(killed) < KILLS:
        part = dice.choice(sorted(PARTS))
        pids = pids_of(platform, part)
        if pids:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(pids), signal.SIGKILL)
            killed.append(part)
        time.sleep(PAUSE_S)
    return killed


def is_ready(platform: PlatformUnderTest) -> bool:
    with suppress(RdukitError):
        return platform.client.get("/health")["status"] == "ready"
    return False


def all_of(platform: PlatformUnderTest, ids: list[str]) -> list[dict[str, Any]]:
    return [platform.job(job_id) for job_id in ids]


def have_ended(platform: PlatformUnderTest, ids: list[str]) -> bool:
    return all(job["state"] in FINAL_STATES for job in all_of(platform, ids))


def _what_is_left(platform: PlatformUnderTest, ids: list[str]) -> str:
    """Say what hangs: jobs that have not ended, the node, the processes and the end of each log."""
    jobs = [job for job in all_of(platform, ids) if job["state"] not in FINAL_STATES]
    events = [platform.client.get(f"/v1/jobs/{job['id']}/events") for job in jobs[:2]]
    processes = [(facts.pid, command_of(facts.pid)[:120]) for facts in tree_of(int(platform.running["pid"]))]
    logs = {path.name: path.read_text(errors="replace")[-3000:] for path in platform.home.rglob("*.log")}
    return "\n\n".join(
        str(part)
        for part in (
            jobs,
            events,
            platform.client.get("/v1/nodes"),
            *processes,
            *(f"{n}\n{t}" for n, t in logs.items()),
        )
    )


def test_jobs_end_once_whatever_part_is_killed(platform: PlatformUnderTest) -> None:
    ids = submit_all(platform)
    killed = kill_parts(platform)
    waited_s = wait_until(lambda: is_ready(platform), what="ready after the last kill")
    try:
        wait_until(lambda: have_ended(platform, ids), 60.0 + 10 * JOBS, f"all jobs end after {killed}")
    except AssertionError:
        print(_what_is_left(platform, ids))
        raise
    for job in all_of(platform, ids):
        assert (job["state"], job["reason"]) == ("succeeded", "completed"), (killed, job)
        assert platform.states(job["id"]).count("succeeded") == 1
        (artifact,) = platform.client.get("/v1/artifacts", job=job["id"])["artifacts"]
        content = BytesIO()
        platform.client.download(f"/v1/artifacts/{artifact['id']}/content", content, path="latest.json")
        assert json.loads(content.getvalue()) == {"step": STEPS}
    wait_until(lambda: not pids_of(platform, "box"), what="no box is left")
    wait_until(lambda: not list((platform.home / "work").iterdir()), what="no folder of a job is left")
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    assert not node["leases"]
    print(f"killed {killed}; ready {waited_s:.1f} s after the last")
