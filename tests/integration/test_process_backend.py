"""Boxes as processes keep the contract of backends, and what only processes do."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit_platform.backends.contract import BoxBackend, BoxLimits, BoxOwner, BoxSpec, RunningBox
from rdukit_platform.backends.process import ProcessBackend, apply_limits
from rdukit_platform.backends.process_tree import read_facts, start_ticks, stats_of, tree_of
from support import shows, wait_until
from support.platform.backends import BackendContract, contract_box

pytestmark = shows("job-boxes", "images", "logreg")


@pytest.fixture(scope="class")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("boxes")


@pytest.fixture(scope="class")
def backend(folder: Path) -> BoxBackend:
    return ProcessBackend(records=folder / "records")


@pytest.fixture(scope="class")
def running(backend: BoxBackend, folder: Path) -> Iterator[RunningBox]:
    with contract_box(backend, folder) as box:
        yield box


class TestProcessBackend(BackendContract):
    """As every backend."""


def test_a_box_has_nothing_of_its_workers_environment_but_what_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "RDUKIT_DATABASE_URL", "SOMETHING_NEW"):
        monkeypatch.setenv(name, "s3cret")
    box = ProcessBackend().start(BoxSpec("logreg", tmp_path / "state", environment={"RDUKIT_LEASE": ""}), 120)
    try:
        pids = [facts.pid for facts in tree_of(int(box.id))]
        found = b"".join(Path(f"/proc/{pid}/environ").read_bytes() for pid in pids)
    finally:
        box.stop()
    assert b"PATH=" in found and b"RDUKIT_LEASE=" in found
    assert b"s3cret" not in found


def test_limits_hold_for_the_process_and_its_children() -> None:
    core = min(os.sched_getaffinity(0))
    program = "import os, subprocess, sys; input(); " + (
        "print(len(os.sched_getaffinity(0)));"
        "print(subprocess.run([sys.executable, '-c', 'bytearray(1 << 30)'], stderr=subprocess.DEVNULL).returncode)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        told = apply_limits(process.pid, BoxLimits((core,), 512 << 20, 10))
        output, _ = process.communicate("\n", timeout=60)
    assert output.split() == ["1", "1"], "one core; a child that wants 1 GiB gets a MemoryError"
    assert told["pids"].startswith("not applied")


def test_a_core_that_is_not_there_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert apply_limits(process.pid, BoxLimits(cores=(4000,)))["cores"].startswith("not applied: ")
        process.communicate(b"\n")


def test_the_record_of_a_process_that_has_gone_is_no_orphan(tmp_path: Path) -> None:
    backend = ProcessBackend(records=tmp_path)
    stranger = start_ticks(os.getpid())
    assert stranger is not None
    record = f'{{"pid": {os.getpid()}, "start_ticks": {stranger - 1}, "box": "x", "owner": "me", "epoch": 1}}'
    (tmp_path / "old.json").write_text(record)
    assert backend.orphans(BoxOwner("me", 2)) == ()
    assert not list(tmp_path.iterdir()), "the pid is another process's by now"


def test_the_tree_of_a_process_has_its_grandchildren() -> None:
    program = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        wait_until(lambda: len(tree_of(process.pid)) == 2)
        stats = stats_of(process.pid)
        assert stats is not None and stats.pids == 2
        child = tree_of(process.pid)[1].pid
        os.kill(child, signal.SIGKILL)
    assert stats_of(process.pid) is None and read_facts(process.pid) is None


def test_a_box_ends_with_the_platform_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from rdukit_platform.backends.contract import BoxSpec, BoxOwner;"
        "from rdukit_platform.backends.process import ProcessBackend;"
        f"folder = Path({str(tmp_path)!r});"
        "spec = BoxSpec('logreg', folder / 'box', owner=BoxOwner('p', 1));"
        "box = ProcessBackend(records=folder / 'records').start(spec);"
        "print(box.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as platform:
        assert platform.stdout is not None
        pid = int(platform.stdout.readline())
        platform.kill()
    wait_until(lambda: start_ticks(pid) is None)
    assert ProcessBackend(records=tmp_path / "records").orphans(BoxOwner("p", 2)) == ()
