"""How much of the processors a process's control groups let it have: what ``docker run --cpus`` and Kubernetes limit.

Such a limit shows neither in the number of processors nor in the affinity. More threads than it has time for stop one
another: all of them are paused for the rest of a period as soon as its time is used up.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")


def read_cpu_quota(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> float | None:
    """Processors' worth of time that this process may use; None where nothing limits it.

    Args:
        cgroup: where the system's control groups are mounted, of version 1, 2 or both.
        membership: the file that says which of them the process is in.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = [quota for line in lines for folder in _folders(cgroup, line) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _folders(cgroup: Path, line: str) -> Iterator[Path]:
    """The groups of a line ``hierarchy:controllers:path`` that may limit the processors' time, the root's first.

    In a container the root that is mounted may be the container's own group, and the path one of the host.
    """
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    for root in (cgroup / "cpu", cgroup / controllers) if controllers else (cgroup, cgroup / "unified"):
        folder = root
        yield folder
        for part in Path(path).parts[1:]:
            folder /= part
            yield folder


def _quota_of(folder: Path) -> float | None:
    """The limit of one group, if it has one: ``cpu.max`` in version 2, two files in version 1."""
    try:
        if (both := folder / "cpu.max").is_file():
            quota, period = both.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota not in {"max", "-1"} else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
