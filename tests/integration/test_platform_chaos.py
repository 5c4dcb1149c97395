"""kill -9 of any part of the platform, again and again, while jobs run: each job ends once, with the right artifacts.

The short form takes about a minute. ``RDUKIT_CHAOS_KILLS``, ``RDUKIT_CHAOS_JOBS``, ``RDUKIT_CHAOS_PAUSE_S`` and
``RDUKIT_CHAOS_SEED`` make it longer or another one; ``RDUKIT_DATABASE_URL`` gives it another database.
``RDUKIT_CHAOS_BOX=real`` takes the box ``logreg`` instead of the tests' own: whole pipelines on digits, with native
kernels, each compared with one that nothing disturbed.
"""

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from safetensors.torch import load

from rdukit.errors import RdukitError
from rdukit_platform.backends.process_tree import tree_of
from rdukit_platform.cli.local import STEPS as VERBS
from rdukit_platform.cli.local import demo_steps
from rdukit_platform.client.http import FINAL_STATES
from support.helpers import wait_until
from support.platform.processes import PlatformUnderTest, platform_under_test, short_folder

KILLS = int(os.environ.get("RDUKIT_CHAOS_KILLS", "12"))
JOBS = int(os.environ.get("RDUKIT_CHAOS_JOBS", "24"))
PAUSE_S = float(os.environ.get("RDUKIT_CHAOS_PAUSE_S", "1.0"))
SEED = int(os.environ.get("RDUKIT_CHAOS_SEED", "19"))
STEPS = 40
FAST = {"RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_SCHEDULER_REPUBLISH_S": "1"}


class Work(Protocol):
    """What the platform does while its parts are killed, and what is right."""

    #: The program that stands in for the boxes, and what is in the command line of a box.
    program: Path | None
    mark: str

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        """Begin about ``JOBS`` jobs."""

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        """Whether a job made what it should."""


class Counting:
    """Trainings of the tests' box, which go on from their checkpoints."""

    program: Path | None = Path(__file__).parent / "platform_box.py"
    mark = str(program)

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
        parameters = {"steps": STEPS, "step_s": 0.05}
        return [
            str(platform.submit("train", inputs={"dataset": dataset}, parameters=parameters, tiles=1)["id"])
            for _ in range(JOBS)
        ]

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        (artifact,) = platform.client.get("/v1/artifacts", job=job["id"])["artifacts"]
        assert json.loads(download(platform, artifact["id"], "latest.json")) == {"step": STEPS}


class Digits:
    """The demo's pipelines with the box ``logreg``; the first one runs undisturbed and says what is right."""

    program: Path | None = None
    mark = "rdukit_modelbox"
    #: A training of some seconds; its checkpoints are about a tenth of a second apart.
    parameters: Mapping[str, object] = {"epochs": 12, "checkpoint_every": 50}

    def __init__(self) -> None:
        self._gold: dict[str, dict[str, Any]] = {}

    def submit(self, platform: PlatformUnderTest) -> list[str]:
        for job in self._submit_pipeline(platform):
            self._gold[job["step"]] = platform.wait_end(job["id"], 300)
        return [str(job["id"]) for _ in range(JOBS // len(VERBS)) for job in self._submit_pipeline(platform)]

    def _submit_pipeline(self, platform: PlatformUnderTest) -> list[dict[str, Any]]:
        steps = demo_steps("logreg")
        steps[VERBS.index("train")]["parameters"] = self.parameters
        jobs: list[dict[str, Any]] = platform.client.submit(
            "/v1/pipelines", {"name": "digits", "steps": steps, "cache": False}
        )["jobs"]
        return jobs

    def check(self, platform: PlatformUnderTest, job: dict[str, Any]) -> None:
        gold = self._gold[job["step"]]
        assert job["outputs"].keys() == gold["outputs"].keys()
        if job["step"] in {"train", "infer"}:
            assert self._figures(job) == self._figures(gold), job
        if job["step"] == "train":
            ours, theirs = (self._parameters(platform, each["outputs"]["checkpoint"]) for each in (job, gold))
            assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)

    def _figures(self, job: dict[str, Any]) -> dict[str, Any]:
        """What a job told, without the times that it took on this machine or that it summed in another order."""
        return {k: v for k, v in job["result"].items() if not k.endswith("_seconds") and k != "resumed_from_step"}

    def _parameters(self, platform: PlatformUnderTest, artifact: str) -> dict[str, torch.Tensor]:
        newest = json.loads(download(platform, artifact, "latest.json"))
        return load(download(platform, artifact, newest["file"]))


WORK: Work = Digits() if os.environ.get("RDUKIT_CHAOS_BOX") == "real" else Counting()
#: What the command line of each part has in it.
PARTS = {
    "valkey": "valkey", "snd": "node start", "gateway": "rdukit_platform.gateway",
    "scheduler": "rdukit_platform.scheduler", "worker": "rdukit_platform.worker", "box": WORK.mark,
}  # fmt: skip


@pytest.fixture
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, WORK.program, FAST) as running:
        yield running


def download(platform: PlatformUnderTest, artifact: str, path: str) -> bytes:
    content = BytesIO()
    platform.client.download(f"/v1/artifacts/{artifact}/content", content, path=path)
    return content.getvalue()


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def pids_of(platform: PlatformUnderTest, part: str) -> list[int]:
    """Processes of one part that run now."""
    mine = [facts.pid for facts in tree_of(int(platform.running["pid"]))[1:]]
    return [pid for pid in mine if PARTS[part] in command_of(pid)]


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


def wait_ended(platform: PlatformUnderTest, ids: list[str], killed: list[str]) -> None:
    """Look at those that have not ended; all at once and all the time would keep the gateway busy."""
    left = list(ids)

    def has_next_ended() -> bool:
        while left and platform.job(left[0])["state"] in FINAL_STATES:
            left.pop(0)
        time.sleep(0.1)
        return not left

    wait_until(has_next_ended, 60.0 + 10 * JOBS, f"all jobs end after {killed}")


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
    ids = WORK.submit(platform)
    killed = kill_parts(platform)
    waited_s = wait_until(lambda: is_ready(platform), what="ready after the last kill")
    try:
        wait_ended(platform, ids, killed)
    except AssertionError:
        print(_what_is_left(platform, ids))
        raise
    for job in all_of(platform, ids):
        assert (job["state"], job["reason"]) == ("succeeded", "completed"), (killed, job)
        assert platform.states(job["id"]).count("succeeded") == 1
        WORK.check(platform, job)
    wait_until(lambda: not pids_of(platform, "box"), what="no box is left")
    wait_until(lambda: not list((platform.home / "work").iterdir()), what="no folder of a job is left")
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    assert not node["leases"]
    print(f"killed {killed}; ready {waited_s:.1f} s after the last")
