"""Cordons, drains and maintenance windows of a real daemon, by snfadm, over a kill of the daemon."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import LeaseWithdrawn, NoResources
from rdukit.snd import SndClient
from support import shows
from support.node.daemons import RunningDaemon, environment, running_daemon, start_daemon, stop_daemon

pytestmark = shows("snfadm", "tools", "node")

RDU = "/NODE/XRDU_0/RDU_0"
SCRIPT = "from rdukit_node.cli.snfadm import main; main()"


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rdukit-upkeep-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def snfadm(node: RunningDaemon, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(
        command, env=environment(node.home), capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


def listing(node: RunningDaemon) -> list[dict[str, Any]]:
    done = snfadm(node, "-l", "maintenance", "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["maintenance"]
    return rows


def ask_for_ever(client: SndClient, lease: str) -> None:
    while True:
        client.call("interrupt", lease=lease)
        time.sleep(0.05)


def test_what_administrators_keep_back_survives_a_kill_of_the_daemon(home: Path) -> None:
    daemon = start_daemon(home)
    try:
        assert snfadm(daemon, "--cordon", f"{RDU}/TILE_0", "--reason", "noisy").returncode == 0
        assert snfadm(daemon, "--maintain", RDU, "--start", "2h", "--end", "3h", "--reason", "fans").returncode == 0
        before = listing(daemon)
        os.kill(daemon.process.pid, signal.SIGKILL)
        daemon.process.communicate()
        assert listing(daemon) == before  # from the file, while no daemon runs
        daemon = start_daemon(home)
        assert listing(daemon) == before
        with daemon.connect() as client:
            assert client.acquire("app", 3, 0)["tiles"][0] == f"{RDU}/TILE_1"
            with pytest.raises(NoResources, match="1 are cordoned"):
                client.acquire("app", 1, 0)
        window = next(row["window"] for row in before if row["kind"] == "window")
        assert snfadm(daemon, "--end-maintenance", window).returncode == 0
        assert snfadm(daemon, "--uncordon", "/NODE").returncode == 0
        assert listing(daemon) == []
    finally:
        stop_daemon(daemon)


def test_a_window_that_is_years_away_is_kept_and_the_daemon_runs_on() -> None:
    with running_daemon() as daemon:
        assert snfadm(daemon, "--maintain", "/NODE", "--start", "2099-12-01", "--reason", "power").returncode == 0
        assert [row["state"] for row in listing(daemon)] == ["planned"]
        assert daemon.process.poll() is None


def test_a_drain_ends_a_lease_at_its_deadline() -> None:
    with running_daemon() as daemon, daemon.connect() as client:
        lease = client.acquire("app", 2, 1024)
        done = snfadm(daemon, "--drain", RDU, "--deadline", "1", "--reason", "repair")
        assert "is draining until" in done.stdout and f"lease {lease['id']} is still there" in done.stdout
        with pytest.raises(LeaseWithdrawn, match="drained"):
            ask_for_ever(client, str(lease["id"]))
        assert listing(daemon)[0]["state"] == "drained"


def test_an_administrator_ends_a_lease_and_its_holder_is_told() -> None:
    with running_daemon() as daemon, daemon.connect() as client:
        lease = client.acquire("app", 2, 1024)
        done = snfadm(daemon, "--release", lease["id"], "--reason", "stuck")
        assert done.stdout == f"lease {lease['id']} of app ended: 2 tiles are free\n"
        with pytest.raises(LeaseWithdrawn, match="released by an administrator"):
            client.call("allocate", lease=lease["id"], bytes=1, name="r")
