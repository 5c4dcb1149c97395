"""Isolation as values: its measures, their report, control-group hierarchies, the limits of a lease's group. Pure.

Only processes at the top of a hierarchy or in the daemon's own group enter a group of ours: Slurm, a container engine
or systemd chose other groups, and their limits must stay in force.

Source: ours; cgroups(7), the kernel's documentation of cgroup v1 and v2.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

#: Required controllers: shares of the processors, number of processes, memory.
CONTROLLERS: Final = ("cpu", "pids", "memory")

_V1_SHARES_OF_AN_RDU: Final = 1024
_V2_WEIGHT_OF_AN_RDU: Final = 100


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A hierarchy of control groups, with its controllers.

    ``root``: which group of the hierarchy ``mount`` shows; ``/`` but in some containers.
    """

    version: int
    mount: Path
    root: PurePosixPath
    controllers: tuple[str, ...]

    def folder_of(self, group: PurePosixPath) -> Path | None:
        """Folder of a group as ``/proc/PID/cgroup`` names it; ``None`` if the mount does not show it."""
        if not group.is_relative_to(self.root):
            return None
        return self.mount / group.relative_to(self.root)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits that the settings ask for; 0: no limit."""

    pids: int = 0
    memory_bytes: int = 0

    def controllers(self) -> tuple[str, ...]:
        """Return the controllers that are needed."""
        wanted = {"cpu": True, "pids": self.pids > 0, "memory": self.memory_bytes > 0}
        return tuple(name for name in CONTROLLERS if wanted[name])


def find_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """Return the hierarchies that ``/proc/self/mountinfo`` lists, with their v1 controllers.

    That of v2 has ``controllers`` ``()``: its file ``cgroup.controllers`` says which.
    """
    found: list[Hierarchy] = []
    for line in mountinfo.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if not dash or len(fields) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:
            continue
        mount, root = Path(_unescape(fields[4])), PurePosixPath(_unescape(fields[3]))
        if kind[0] == "cgroup2":
            found.append(Hierarchy(2, mount, root, ()))
        elif names := tuple(name for name in CONTROLLERS if name in kind[2].split(",")):
            found.append(Hierarchy(1, mount, root, names))
    return found


def group_in(hierarchy: Hierarchy, proc_cgroup: str) -> PurePosixPath | None:
    """Return the group of a process, from its ``/proc/PID/cgroup``; ``None`` if it has none in that hierarchy."""
    for line in proc_cgroup.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if hierarchy.version == 2 and number == "0" and not names:
            return PurePosixPath(path)
        if hierarchy.version == 1 and set(hierarchy.controllers) & set(names.split(",")):
            return PurePosixPath(path)
    return None


def may_take_over(group: PurePosixPath, daemons: PurePosixPath | None) -> bool:
    """Return whether a process in ``group`` may be moved into a group of ours below it."""
    return group == PurePosixPath("/") or group == daemons


def settings_of(controller: str, version: int, tiles: int, tiles_per_rdu: int, limits: GroupLimits) -> tuple[str, int]:
    """Return the file that limits one controller, and its number, for a group with ``tiles`` tiles in all."""
    if controller == "pids":
        return "pids.max", limits.pids
    if controller == "memory":
        return ("memory.limit_in_bytes" if version == 1 else "memory.max"), limits.memory_bytes
    if version == 1:
        return "cpu.shares", min(max(_V1_SHARES_OF_AN_RDU * tiles // tiles_per_rdu, 2), 262_144)
    return "cpu.weight", min(max(_V2_WEIGHT_OF_AN_RDU * tiles // tiles_per_rdu, 1), 10_000)


class LeaseGroups:
    """Leases and processes by their shared group: a process can be in one group only, even with several leases."""

    def __init__(self) -> None:
        #: Tiles of each lease, by group. A group is named after its first lease and ends with its last.
        self._leases: dict[str, dict[str, int]] = {}
        #: The group of each process.
        self._group_of: dict[int, str] = {}

    def join(self, lease: str, pid: int, tiles: int) -> str:
        """Record that ``pid`` holds ``lease``. Returns the group of the process, which stays in its present group."""
        group = self._group_of.get(pid) or self.find(lease) or lease
        self._group_of[pid] = group
        if self.find(lease) is None:
            self._leases.setdefault(group, {})[lease] = tiles
        return group

    def leave(self, lease: str) -> str | None:
        """Note that ``lease`` ended. Returns its group, if it had one."""
        group = self.find(lease)
        if group is not None:
            del self._leases[group][lease]
            if not self._leases[group]:
                del self._leases[group]
                self._group_of = {pid: of for pid, of in self._group_of.items() if of != group}
        return group

    def find(self, lease: str) -> str | None:
        """Return the group of a lease."""
        return next((group for group, leases in self._leases.items() if lease in leases), None)

    def tiles_of(self, group: str) -> int:
        """Return tiles of all leases of a group; 0 if it ended."""
        return sum(self._leases.get(group, {}).values())

    def tiles(self) -> int:
        """Return tiles of all groups."""
        return sum(map(self.tiles_of, self._leases))

    def validate(self) -> None:
        """Raise ``AssertionError`` if the state contradicts itself."""
        leases = [lease for group in self._leases.values() for lease in group]
        assert len(set(leases)) == len(leases)
        assert all(self._leases.values())
        assert set(self._group_of.values()) == set(self._leases)


def _unescape(text: str) -> str:
    """Spaces and the like are written ``\\040`` in mountinfo."""
    return text.encode("latin-1", "replace").decode("unicode_escape") if "\\" in text else text


class MeasureState(StrEnum):
    """Result of one measure."""

    APPLIED = "applied"
    UNAVAILABLE = "unavailable"
    #: The settings turn it off.
    OFF = "off"


@dataclass(frozen=True, slots=True)
class IsolationMeasure:
    """A measure. ``detail``: the applied measure, or the reason for its lack."""

    name: str
    state: MeasureState
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else str(self.state)


def applied(name: str, detail: str = "") -> IsolationMeasure:
    """Return a part that is in force."""
    return IsolationMeasure(name, MeasureState.APPLIED, detail)


def unavailable(name: str, reason: object) -> IsolationMeasure:
    """Return a part that was wanted and is not in force."""
    return IsolationMeasure(name, MeasureState.UNAVAILABLE, str(reason))


def off(name: str) -> IsolationMeasure:
    """Return a part that was not wanted."""
    return IsolationMeasure(name, MeasureState.OFF)


def as_report(parts: Iterable[IsolationMeasure]) -> dict[str, str]:
    """Return texts by part, each beginning with the state, such as ``unavailable: no permission``."""
    return {part.name: str(part) for part in parts}


def cores_of(allowed: Collection[int], tiles: Collection[int], node_tiles: int) -> list[int]:
    """Return the host's cores that belong to tiles: the allowed ones shared out evenly, in order, over the node's
    tiles.

    With at least as many cores as tiles, two leases share no core; otherwise only the ends of their tiles' runs of
    cores overlap.

    Args:
        tiles: flat numbers, at least one.
    Source: ours.
    """
    cores, count = sorted(allowed), len(allowed)
    share = {
        core
        for tile in tiles
        for core in range(
            tile * count // node_tiles, max((tile + 1) * count // node_tiles, tile * count // node_tiles + 1)
        )
    }
    return [cores[index] for index in sorted(share)]
