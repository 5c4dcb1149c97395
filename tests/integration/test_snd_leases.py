"""The node daemon as a process: leases, memory, and clients that die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rdukit.errors import (
    LeaseLost,
    NoResources,
    OutOfDeviceMemory,
    PefMismatch,
    Unauthenticated,
)
from rdukit.hardware import GIB
from rdukit_node.private_node import open_lease
from rdukit_node.status_page import EXECUTE
from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, running_daemon

pytestmark = shows("node")

MIB = 1024**2

HOLD = """
import sys, time
from rdukit_node.private_node import open_lease
lease = open_lease("victim", arch="sn10", tiles=2, memory_bytes=1 << 20)
lease.allocate("weights", 1 << 19).buffer[0] = 1
print(lease.kind, len(lease.tiles), flush=True)
time.sleep(60)
"""

HOLD_WITH_A_FORK = HOLD.replace(
    "time.sleep(60)", "import os; child = os.fork(); os.write(1, b'%d\\n' % child); time.sleep(60)"
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1") as running:
        yield running


@pytest.fixture(autouse=True)
def use_the_daemon(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RDUKIT_LEASE", "RDUKIT_SND_SOCKET", "SF_RNT_TILE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(daemon.home))
    monkeypatch.setenv("RDUKIT_NODE", "auto")
    yield
    # Nothing stays behind: each test's tiles are free when it ends.
    wait_until(lambda: free_tiles(daemon) == 4)


def free_tiles(daemon: RunningDaemon) -> int:
    with daemon.connect() as client:
        return sum(tile["lease"] is None for tile in client.status()["tiles"])


def test_a_program_uses_the_daemon_when_it_answers(daemon: RunningDaemon) -> None:
    with open_lease("app", arch="sn10", tiles=3, memory_bytes=MIB) as lease:
        assert lease.kind == "daemon"
        assert lease.chip.name == "sn10"
        assert free_tiles(daemon) == 1
        region = lease.allocate("weights", 3000)
        assert region.buffer.tolist() == [0] * 3000
        region.buffer[0] = 255
        for _ in range(2):
            lease.page.count_run(sections=1, cycles=5, flops=7, ddr_read=3, ddr_written=1)
        lease.page.enter(EXECUTE)
        with daemon.connect() as client:
            status = client.status()["leases"][0]
        assert status["memory_allocated"] == 3000
        assert {"runs": 2, "cycles": 10, "bytes": 8, "phase": "exec"}.items() <= status["counters"].items()
        assert status["pids"] == [os.getpid()]
        region.free()
    assert free_tiles(daemon) == 4


def test_memory_is_zeroed_also_where_somebody_wrote_before() -> None:
    with open_lease("app", arch="sn10", tiles=1, memory_bytes=MIB) as lease:
        for _ in range(3):
            region = lease.allocate("cache", MIB)
            assert not any(region.buffer)
            region.buffer[:] = b"\x5a" * MIB
            region.free()


def test_a_lease_s_memory_is_a_limit_and_a_refusal_leaves_it_usable() -> None:
    with open_lease("app", arch="sn10", tiles=1, memory_bytes=MIB) as lease:
        lease.allocate("weights", MIB - 10)
        with pytest.raises(OutOfDeviceMemory, match="10 B left"):
            lease.allocate("cache", 11)
        lease.allocate("cache", 10)


def test_more_memory_than_the_host_has_is_refused_and_not_accounted() -> None:
    with open_lease("app", arch="sn10", tiles=1, memory_bytes=380 * GIB) as lease:
        with pytest.raises(OutOfDeviceMemory, match="the host"):
            lease.allocate("huge", 380 * GIB)
        lease.allocate("small", MIB)


def test_a_thousand_regions_are_possible() -> None:
    with open_lease("app", arch="sn10", tiles=1, memory_bytes=MIB) as lease:
        regions = [lease.allocate(f"r{i}", 64) for i in range(1500)]
        assert all(region.buffer[0] == 0 for region in regions)


def test_of_two_clients_for_overlapping_tiles_exactly_one_wins(daemon: RunningDaemon) -> None:
    def attempt(number: int) -> bool:
        with daemon.connect() as client:
            try:
                client.acquire(f"app{number}", 3, 0)
            except NoResources:
                return False
            time.sleep(0.2)
            return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


@pytest.mark.parametrize("program", [HOLD, HOLD_WITH_A_FORK], ids=["alone", "with a forked child"])
def test_a_killed_client_s_tiles_are_free_within_a_second(daemon: RunningDaemon, program: str) -> None:
    victim = subprocess.Popen(
        [sys.executable, "-c", program], env=environment(daemon.home), stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    child: int | None = None
    try:
        assert victim.stdout.readline() == "daemon 2\n"
        if program is HOLD_WITH_A_FORK:
            child = max(int(victim.stdout.readline()), int(victim.stdout.readline()))
        assert free_tiles(daemon) == 2
        victim.kill()
        wait_until(lambda: free_tiles(daemon) == 4)
        with daemon.connect() as client:
            memory = client.status()["memory"]
            last = client.call("events", since=client.call("events")["last"] - 1)["events"]
        assert memory["used"] == 0
        assert [(event["kind"], event["application"], event["pid"]) for event in last] == [
            ("death", "victim", victim.pid)
        ]
    finally:
        victim.kill()
        if child is not None:
            os.kill(child, signal.SIGKILL)
        victim.wait()
        victim.stdout.close()


def test_a_process_attaches_to_the_lease_in_its_environment(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon.connect() as scheduler:
        lease = scheduler.acquire("job", 2, MIB, tenant="t1", job="j1")
        monkeypatch.setenv("RDUKIT_LEASE", f"{lease['id']}:{lease['token']}")
        monkeypatch.setenv("RDUKIT_SND_SOCKET", str(daemon.socket))
        monkeypatch.setenv("RDUKIT_HOME", "/nonexistent")
        for _ in range(2):
            with open_lease("box", arch="sn10", tiles=2, memory_bytes=MIB) as held:
                assert (held.id, list(held.tiles)) == (lease["id"], lease["tiles"])
                held.allocate("weights", MIB)
            wait_until(lambda: scheduler.status()["leases"][0]["memory_allocated"] == 0)
        with pytest.raises(NoResources, match=r"needs 3 tiles, but lease .* has 2"):
            open_lease("box", arch="sn10", tiles=3, memory_bytes=0)
        with pytest.raises(OutOfDeviceMemory, match="larger lease"):
            open_lease("box", arch="sn10", tiles=2, memory_bytes=MIB + 1)
        monkeypatch.setenv("RDUKIT_LEASE", f"{lease['id']}:wrong")
        with pytest.raises(Unauthenticated):
            open_lease("box", arch="sn10", tiles=2, memory_bytes=0)
        scheduler.release(lease["id"])
        monkeypatch.setenv("RDUKIT_LEASE", f"{lease['id']}:{lease['token']}")
        with pytest.raises(LeaseLost):
            open_lease("box", arch="sn10", tiles=2, memory_bytes=0)


def test_a_program_whose_lease_was_taken_away_is_told_so(
    daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon.connect() as scheduler:
        lease = scheduler.acquire("job", 2, MIB)
        monkeypatch.setenv("RDUKIT_LEASE", f"{lease['id']}:{lease['token']}")
        held = open_lease("box", arch="sn10", tiles=1, memory_bytes=0)
        region = held.allocate("weights", 10)
        scheduler.release(lease["id"])
        with pytest.raises(LeaseLost, match="released by a holder"):
            held.allocate("cache", 10)
        region.buffer[0] = 1
        region.free()
        held.release()


def test_a_program_for_another_chip_is_refused_with_both_names() -> None:
    with pytest.raises(PefMismatch, match=r"compiled for sn30 but .* TEST-1 with sn10"):
        open_lease("app", arch="sn30", tiles=1, memory_bytes=0)


def test_a_lease_is_released_at_exit_and_not_by_a_forked_child(daemon: RunningDaemon) -> None:
    program = """
import os, sys
from rdukit.snd import SndClient, default_socket
from rdukit_node.private_node import open_lease
lease = open_lease("app", arch="sn10", tiles=1, memory_bytes=0)
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
with SndClient(default_socket()) as client:
    print(len(client.status()["leases"]))
"""
    with daemon.connect() as client:
        before = client.call("events")["last"]
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment(daemon.home), capture_output=True, text=True, check=True
    )
    assert finished.stdout == "1\n"
    with daemon.connect() as client:
        events = client.call("events", since=before)["events"]
    assert [event["kind"] for event in events] == ["grant", "release"]


def test_the_socket_is_for_this_user_only(daemon: RunningDaemon) -> None:
    assert Path(daemon.socket).stat().st_mode & 0o777 == 0o600
