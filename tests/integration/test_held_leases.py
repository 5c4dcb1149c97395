"""A lease that a worker holds for a box outlives restarts of the node daemon, whoever has attached to it."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import LeaseLost, NoResources, NotFound
from rdukit.snd import HeldLease, SndClient
from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, start_daemon, stop_daemon

pytestmark = shows("node")

PATIENT = {"RDUKIT_SND_REATTACH_S": "600"}
#: A box that starts while its daemon is away: it must find its lease again.
BOX = """
import sys
from rdukit_node.private_node import open_lease
with open_lease("box", arch="sn10", tiles=4, memory_bytes=100) as lease:
    print(lease.id, flush=True)
    sys.stdin.readline()
    lease.check()
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    for name in ("RDUKIT_LEASE", "RDUKIT_SND_SOCKET", "SF_RNT_TILE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(folder))
    monkeypatch.setenv("RDUKIT_SND_REATTACH_S", "600")
    yield folder
    shutil.rmtree(folder)


def pids_of(daemon: RunningDaemon) -> list[list[int]]:
    return [lease["pids"] for lease in daemon.leases()]


def hold(daemon: RunningDaemon) -> tuple[HeldLease, dict[str, Any]]:
    client = SndClient(daemon.socket)
    lease = client.acquire("logreg-train", 4, 100)
    return HeldLease(client, lease), lease


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_box_that_starts_beside_a_restart_gets_the_lease_that_its_worker_holds(home: Path, is_orderly: bool) -> None:
    daemon = start_daemon(home, settings=PATIENT)
    held, lease = hold(daemon)
    daemon.end(is_orderly)
    box = subprocess.Popen(
        [sys.executable, "-c", BOX], env=environment(home, RDUKIT_LEASE=f"{lease['id']}:{lease['token']}", **PATIENT),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    daemon = start_daemon(home, settings=PATIENT)
    try:
        with daemon.connect() as client, pytest.raises(NoResources):
            client.acquire("thief", len(client.status()["tiles"]), 0)
        assert box.stdout is not None
        assert box.stdout.readline().strip() == lease["id"]
        wait_until(lambda: len(pids_of(daemon)[0]) == 2, what="worker and box hold it")
        assert daemon.leases()[0]["tiles"] == lease["tiles"]
        daemon.end(is_orderly)
        daemon = start_daemon(home, settings=PATIENT)
        wait_until(lambda: len(pids_of(daemon)[0]) == 2, what="both have come back")
        out, _ = box.communicate("go\n")
        assert box.returncode == 0, out
        wait_until(lambda: len(pids_of(daemon)[0]) == 1, what="the worker holds it still")
        held.close()
        assert daemon.leases() == []
        with daemon.connect() as client:
            (row,) = client.call("applications")["applications"]
        assert row["reason"] == "released by a holder"
    finally:
        box.kill()
        box.communicate()
        held.close()
        assert stop_daemon(daemon) == 0


def test_a_lease_whose_end_its_daemon_missed_ends_when_the_daemon_is_back(home: Path) -> None:
    daemon = start_daemon(home, settings=PATIENT)
    held, _ = hold(daemon)
    daemon.end(is_orderly=False)
    held.close()
    daemon = start_daemon(home, settings=PATIENT)
    try:
        wait_until(lambda: daemon.leases() == [], what="the tiles are free long before the grace is over")
        held.close()
    finally:
        assert stop_daemon(daemon) == 0


def test_whoever_holds_a_lease_that_ended_can_still_close_it(home: Path) -> None:
    daemon = start_daemon(home, settings=PATIENT)
    held, lease = hold(daemon)
    with daemon.connect() as client:
        client.attach(lease["id"], lease["token"])
        client.release(lease["id"])
    daemon.end(is_orderly=False)
    daemon = start_daemon(home, settings=PATIENT)
    try:
        wait_until(lambda: not held._thread.is_alive(), what="it is told that there is nothing to come back to")
        with daemon.connect() as client, pytest.raises((LeaseLost, NotFound)):
            client.call("keep", lease=lease["id"])
        held.close()
    finally:
        assert stop_daemon(daemon) == 0


def test_a_client_that_says_nothing_does_not_keep_its_lease(home: Path) -> None:
    daemon = start_daemon(home, settings=PATIENT)
    client = SndClient(daemon.socket)
    client.acquire("plain", 4, 100)
    daemon.end(is_orderly=False)
    daemon = start_daemon(home, settings=PATIENT)
    try:
        assert daemon.leases() == []
        client.close()
    finally:
        assert stop_daemon(daemon) == 0


def test_what_isolates_a_program_is_shown_by_the_daemon_that_follows(home: Path) -> None:
    daemon = start_daemon(home, settings=PATIENT)
    program = subprocess.Popen(
        [sys.executable, "-c", BOX], env=environment(home, RDUKIT_NODE="daemon", **PATIENT),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    program.stdout.readline()

    def report(daemon: RunningDaemon) -> object:
        return daemon.leases()[0]["isolation"].get(str(program.pid))

    try:
        before = report(daemon)
        assert before
        daemon.end(is_orderly=False)
        daemon = start_daemon(home, settings=PATIENT)
        wait_until(lambda: report(daemon) == before, what="it has told the new daemon")
    finally:
        program.communicate("end\n")
        assert stop_daemon(daemon) == 0
