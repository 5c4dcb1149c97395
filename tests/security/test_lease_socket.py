"""A hostile box at its lease's socket: it reaches its own lease, and nothing else of the node."""

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import LeaseLost, PermissionDenied
from rdukit.http.unix_sockets import SocketPath
from rdukit.snd import HeldLease, SndClient
from rdukit_node.leases.files import MAX_CONNECTIONS
from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, start_daemon, stop_daemon

pytestmark = shows("security", "node")

PATIENT = {"RDUKIT_SND_REATTACH_S": "600"}
BOX = """
import sys
from rdukit_node.private_node import open_lease
with open_lease("box", arch="sn10", tiles=2, memory_bytes=100) as lease:
    region = lease.allocate("weights", 64)
    print(lease.id, flush=True)
    sys.stdin.readline()
    lease.check()
    region.free()
    lease.allocate("more", 36)
    print("computed", flush=True)
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Deeper than a socket's address takes: leases' sockets must not care.
    top = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    folder = top / ("home-" + "h" * 60)
    folder.mkdir()
    for name in ("RDUKIT_LEASE", "RDUKIT_SND_SOCKET", "SF_RNT_TILE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RDUKIT_HOME", str(folder))
    monkeypatch.setenv("RDUKIT_SND_REATTACH_S", "600")
    yield folder
    shutil.rmtree(top)


@pytest.fixture
def daemon(home: Path) -> Iterator[RunningDaemon]:
    daemon = start_daemon(home, settings=PATIENT)
    yield daemon
    assert stop_daemon(daemon) == 0


def hold(daemon: RunningDaemon, application: str = "job") -> tuple[HeldLease, dict[str, Any], Path]:
    client = SndClient(daemon.socket)
    lease = client.acquire(application, 2, 100)
    own = client.own_socket(lease["id"])
    return HeldLease(client, lease), lease, own


def test_its_folder_has_nothing_but_the_socket_and_is_private(daemon: RunningDaemon, home: Path) -> None:
    held, lease, own = hold(daemon)
    assert own == home / "run" / "leases" / lease["id"] / "snd.sock"
    assert [file.name for file in own.parent.iterdir()] == ["snd.sock"]
    assert (own.parent.stat().st_mode & 0o777, own.stat().st_mode & 0o777) == (0o700, 0o600)
    held.close()
    wait_until(lambda: not own.parent.exists(), what="it goes with the lease")


def test_listing_acquiring_and_administration_are_refused_whatever_the_user(daemon: RunningDaemon, home: Path) -> None:
    held, lease, own = hold(daemon)
    attempts: dict[str, dict[str, object]] = {
        "status": {}, "events": {}, "counters": {}, "inventory": {}, "applications": {}, "faults": {}, "errors": {},
        "acquire": {"application": "thief", "tiles": 1, "memory_bytes": 0},
        "authorize": {"token": (home / "run" / "admin.token").read_text().strip()},
        "inject": {"events": [{"class": "tile-hang"}]}, "clear": {"fault": "any"}, "repair": {"component": "/NODE"},
        "reset": {"component": "/NODE"}, "release": {"lease": lease["id"]}, "socket": {"lease": lease["id"]},
    }  # fmt: skip
    with SndClient(own) as box:
        assert box.call("hello")["admin"] is False
        box.attach(lease["id"], lease["token"])
        for op, arguments in attempts.items():
            with pytest.raises(PermissionDenied, match=f"{op} is not for the socket of lease {lease['id']}"):
                box.call(op, **arguments)
        with pytest.raises(PermissionDenied):
            box.status()
    assert len(daemon.leases()) == 1
    held.close()


def test_another_jobs_lease_cannot_be_used_with_a_stolen_token(daemon: RunningDaemon) -> None:
    held, _, own = hold(daemon)
    other, stolen, _ = hold(daemon, "other")
    with SndClient(own) as box, pytest.raises(PermissionDenied, match="cannot be used here"):
        box.attach(stolen["id"], stolen["token"])
    other.close()
    held.close()


def test_a_box_that_opens_connections_without_end_takes_none_from_others(daemon: RunningDaemon) -> None:
    held, lease, own = hold(daemon)
    sockets = []
    for _ in range(MAX_CONNECTIONS):
        connection = socket.socket(socket.AF_UNIX)
        with SocketPath(own) as short:
            connection.connect(short.text)
        sockets.append(connection)

    with SndClient(own) as box:  # an idle connection makes room
        box.attach(lease["id"], lease["token"])
    with daemon.connect() as client:
        assert client.status()["leases"][0]["id"] == lease["id"]
    for connection in sockets:
        connection.close()
    held.close()


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_box_computes_on_at_the_same_path_after_the_daemon_was_restarted(home: Path, is_orderly: bool) -> None:
    daemon = start_daemon(home, settings=PATIENT)
    held, lease, own = hold(daemon)
    folder = own.parent.stat().st_ino
    settings = {"RDUKIT_LEASE": f"{lease['id']}:{lease['token']}", "RDUKIT_SND_SOCKET": str(own)}
    box = subprocess.Popen(
        [sys.executable, "-c", BOX], env=environment(home, **settings, **PATIENT), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert box.stdout is not None
        assert box.stdout.readline().strip() == lease["id"]
        daemon.end(is_orderly)
        stale = own.parent.with_name("lease-of-long-ago")
        stale.mkdir()
        daemon = start_daemon(home, settings=PATIENT)
        wait_until(lambda: [len(each["pids"]) for each in daemon.leases()] == [2], what="both have come back")
        # A bind mount of the folder shows the new socket; one of the old socket would not.
        assert own.is_socket() and own.parent.stat().st_ino == folder
        assert not stale.exists()
        with SndClient(own) as other, pytest.raises(PermissionDenied):
            other.call("status")
        out, _ = box.communicate("go\n", timeout=120)
        assert box.returncode == 0 and "computed" in out
        held.close()
        wait_until(lambda: daemon.leases() == [], what="the lease has ended")
        with SndClient(daemon.socket) as client, pytest.raises(LeaseLost):
            client.attach(lease["id"], lease["token"])
        wait_until(lambda: not own.exists(), what="its socket is gone")
    finally:
        box.kill()
        box.communicate()
        held.close()
        assert stop_daemon(daemon) == 0
