"""Limits of the processors' time, as control groups of both versions tell them on hosts and in containers."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rdukit.system import cpu
from rdukit.system.cpu import read_cpu_quota
from support import shows

pytestmark = shows("engine")

V1_CONTAINER = "4:memory:/docker/ab\n3:cpu,cpuacct:/docker/ab\n0::/docker/ab\n"


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/user.slice/job\n", {"user.slice/cpu.max": "100000 50000", "user.slice/job/cpu.max": "max 100000"}, 2.0),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, 1.0),
        (V1_CONTAINER, {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        (V1_CONTAINER, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (
            V1_CONTAINER,
            {"cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "200000", "cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000"},
            2.0,
        ),
        (V1_CONTAINER, {"memory/docker/ab/cpu.max": "1 1"}, None),
        ("0::/\n", {"cpu.max": "what\n"}, None),
        ("", {}, None),
    ],
)
def test_the_least_limit_of_the_groups_that_a_process_is_in_counts(
    membership: str, files: Mapping[str, str], quota: float | None, tmp_path: Path
) -> None:
    (tmp_path / "self").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert read_cpu_quota(tmp_path / "cgroup", tmp_path / "self") == quota
    assert read_cpu_quota(tmp_path / "cgroup", tmp_path / "nothing") is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 6), (0.2, 1), (1.0, 1), (1.5, 2), (6.0, 6), (32.0, 6)])
def test_no_more_cores_are_used_than_there_is_time_for(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(cpu, "read_cpu_quota", lambda: quota)
    assert (cpu.bound_cores(), cpu.usable_cores()) == (6, cores)
