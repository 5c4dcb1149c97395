"""The platform with the real ``logreg`` box on real digits, its training and its worker killed in mid-train."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_platform.backends.process_tree import tree_of
from rdukit_platform.settings import Home
from support import shows, wait_until
from support.platform.processes import PlatformUnderTest, platform_under_test, run_rdukit, short_folder

pytestmark = [shows("logreg", "job", "jobs", "training"), pytest.mark.long]

#: Native kernels are `test_fast_paths`'s: here they would only be built once more.
FAST = {"RDUKIT_WORKER_LEASE_S": "4", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_KERNELS": "portable"}
EPOCHS = 10
#: Input of a training → step of the pipeline whose output it is.
MADE_BY = {"dataset": "preprocess", "pef": "compile"}


def is_verb(pid: int) -> bool:
    """Whether a process is that of a verb: a fork, or started anew where the fork server was not ready."""
    folder = Path(f"/proc/{pid}")
    by_name = (folder / "comm").read_text().strip() == "rdukit-verb"
    return by_name or b"rdukit_modelbox.operations.child" in (folder / "cmdline").read_bytes()


def kill_verb(pid: int) -> None:
    """SIGKILL to the process of a box's verb, which is below the box, somewhere below ``pid``."""
    children = [facts.pid for facts in tree_of(pid) if is_verb(facts.pid)]
    assert len(children) == 1
    os.kill(children[0], signal.SIGKILL)


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, None, FAST) as started:
        yield started


@pytest.fixture(scope="module")
def jobs(platform: PlatformUnderTest) -> dict[str, str]:
    """Jobs of a pipeline from data set to inference, by step."""
    built = {"pef": "@compile.pef", "dataset": "@preprocess.dataset"}
    train = {"epochs": EPOCHS, "checkpoint_every": 50}
    steps = [
        {"name": "preprocess", "box": "logreg", "verb": "preprocess"},
        {"name": "compile", "box": "logreg", "verb": "compile", "parameters": {"mode": "o0"}},
        {"name": "train", "box": "logreg", "verb": "train", "parameters": train, "inputs": built, "max_attempts": 1},
        {"name": "infer", "box": "logreg", "verb": "infer", "inputs": {**built, "checkpoint": "@train.checkpoint"}},
    ]
    pipeline = platform.client.submit("/v1/pipelines", {"name": "digits", "steps": steps, "cache": False})
    return {job["step"]: job["id"] for job in pipeline["jobs"]}


def test_training_on_digits_survives_kills_and_reads_held_out_digits(
    platform: PlatformUnderTest, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_in_mid_train(job: dict[str, object]) -> bool:
        progress = job["progress"]
        return isinstance(progress, dict) and progress.get("stage") == "train" and progress["step"] > 200

    platform.wait_job(jobs["train"], is_in_mid_train, 120)
    kill_verb(int(platform.running["pid"]))
    platform.wait_job(jobs["train"], lambda job: job["attempt"] == 2 and job["state"] == "running", 120)
    platform.kill("worker")
    trained = platform.wait_end(jobs["train"], 120)
    assert trained["state"] == "succeeded", trained
    assert [attempt["outcome"] for attempt in trained["attempts"]] == ["box-killed", "expired", "succeeded"]
    assert platform.states(jobs["train"]).count("succeeded") == 1
    assert trained["result"]["steps"] == EPOCHS * 8000 // 32
    assert trained["result"]["resumed_from_step"] >= 50
    monkeypatch.setenv("RDUKIT_HOME", str(platform.home))
    head, *told = run_rdukit("job", "metrics", jobs["train"], "--all", "--csv").splitlines()
    assert head.startswith("step,loss,")
    assert {int(line.split(",")[0]) for line in told} == set(range(1, EPOCHS * 8000 // 32 + 1))
    read = platform.wait_end(jobs["infer"], 120)
    assert read["state"] == "succeeded", read
    assert read["result"]["accuracy"] > 0.90
    assert read["result"]["samples"] == 2000
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    assert node["leases"] == []


@pytest.mark.long
@pytest.mark.parametrize("has_paused", [True, False])
def test_a_paused_training_goes_on_from_the_step_at_which_it_was_paused(
    platform: PlatformUnderTest, jobs: dict[str, str], has_paused: bool
) -> None:
    """``has_paused``: it is resumed as soon as it is paused; else at once, before its attempt has ended."""
    made = {slot: platform.wait_end(jobs[step])["outputs"][slot] for slot, step in MADE_BY.items()}
    train = {"epochs": EPOCHS, "checkpoint_every": 1_000_000}
    job = platform.submit("train", box="logreg", parameters=train, inputs=made)["id"]
    platform.wait_job(job, lambda found: (found["progress"] or {}).get("stage") == "train", 120)
    platform.client.post(f"/v1/jobs/{job}/pause")
    if has_paused:
        paused = platform.wait_job(job, lambda found: found["state"] == "paused", 60)
    else:
        log = Home(platform.home).logs / "worker.log"
        wait_until(lambda: f"attempt is to end job={job}" in log.read_text(), 60)
        paused = platform.job(job)
    platform.client.post(f"/v1/jobs/{job}/resume")
    trained = platform.wait_end(job, 120)
    assert trained["state"] == "succeeded", trained
    assert trained["result"]["steps"] == EPOCHS * 8000 // 32
    assert len(trained["attempts"]) == 2
    assert trained["result"]["resumed_from_step"] >= paused["progress"]["step"] > 0
