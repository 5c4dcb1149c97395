"""Files and folders whose names hold the process that owns them, so that a later process removes those of killed ones.

An owner has ended only if that can be seen: what processes of other machines, containers or boots own stays, and what
belongs to other users.
"""

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit.files.atomic import remove_tree, sha256_of
from rdukit.system.process import own_place, read_facts

#: Seconds without a change after which files of former versions count as unused: 30 days.
_UNUSED_S: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Owner:
    """A process of this machine. ``start_ticks``: start in ticks since boot; 0: it cannot be read."""

    pid: int
    start_ticks: int

    @property
    def mark(self) -> str:
        """Part of a name that no other process has: machine (if the system tells it), process id and start."""
        return f"{_find_place() or 'nowhere'}-{self.pid}-{self.start_ticks}"

    def has_ended(self) -> bool:
        """Return whether the process is known to have ended."""
        if not self.start_ticks:
            return False
        try:
            facts = read_facts(self.pid)
        except OSError:
            return False
        return facts is None or not facts.is_running or facts.start_ticks != self.start_ticks


def own_process() -> Owner:
    """Return this process as an owner."""
    facts = read_facts(os.getpid())
    return Owner(os.getpid(), 0 if facts is None else facts.start_ticks)


def remove_of_ended(folder: Path, kind: str) -> None:
    """Remove this user's files and folders ``<kind>-<mark>…`` in ``folder`` whose owners have ended."""
    place = _find_place()
    if place is None:
        return
    named = re.compile(rf"{re.escape(kind)}-{place}-(\d{{1,10}})-(\d{{1,20}})(?!\d)")
    try:
        entries = [(entry, named.match(entry.name)) for entry in os.scandir(folder)]
    except OSError:
        return
    for entry, found in entries:
        if found and _is_ours(entry) and Owner(int(found[1]), int(found[2])).has_ended():
            remove_tree(Path(entry.path))


def remove_of_former_versions(folder: Path, names: str) -> None:
    """Remove this user's files and private folders that former versions named without an owner, once unused.

    Their last change was before this machine's boot, and also ``_UNUSED_S`` ago, for folders that machines share.

    Args:
        names: regular expression of complete names.
    """
    named, now = re.compile(names), time.time()
    last = min(now - time.clock_gettime(time.CLOCK_BOOTTIME), now - _UNUSED_S)
    try:
        entries = [entry for entry in os.scandir(folder) if named.fullmatch(entry.name)]
    except OSError:
        return
    for entry in entries:
        with suppress(OSError):  # removed meanwhile
            facts = entry.stat(follow_symlinks=False)
            is_private = stat.S_ISDIR(facts.st_mode) and stat.S_IMODE(facts.st_mode) == 0o700
            is_unused = max(facts.st_mtime, facts.st_ctime) < last
            if (is_private or stat.S_ISREG(facts.st_mode)) and is_unused and facts.st_uid == os.geteuid():
                remove_tree(Path(entry.path))


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Yield a new private folder, which is removed with the block.

    A killed process leaves it; the next process that asks for a folder of the same kind removes it.
    """
    folder = Path(tempfile.gettempdir())
    remove_of_ended(folder, kind)
    remove_of_former_versions(folder, rf"{re.escape(kind)}-[a-z0-9_]{{8}}")
    with tempfile.TemporaryDirectory(prefix=f"{kind}-{own_process().mark}-") as name:
        yield Path(name)


def _find_place() -> str | None:
    """Return a mark of this boot and pid namespace; None: the system does not tell them."""
    try:
        return sha256_of(own_place().encode())[:8]
    except OSError:
        return None


def _is_ours(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:  # removed meanwhile
        return False
