"""Control groups of applications, in a folder that stands for the machine's."""

from pathlib import Path

import pytest

from rdukit_node.isolation.cgroup import CgroupGuard
from rdukit_node.isolation.model import GroupLimits
from support import shows

pytestmark = shows("node", "isolation")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Files as of a machine with control groups of version 2, where the daemon is at the top."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(f"36 30 0:33 / {tmp_path}/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/7").mkdir()
    (tmp_path / "proc/7/cgroup").write_text("0::/\n")
    (tmp_path / "proc/8").mkdir()
    (tmp_path / "proc/8/cgroup").write_text("0::/slurm/job_1\n")
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpu pids\n")
    return tmp_path


def test_an_application_gets_a_group_of_version_2(machine: Path) -> None:
    guard = CgroupGuard("node a/b", 8, GroupLimits(pids=100, memory_bytes=1), proc=machine / "proc")
    guard.enter("lease-1", 7, 16)
    guard.enter("lease-2", 8, 8)
    guard.enter("lease-3", 9, 8)
    assert guard.wait()
    assert guard.report("lease-1") == {
        "cgroup_cpu": "applied: cpu.weight 200",
        "cgroup_pids": "applied: pids.max 100",
        "cgroup_memory": "unavailable: no control group hierarchy of this machine has this controller",
    }
    assert guard.report("lease-2")["cgroup_cpu"] == (
        "unavailable: process 8 stays in /slurm/job_1, which the daemon may not change"
    )
    assert guard.report("lease-3")["cgroup_cpu"].endswith("9/cgroup: No such file or directory")
    group = machine / "cgroup/rdukit-node-a-b/lease-1"
    assert (group / "cgroup.procs").read_text() == "7"
    assert (group.parent.parent / "cgroup.subtree_control").read_text() == "+pids"
