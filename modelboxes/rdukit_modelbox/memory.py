"""How much memory a process and what it started use, from ``/proc``. Linux."""

from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")


def resident_bytes(pid: int, proc: Path = _PROC) -> int:
    """Resident memory of process ``pid`` and of all that it started; 0 when it has ended."""
    total, pending = 0, [pid]
    while pending:
        one = pending.pop()
        total += _figure(proc / str(one) / "status", "VmRSS:") * 1024
        pending += _children_of(proc / str(one))
    return total


def peak_bytes(pid: int, proc: Path = _PROC) -> int:
    """The most resident memory that process ``pid`` alone ever had; 0 when it has ended."""
    return _figure(proc / str(pid) / "status", "VmHWM:") * 1024


def kills_for_memory(proc: Path = _PROC) -> int:
    """How many processes this machine's kernel has killed for lack of memory since it started."""
    return _figure(proc / "vmstat", "oom_kill")


def _children_of(folder: Path) -> list[int]:
    try:
        return [int(word) for word in (folder / "task" / folder.name / "children").read_text().split()]
    except OSError:
        return []


def _figure(file: Path, name: str) -> int:
    try:
        for line in file.read_text().splitlines():
            word, _, rest = line.partition(" ") if not name.endswith(":") else line.partition("\t")
            if word == name:
                return int(rest.split()[0])
    except OSError:
        pass
    return 0
