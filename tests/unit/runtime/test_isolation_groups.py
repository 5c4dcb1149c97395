"""Control groups and shares of cores: what is decided, without a machine that has them."""

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit_node.isolation.cgroup import CgroupGuard
from rdukit_node.isolation.model import (
    GroupLimits,
    Hierarchy,
    LeaseGroups,
    applied,
    as_report,
    cores_of,
    find_hierarchies,
    group_in,
    may_take_over,
    off,
    settings_of,
    unavailable,
)
from support import shows

pytestmark = shows("isolation")

MOUNTS = """\
22 1 0:20 / /proc rw - proc proc rw
30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
33 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:8 - cgroup cgroup rw,cpu,cpuacct
34 30 0:31 /docker/abc /sys/fs/cgroup/a\\040b rw - cgroup cgroup rw,pids
35 30 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
36 30 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
TOP = PurePosixPath("/")


def test_hierarchies_of_both_versions_are_found() -> None:
    assert find_hierarchies(MOUNTS) == [
        Hierarchy(1, Path("/sys/fs/cgroup/cpu,cpuacct"), TOP, ("cpu",)),
        Hierarchy(1, Path("/sys/fs/cgroup/a b"), PurePosixPath("/docker/abc"), ("pids",)),
        Hierarchy(2, Path("/sys/fs/cgroup/unified"), TOP, ()),
    ]
    assert find_hierarchies("") == []


def test_the_group_of_a_process_is_that_of_its_hierarchy() -> None:
    cpu, pids, unified = find_hierarchies(MOUNTS)
    text = "8:pids:/docker/abc/x\n3:cpu,cpuacct:/\n1:name=systemd:/init\n0::/user.slice/a:b\n"
    assert group_in(cpu, text) == TOP
    assert group_in(pids, text) == PurePosixPath("/docker/abc/x")
    assert group_in(unified, text) == PurePosixPath("/user.slice/a:b")
    assert group_in(unified, "3:cpu:/\n") is None
    assert pids.folder_of(PurePosixPath("/docker/abc/x")) == Path("/sys/fs/cgroup/a b/x")
    assert pids.folder_of(PurePosixPath("/docker/other")) is None


def test_a_group_that_somebody_else_chose_is_left_alone() -> None:
    assert may_take_over(TOP, None)
    assert may_take_over(PurePosixPath("/system.slice/snd"), PurePosixPath("/system.slice/snd"))
    assert not may_take_over(PurePosixPath("/slurm/job_7"), PurePosixPath("/system.slice/snd"))
    assert not may_take_over(PurePosixPath("/slurm/job_7"), None)


@pytest.mark.parametrize(
    ("controller", "version", "file", "number"),
    [
        ("cpu", 1, "cpu.shares", 512),
        ("cpu", 2, "cpu.weight", 50),
        ("pids", 1, "pids.max", 9),
        ("pids", 2, "pids.max", 9),
        ("memory", 1, "memory.limit_in_bytes", 70),
        ("memory", 2, "memory.max", 70),
    ],
)
def test_a_limit_has_its_versions_file(controller: str, version: int, file: str, number: int) -> None:
    assert settings_of(controller, version, 4, 8, GroupLimits(pids=9, memory_bytes=70)) == (file, number)


def test_weights_stay_within_what_the_kernel_takes() -> None:
    assert settings_of("cpu", 1, 0, 8, GroupLimits()) == ("cpu.shares", 2)
    assert settings_of("cpu", 2, 10**6, 8, GroupLimits()) == ("cpu.weight", 10_000)


def test_controllers_without_a_limit_are_not_touched() -> None:
    assert GroupLimits().controllers() == ("cpu",)
    assert GroupLimits(pids=1, memory_bytes=1).controllers() == ("cpu", "pids", "memory")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(1, 3)), max_size=30))
def test_leases_and_processes_come_and_go_in_any_order(steps: list[tuple[bool, int, int]]) -> None:
    groups, tiles = LeaseGroups(), dict[str, int]()
    for is_join, number, pid in steps:
        lease = f"lease-{number}"
        if is_join:
            group = groups.join(lease, pid, number + 1)
            tiles[lease] = number + 1
            assert groups.tiles_of(group) > 0
        else:
            assert (groups.leave(lease) is None) == (tiles.pop(lease, None) is None)
        groups.validate()
        assert groups.tiles() == sum(tiles.values())


def test_a_process_with_two_leases_has_one_group_with_the_tiles_of_both() -> None:
    groups = LeaseGroups()
    assert groups.join("lease-1", 7, 8) == groups.join("lease-2", 7, 4) == "lease-1"
    assert groups.tiles_of("lease-1") == 12
    assert groups.leave("lease-1") == "lease-1"
    assert groups.tiles_of("lease-1") == 4
    groups.leave("lease-2")
    assert groups.join("lease-3", 7, 1) == "lease-3"


@given(st.integers(1, 64), st.integers(1, 128))
def test_tiles_share_out_all_cores_and_each_has_one(node_tiles: int, cores: int) -> None:
    allowed = [3 * core for core in range(cores)]
    shares = [cores_of(allowed, [tile], node_tiles) for tile in range(node_tiles)]
    assert all(shares)
    assert {core for share in shares for core in share} == set(allowed)
    if cores >= node_tiles:
        assert sorted(core for share in shares for core in share) == allowed


def test_a_report_begins_with_the_state() -> None:
    assert as_report([applied("a"), applied("b", "yes"), unavailable("c", "no permission"), off("d")]) == {
        "a": "applied",
        "b": "applied: yes",
        "c": "unavailable: no permission",
        "d": "off",
    }


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


def test_nothing_is_done_if_the_settings_say_so(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_ISOLATION_MODE", "auto")
    monkeypatch.setenv("RDUKIT_ISOLATION_CGROUP", "off")
    guard = CgroupGuard.by_settings("node", 8)
    guard.enter("lease-1", 7, 16)
    assert guard.report("lease-1") == {"cgroup": "off"}
    guard.leave("lease-1")
    assert guard.report("lease-1") == {}
    assert guard.wait()
    guard.close()
