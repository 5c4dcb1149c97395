"""How even does this machine run? The same work again and again on one core: the 99th percentile over the median. ::

    python benchmarks/programs/host_pace.py [CORE [MILLISECONDS [SECONDS]]]

Prints the ratio. A server whose request takes as long cannot have a shorter tail than this on this machine, now.
"""

import os
import subprocess
import sys
import time

from serving_load import tail_of


def host_tail(core: int | None, unit_s: float, seconds: float = 3.0) -> float:
    """Return the ratio for units of about ``unit_s``, from a process of its own on ``core``."""
    where = "-" if core is None else str(core)
    command = [sys.executable, __file__, where, str(unit_s * 1e3), str(seconds)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=10 * seconds + 10).stdout)


def _unit(loops: int) -> None:
    kept = {}
    for number in range(loops):
        kept[number & 1023] = (number, number)


def _durations(loops: int, seconds: float) -> list[float]:
    found = []
    began = now = time.perf_counter()
    while now - began < seconds:
        _unit(loops)
        before, now = now, time.perf_counter()
        found.append(now - before)
    return found


if __name__ == "__main__":
    core, unit_ms, seconds = [*sys.argv[1:], *["-", "5", "3"][len(sys.argv) - 1 :]]
    if core != "-":
        os.sched_setaffinity(0, {int(core)})
    loops = max(1, int(10_000 * float(unit_ms) / 1e3 / min(_durations(10_000, 0.3))))
    print(f"{tail_of(_durations(loops, float(seconds))):.3f}")
