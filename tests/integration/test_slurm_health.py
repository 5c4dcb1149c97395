"""``rdukit node slurm`` next to a real daemon: Slurm's client is a program that writes down what it was asked."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import shows
from support.node.daemons import RunningDaemon, environment, node_command, running_daemon

pytestmark = shows("slurm", "node")

#: Stands in for Slurm: tells the state in a file, and notes each change.
SCONTROL = """#!/bin/sh
case "$1" in
show) cat "$0.state" ;;
*) echo "$@" >> "$0.log" ;;
esac
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1") as running:
        yield running


def run(daemon: RunningDaemon, folder: Path, verb: str, state: str, socket: Path | None = None) -> tuple[int, str]:
    """Run one command. Returns its exit status and what Slurm was asked to change."""
    scontrol = folder / "scontrol"
    scontrol.write_text(SCONTROL)
    scontrol.chmod(0o755)
    scontrol.with_name("scontrol.state").write_text(f"NodeName=n1\n   State={state}\n")
    log = scontrol.with_name("scontrol.log")
    log.write_text("")
    settings = environment(daemon.home, SLURMD_NODENAME="n1", SLURM_JOB_ID="17", PATH=f"{folder}:/usr/bin:/bin")
    command = node_command("slurm", verb, *(["--socket", str(socket)] if socket else []))
    done = subprocess.run(command, env=settings, check=False, timeout=60, capture_output=True, text=True)
    return done.returncode, log.read_text().strip()


def test_a_sick_node_is_drained_and_resumed_and_one_that_does_not_answer_is_left_alone(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    drained = "IDLE+DRAIN\n   Reason=rdukit: faulty [root@now]"
    assert run(daemon, tmp_path, "health", "IDLE") == (0, "")
    assert run(daemon, tmp_path, "health", "IDLE", tmp_path / "nobody.sock") == (0, ""), "unknown is not sick"
    assert run(daemon, tmp_path, "prolog", "IDLE", tmp_path / "nobody.sock") == (0, "")
    with daemon.connect() as client:
        client.acquire("left", 1, 0, job="slurm-17")
        client.acquire("other", 1, 0, job="slurm-1")
        client.call("inject", events=[{"class": "tile-excluded", "component": "/NODE/XRDU_0/RDU_0/TILE_3"}])
        status, asked = run(daemon, tmp_path, "health", "IDLE")
        assert status == 0 and asked.startswith("update nodename=n1 state=drain reason=rdukit: faulty: ")
        assert run(daemon, tmp_path, "prolog", "IDLE") == (1, asked), "health resumes only what rdukit has drained"
        assert run(daemon, tmp_path, "prolog", drained) == (1, "")
        client.call("repair", component="/NODE")
        assert run(daemon, tmp_path, "epilog", drained) == (0, "update nodename=n1 state=resume")
        assert [lease["job"] for lease in client.status()["leases"]] == ["slurm-1"]
