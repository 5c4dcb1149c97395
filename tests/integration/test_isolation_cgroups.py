"""Control groups on a machine that has them and lets the test make some."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from rdukit_node.isolation import CgroupGuard
from rdukit_node.isolation.model import GroupLimits, find_hierarchies, group_in, may_take_over
from support import shows, wait_until
from support.node.daemons import environment, start_daemon, stop_daemon


def group_folder(controller: str) -> Path | None:
    """Where a group of a process of this test may be made, if anywhere. Version 1 only: see the reasons in docs."""
    own = Path("/proc/self/cgroup").read_text()
    for hierarchy in find_hierarchies(Path("/proc/self/mountinfo").read_text()):
        group = group_in(hierarchy, own)
        if controller in hierarchy.controllers and group is not None and may_take_over(group, group):
            folder = hierarchy.folder_of(group)
            if folder is not None and os.access(folder / "cgroup.procs", os.W_OK) and os.access(folder, os.W_OK):
                return folder
    return None


FOLDERS = {controller: group_folder(controller) for controller in ("cpu", "pids")}
pytestmark = [
    shows("isolation"),
    shows("isolation"),
    pytest.mark.skipif(None in FOLDERS.values(), reason="no writable control groups of version 1 here"),
]

OWNER = f"test-{os.getpid()}"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def guard() -> Iterator[CgroupGuard]:
    guard = CgroupGuard(OWNER, 8, GroupLimits(pids=20))
    yield guard
    guard.close()
    assert not any(own(controller).exists() for controller in FOLDERS)


def own(controller: str) -> Path:
    folder = FOLDERS[controller]
    assert folder is not None
    return folder / f"rdukit-{OWNER}"


def members(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]


def number(path: Path) -> int:
    return int(path.read_text())


def test_an_application_has_limits_while_its_lease_lasts(guard: CgroupGuard, sleeper: subprocess.Popen[bytes]) -> None:
    guard.enter("lease-1", sleeper.pid, 4)
    assert guard.report("lease-1") in ({"cgroup": "pending"}, guard.report("lease-1"))
    assert guard.wait()
    assert guard.report("lease-1") == {"cgroup_cpu": "applied: cpu.shares 512", "cgroup_pids": "applied: pids.max 20"}
    for controller in FOLDERS:
        assert members(own(controller) / "lease-1") == [sleeper.pid]
    guard.enter("lease-2", sleeper.pid, 8)
    guard.wait()
    assert number(own("cpu") / "lease-1/cpu.shares") == number(own("cpu") / "cpu.shares") == 1024 * 12 // 8
    guard.leave("lease-1")
    guard.wait()
    assert number(own("cpu") / "lease-1/cpu.shares") == 1024
    guard.leave("lease-2")
    guard.wait()
    assert not (own("cpu") / "lease-1").exists()
    assert guard.report("lease-2") == {}
    assert sleeper.poll() is None
    folder = FOLDERS["cpu"]
    assert folder is not None
    assert sleeper.pid in members(folder)


def test_a_fork_bomb_meets_the_limit_of_processes(guard: CgroupGuard) -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "read go; for i in $(seq 40); do sleep 20 2>/dev/null & done"],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    guard.enter("lease-1", shell.pid, 4)
    guard.wait()
    _, said = shell.communicate(b"go\n", timeout=60)
    started = len(members(own("pids") / "lease-1"))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(shell.pid, 9)
    assert b"fork" in said
    assert 10 < started <= 20
    guard.leave("lease-1")
    assert guard.wait()


def test_the_group_of_a_killed_application_is_removed(guard: CgroupGuard) -> None:
    process = subprocess.Popen(["sleep", "60"])
    guard.enter("lease-1", process.pid, 4)
    guard.wait()
    process.kill()
    guard.leave("lease-1")  # before the kernel, or anybody, has cleared it away
    guard.wait()
    process.wait()
    assert not (own("cpu") / "lease-1").exists()


def test_groups_of_a_daemon_that_was_killed_are_removed_by_the_next(
    guard: CgroupGuard, sleeper: subprocess.Popen[bytes]
) -> None:
    program = f"""
import os
from rdukit_node.isolation import CgroupGuard
from rdukit_node.isolation.model import GroupLimits
former = CgroupGuard({OWNER!r} + "-elsewhere", 8, GroupLimits(pids=20))
former.enter("lease-1", {sleeper.pid}, 4)
assert former.wait()
print("entered", flush=True)
os.read(0, 1)
os._exit(1)
"""
    former = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert former.stdout is not None
    assert former.stdout.readline() == b"entered\n"
    theirs = own("pids").with_name(f"rdukit-{OWNER}-elsewhere")
    guard.reap({"lease-2"})
    guard.wait()
    assert members(theirs / "lease-1") == [sleeper.pid]  # that daemon is alive
    former.communicate(b"end")
    guard.enter("lease-2", os.getpid(), 4)
    guard.reap({"lease-2"})
    guard.wait()
    assert not theirs.exists()
    assert members(own("pids") / "lease-2") == [os.getpid()]
    folder = FOLDERS["pids"]
    assert folder is not None
    assert sleeper.pid in members(folder)


def test_a_process_in_another_managers_group_stays_there(guard: CgroupGuard, sleeper: subprocess.Popen[bytes]) -> None:
    folder = FOLDERS["cpu"]
    assert folder is not None
    other = folder / f"other-manager-{os.getpid()}"
    other.mkdir()
    try:
        (other / "cgroup.procs").write_text(str(sleeper.pid))
        guard.enter("lease-1", sleeper.pid, 4)
        guard.wait()
        assert members(other) == [sleeper.pid]
        report = guard.report("lease-1")
        assert f"stays in /{other.name}, which the daemon may not change" in report["cgroup_cpu"]
        assert report["cgroup_pids"] == "applied: pids.max 20"
        guard.leave("lease-1")
        guard.wait()
    finally:
        (folder / "cgroup.procs").write_text(str(sleeper.pid))
        other.rmdir()


HOLDER = """
import sys
from rdukit_node.private_node import open_lease
lease = open_lease("holder", arch=None, tiles=2, memory_bytes=0)
print(lease.id, flush=True)
sys.stdin.read()
"""


def groups_of(lease: str) -> list[Path]:
    return [found for folder in FOLDERS.values() if folder for found in folder.glob(f"rdukit-*/{lease}")]


def test_the_daemons_groups_end_with_their_leases_and_with_the_daemon() -> None:
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="snd-", dir="/tmp")))
        daemon = start_daemon(home)
        holders, leases = [], []
        for _ in range(2):
            holder = subprocess.Popen(
                [sys.executable, "-c", HOLDER],
                env=environment(home, RDUKIT_NODE="daemon"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            holders.append(stack.enter_context(holder))
            stack.callback(holder.kill)
            assert holder.stdout is not None
            leases.append(holder.stdout.readline().strip())
        wait_until(lambda: all(len(groups_of(lease)) == len(FOLDERS) for lease in leases))
        with closing(daemon.connect()) as client:
            wait_until(
                lambda: all(
                    row["isolation"]["node"] == {
                        "cgroup_cpu": "applied: cpu.shares 512", "cgroup_pids": "applied: pids.max 4096",
                    }
                    for row in client.call("status")["leases"]
                )
            )  # fmt: skip
        holders[0].kill()
        wait_until(lambda: not groups_of(leases[0]))
        daemon.process.kill()
        daemon.process.communicate()
        assert groups_of(leases[1])
        daemon = start_daemon(home)
        wait_until(lambda: not groups_of(leases[1]))
        assert holders[1].poll() is None
        assert stop_daemon(daemon) == 0
