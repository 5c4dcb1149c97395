"""A disk that does not answer, or a database that another process locks, does not stop the node daemon."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.snd import SndClient
from support import shows, wait_until
from support.node.daemons import RunningDaemon, environment, node_command, start_daemon, stop_daemon

pytestmark = shows("node", "faults")

#: Longest answer on a machine that is busy with other tests; a quiet one answers within a second.
SOON_S = 5.0
CHANNEL = "/NODE/XRDU_0/RDU_0/DDRCH_0"


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the database's lock, as a foreign program may."""
    connection = sqlite3.connect(home / "snfm" / "snfm.db", isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextlib.contextmanager
def frozen(home: Path) -> Iterator[None]:
    """Freeze the file system of the home folder, as a snapshot does."""
    subprocess.run(["fsfreeze", "-f", str(home)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(home)], check=True)


def in_time(client: SndClient, op: str, **arguments: object) -> dict[str, Any]:
    begun = time.monotonic()
    answer = client.call(op, **arguments)
    assert time.monotonic() - begun < SOON_S, op
    return answer


def change_everything(daemon: RunningDaemon) -> dict[str, Any]:
    """Do what needs the disk. Returns the answer to the last change."""
    with daemon.connect() as client, daemon.connect() as root:
        lease = in_time(client, "acquire", application="app", tiles=1, memory_bytes=0)["lease"]
        in_time(client, "keep", lease=lease["id"])
        in_time(root, "inject", events=[{"class": "ddr-uncorrectable", "component": CHANNEL}])
        answer = in_time(root, "cordon", component="/NODE/XRDU_0/RDU_0/TILE_3", reason="x")
        in_time(client, "release", lease=lease["id"])
        wait_until(lambda: not in_time(root, "status")["database"]["is_writable"], what="the daemon says so")
        assert in_time(root, "status")["database"]["pending"] > 0
    return answer


def check_all_is_kept(daemon: RunningDaemon, home: Path) -> None:
    """Wait until all is written, kill the daemon, and look at what the next one knows."""
    with daemon.connect() as client:
        wait_until(lambda: in_time(client, "status")["database"]["is_writable"], what="the database is written")
        wait_until(lambda: client.status()["database"]["pending"] == 0, what="no row waits")
        assert client.status()["database"]["dropped"] == 0
    daemon.end(is_orderly=False)
    again = start_daemon(home)
    try:
        with again.connect() as client:
            assert "FTYPE_DIMM_UE" in [row["fault_type"] for row in client.call("faults")["faults"]]
            assert [row["component"] for row in client.status()["cordons"]] == ["/NODE/XRDU_0/RDU_0/TILE_3"]
    finally:
        stop_daemon(again)


@pytest.mark.long
def test_a_foreign_lock_of_the_database_holds_up_nobody_and_nothing_is_lost(home: Path) -> None:
    daemon = start_daemon(home)
    with locked(home):
        answer = change_everything(daemon)
        assert "locked" in answer["unwritten"] or "disk" in answer["unwritten"]
        shown = subprocess.run(
            node_command("status"), env=environment(home), capture_output=True, text=True, check=True, timeout=60
        )
        assert "faults  are not written down: " in shown.stdout and "rows wait" in shown.stdout
    check_all_is_kept(daemon, home)


def test_a_frozen_file_system_holds_up_nobody_and_nothing_is_lost(home: Path) -> None:
    image, disk = home / "image", home / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(32 << 20)
    mounted = os.geteuid() == 0 and shutil.which("mkfs.ext4") and shutil.which("fsfreeze")
    if mounted:
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        mounted = not subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=False).returncode
    if not mounted:
        pytest.skip("no file system can be mounted and frozen here")
    try:
        daemon = start_daemon(disk)
        with frozen(disk):
            answer = change_everything(daemon)
            assert "disk" in answer["unwritten"]
        check_all_is_kept(daemon, disk)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
