"""What the daemon knows of an open connection, and what a request leads to. Values only.

Source: ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from rdukit_node.leases.accounting import Totals, totals_of_page, totals_of_report
from rdukit_node.leases.allocator import LeaseId, RegionId
from rdukit_node.states import Phase
from rdukit_node.status_page import HOST, TIMED_PHASES, PageValues

Counters = dict[str, float | str]


class Page(Protocol):
    """A holder's status page, as the daemon uses it."""

    def read(self) -> PageValues: ...

    def interrupt(self) -> None: ...


class Groups(Protocol):
    """Control groups of leases' processes, as the daemon uses them: nothing here waits or raises."""

    def enter(self, lease: str, pid: int, tiles: int) -> None: ...

    def leave(self, lease: str) -> None: ...

    def report(self, lease: str) -> Mapping[str, str]: ...


class NoGroups:
    """A daemon that makes none."""

    def enter(self, lease: str, pid: int, tiles: int) -> None:
        """Nothing."""

    def leave(self, lease: str) -> None:
        """Nothing."""

    def report(self, lease: str) -> Mapping[str, str]:
        """Nothing."""
        return {}


@dataclass(frozen=True, slots=True)
class RegionGrant:
    """Memory that the shell has to create and send along with the answer."""

    lease: LeaseId
    region: RegionId
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PageGrant:
    """A status page that the shell has to create, keep mapped and send along with the answer."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class SocketGrant:
    """A socket of a lease's own that the shell has to listen at before the answer goes; the answer has its path."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request; with ``grant``, a descriptor of that memory goes with it."""

    body: Mapping[str, object]
    grant: RegionGrant | PageGrant | SocketGrant | None = None
    #: What it promises must be in the database before it is sent.
    is_durable: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel said when it connected; what cannot be seen is ``None``."""

    pid: int | None = None
    uid: int | None = None
    user: str | None = None
    #: It may change the node: it runs as root or as the daemon's user.
    is_admin: bool = False


@dataclass(slots=True)
class Connection:
    """What is known of one open connection."""

    peer: Peer
    is_admin: bool = False
    #: The lease whose own socket it came by: it may use that one and do nothing else.
    bound: LeaseId | None = None
    #: Active leases that this connection holds, and what it reported under each.
    held: dict[LeaseId, Counters] = field(default_factory=dict)
    #: Status pages of leases in ``held``, where it asked for one.
    pages: dict[LeaseId, Page] = field(default_factory=dict)
    #: Leases in ``held`` that it attaches to again when the daemon was restarted; holders with a page do so anyway.
    kept: set[LeaseId] = field(default_factory=set)
    #: Regions that this connection allocated and has not freed, each with its lease (a key of ``held``).
    regions: dict[RegionId, LeaseId] = field(default_factory=dict)

    @property
    def pid(self) -> int | None:
        return self.peer.pid

    def totals(self, lease: LeaseId) -> Totals:
        """What this holder has counted: on its page, or in what it reported."""
        page = self.pages.get(lease)
        return totals_of_report(self.held[lease]) if page is None else totals_of_page(page.read())

    def phase(self, lease: LeaseId) -> str | None:
        """What this holder is doing, in the words of ``states.Phase``; ``None``: it never said."""
        page = self.pages.get(lease)
        if page is None:
            phase = self.held[lease].get("phase")
            return None if phase is None else str(phase)
        values = page.read()
        if values.phase == HOST:
            return str(Phase.RUN if values.runs else Phase.SETUP)
        return str(TIMED_PHASES[values.phase - 1])


OK: Final = Answer({"ok": True})


def ok(**more: object) -> Answer:
    """An answer that says yes."""
    return Answer({"ok": True, **more})
