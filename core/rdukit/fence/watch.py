"""Watch a fenced program's use of resources: its folders on the disk, and the memory of all its processes together.

The launcher imports this module, so it uses only the standard library, and trusts no process inside. The launcher
shares the root folder of the fence, but not its process table: ``/proc`` lists the program's processes only. Container
backends use the same functions from outside.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WATCH_S = 1.0
#: Largest share of time spent measuring disk use; and the longest pause in between, which takes precedence.
_WATCH_SHARE = 0.05
_WATCH_AT_LEAST_S = 30.0
_TEMPORARY = ("/tmp", "/dev/shm")
_OWN = re.compile(r"^(?:RssAnon|RssShmem):\s+(\d+) kB$", re.MULTILINE)
#: Fields in the kernel's order.
_SHARES = re.compile(r"^(?:Pss_Anon|Pss_Shmem):\s+(\d+) kB$", re.MULTILINE)


def processes() -> Iterator[str]:
    """Yield the ``/proc`` folder of each of the program's processes; none while the fence is being put up."""
    if not os.path.exists("/proc/self"):
        yield from (f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit())


def over_memory(most: int | None) -> str:
    """Describe how the program exceeds its memory limit; empty if it does not."""
    return f"more than {most} bytes of all its processes" if most is not None and _memory(most) > most else ""


def pause_after(took_s: float) -> float:
    """Return the seconds until the next disk check, after one that took ``took_s`` (pure)."""
    return min(max(WATCH_S, took_s / _WATCH_SHARE), _WATCH_AT_LEAST_S)


def over_disk(
    max_bytes: int | None, max_files: int | None, writable: Sequence[str], running: Iterable[str], used: int = 0
) -> str:
    """Describe the exceeded disk limit; empty if there is none. Counts deleted files that are still open, too.

    Args:
        running: the folder in ``/proc`` of each of its processes.
        used: further bytes that count.
    """
    if max_bytes is None and max_files is None:
        return ""
    if max_bytes is not None and used > max_bytes:  # exceeded even without any file
        return f"more than {max_bytes} bytes in its folders"
    files = 0
    seen: set[tuple[int, int]] = set()
    try:
        for found in itertools.chain(_kept(writable), _deleted(running)):
            if found.st_nlink != 1 and (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            used += found.st_blocks * 512
            files += 1
            if max_bytes is not None and used > max_bytes:
                return f"more than {max_bytes} bytes in its folders"
            if max_files is not None and files > max_files:
                return f"more than {max_files} files and folders"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nested too deep to be removed later
            return "folders in folders, longer than a path may be"
    return ""


def _memory(enough: int) -> int:
    """Return a lower bound of the bytes of all its processes together; shared memory counts once.

    The quick sum counts shared memory once per process; the exact sum is computed only if the quick one exceeds
    ``enough``. Memory in files and mapped memory overlap by an unknown part, so the larger of the two counts.
    """
    running = list(processes())
    if not running:
        return 0
    files = sum(_filled(place) for place in _TEMPORARY)
    files += sum({found.st_ino: found.st_blocks * 512 for found in _deleted(running, "/memfd:")}.values())
    if files + sum(sum(_kilobytes(_OWN, f"{process}/status")) << 10 for process in running) <= enough:
        return 0
    anonymous = shared = 0
    for process in running:
        own, common = _kilobytes(_SHARES, f"{process}/smaps_rollup") or (0, 0)
        anonymous += own << 10
        shared += common << 10
    return anonymous + max(shared, files)


def _kilobytes(what: re.Pattern[str], path: str) -> list[int]:
    try:
        with open(path) as file:
            return [int(number) for number in what.findall(file.read())]
    except OSError:  # the process has ended
        return []


def _filled(place: str) -> int:
    try:
        found = os.statvfs(place)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _kept(folders: Sequence[str]) -> Iterator[os.stat_result]:
    waiting = list(folders)
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # the table changes while it is read


def _deleted(running: Iterable[str], name: str = "") -> Iterator[os.stat_result]:
    """Yield deleted files that its processes have open, and whose link text begins with ``name``."""
    for process in running:
        try:
            descriptors = os.listdir(f"{process}/fd")
        except OSError:
            continue
        for number in descriptors:
            try:
                if name and not os.readlink(f"{process}/fd/{number}").startswith(name):
                    continue
                found = os.stat(f"{process}/fd/{number}")
            except OSError:
                continue
            if found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                yield found
