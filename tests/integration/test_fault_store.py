"""The fault database survives what happens to processes and disks: kill -9 in the middle of writing, a full disk."""

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rdukit_node.faults.model import ChangedRows
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.store import FaultStore
from support import shows

pytestmark = shows("node", "faults")

#: Writes one error a transaction and says so, with checkpoints beside it, until it is killed.
_WRITER = """
import sys, threading, uuid
from pathlib import Path
from rdukit.hardware import find_node
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import Injection, nobody
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.store import FaultStore
store = FaultStore.open(Path(sys.argv[1]))
machine = FaultMachine(find_node("TEST-1"), lambda: str(uuid.uuid4()))
machine.restore(store.load())
def checkpoints():
    while True:
        store.checkpoint()
threading.Thread(target=checkpoints, daemon=True).start()
number = sum(row.err_count for row in machine.errors)
print(number, flush=True)
while True:
    number += 1
    machine.inject([Injection("pcie-correctable", "/NODE/XRDU_0/RDU_0/PCIE_0")], nobody, number * 10**9)
    assert store.write(NewRows(machine.take_changes(), [{"seq": number}]), now_ns=number)
    print(number, flush=True)
"""

#: Fills the disk, goes on, makes room, and says what it saw.
_FILLER = """
import itertools, json, os, resource, sys
from pathlib import Path
from rdukit.hardware import find_node
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import Injection, nobody
from rdukit_node.faults.pending import NewRows
from rdukit_node.faults.store import FaultStore
path, how = Path(sys.argv[1]), sys.argv[2]
store = FaultStore.open(path)
numbers = itertools.count()
machine = FaultMachine(find_node("SN30-8"), lambda: f"uuid-{next(numbers)}")
filler = path.with_name("filler")
if how == "limit":
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, limits[1]))
else:
    with filler.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 65536)
        except OSError:
            pass
    filler.open("r+b").truncate(max(0, filler.stat().st_size - 256 * 1024))
worked = failed = 0
for number in range(400):
    machine.inject([Injection("tile-hang", seed=number)], nobody, 10**18 + number * 10**12)
    if store.write(NewRows(machine.take_changes(), [{"seq": number, "text": "x" * 500}]), now_ns=10**18 + number):
        worked += 1
    else:
        failed += 1
seen = {"worked": worked, "failed": failed, "reason": store.reason, "pending": store.pending, "ok": store.is_writable}
if how == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
else:
    filler.unlink()
seen["again"] = store.write(NewRows(machine.take_changes()), now_ns=10**18 + 400)
seen["left"] = store.pending
assert store.load().errors == machine.errors and store.load().faults == machine.faults
seen["hangs"] = [store.load().hangs == machine.hangs, len(machine.hangs)]
store.close()
print(json.dumps(seen))
"""


def test_checkpoints_leave_one_descriptor_of_the_database_for_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "snfm.db"
    store = FaultStore.open(path)
    for _ in range(5):
        assert store.checkpoint()
    found = [link.name for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and link.resolve() == path]
    store.close()
    assert len(found) <= 2


def test_a_database_whose_writer_is_killed_has_all_that_was_said_to_be_written(tmp_path: Path) -> None:
    path, draw, said = tmp_path / "snfm.db", random.Random(4), 0
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            begun = int(writer.stdout.readline())
            assert begun in (said, said + 1), "nothing said is missing; at most the write in progress is there too"
            time.sleep(draw.uniform(0.0, 0.08))
            writer.kill()
            numbers = writer.stdout.read().split("\n")[:-1]
            said = int(numbers[-1]) if numbers else begun
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        events = [json.loads(text)["seq"] for (text,) in connection.execute("SELECT event FROM events ORDER BY number")]
    connection.close()
    assert events == list(range(1, len(events) + 1)) and len(events) in (said, said + 1), "no event twice, none missing"
    assert said > 20, "the test wrote something"
    store = FaultStore.open(path)
    assert not store.was_closed_in_order
    store.close()


def test_a_process_that_may_write_no_more_keeps_its_rows_until_it_may(tmp_path: Path) -> None:
    _check_full(_fill(tmp_path / "snfm.db", "limit"))


def test_a_full_disk_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        _check_full(_fill(disk / "snfm.db", "disk"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_database_that_cannot_be_made_is_said_and_made_later(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    place.write_text("in the way")
    store = FaultStore.open(place / "snfm.db")
    assert not store.is_writable and "File exists" in store.reason
    assert not store.write(NewRows(ChangedRows(), [{"seq": 1}]), now_ns=1) and store.pending == 1
    place.unlink()
    place.mkdir()
    assert store.write(NewRows(ChangedRows(), [{"seq": 2}]), now_ns=2) and store.pending == 0 and store.is_writable
    store.close()
    with FaultStore.read_only(place / "snfm.db") as reader:
        assert [row["seq"] for row in reader.events()] == [1, 2]


def test_readers_see_whole_writes_while_the_writer_works(tmp_path: Path) -> None:
    path = tmp_path / "snfm.db"
    with subprocess.Popen([sys.executable, "-c", _WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        before = 0
        for _ in range(20):
            with FaultStore.read_only(path) as reader:
                count = sum(row.err_count for row in reader.snapshot().errors)
            assert count >= before
            before = count
        writer.kill()
    assert before > 0


def test_an_unprivileged_reader_sees_what_a_stopped_daemon_left(tmp_path: Path) -> None:
    store = FaultStore.open(tmp_path / "snfm.db")
    store.write(NewRows(ChangedRows(), [{"seq": 1}]), now_ns=7)
    store.close()
    assert sorted(os.listdir(tmp_path)) == ["snfm.db", "snfm.db.lock"], "the log is gone: one file has everything"
    with FaultStore.read_only(tmp_path / "snfm.db") as reader:
        assert reader.written_at_ns == 7


def _fill(path: Path, how: str) -> dict[str, object]:
    filled = subprocess.run(
        [sys.executable, "-c", _FILLER, path, how], capture_output=True, text=True, check=False, timeout=60
    )
    assert filled.returncode == 0, filled.stderr
    seen = json.loads(filled.stdout.splitlines()[-1])
    assert isinstance(seen, dict)
    return seen


def _check_full(seen: dict[str, object]) -> None:
    worked, failed = seen["worked"], seen["failed"]
    assert isinstance(worked, int) and isinstance(failed, int)
    assert worked > 5 and failed > 50 and seen["ok"] is False
    assert "full" in str(seen["reason"]) or "I/O" in str(seen["reason"])
    assert isinstance(seen["pending"], int) and seen["pending"] >= failed
    assert seen["again"] is True and seen["left"] == 0
    hangs = seen["hangs"]
    assert isinstance(hangs, list) and hangs[0] is True and hangs[1] > 300
