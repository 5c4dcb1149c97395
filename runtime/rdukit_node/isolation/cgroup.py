"""Control groups for applications: a share of the processors by tiles, limits of processes and memory.

Moving a process takes the kernel up to 20 ms, and the daemon has one thread for all clients. So a separate thread does
the work in order, slightly later, and ``report`` returns its state. A lease that has ended by then gets no group.
Restrictions of the machine are reported, never worked around.
"""

import errno
import fcntl
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from rdukit.settings import resolve
from rdukit_node.isolation.model import (
    GroupLimits,
    Hierarchy,
    IsolationMeasure,
    LeaseGroups,
    applied,
    as_report,
    find_hierarchies,
    group_in,
    may_take_over,
    off,
    settings_of,
    unavailable,
)
from rdukit_node.settings import CGROUP, MEMORY_BYTES, MODE, PIDS

logger = logging.getLogger(__name__)

#: Folders of groups are ours if they begin like this; the daemon's name follows.
PREFIX: Final = "rdukit-"
#: Seconds for which the thread lets requests gather, so that it does not compete with the daemon for each.
_BATCH_S: Final = 0.05


class CgroupGuard:
    """The groups of one daemon. Its methods return at once and raise nothing; call them from one thread."""

    def __init__(
        self, owner: str, tiles_per_rdu: int, limits: GroupLimits, *, is_on: bool = True, proc: Path = Path("/proc")
    ) -> None:
        """Create the guard without accessing the system.

        Args:
            owner: name of the daemon's node and place, unique on the machine.
        """
        self.owner: Final = re.sub(r"[^A-Za-z0-9_.-]", "-", owner)[:100] or "node"
        self._tiles_per_rdu: Final = tiles_per_rdu
        self._limits: Final = limits
        self._is_on: Final = is_on
        self._proc: Final = proc
        #: Only the thread touches these and the locks. The second: folder of each group in each hierarchy.
        self._groups: Final = LeaseGroups()
        self._folders: Final[dict[str, dict[Hierarchy, Path]]] = {}
        #: A locked descriptor for each of our folders: other daemons see by the lock that this one lives.
        self._locks: Final[dict[Path, int]] = {}
        self._reports: Final[dict[str, dict[str, str]]] = {}
        self._jobs: Final[queue.SimpleQueue[Callable[[], None] | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @classmethod
    def by_settings(cls, owner: str, tiles_per_rdu: int) -> "CgroupGuard":
        """Return the groups that the settings ask for."""
        limits = GroupLimits(max(0, resolve(PIDS)), max(0, resolve(MEMORY_BYTES)))
        return cls(owner, tiles_per_rdu, limits, is_on=resolve(MODE) != "off" and resolve(CGROUP) != "off")

    def enter(self, lease: str, pid: int, tiles: int) -> None:
        """Take ``pid``, a holder of ``lease`` with ``tiles`` tiles, to its group. Its later children follow."""
        self._reports.setdefault(lease, {"cgroup": "pending" if self._is_on else str(off("cgroup"))})
        self._do(lambda: self._enter(lease, pid, tiles))

    def leave(self, lease: str) -> None:
        """Return the processes of an ended lease to their earlier groups, and remove its group."""
        self._reports.pop(lease, None)
        self._do(lambda: self._leave(lease))

    def reap(self, active: Collection[str]) -> None:
        """Remove groups that belong to no active lease of this owner, and all groups of daemons that are dead."""
        names = frozenset(active)
        self._do(lambda: self._reap(names))

    def report(self, lease: str) -> dict[str, str]:
        """Return one text per controller, as ``isolation.apply`` returns; ``{}`` for a lease that never entered or has
        ended.
        """
        return dict(self._reports.get(lease, {}))

    def wait(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything asked so far is done. Returns whether it is."""
        done = threading.Event()
        self._do(done.set)
        return not self._is_on or done.wait(timeout_s)

    def close(self) -> None:
        """Remove all groups and end the thread."""
        if self._thread is not None:
            self._do(self._remove_all)
            self._jobs.put(None)
            self._thread.join(10.0)
            self._thread = None

    # -- the thread's side -------------------------------------------------------------------------------------------

    def _do(self, job: Callable[[], None]) -> None:
        if not self._is_on:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="cgroups", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            jobs = [self._jobs.get()]
            time.sleep(_BATCH_S)
            while not self._jobs.empty():
                jobs.append(self._jobs.get())
            for job in jobs:
                if job is None:
                    return
                try:
                    job()
                except (OSError, ValueError) as error:
                    logger.warning("event=cgroup-failed error=%s", error)

    def _enter(self, lease: str, pid: int, tiles: int) -> None:
        if lease not in self._reports:
            return  # it ended before its turn came
        group = self._groups.join(lease, pid, tiles)
        found = self._hierarchies
        parts: list[IsolationMeasure] = []
        for controller in self._limits.controllers():
            hierarchy = next((each for each in found if controller in each.controllers), None)
            name = f"cgroup_{controller}"
            if hierarchy is None:
                parts.append(unavailable(name, "no control group hierarchy of this machine has this controller"))
                continue
            try:
                parts.append(self._enter_one(name, controller, hierarchy, group, pid))
            except OSError as error:
                parts.append(unavailable(name, f"{error.filename or hierarchy.mount}: {error.strerror or error}"))
        if lease in self._reports:  # it may have ended meanwhile
            self._reports[lease] = as_report(parts)
        self._weigh_all()

    def _enter_one(self, name: str, controller: str, hierarchy: Hierarchy, group: str, pid: int) -> IsolationMeasure:
        folder = self._folders.get(group, {}).get(hierarchy)
        at = group_in(hierarchy, self._read(f"{pid}/cgroup"))
        if at is None:
            return unavailable(name, f"process {pid} has no group in the hierarchy at {hierarchy.mount}")
        if folder is None or hierarchy.folder_of(at) != folder:
            if not may_take_over(at, group_in(hierarchy, self._read("self/cgroup"))):
                return unavailable(name, f"process {pid} stays in {at}, which the daemon may not change")
            home = hierarchy.folder_of(at)
            if home is None or not home.is_dir():
                return unavailable(name, f"the group {at} of process {pid} is not visible at {hierarchy.mount}")
            folder = folder or home / f"{PREFIX}{self.owner}" / group
            if not self._have_folders(hierarchy, folder, controller):
                return unavailable(name, f"another daemon has {folder.parent}")
            self._folders.setdefault(group, {})[hierarchy] = folder
            write_number(folder / "cgroup.procs", pid)
        elif hierarchy.version == 2:
            self._have_folders(hierarchy, folder, controller)
        file, number = self._number(controller, hierarchy, self._groups.tiles_of(group))
        write_number(folder / file, number)
        return applied(name, f"{file} {number}")

    def _have_folders(self, hierarchy: Hierarchy, folder: Path, controller: str) -> bool:
        """Make a group and the folder of ours around it. Returns ``False`` if that is another daemon's."""
        make_group(hierarchy, folder.parent, controller)
        if folder.parent not in self._locks:
            lock = try_lock(folder.parent)
            if lock is None:
                return False
            self._locks[folder.parent] = lock
        make_group(hierarchy, folder, controller)
        return True

    def _number(self, controller: str, hierarchy: Hierarchy, tiles: int) -> tuple[str, int]:
        return settings_of(controller, hierarchy.version, tiles, self._tiles_per_rdu, self._limits)

    def _weigh_all(self) -> None:
        """Give each lease's group the weight of its tiles, and the common folder the sum."""
        for group, folders in self._folders.items():
            for hierarchy, folder in folders.items():
                if "cpu" in hierarchy.controllers:
                    for where, tiles in ((folder, self._groups.tiles_of(group)), (folder.parent, self._groups.tiles())):
                        file, number = self._number("cpu", hierarchy, tiles)
                        write_number(where / file, number)

    def _leave(self, lease: str) -> None:
        group = self._groups.leave(lease)
        if group is None:
            return
        if self._groups.tiles_of(group) == 0:
            self._remove_group(group)
        self._weigh_all()

    def _remove_all(self) -> None:
        for group in list(self._folders):
            self._remove_group(group)
        self._reap(frozenset())

    def _remove_group(self, group: str) -> None:
        for folder in self._folders.pop(group, {}).values():
            remove_group(folder, folder.parent.parent)

    def _reap(self, active: frozenset[str]) -> None:
        for parent in list(self._parents()):
            try:
                self._reap_one(parent, active)
            except FileNotFoundError:
                continue  # another daemon was faster

    def _reap_one(self, parent: Path, active: frozenset[str]) -> None:
        is_own = parent in self._locks
        lock = self._locks[parent] if is_own else try_lock(parent)
        if lock is None:
            return  # its daemon lives
        try:
            ours = {folder for folders in self._folders.values() for folder in folders.values()} if is_own else set()
            for folder in parent.iterdir():
                if folder.is_dir() and folder not in ours and not (is_own and folder.name in active):
                    logger.info("event=cgroup-orphan folder=%s", folder)
                    remove_group(folder, parent.parent)
            if not any(folder.is_dir() for folder in parent.iterdir()):
                remove_group(parent, parent.parent)
                self._locks.pop(parent, None)
                is_own = False
        finally:
            if not is_own:
                os.close(lock)

    def _parents(self) -> Iterable[Path]:
        """Return the folders of all daemons at the places where processes may be taken over."""
        for hierarchy in self._hierarchies:
            own = group_in(hierarchy, self._read("self/cgroup"))
            for place in {PurePosixPath("/"), own or PurePosixPath("/")}:
                home = hierarchy.folder_of(place)
                if home is not None and home.is_dir():
                    yield from (folder for folder in home.glob(f"{PREFIX}*") if folder.is_dir())

    @cached_property
    def _hierarchies(self) -> list[Hierarchy]:
        found = []
        for hierarchy in find_hierarchies(self._read("self/mountinfo")):
            names = hierarchy.controllers
            if hierarchy.version == 2:
                names = tuple((hierarchy.mount / "cgroup.controllers").read_text().split())
            found.append(Hierarchy(hierarchy.version, hierarchy.mount, hierarchy.root, names))
        return found

    def _read(self, name: str) -> str:
        return (self._proc / name).read_text()


#: Seconds that a group of killed processes may take to become empty.
_EMPTY_WITHIN_S: Final = 2.0


def make_group(hierarchy: Hierarchy, folder: Path, controller: str) -> None:
    """Create a group with a controller; v2 hands a controller down from folder to folder."""
    if hierarchy.version == 2:
        write_number(folder.parent / "cgroup.subtree_control", f"+{controller}")
    folder.mkdir(exist_ok=True)


def try_lock(folder: Path) -> int | None:
    """Return a descriptor that holds a folder's lock until it is closed; ``None`` if another process has the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def write_number(path: Path, value: object) -> None:
    """Write to a file of a group.

    Raises:
        OSError: the kernel refuses.
    """
    with path.open("w") as stream:  # one write, as the kernel wants it
        stream.write(str(value))


def remove_group(folder: Path, home: Path) -> None:
    """Remove a group; processes that are still in it go to ``home``.

    A killed process takes a moment to leave, so the removal is retried for a while; then the group stays, which is
    logged.
    """
    deadline = time.monotonic() + _EMPTY_WITHIN_S
    while True:
        try:
            for pid in (folder / "cgroup.procs").read_text().split():
                _move_back(pid, home)
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                logger.warning("event=cgroup-left folder=%s error=%s", folder, error)
                return
        time.sleep(0.01)


def _move_back(pid: str, home: Path) -> None:
    try:
        write_number(home / "cgroup.procs", pid)
    except ProcessLookupError:
        return  # it ended meanwhile
