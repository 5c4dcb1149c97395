"""Cordons and maintenance windows as values. Times are whole nanoseconds since the epoch, UTC.

Source: ours; the words are those of other schedulers (``kubectl cordon`` and ``drain``, Slurm's reservations for
maintenance). The vendor's runtime takes parts out of service for faults only.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Cordon:
    """A part of the node that an administrator has excluded from allocation, until it is undone."""

    #: Path of the node, an XRDU, an RDU or a tile; it includes all tiles at or below it.
    component: str
    reason: str
    by: str
    since: int
    #: The leases on it are to end too.
    is_draining: bool = False
    #: For a drain: time at which remaining leases are ended; ``None``: no limit.
    deadline: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "component": self.component, "reason": self.reason, "by": self.by, "since": self.since,
            "is_draining": self.is_draining, "deadline": self.deadline,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A part of the node that is drained from ``starts_at`` on, and not allocated until ``ends_at``."""

    window: str
    component: str
    starts_at: int
    #: ``None``: until an administrator ends it.
    ends_at: int | None
    #: Seconds from the start after which leases are ended; ``None``: no limit.
    grace_ns: int | None
    reason: str
    by: str

    @property
    def deadline(self) -> int | None:
        """Return the time at which leases that are still there are ended."""
        return None if self.grace_ns is None else self.starts_at + self.grace_ns

    def has_begun(self, now_ns: int) -> bool:
        """Return whether it is under way at ``now_ns``, or over."""
        return self.starts_at <= now_ns

    def as_json(self) -> dict[str, object]:
        """Return the contract's fields."""
        return {
            "window": self.window, "component": self.component, "starts_at": self.starts_at, "ends_at": self.ends_at,
            "grace_s": None if self.grace_ns is None else self.grace_ns / 1e9, "reason": self.reason, "by": self.by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draining:
    """Tiles whose leases are to end, by when, and why."""

    component: str
    #: Flat numbers.
    tiles: frozenset[int]
    deadline: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class MaintenanceChanges:
    """Changed rows to write since the last call, and the keys of removed ones."""

    cordons: tuple[Cordon, ...] = ()
    windows: tuple[MaintenanceWindow, ...] = ()
    cordons_gone: tuple[str, ...] = ()
    windows_gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.cordons or self.windows or self.cordons_gone or self.windows_gone)


NO_CHANGES: Final = MaintenanceChanges()
