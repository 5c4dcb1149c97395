"""Connections of the daemon, and the bodies of its responses, as values.

Source: ours; ``docs/design/node.md`` lists the fields.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from rdukit.errors import RdukitError
from rdukit.hardware import NodeSpec
from rdukit_node.daemon.events import NodeEventKind, NodeEventLog
from rdukit_node.daemon.protocol import error_body
from rdukit_node.inventory import lanes_of, node_tiles
from rdukit_node.leases.accounting import NodeTotals, UsageTotals, totals_of_page, totals_of_report
from rdukit_node.leases.allocator import Allocator, EndedLease, Lease, LeaseId, LeaseRequest, RegionId
from rdukit_node.leases.queue import LeaseQueue
from rdukit_node.leases.user_limits import UserLimits
from rdukit_node.states import LeaseEvent, Phase
from rdukit_node.status_page import HOST, TIMED_PHASES, PageValues

Counters = dict[str, float | str]


class HolderPage(Protocol):
    """Interface of a holder's status page."""

    def read(self) -> PageValues: ...

    def interrupt(self) -> None: ...


class ControlGroups(Protocol):
    """Interface of the control groups of leases' processes; its methods never block or raise."""

    def enter(self, lease: str, pid: int, tiles: int) -> None: ...

    def leave(self, lease: str) -> None: ...

    def report(self, lease: str) -> Mapping[str, str]: ...


class NoControlGroups:
    """Stand-in for the control groups of a daemon without any."""

    def enter(self, lease: str, pid: int, tiles: int) -> None:
        """Do nothing."""

    def leave(self, lease: str) -> None:
        """Do nothing."""

    def report(self, lease: str) -> Mapping[str, str]:
        """Report nothing."""
        return {}


@dataclass(frozen=True, slots=True)
class RegionGrant:
    """Memory that the shell must create and send with the answer."""

    lease: LeaseId
    region: RegionId
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PageGrant:
    """A status page that the shell must create, keep mapped and send with the answer."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class SocketGrant:
    """A lease's own socket on which the shell must listen before it sends the answer with its path."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request; with ``grant``, a descriptor of that memory is attached."""

    body: Mapping[str, object]
    grant: RegionGrant | PageGrant | SocketGrant | None = None
    #: Whether its changes must be in the database before it is sent.
    is_durable: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, identified by the kernel on connecting; unknown values are ``None``."""

    pid: int | None = None
    uid: int | None = None
    user: str | None = None
    #: Whether it may change the node, because it runs as root or as the daemon's user.
    is_admin: bool = False


@dataclass(slots=True)
class DaemonConnection:
    """An open connection: its peer, its rights, and the leases that it holds."""

    peer: Peer
    is_admin: bool = False
    #: Lease of its socket; it may use only that lease.
    bound: LeaseId | None = None
    #: Active leases that this connection holds, with its report under each.
    held: dict[LeaseId, Counters] = field(default_factory=dict)
    #: Status pages of leases in ``held``, if it requested them.
    pages: dict[LeaseId, HolderPage] = field(default_factory=dict)
    #: Leases in ``held`` to which it attaches again after a restart of the daemon; holders with a page always do.
    kept: set[LeaseId] = field(default_factory=set)
    #: Regions that this connection allocated and has not freed, each with its lease (a key of ``held``).
    regions: dict[RegionId, LeaseId] = field(default_factory=dict)

    @property
    def pid(self) -> int | None:
        return self.peer.pid

    def totals(self, lease: LeaseId) -> UsageTotals:
        """Return this holder's counters, from its page or else from its reports."""
        page = self.pages.get(lease)
        return totals_of_report(self.held[lease]) if page is None else totals_of_page(page.read())

    def phase(self, lease: LeaseId) -> str | None:
        """Return this holder's phase, in the words of ``states.Phase``; ``None``: it never reported one."""
        page = self.pages.get(lease)
        if page is None:
            phase = self.held[lease].get("phase")
            return None if phase is None else str(phase)
        values = page.read()
        if values.phase == HOST:
            return str(Phase.RUN if values.runs else Phase.SETUP)
        return str(TIMED_PHASES[values.phase - 1])


@dataclass(slots=True)
class ActiveLease:
    """The daemon's data of an active lease, in addition to the allocator's: acquirer, holders and counters."""

    peer: Peer
    #: Command line of the acquiring client, if it sent it.
    command: str | None
    #: Connections that hold it; empty only while a restored lease waits for its programs.
    holders: set[int] = field(default_factory=set)
    #: Counters of holders that have left.
    former: UsageTotals = field(default_factory=UsageTotals)
    #: Counters from before the daemon's restart; used until a returning holder has shown its page.
    restored: UsageTotals | None = None
    #: Time until which a restored lease without holders is kept.
    kept_until: float | None = None
    #: Mode of its own socket, if it has one.
    socket_mode: int | None = None
    #: The error that each use raises since its hardware failed.
    failure: RdukitError | None = None
    #: Isolation of its processes, as they reported it.
    isolation: dict[str, object] = field(default_factory=dict)


