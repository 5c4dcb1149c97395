"""Connections as the daemon sees them, and the bodies of its responses. Values only.

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
from rdukit_node.leases.accounting import UsageTotals, totals_of_page, totals_of_report
from rdukit_node.leases.allocator import Allocator, EndedLease, Lease, LeaseId, LeaseRequest, RegionId
from rdukit_node.leases.queue import LeaseQueue
from rdukit_node.leases.user_limits import UserLimits
from rdukit_node.states import LeaseEvent, Phase
from rdukit_node.status_page import HOST, TIMED_PHASES, PageValues

Counters = dict[str, float | str]


class HolderPage(Protocol):
    """A holder's status page, as the daemon uses it."""

    def read(self) -> PageValues: ...

    def interrupt(self) -> None: ...


class ControlGroups(Protocol):
    """Control groups of leases' processes, as the daemon uses them: nothing here waits or raises."""

    def enter(self, lease: str, pid: int, tiles: int) -> None: ...

    def leave(self, lease: str) -> None: ...

    def report(self, lease: str) -> Mapping[str, str]: ...


class NoControlGroups:
    """A daemon that makes none."""

    def enter(self, lease: str, pid: int, tiles: int) -> None:
        """Do nothing."""

    def leave(self, lease: str) -> None:
        """Do nothing."""

    def report(self, lease: str) -> Mapping[str, str]:
        """Report nothing."""
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
class Response:
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
class DaemonConnection:
    """An open connection: its peer, its rights, and the leases that it holds."""

    peer: Peer
    is_admin: bool = False
    #: The lease whose own socket it came by: it may use that one and do nothing else.
    bound: LeaseId | None = None
    #: Active leases that this connection holds, and what it reported under each.
    held: dict[LeaseId, Counters] = field(default_factory=dict)
    #: Status pages of leases in ``held``, where it asked for one.
    pages: dict[LeaseId, HolderPage] = field(default_factory=dict)
    #: Leases in ``held`` that it attaches to again when the daemon was restarted; holders with a page do so anyway.
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
    """An active lease as the daemon knows it beside the allocator: who acquired it, who holds it, what it did."""

    peer: Peer
    #: Command line of the client that acquired it, where it said it.
    command: str | None
    #: Connections that hold it. Empty only while a restored lease waits for its programs.
    holders: set[int] = field(default_factory=set)
    #: Counted by holders that left.
    former: UsageTotals = field(default_factory=UsageTotals)
    #: Counted before the daemon was restarted; counts until a holder that came back has shown its page.
    restored: UsageTotals | None = None
    #: Of a restored lease that nobody has attached to yet: until when it is kept.
    kept_until: float | None = None
    #: Mode of the socket of its own, if it has one.
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

    def grant(self, number: int, request: LeaseRequest, command: str | None, now: float) -> Response: ...

    def end(self, lease_id: LeaseId, event: LeaseEvent, now: float, pid: int | None, note: str = "") -> EndedLease: ...

    def record(self, kind: NodeEventKind, now: float, lease: Lease, pid: int | None, reason: str = "") -> None: ...

    def enter_group(self, lease: Lease, pid: int | None) -> None: ...

    def lease_body(self, lease: Lease) -> dict[str, object]: ...

    def pages_of(self, lease_id: LeaseId) -> list[HolderPage]: ...

    def pid_of(self, lease_id: LeaseId) -> int | None: ...


def ok(**more: object) -> Response:
    """Return an answer that says yes."""
    return Response({"ok": True, **more})


def lease_paths(node: NodeSpec, lease: Lease) -> tuple[str, ...]:
    """Return paths of a lease's tiles."""
    tiles = node_tiles(node)
    return tuple(tiles[index].path for index in lease.tiles)


def lease_body(node: NodeSpec, lease: Lease, peer: Peer, command: str | None) -> dict[str, object]:
    """Return a lease as its holder sees it, with its token."""
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
    """Return a lease as everybody may see it: without its token, with its counters."""
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
    """List every tile with its holder, its health, and whether an administrator keeps it from being allocated."""
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
    """Return the accounting of one lease, when it has ended. Times are nanoseconds since the epoch."""
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
