"""Jobs of the platform as allocations of a real Slurm: its tiles, its queue, its cancellations, its lost nodes."""

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rdukit.doctor.cli import FindingLevel
from rdukit.errors import InvalidArgument, NoResources, Unavailable
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.job_boxes import open_backend
from rdukit_platform.backends.process_tree import read_facts
from rdukit_platform.backends.slurm_commands import SlurmCommands, find_place
from rdukit_platform.backends.slurm_jobs import submit_options
from rdukit_platform.backends.slurm_place import SlurmPlace
from rdukit_platform.cli.show import describe_attempt, describe_wait
from rdukit_platform.doctor import slurm_finding
from rdukit_platform.settings import Home
from support import shows, wait_until
from support.platform.processes import PlatformUnderTest, has_ended, platform_under_test, short_folder
from support.slurm import NODE, SlurmUnderTest, slurm_cluster

pytestmark = [shows("slurm", "jobs"), pytest.mark.long]

BOX = Path(__file__).parent / "platform_box.py"
TILES = 8
FAST = {
    "RDUKIT_WORKER_BOX_BACKEND": "slurm",
    "RDUKIT_WORKER_LEASE_S": "2",
    "RDUKIT_JOB_BACKOFF_S": "0.1",
    "RDUKIT_SCHEDULER_REPUBLISH_S": "1",
    "COUNTER_OUTLIVES_ITS_WORKER": "1",
}


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmUnderTest]:
    with slurm_cluster(TILES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def platform(slurm: SlurmUnderTest) -> Iterator[PlatformUnderTest]:
    with short_folder() as home, platform_under_test(home, BOX, {**FAST, **slurm.environment}) as platform:
        yield platform


@pytest.fixture(scope="module")
def dataset(platform: PlatformUnderTest) -> str:
    done = platform.wait_end(platform.submit("preprocess")["id"])
    assert done["state"] == "succeeded", done
    return str(done["outputs"]["dataset"])


def train(platform: PlatformUnderTest, dataset: str, steps: int, **more: object) -> str:
    """Submit a training that counts. Returns its id."""
    body = {"steps": steps, "step_s": 0.05}
    return str(platform.submit("train", inputs={"dataset": dataset}, parameters=body, **more)["id"])


def wait_running(platform: PlatformUnderTest, job_id: str, attempt: int = 1) -> str:
    """Wait until an attempt of a job counts. Returns Slurm's number of it."""
    found = platform.wait_job(
        job_id, lambda job: job["state"] == "running" and job["attempt"] == attempt and bool(job["progress"])
    )
    return str(found["attempts"][-1]["box"]["id"])


def wait_waiting(platform: PlatformUnderTest, job_id: str) -> str:
    """Wait until a job is in Slurm's queue. Returns Slurm's number of it."""
    found = platform.wait_job(job_id, lambda job: "Slurm job" in (job["waits_for"] or ""))
    return str(found["attempts"][-1]["box"]["id"])


def program_of(platform: PlatformUnderTest, job_id: str, attempt: int = 1) -> int:
    """Process of the launcher of an attempt's box."""
    return int((platform.home / "work" / job_id / f"attempt-{attempt}" / "slurm.pid").read_text())


@contextmanager
def tiles_held(slurm: SlurmUnderTest, tiles: int) -> Iterator[None]:
    """Have somebody else's job take tiles."""
    job_id = slurm.hold(tiles)
    try:
        yield
    finally:
        slurm.call("scancel", job_id)


def test_a_job_that_has_ended_is_completed_in_slurm(
    platform: PlatformUnderTest, slurm: SlurmUnderTest, dataset: str
) -> None:
    done = platform.wait_end(train(platform, dataset, 5, tiles=2))
    assert (done["state"], done["result"]["steps"]) == ("succeeded", 5), done
    wait_until(lambda: slurm.state_of(done["attempts"][0]["box"]["id"]) == "COMPLETED", 20)


def test_a_job_runs_fenced_in_an_allocation_of_its_tiles_and_is_cancelled_there(
    platform: PlatformUnderTest, slurm: SlurmUnderTest, dataset: str
) -> None:
    job_id = train(platform, dataset, 1000, tiles=3, run_limit_s=600)
    slurm_id, pid = wait_running(platform, job_id), program_of(platform, job_id)
    shown = slurm.call("scontrol", "--oneliner", "show", "job", slurm_id)
    for what in (f"JobName=rdukit-{job_id}", f"Comment=rdukit {job_id} 1 counter", "TresPerNode=gres:rdu_tile:3",
                 "TimeLimit=00:11:00", "Requeue=0", "Partition=rdu"):  # fmt: skip
        assert what in shown
    (attempt,) = platform.job(job_id)["attempts"]
    assert describe_attempt(attempt).endswith(f"slurm job {slurm_id}, 3 tiles from {attempt['tiles'][0]}")
    limits = attempt["box"]["limits"]
    assert limits["slurm"] == f"applied: job {slurm_id}" and limits["fence"].startswith("applied: ")
    script = slurm.call("scontrol", "write", "batch_script", slurm_id, "-")
    assert "launcher.py" in script and "RDUKIT" not in script, "what Slurm keeps has no lease"
    assert not (platform.home / "work" / job_id / "attempt-1" / "slurm-spec.json").exists()
    facts = read_facts(pid)
    assert facts is not None
    assert Path(f"/proc/{facts.parent}/comm").read_text().strip() == "slurm_script"
    platform.client.post(f"/v1/jobs/{job_id}/cancel")
    assert platform.wait_end(job_id)["reason"] == "cancelled-by-user"
    assert has_ended(pid)
    wait_until(lambda: slurm.state_of(slurm_id) == "CANCELLED", 20)


def test_a_job_that_waits_in_slurms_queue_says_why_and_is_cancelled_there(
    platform: PlatformUnderTest, slurm: SlurmUnderTest, dataset: str
) -> None:
    with tiles_held(slurm, TILES - 1):
        job_id = train(platform, dataset, 5, tiles=2)
        slurm_id = wait_waiting(platform, job_id)
        why = platform.wait_job(job_id, lambda job: job["wait_code"] == "Resources")
        told = dict(describe_wait(why))
        assert told["why"] == f"Slurm job {slurm_id} waits for node {NODE}: Resources"
        assert told["state"] == "starting" and f"slurm job {slurm_id}" in describe_attempt(why["attempts"][0])
        platform.client.post(f"/v1/jobs/{job_id}/cancel")
        assert platform.wait_end(job_id)["reason"] == "cancelled-by-user"
        wait_until(lambda: slurm.state_of(slurm_id) == "CANCELLED", 20)


def test_an_allocation_that_slurms_administrator_cancels_is_withdrawn_and_the_job_goes_on(
    platform: PlatformUnderTest, slurm: SlurmUnderTest, dataset: str
) -> None:
    job_id = train(platform, dataset, 1000, tiles=2, max_attempts=1)
    slurm_id = wait_running(platform, job_id)
    slurm.call("scancel", slurm_id)
    assert wait_running(platform, job_id, 2) != slurm_id
    withdrawn = platform.job(job_id)["attempts"][0]
    assert withdrawn["outcome"] == "withdrawn", withdrawn
    assert f"Slurm job {slurm_id} was cancelled outside" in withdrawn["error"]["message"]
    platform.client.post(f"/v1/jobs/{job_id}/cancel")


def test_a_job_whose_node_slurm_loses_is_ended_and_tried_again(
    platform: PlatformUnderTest, slurm: SlurmUnderTest, dataset: str
) -> None:
    job_id = train(platform, dataset, 1000, tiles=2, max_attempts=1)
    slurm_id, pid = wait_running(platform, job_id), program_of(platform, job_id)
    slurm.end("slurmd", signal.SIGKILL)
    slurm.call("scontrol", "update", f"NodeName={NODE}", "State=DOWN", "Reason=lost")
    assert has_ended(pid), "nobody but the worker ends what runs on a node whose daemon is away"
    lost = platform.wait_job(job_id, lambda job: job["attempts"][0]["outcome"] is not None)["attempts"][0]
    assert lost["outcome"] == "box-killed", lost
    assert f"Slurm job {slurm_id} lost its node" in lost["error"]["message"]
    wait_waiting(platform, job_id)
    slurm.call("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
    slurm.start_node()
    wait_running(platform, job_id, 2)
    platform.client.post(f"/v1/jobs/{job_id}/cancel")


def test_what_a_killed_worker_left_is_cancelled_in_the_queue_and_on_the_node(
    platform: PlatformUnderTest, slurm: SlurmUnderTest, dataset: str
) -> None:
    with tiles_held(slurm, 5):
        goes_on = train(platform, dataset, 1000, tiles=2)
        slurm_id, pid = wait_running(platform, goes_on), program_of(platform, goes_on)
        never_runs = train(platform, dataset, 1000, tiles=4)
        waiting_id = wait_waiting(platform, never_runs)
        platform.kill("worker")
        platform.client.post(f"/v1/jobs/{never_runs}/cancel")
        wait_until(lambda: slurm.state_of(waiting_id) == "CANCELLED", 60)
        shown = slurm.call("scontrol", "--oneliner", "show", "job", waiting_id)
        assert "RunTime=00:00:00" in shown
        wait_running(platform, goes_on, 2)
    assert platform.job(goes_on)["attempts"][0]["outcome"] == "expired"
    assert has_ended(pid) and slurm.state_of(slurm_id) == "CANCELLED"
    platform.client.post(f"/v1/jobs/{goes_on}/cancel")


def test_a_box_that_gets_no_allocation_in_its_time_is_given_up(
    slurm: SlurmUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        **slurm.environment,
        "RDUKIT_WORKER_BOX_BACKEND": "slurm",
        "RDUKIT_SLURM_WAIT_S": "0.5",
    }.items():
        monkeypatch.setenv(name, value)
    backend, rules = open_backend(Home(tmp_path))
    assert rules.has_sockets
    told = list[str]()
    with tiles_held(slurm, 1), closing(backend):
        spec = BoxSpec(
            "logreg", tmp_path / "state", tiles=TILES, has_sockets=True, on_wait=lambda _, why, __: told.append(why)
        )
        with pytest.raises(NoResources, match=r"Slurm job \d+ waits for node n1: .*gave up after 0.5 s"):
            backend.start(spec)
        (why,) = {word for word in told if word}
        assert slurm.state_of(why.split()[2]) == "CANCELLED"


def test_what_slurm_has_not_is_told_before_a_job_asks_for_it(
    slurm: SlurmUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    commands = SlurmCommands()
    assert find_place(commands)[0].node == NODE
    finding = slurm_finding()
    assert (finding.level, finding.what) == (
        FindingLevel.GOOD, f"this machine is Slurm's node {NODE}, in rdu, short, other, with rdu_tile:{TILES}"
    )  # fmt: skip
    for setting, value, words in (
        ("RDUKIT_SLURM_PARTITION", "rdux", "slurm.partition is 'rdux'; expected one of rdu, short, other"),
        ("RDUKIT_SLURM_GRES", "rdu", f"slurm.gres is 'rdu', but node {NODE} has: rdu_tile:{TILES}"),
        ("RDUKIT_SLURM_NODE", "n7", f"slurm.node is 'n7'; set slurm.node to this machine's node, one of {NODE} (on "),
        ("RDUKIT_SLURM_OPTIONS", "--gres=rdu_tile:1", "slurm.options has --gres, which the platform sets itself"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(setting, value)
            with pytest.raises(InvalidArgument) as refused:
                find_place(commands)
            assert words in refused.value.message
            assert slurm_finding().level is FindingLevel.BAD
    with pytest.raises(NoResources, match=r"Slurm rejected the job: .*configuration is not available"):
        commands.submit(submit_options(BoxSpec("logreg", slurm.folder, tiles=99), SlurmPlace(NODE)), "#!/bin/sh\n")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="sbatch, squeue, scancel, scontrol are not on the PATH; install Slurm's"):
        find_place(commands)
