"""The processor: its signature, its instruction sets, and how many cores this process may use.

A native kernel fits only a processor with the same signature.
"""

import math
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from rdukit.files.atomic import sha256_of
from rdukit.settings import SANITIZE, resolve

#: Version of the way in which native kernels are built: libraries of other versions, in PEFs and in the cache, are not
#: used. 13: the squares of a standard deviation do not overflow.
NATIVE_BUILD: Final = 13


@cache
def cpu_signature() -> str:
    """Return the architecture and a digest of the instruction-set flags, such as ``x86_64-1a2b3c4d5e6f``."""
    flags = cpu_flags()
    if flags is None:
        return f"{platform.machine()}-unknown"
    return f"{platform.machine()}-{sha256_of(' '.join(sorted(flags)).encode())[:12]}"


def native_signature() -> str:
    """Return the signature that a native kernel needs to run here: processor, build version, sanitizers."""
    return f"{cpu_signature()}-build{NATIVE_BUILD}{sanitized_suffix()}"


def sanitized_suffix() -> str:
    """Return the suffix of sanitized kernels' names, or an empty string; both kinds are kept separate."""
    return "-sanitized" if resolve(SANITIZE) else ""


@cache
def cpu_flags() -> tuple[str, ...] | None:
    """Return the processor's instruction-set flags; None if the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((tuple(line.split(":", 1)[1].split()) for line in lines if line.startswith(("flags", "Features"))), ())


def has_bf16_instructions() -> bool:
    """Return whether the processor multiplies bf16 numbers itself; unknown counts as yes."""
    flags = cpu_flags()
    return not flags or any(flag in {"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16"} for flag in flags)


def has_avx512_bf16() -> bool:
    """Return whether the processor has the bf16 instructions of our own bf16 products."""
    return "avx512_bf16" in (cpu_flags() or ())


def splittable_threads() -> int:
    """Return the number of threads for which loops of native kernels are split: the machine's cores, at most 8.

    A run uses as many of them as its lease allows, so a library serves leases of every size.
    """
    return min(os.cpu_count() or 1, 8)


def bound_cores() -> int:
    """Return the number of cores in this process's affinity mask, regardless of CPU quotas."""
    return len(os.sched_getaffinity(0))


def usable_cores() -> int:
    """Return the number of cores that this process may use: the smaller of its affinity mask and its control groups'
    quota.
    """
    quota = read_cpu_quota()
    return bound_cores() if quota is None else max(1, min(bound_cores(), math.ceil(quota)))


CGROUP: Final = Path("/sys/fs/cgroup")
MEMBERSHIP: Final = Path("/proc/self/cgroup")


def read_cpu_quota(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> float | None:
    """Return this process's CPU quota from its control groups, in processors; None: no limit.

    ``docker run --cpus`` and Kubernetes set this limit, which appears neither in the number of processors nor in the
    affinity mask. Threads beyond the quota slow each other down: once a period's quota is used up, the kernel pauses
    all of them until the next period.

    Args:
        cgroup: mount point of the system's control groups, of version 1, 2 or both.
        membership: file that lists the control groups of the process.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = [quota for line in lines for folder in _folders(cgroup, line) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _folders(cgroup: Path, line: str) -> Iterator[Path]:
    """Yield the groups of a line ``hierarchy:controllers:path`` that may limit the processors' time, the root's first.

    In a container, the mounted root may be the container's own group, while the path is the host's.
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
    """Read the limit of one group, if it has one: ``cpu.max`` in version 2, two files in version 1."""
    try:
        if (both := folder / "cpu.max").is_file():
            quota, period = both.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota not in {"max", "-1"} else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