OK: Final = Response({"ok": True})


class NodeLedger(Protocol):
    """A node's leases and connections, as the parts of the daemon's decisions use them; ``NodeDaemon`` keeps it."""

    lease_changes: int
    user_limits: UserLimits
    version: str
    started_at: float
    groups: ControlGroups

    @property
    def name(self) -> str: ...

    @property
    def allocator(self) -> Allocator: ...

    @property
    def events(self) -> NodeEventLog: ...

    @property
    def connections(self) -> dict[int, DaemonConnection]: ...

    @property
    def leases(self) -> dict[LeaseId, ActiveLease]: ...

    @property
    def queue(self) -> LeaseQueue: ...

    @property
    def totals(self) -> NodeTotals: ...

    def grant(self, number: int, request: LeaseRequest, command: str | None, now: float) -> Response: ...

    def end(self, lease_id: LeaseId, event: LeaseEvent, now: float, pid: int | None, note: str = "") -> EndedLease: ...

    def record(self, kind: NodeEventKind, now: float, lease: Lease, pid: int | None, reason: str = "") -> None: ...

    def enter_group(self, lease: Lease, pid: int | None) -> None: ...

    def lease_body(self, lease: Lease) -> dict[str, object]: ...

    def pages_of(self, lease_id: LeaseId) -> list[HolderPage]: ...

    def pid_of(self, lease_id: LeaseId) -> int | None: ...

    def pids_of(self, lease: ActiveLease) -> list[int]: ...

    def lease_totals(self, lease_id: LeaseId) -> UsageTotals: ...

    def busiest(self, lease_id: LeaseId) -> DaemonConnection: ...


def ok(**more: object) -> Response:
    """Return a successful answer."""
    return Response({"ok": True, **more})


def lease_paths(node: NodeSpec, lease: Lease) -> tuple[str, ...]:
    """Return paths of a lease's tiles."""
    tiles = node_tiles(node)
    return tuple(tiles[index].path for index in lease.tiles)


def lease_body(node: NodeSpec, lease: Lease, peer: Peer, command: str | None) -> dict[str, object]:
    """Return the holder's view of a lease, with its token."""
    request = lease.request
    return {
        "id": lease.id, "token": lease.token, "application": request.application, "tenant": request.tenant,
        "job": request.job, "launch": request.launch, "tiles": list(lease_paths(node, lease)),
        "memory_bytes": lease.memory_bytes, "granted_at": lease.granted_at, "io": lanes_of(node, lease.tiles),
        "user": peer.user, "command": command,
    }  # fmt: skip


def lease_status(
    body: Mapping[str, object],
    totals: UsageTotals,
    phase: str | None,
    allocated: int,
    pids: Sequence[int],
    failure: RdukitError | None,
    isolation: Mapping[str, object],
) -> dict[str, object]:
    """Return the public view of a lease: without its token, with its counters."""
    counters: dict[str, object] = dict(totals.as_json())
    if phase is not None:
        counters["phase"] = phase
    return {
        **{name: value for name, value in body.items() if name != "token"},
        "memory_allocated": allocated, "pids": list(pids), "counters": counters, "isolation": dict(isolation),
        "fault": None if failure is None else error_body(failure)["error"],
    }  # fmt: skip


def tile_rows(
    allocator: Allocator, health_of: Callable[[str], str], cordon_of: Callable[[int], str | None] = lambda _: None
) -> list[dict[str, object]]:
    """List every tile with its holder, its health, and its cordon."""
    rows: list[dict[str, object]] = []
    for tile, holder in zip(node_tiles(allocator.node), allocator.tile_holders, strict=True):
        application = None if holder is None else allocator.leases[holder].request.application
        rows.append(
            {
                "path": tile.path, "rdu": tile.rdu, "tile": tile.tile, "lease": holder, "application": application,
                "health": health_of(tile.path), "cordon": cordon_of(tile.index),
            }
        )  # fmt: skip
    return rows


def application_row(
    node: NodeSpec, ended: EndedLease, totals: UsageTotals, peer: Peer, command: str | None, failure: RdukitError | None
) -> dict[str, object]:
    """Return the accounting row of an ended lease. Times are nanoseconds since the epoch."""
    lease, request = ended.lease, ended.lease.request
    counters = totals.as_json()
    return {
        "lease": lease.id, "application": request.application, "tenant": request.tenant, "job": request.job,
        "user": peer.user, "pid": peer.pid, "command": command, "tiles": list(lease_paths(node, lease)),
        "memory_bytes": lease.memory_bytes, "granted_at": int(lease.granted_at * 1e9),
        "ended_at": int(ended.ended_at * 1e9), "reason": str(ended.reason),
        **{name: counters[name] for name in ("runs", "sections", "cycles", "flops", "bytes", "host_seconds")},
        "fault": None if failure is None else failure.detail.get("fault_uuid") or failure.detail.get("error_uuid"),
    }  # fmt: skip
