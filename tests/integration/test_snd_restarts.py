"""The node daemon ends and another begins while programs run: they notice nothing, and nobody gets their tiles."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import LeaseLost, NoResources, Unauthenticated
from rdukit.hardware import find_node
from rdukit.snd import HeldLease, SndClient
from rdukit_node.leases.client import DaemonLease
from rdukit_node.private_node import NodeLease, open_lease
from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, start_daemon, stop_daemon

pytestmark = shows("node")

#: More for the long form: RDUKIT_TEST_RESTARTS=50.
RESTARTS = int(os.environ.get("RDUKIT_TEST_RESTARTS", "4"))
PROGRAMS = 8
#: A daemon may take long to start beside other load.
PATIENT = {"RDUKIT_SND_REATTACH_S": "600"}
PROGRAM = """
import hashlib, json, sys
from pathlib import Path
from rdukit_node.private_node import open_lease
number, stop = int(sys.argv[1]), Path(sys.argv[2])
with open_lease(f"program-{number}", arch="sn10", tiles=4, memory_bytes=1 << 20) as lease:
    weights, runs, is_last = lease.allocate("weights", 4096), 0, False
    weights.buffer[:32] = hashlib.sha256(bytes([number])).digest()
    print(json.dumps({"lease": lease.id, "tiles": lease.tiles}), flush=True)
    while not is_last:
        is_last = stop.exists()  # after this run
        lease.check()
        weights.buffer[:32] = hashlib.sha256(weights.buffer[:32]).digest()
        lease.page.count_run(1, 10, 20, 30, 40)
        runs += 1
        if runs % 50 == 0:
            extra = lease.allocate("extra", 1000 + runs % 7)
            assert not any(extra.buffer)
            extra.free()
    print(json.dumps({"runs": runs, "weights": bytes(weights.buffer[:32]).hex()}), flush=True)
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    for name in ("RDUKIT_LEASE", "RDUKIT_SND_SOCKET", "SF_RNT_TILE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(folder))
    monkeypatch.setenv("RDUKIT_NODE", "daemon")
    yield folder
    shutil.rmtree(folder)


def check_for_ever(lease: NodeLease) -> None:
    while True:
        lease.check()


def pause_when_it_listens(path: Path) -> None:
    """Stop the daemon that will serve ``path`` for a second, before it answers anybody."""
    wait_until(path.exists)
    pid = int(path.with_name(f"{path.name}.lock").read_text())
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)


def all_went_on(daemon: RunningDaemon, runs: dict[str, int]) -> bool:
    """Whether every program is attached, and has counted more than before."""
    return all(row["pids"] and row["counters"]["runs"] > runs[row["id"]] for row in daemon.leases())


def test_programs_run_on_while_the_daemon_is_restarted_again_and_again(home: Path) -> None:
    daemon = start_daemon(home, "SN10-8", settings=PATIENT)
    stop = home / "stop"
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(number), str(stop)],
            env=environment(home, RDUKIT_NODE="daemon", **PATIENT), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROGRAMS)
    ]  # fmt: skip
    first: list[dict[str, Any]] = []
    for program in programs:
        assert program.stdout is not None
        line = program.stdout.readline()
        assert line, program.communicate()[1]
        first.append(json.loads(line))
    try:
        for restart in range(RESTARTS):
            daemon.end(is_orderly=restart % 2 == 0)
            daemon = start_daemon(home, "SN10-8", settings=PATIENT)
            with daemon.connect() as client, pytest.raises(NoResources):
                client.acquire("thief", 4, 0)
            before = {row["id"]: row["counters"]["runs"] for row in daemon.leases()}
            wait_until(partial(all_went_on, daemon, before), timeout_s=60)
            for program in programs:
                assert program.poll() is None, program.communicate()[1]
            assert {row["id"]: row["tiles"] for row in daemon.leases()} == {
                each["lease"]: each["tiles"] for each in first
            }
        stop.touch()
        for number, (program, each) in enumerate(zip(programs, first, strict=True)):
            out, words = program.communicate()
            assert program.returncode == 0, words
            result = json.loads(out)
            weights = bytes([number])
            for _ in range(result["runs"] + 1):
                weights = hashlib.sha256(weights).digest()
            assert result["weights"] == weights.hex(), "as if nothing had been"
            with daemon.connect() as client:
                rows = [row for row in client.call("applications")["applications"] if row["lease"] == each["lease"]]
            (row,) = rows
            assert (row["runs"], row["reason"]) == (result["runs"], "released by a holder")
        assert daemon.leases() == []
    finally:
        for program in programs:
            program.kill()
        assert stop_daemon(daemon) == 0


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_program_that_is_gone_frees_its_tiles_and_leaves_its_accounting(home: Path, is_orderly: bool) -> None:
    daemon = start_daemon(home, "SN10-8", settings=PATIENT)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "1", str(home / "stop")],
        env=environment(home, RDUKIT_NODE="daemon", **PATIENT), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    lease = json.loads(program.stdout.readline())["lease"]
    wait_until(lambda: daemon.leases()[0]["counters"]["runs"] > 0)
    daemon.end(is_orderly)
    program.kill()
    program.communicate()
    daemon = start_daemon(home, "SN10-8", settings=PATIENT)
    try:
        assert daemon.leases() == []
        with daemon.connect() as client:
            client.acquire("next", 32, 0)
            (row,) = client.call("applications")["applications"]
            restarts = client.call("errors", type="ETYPE_SND_RESTART")["errors"]
        assert row["lease"] == lease and (row["runs"] > 0 or not is_orderly)
        assert bool(restarts) is not is_orderly
    finally:
        assert stop_daemon(daemon) == 0


