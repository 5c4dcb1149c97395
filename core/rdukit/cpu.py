"""What this machine's processor can run: a native kernel fits only a processor with the same signature."""

import os
import platform
from functools import cache
from pathlib import Path

from rdukit.files import sha256_of


@cache
def cpu_signature() -> str:
    """Architecture and a digest of the instruction-set flags, such as ``x86_64-1a2b3c4d5e6f``."""
    machine = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{machine}-unknown"
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return f"{machine}-{sha256_of(' '.join(sorted(flags)).encode())[:12]}"


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
