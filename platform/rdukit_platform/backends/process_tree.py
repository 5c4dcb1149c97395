"""A process and all its descendants, from ``/proc``. Linux."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit_platform.backends.contract import BoxStats

_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """Facts of ``/proc/PID/stat``, times in ticks."""

    pid: int
    state: str
    parent: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    resident_pages: int


def read_facts(pid: int) -> ProcessFacts | None:
    """Facts of a process; None when it is gone.

    Source: proc(5), "/proc/pid/stat".
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return ProcessFacts(
        pid, words[0], int(words[1]), int(words[11]) + int(words[12]), int(words[17]), int(words[19]), int(words[21])
    )


def start_ticks(pid: int) -> int | None:
    """Return when it started, which names one process with its pid, as pids come around. None: it has ended."""
    facts = read_facts(pid)
    return facts.start_ticks if facts is not None and facts.state not in "ZX" else None


def tree_of(pid: int) -> list[ProcessFacts]:
    """Return the process and its descendants, itself first; empty when it has ended."""
    everyone = [facts for entry in os.listdir("/proc") if entry.isdigit() if (facts := read_facts(int(entry)))]
    found = [facts for facts in everyone if facts.pid == pid and facts.state not in "ZX"]
    for facts in found:
        found += [child for child in everyone if child.parent == facts.pid and child.state not in "ZX"]
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
