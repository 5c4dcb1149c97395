"""``rdukit node slurm`` as the prolog and epilog of a real Slurm, whose jobs ask for tiles."""

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, node_command, running_daemon
from support.platform.processes import short_folder
from support.slurm import NODE, SEARCH, SlurmUnderTest, slurm_cluster

pytestmark = [shows("slurm", "node"), pytest.mark.long]

BROKEN = "/NODE/XRDU_0/RDU_0/TILE_3"


def hook(daemon: RunningDaemon, folder: Path, verb: str) -> str:
    """Write a script that Slurm runs before or after jobs. Returns its line of ``slurm.conf``."""
    script = folder / verb
    words = [f"export PATH={SEARCH} RDUKIT_HOME={shlex.quote(str(daemon.home))}"]
    script.write_text("\n".join(["#!/bin/sh", *words, f"exec {shlex.join(node_command('slurm', verb))}", ""]))
    script.chmod(0o755)
    return f"{verb.capitalize()}={script}"


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1") as running:
        yield running


@pytest.fixture(scope="module")
def slurm(daemon: RunningDaemon) -> Iterator[SlurmUnderTest]:
    with short_folder() as folder:
        folder.chmod(0o755)
        hooks = [hook(daemon, folder, verb) for verb in ("prolog", "epilog")]
        with slurm_cluster(4, hooks) as cluster:
            yield cluster


def node_of(slurm: SlurmUnderTest) -> str:
    """Return what Slurm says of its node."""
    return slurm.call("scontrol", "--oneliner", "show", "node", NODE)


def test_the_epilog_ends_the_leases_that_a_job_has_left(daemon: RunningDaemon, slurm: SlurmUnderTest) -> None:
    with daemon.connect() as client:
        job = slurm.hold(2)
        client.acquire("left", 2, 0, job=f"slurm-{job}")
        client.acquire("other", 1, 0, job="slurm-0")
        slurm.call("scancel", job)
        wait_until(lambda: [lease["job"] for lease in client.status()["leases"]] == ["slurm-0"], 60)
        wait_until(lambda: "State=IDLE " in node_of(slurm), 60)


def test_a_sick_node_refuses_a_job_which_runs_when_the_node_is_repaired(
    daemon: RunningDaemon, slurm: SlurmUnderTest
) -> None:
    with daemon.connect() as client:
        client.call("inject", events=[{"class": "tile-excluded", "component": BROKEN}])
        job = slurm.call("sbatch", "--parsable", "--gres=rdu_tile:1", "--output=/dev/null", "--wrap=sleep 600")
        wait_until(lambda: "DRAIN" in node_of(slurm) and slurm.state_of(job) == "PENDING", 60)
        assert "Reason=rdukit: faulty: " in node_of(slurm)
        client.call("repair", component="/NODE")
        told = {**environment(daemon.home), **slurm.environment, "SLURMD_NODENAME": NODE}
        subprocess.run(node_command("slurm", "health"), env=told, check=True, timeout=60, capture_output=True)
        print(slurm.call("scontrol", "--oneliner", "show", "job", job))
        # Slurm lets a job that it queued again wait two minutes.
        wait_until(lambda: slurm.state_of(job) == "RUNNING", 240)
        slurm.call("scancel", job)
