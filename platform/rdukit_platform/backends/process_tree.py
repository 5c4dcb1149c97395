"""A process and all its descendants, from ``/proc``. Linux."""

import os
from typing import Final

from rdukit.system.process import ProcessFacts, read_facts
from rdukit_platform.backends.contract import BoxStats

_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def start_ticks(pid: int) -> int | None:
    """Return when it started, which names one process with its pid, as pids come around. None: it has ended."""
    facts = _find_facts(pid)
    return facts.start_ticks if facts is not None and facts.is_running else None


def tree_of(pid: int) -> list[ProcessFacts]:
    """Return the process and its descendants, itself first; empty when it has ended."""
    everyone = [facts for entry in os.listdir("/proc") if entry.isdigit() if (facts := _find_facts(int(entry)))]
    found = [facts for facts in everyone if facts.pid == pid and facts.is_running]
    for facts in found:
        found += [child for child in everyone if child.parent == facts.pid and child.is_running]
    return found


def stats_of(pid: int) -> BoxStats | None:
    """Processor time, resident memory and threads of a process and its descendants that live; None when it has ended.

    Pages that processes share count once for each.
    """
    tree = tree_of(pid)
    if not tree:
        return None
    return BoxStats(
        cpu_s=sum(facts.cpu_ticks for facts in tree) / _TICKS_S,
        memory_bytes=sum(facts.resident_pages for facts in tree) * _PAGE_BYTES,
        pids=sum(facts.threads for facts in tree),
    )


def _find_facts(pid: int) -> ProcessFacts | None:
    """Read facts of a process; None also of one that cannot be read: no box is such."""
    try:
        return read_facts(pid)
    except OSError:
        return None
