"""A process and all its descendants, from ``/proc``. Linux."""

import os
from typing import Final

from rdukit.system.process import ProcessFacts, read_facts
from rdukit_platform.backends.contract import BoxStats

_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def start_ticks(pid: int) -> int | None:
    """Return the start time of a process, which identifies it even if its pid is reused. ``None``: it has ended."""
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
    """Return processor time, resident memory and threads of a process and its live descendants. ``None`` if it has
    ended.

    Shared pages count once per process.
    """
    tree = _known_children(pid) or tree_of(pid)
    if not tree:
        return None
    return BoxStats(
        cpu_s=sum(facts.cpu_ticks for facts in tree) / _TICKS_S,
        memory_bytes=sum(facts.resident_pages for facts in tree) * _PAGE_BYTES,
        pids=sum(facts.threads for facts in tree),
    )


def _known_children(pid: int) -> list[ProcessFacts]:
    """Return the process and the descendants that the kernel lists, without scanning all processes.

    It may miss new or re-parented processes, so use it for amounts, not for identities. Empty:
    the process has ended, or there are no such lists.
    """
    found, pids = list[ProcessFacts](), [pid]
    for each in pids:
        try:
            for thread in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{thread}/children", "rb") as children:
                    pids += map(int, children.read().split())
        except ProcessLookupError:
            continue
        except OSError:
            return []
        if (facts := _find_facts(each)) is not None and facts.is_running:
            found.append(facts)
    return found


def _find_facts(pid: int) -> ProcessFacts | None:
    """Read facts of a process; ``None`` also if it cannot be read, as boxes always can."""
    try:
        return read_facts(pid)
    except OSError:
        return None