@pytest.mark.parametrize(("is_orderly", "word"), [(True, "was stopped"), (False, "was killed or crashed")])
def test_a_daemon_that_does_not_come_back_is_told_apart(
    home: Path, monkeypatch: pytest.MonkeyPatch, is_orderly: bool, word: str
) -> None:
    monkeypatch.setenv("RDUKIT_SND_REATTACH_S", "0.2")
    daemon = start_daemon(home)
    lease = open_lease("app", arch="sn10", tiles=2, memory_bytes=100)
    daemon.end(is_orderly)
    with pytest.raises(LeaseLost, match=word):
        lease.allocate("weights", 50)
    with pytest.raises(LeaseLost, match=word):
        check_for_ever(lease)
    lease.release()


def test_a_daemon_that_answers_late_ends_no_lease(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_SND_REATTACH_S", "60")
    daemon = start_daemon(home)
    client = SndClient(daemon.socket, timeout_s=0.2)
    hello = client.call("hello")
    body = client.acquire("app", 2, 100)
    chip = find_node(str(hello["platform"])).chip
    try:
        with DaemonLease(client, body, chip, False, hello["features"]) as lease:
            daemon.process.send_signal(signal.SIGSTOP)
            threading.Timer(1.0, daemon.process.send_signal, [signal.SIGCONT]).start()
            region = lease.allocate("weights", 50)
            assert [row["id"] for row in daemon.leases()] == [lease.id]
            region.free()
    finally:
        assert stop_daemon(daemon) == 0


def test_a_lease_held_for_others_outlives_a_daemon_that_starts_slowly(home: Path) -> None:
    daemon = start_daemon(home, settings=PATIENT)
    client = SndClient(daemon.socket, timeout_s=0.2)
    body = client.acquire("job", 2, 100)
    held = HeldLease(client, body)
    daemon.end(is_orderly=True)
    pause = threading.Thread(target=pause_when_it_listens, args=(daemon.socket,))
    pause.start()
    daemon = start_daemon(home, settings=PATIENT)
    pause.join()
    try:
        wait_until(lambda: [row["id"] for row in daemon.leases() if row["pids"]] == [held.id])
        held.close()
        assert daemon.leases() == []
    finally:
        assert stop_daemon(daemon) == 0


def test_only_the_token_gives_a_kept_lease_back_and_it_ends_when_nobody_comes(home: Path) -> None:
    daemon = start_daemon(home)
    lease = open_lease("app", arch="sn10", tiles=2, memory_bytes=100)
    assert ((home / "run" / "leases.json").stat().st_mode & 0o777) == 0o600
    with daemon.connect() as client, pytest.raises(Unauthenticated):
        client.call("reattach", lease=lease.id, token="guessed", regions=[])
    lease._is_open = False  # this process lives on, and does not ask for it
    lease._client.close()
    daemon.end(is_orderly=False)
    daemon = start_daemon(home, settings={"RDUKIT_SND_REATTACH_S": "1"})
    try:
        wait_until(lambda: daemon.leases() == [])
    finally:
        assert stop_daemon(daemon) == 0
