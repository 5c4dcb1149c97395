"""Profiles of a session: totals per section, and of Python on the host. Ours, not the vendor's."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rdukit.pef.model import Pef

if TYPE_CHECKING:
    import cProfile


def profile_runs(loaded: Any) -> None:
    """Time the parts of a ``LoadedPef``'s runs, if a profile was requested; otherwise do nothing."""
    from sambaflow.sessions.run_parts import time_parts  # only needed with a PEF

    time_parts(loaded)


def runtime_profile(pef: Pef, measured: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return totals per section of ``measured``: (section id, host seconds) of each time that a section ran.

    Per section: runs, ``emulated_seconds`` (the cost model's projection for the chip) and ``host_seconds`` (this
    machine), both in total. The vendor's file format is not published (Source: ours).
    """
    host: dict[int, float] = {}
    runs: dict[int, int] = {}
    for section, seconds in measured:
        host[section] = host.get(section, 0.0) + seconds
        runs[section] = runs.get(section, 0) + 1
    sections = [
        {
            "id": number,
            "name": pef.sections[number].name,
            "type": pef.sections[number].type.value,
            "runs": runs[number],
            "emulated_seconds": pef.sections[number].cost.seconds * runs[number],
            "host_seconds": host[number],
        }
        for number in sorted(runs)
    ]
    return {
        "pef": pef.name,
        "arch": pef.arch,
        "sections": sections,
        "emulated_seconds": sum(float(pef.sections[n].cost.seconds) * runs[n] for n in runs),
        "host_seconds": sum(host.values()),
    }


class HostProfile:
    """A profile of this process's Python code between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._running: cProfile.Profile | None = None

    def start(self) -> None:
        """Start, or restart, the profile."""
        import cProfile

        if self._running is not None:
            self._running.disable()
        self._running = cProfile.Profile()
        self._running.enable()

    def stop(self) -> str:
        """Stop and return the 40 costliest functions as text; empty if not started."""
        import pstats

        running, self._running = self._running, None
        if running is None:
            return ""
        running.disable()
        stream = io.StringIO()
        pstats.Stats(running, stream=stream).sort_stats("cumulative").print_stats(40)
        return stream.getvalue()
