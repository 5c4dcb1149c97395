"""snfadm diag on a real node: what passes, what is skipped, what a broken node fails, and tools on another machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.snd import SndClient
from support import shows, wait_until
from support.forked import run_python
from support.node.daemons import RunningDaemon, environment, running_daemon

pytestmark = shows("snfadm", "tools")

SCRIPT = "import sys; sys.argv[0] = 'snfadm'; from rdukit_node.cli.snfadm import main; main()"
RDU = "/NODE/XRDU_0/RDU_0"


@pytest.fixture
def node() -> Iterator[RunningDaemon]:
    with running_daemon() as daemon:
        yield daemon


def snfadm(node: RunningDaemon, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    settings = environment(node.home, RDUKIT_KERNELS="portable", **more)
    return run_python(["-c", SCRIPT, *arguments], settings)


def diagnose(node: RunningDaemon, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit status, and the results by check and component."""
    ended = snfadm(node, "diag", "--json", *arguments)
    assert ended.stdout, ended.stderr
    return ended.returncode, {f"{c['check']} {c['component']}": c for c in json.loads(ended.stdout)["checks"]}


def test_sections_and_memory_of_each_free_tile_are_tried(node: RunningDaemon) -> None:
    with SndClient(node.socket) as holder:
        holder.acquire("somebody", 1, 1 << 20, affinity=1 << 1)
        status, found = diagnose(node, "-r", "2")
        assert status == 0
        assert found[f"tile {RDU}/TILE_1"]["verdict"] == "skip"
        assert "somebody" in found[f"tile {RDU}/TILE_1"]["said"]
        for tile in (0, 2, 3):
            assert found[f"sections f32 {RDU}/TILE_{tile}"]["verdict"] == "pass"
            assert found[f"memory {RDU}/TILE_{tile}"]["verdict"] == "pass"
    assert node.leases() == []


@pytest.mark.long
def test_the_longest_level_also_tries_whole_rdus(node: RunningDaemon) -> None:
    status, found = diagnose(node, "-r", "3", "-c", RDU)
    assert status == 0
    assert found[f"whole RDU {RDU}"]["verdict"] == "pass"
    assert found[f"sections bf16 {RDU}/TILE_0"]["verdict"] == "pass"


def test_a_broken_tile_fails_and_ends_it_early(node: RunningDaemon) -> None:
    assert snfadm(node, "--inject", "tile-excluded", "-c", f"{RDU}/TILE_2").returncode == 0
    status, found = diagnose(node, "-r", "2", "--fail-early")
    assert status == 1
    assert "fail" in {result["verdict"] for result in found.values()}
    assert not any(name.startswith("memory") for name in found)


@pytest.mark.long
def test_a_fault_that_occurs_while_tiles_are_tried_is_told(node: RunningDaemon) -> None:
    command = [sys.executable, "-c", SCRIPT, "diag", "-r", "2", "--json"]
    settings = environment(node.home, RDUKIT_KERNELS="portable")
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as asked:
        wait_until(lambda: bool(node.leases()), 60)
        assert snfadm(node, "--inject", "thermal-shutdown", "-c", RDU).returncode == 0
        told, _ = asked.communicate(timeout=60)
    verdicts = {(c["check"], c["component"]): c["verdict"] for c in json.loads(told)["checks"]}
    assert (asked.returncode, verdicts["faults", RDU], verdicts["state", RDU]) == (1, "fail", "fail"), told


def test_a_component_that_there_is_not_is_refused(node: RunningDaemon) -> None:
    ended = snfadm(node, "diag", "-c", "/NODE/XRDU_9")
    assert ended.returncode == 2
    assert "XRDU_0" in ended.stderr


def test_a_tool_runs_on_another_machine_with_its_arguments(node: RunningDaemon, tmp_path: Path) -> None:
    """What takes ssh's place does what sshd does with a command: it gives it to a shell."""
    there = tmp_path / "bin"
    there.mkdir()
    (there / "snfadm").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{SCRIPT}" "$@"\n')
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\n[ "$1 $2" = "me@there --" ] || exit 9\nPATH={there}:$PATH\nexec sh -c "$3"\n')
    for program in (ssh, there / "snfadm"):
        program.chmod(0o755)
    ended = snfadm(
        node, "-l", "inventory", "-c", f"{RDU}/TILE_1", "--csv", "--host", "me@there", RDUKIT_TOOLS_SSH=str(ssh)
    )
    assert ended.stdout == snfadm(node, "-l", "inventory", "-c", f"{RDU}/TILE_1", "--csv").stdout
    assert snfadm(node, "-l", "fault", "-c", "/NODE/NONE", "--host=me@there", RDUKIT_TOOLS_SSH=str(ssh)).returncode == 2
    missing = snfadm(node, "-l", "fault", "--host", "me@there", RDUKIT_TOOLS_SSH=os.fspath(tmp_path / "none"))
    assert missing.returncode == 7
    assert "tools.ssh" in missing.stderr
