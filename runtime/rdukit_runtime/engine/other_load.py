"""How much of the processors other programs use while something is measured. Source: ours."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")


@dataclass(frozen=True, slots=True)
class Load:
    """Processor time in seconds since some moment: of the whole machine, and of this process."""

    at_s: float
    machine_s: float
    own_s: float


def read_load(stat: Path = _STAT) -> Load | None:
    """The load so far; None where the system does not say."""
    try:
        first = stat.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    # user nice system idle iowait irq softirq steal; guests are counted among user and nice.
    fields = [int(field) for field in first[1:9]]
    busy = sum(fields) - sum(fields[3:5])
    times = os.times()
    return Load(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), times.user + times.system)


def others_share(before: Load | None, after: Load | None, processors: int) -> float:
    """Share of all processors' time, 0 to 1, that others used between two moments; 0 where it is not known."""
    if before is None or after is None or after.at_s <= before.at_s:
        return 0.0
    others = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return min(max(others / ((after.at_s - before.at_s) * processors), 0.0), 1.0)
