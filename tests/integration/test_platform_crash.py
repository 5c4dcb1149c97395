"""Processes of the platform killed in the middle: jobs go on and end once."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rdukit_platform.backends.process_tree import tree_of
from support import shows
from support.helpers import wait_until
from support.platform.chaos import PARTS, Chaos
from support.platform.processes import PlatformUnderTest, has_ended, platform_under_test, short_folder

pytestmark = shows("up", "jobs", "sweeps", "scheduler", "node")

BOX = Path(__file__).parent / "platform_box.py"
FAST = {
    "RDUKIT_WORKER_LEASE_S": "2", "RDUKIT_JOB_BACKOFF_S": "0.1", "RDUKIT_SCHEDULER_REPUBLISH_S": "1",
    "RDUKIT_SND_REATTACH_S": "600",
}  # fmt: skip


@pytest.fixture
def home() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def surviving() -> Iterator[PlatformUnderTest]:
    """A platform whose parts are killed, one test after another: each leaves it whole."""
    with short_folder() as folder, platform_under_test(folder, BOX, FAST) as started:
        yield started


@pytest.fixture
def platform(surviving: PlatformUnderTest) -> PlatformUnderTest:
    """The same when all its parts run and no tile is held."""
    wait_until(lambda: all(pids_of(surviving, part) for part in PARTS), what="all parts run")
    wait_until(lambda: node_of(surviving)["state"] == "up" and not leases_of(surviving), what="all tiles are free")
    return surviving


def pids_of(platform: PlatformUnderTest, part: str) -> list[int]:
    """Processes of a part that run now; what others of it come from is the first."""
    return Chaos(platform, BOX.name, 0, ()).pids_of(part)


def kill(platform: PlatformUnderTest, part: str) -> None:
    """SIGKILL to a part, and wait for its end."""
    pid = pids_of(platform, part)[0]
    os.kill(pid, signal.SIGKILL)
    assert has_ended(pid)


def node_of(platform: PlatformUnderTest) -> dict[str, Any]:
    (node,) = platform.client.get("/v1/nodes")["nodes"]
    return dict(node)


def leases_of(platform: PlatformUnderTest) -> list[dict[str, Any]]:
    node = node_of(platform)
    return list(node.get("leases") or []) if node["state"] == "up" else []


def begin_training(platform: PlatformUnderTest, steps: int, step_s: float) -> str:
    """A train job that has made some steps."""
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    body = {"steps": steps, "step_s": step_s}
    job = platform.submit("train", inputs={"dataset": dataset}, parameters=body)
    platform.wait_job(job["id"], lambda found: bool(found["progress"]) and found["progress"]["step"] >= 5)
    return str(job["id"])


def check_ended_once(platform: PlatformUnderTest, job_id: str) -> dict[str, object]:
    """The job has one success and one checkpoint."""
    done = platform.wait_end(job_id)
    assert done["state"] == "succeeded", done
    assert platform.states(job_id).count("succeeded") == 1
    assert len(platform.client.get("/v1/artifacts", job=job_id)["artifacts"]) == 1
    assert done["result"]["resumed_from_step"] >= 5
    return done


def test_a_job_whose_worker_is_killed_resumes_and_ends_once(platform: PlatformUnderTest) -> None:
    job_id = begin_training(platform, steps=40, step_s=0.05)
    kill(platform, "worker")
    done = check_ended_once(platform, job_id)
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["expired", "succeeded"]
    assert "retrying" in platform.states(job_id)


def test_killed_broker_scheduler_and_gateway_come_back_and_no_job_is_lost(platform: PlatformUnderTest) -> None:
    job_id = begin_training(platform, steps=40, step_s=0.05)
    for part in ("broker", "scheduler", "gateway"):
        kill(platform, part)
    # The listening socket is the supervisor's: the request waits for the new gateway.
    other = platform.submit("preprocess")
    assert platform.wait_end(other["id"])["state"] == "succeeded"
    done = platform.wait_end(job_id)
    assert (done["state"], len(done["attempts"])) == ("succeeded", 1)


@pytest.mark.long
def test_a_sweep_whose_scheduler_is_killed_tries_each_point_once(platform: PlatformUnderTest) -> None:
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]
    job = {"box": "counter", "verb": "train", "inputs": {"dataset": dataset}, "parameters": {"step_s": 0.02}}
    asked = {"job": job, "space": {"steps": {"values": [5, 6, 7, 8, 9]}}, "objective": {"metric": "steps"}}
    others = {job["id"] for job in platform.client.get("/v1/jobs")["jobs"]}
    sweep = platform.client.submit("/v1/sweeps", asked)["id"]
    wait_until(lambda: len(look(platform, sweep)["trials"]) >= 1)
    kill(platform, "scheduler")
    wait_until(lambda: look(platform, sweep)["state"] != "running", timeout_s=25.0)
    found = look(platform, sweep)
    assert (found["state"], found["counts"]) == ("succeeded", {"succeeded": 5}), found["reason"]
    assert [trial["parameters"] for trial in found["trials"]] == [{"steps": steps} for steps in range(5, 10)]
    made = {job["id"] for job in platform.client.get("/v1/jobs")["jobs"]} - others
    assert made == {trial["job"] for trial in found["trials"]}


def look(platform: PlatformUnderTest, sweep: str) -> dict[str, Any]:
    """Return a sweep with its trials."""
    return platform.client.get(f"/v1/sweeps/{sweep}")


def test_a_job_keeps_its_attempt_and_its_tiles_while_the_node_daemon_is_restarted(platform: PlatformUnderTest) -> None:
    job_id = begin_training(platform, steps=1000, step_s=0.2)
    (before,) = leases_of(platform)
    kill(platform, "snd")
    wait_until(lambda: bool(leases_of(platform)), what="the next daemon answers")
    (after,) = leases_of(platform)
    assert (after["id"], after["tiles"], after["job"]) == (before["id"], before["tiles"], job_id)
    wait_until(lambda: leases_of(platform)[0]["pids"] == before["pids"], what="the worker holds it again")
    step = platform.job(job_id)["progress"]["step"]
    found = platform.wait_job(job_id, lambda job: job["progress"]["step"] > step)
    assert (found["state"], found["attempt"]) == ("running", 1)
    ended = platform.client.post(f"/v1/jobs/{job_id}/cancel")
    assert [attempt["outcome"] for attempt in ended["attempts"]] == ["cancelled"]
    wait_until(lambda: not leases_of(platform), what="its end frees the tiles")


def test_a_worker_takes_jobs_again_after_its_slots_ended_without_a_broker(platform: PlatformUnderTest) -> None:
    dataset = platform.wait_end(platform.submit("preprocess")["id"])["outputs"]["dataset"]

    def submit(steps: int) -> str:
        parameters = {"steps": steps, "step_s": 0.05}
        return str(platform.submit("train", inputs={"dataset": dataset}, parameters=parameters, tiles=1)["id"])

    ids = [submit(40) for _ in range(4)]  # as many as the worker has slots
    for job_id in ids:
        platform.wait_job(job_id, lambda job: job["state"] == "running")

    def have_ended_while_the_broker_is_away() -> bool:
        for facts in tree_of(int(platform.running["pid"]))[1:]:
            with suppress(OSError):
                if b"valkey-server" in Path(f"/proc/{facts.pid}/cmdline").read_bytes():
                    os.kill(facts.pid, signal.SIGKILL)
        return all(platform.job(job_id)["state"] == "succeeded" for job_id in ids)

    wait_until(have_ended_while_the_broker_is_away, what="the jobs end")
    assert platform.wait_end(submit(5))["state"] == "succeeded"


@pytest.mark.long
def test_services_are_forked_anew_after_what_they_were_forked_from_is_killed(platform: PlatformUnderTest) -> None:
    before = forked_services(platform)
    job_id = begin_training(platform, steps=40, step_s=0.05)
    kill(platform, "services")
    wait_until(lambda: all(has_ended(pid) for pid in before.values()), what="what was forked has ended")
    check_ended_once(platform, job_id)
    assert not set(forked_services(platform).values()) & set(before.values())


def forked_services(platform: PlatformUnderTest) -> dict[str, int]:
    """Process ids of the services, each a fork of their server."""
    pids = {part: pids_of(platform, part)[0] for part in ("gateway", "scheduler", "worker")}
    assert {facts.pid for facts in tree_of(pids_of(platform, "services")[0])[1:]} >= set(pids.values())
    return pids


@pytest.mark.long
def test_a_stopped_platform_continues_its_jobs_when_it_starts_again(home: Path) -> None:
    with platform_under_test(home, BOX, FAST) as platform:
        job_id = begin_training(platform, steps=40, step_s=0.1)
        waiting = platform.submit("train", inputs=platform.job(job_id)["inputs"], tiles=64)["id"]
        pids = platform.running["pids"]
    assert all(has_ended(pid) for pid in pids.values())
    with platform_under_test(home, BOX, FAST) as platform:
        done = check_ended_once(platform, job_id)
        # Stopping is nobody's failure: it does not count against max_attempts.
        assert [attempt["outcome"] for attempt in done["attempts"]] == ["interrupted", "succeeded"]
        assert platform.wait_end(waiting)["state"] == "succeeded"


def test_a_killed_platform_takes_all_its_processes_along(home: Path) -> None:
    with platform_under_test(home, BOX, FAST) as platform:
        job_id = begin_training(platform, steps=1000, step_s=0.1)
        pids = platform.running["pids"]
        os.kill(platform.running["pid"], signal.SIGKILL)
        assert all(has_ended(pid) for pid in pids.values())
    with platform_under_test(home, BOX, FAST) as platform:
        found = platform.wait_job(job_id, lambda job: job["attempt"] == 2 and job["state"] == "running")
        assert found["attempts"][0]["outcome"] in {"interrupted", "expired"}
