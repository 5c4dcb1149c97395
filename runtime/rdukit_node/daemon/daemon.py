"""The node daemon's decisions: requests of connections in, responses out. ``server`` is its shell.

The module has no sockets, clock or randomness: connections are numbers, times are arguments, and a given function makes
ids and tokens. Memory is only accounted; the shell creates it and reports failures. ``lease_operations`` serves
holders; ``administration`` has faults and changes of the node, ``maintenance_operations`` cordons and windows,
``views`` the views for everybody.
"""

import hmac
import logging
from collections.abc import Callable, Mapping
from typing import Final

from rdukit.errors import (
    Conflict,
    HwException,
    PermissionDenied,
    RdukitError,
    Unauthenticated,
    error_from_body,
)
from rdukit_node.daemon.administration import Administration
from rdukit_node.daemon.connections import (
    OK,
    ActiveLease,
    ControlGroups,
    DaemonConnection,
    HolderPage,
    NoControlGroups,
    PageGrant,
    Peer,
    RegionGrant,
    Response,
    SocketGrant,
    application_row,
    lease_body,
    lease_paths,
    ok,
)
from rdukit_node.daemon.events import NodeEventKind, NodeEventLog
from rdukit_node.daemon.lease_operations import LeaseOperations
from rdukit_node.daemon.maintenance_operations import MaintenanceOperations
from rdukit_node.daemon.protocol import FEATURES, LEASE_OPERATIONS, PROTOCOL_MINOR, SndRequest, error_body, read_request
from rdukit_node.daemon.views import NodeViews
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.leases.accounting import NodeTotals, UsageTotals
from rdukit_node.leases.allocator import Allocator, EndedLease, Lease, LeaseId, LeaseRequest, RegionId
from rdukit_node.leases.files import KeptLease
from rdukit_node.leases.queue import LeaseQueue
from rdukit_node.leases.user_limits import UserLimits
from rdukit_node.states import EndReason, LeaseEvent

logger = logging.getLogger(__name__)

_END_EVENTS: Final = {
    EndReason.RELEASED: NodeEventKind.RELEASE,
    EndReason.HOLDERS_GONE: NodeEventKind.DEATH,
    EndReason.NODE_STOPPED: NodeEventKind.STOP,
    EndReason.EVICTED: NodeEventKind.EVICT,
    EndReason.DRAINED: NodeEventKind.EVICT,
}
_NOBODY: Final = Peer()


class NodeDaemon:
    """A node and its connections."""

    def __init__(
        self,
        allocator: Allocator,
        *,
        name: str,
        version: str,
        started_at: float,
        new_identity: Callable[[], tuple[str, str]],
        faults: FaultMachine,
        admin_token: str | None = None,
        pid: int | None = None,
        groups: ControlGroups | None = None,
        user_limits: UserLimits | None = None,
    ) -> None:
        """``new_identity`` returns an unused lease id and a secret token."""
        self.allocator: Final = allocator
        self.events: Final = NodeEventLog()
        self.name: Final = name
        #: Open connections by the shell's number.
        self.connections: Final[dict[int, DaemonConnection]] = {}
        self.totals: Final = NodeTotals(allocator.node)
        #: Active leases, as the allocator has them.
        self.leases: Final[dict[LeaseId, ActiveLease]] = {}
        #: Accounting rows of ended leases that are not stored yet, oldest first.
        self.ended_rows: Final[list[dict[str, object]]] = []
        self.version = version
        self.started_at = started_at
        self._new_identity = new_identity
        self._admin_token = admin_token
        self._pid = pid
        self.groups: ControlGroups = NoControlGroups() if groups is None else groups
        #: Changes whenever the stored leases are outdated.
        self.lease_changes = 0
        self.user_limits = user_limits or UserLimits()
        self.queue: Final = LeaseQueue()
        #: Answers to requests that waited: connection → answer.
        self._ready: list[tuple[int, Response]] = []
        self.administration: Final = Administration(self, faults)
        self.maintenance: Final = MaintenanceOperations(self)
        self._operations: Final[Mapping[str, Callable[[int, SndRequest, float], Response | None]]] = {
            "hello": self._hello,
            "authorize": self._authorize,
            **NodeViews(self, self.administration, self.maintenance).operations,
            **LeaseOperations(self).operations,
            **self.administration.operations,
            **self.maintenance.operations,
        }

    # -- reports of the shell
    # ---------------------------------------------------------------------------------------------

    def connected(self, number: int, peer: Peer = _NOBODY, lease: LeaseId | None = None) -> None:
        """Record a new connection, at the socket of ``lease`` if given."""
        self.connections[number] = DaemonConnection(peer, peer.is_admin and lease is None, lease)

    def handle(self, number: int, line: bytes, now: float) -> Response | None:
        """Answer one request line of connection ``number``. It never raises: errors become the answer.

        Returns:
            ``None`` for a request that waits: ``take_ready`` returns its answer later.
        """
        try:
            message = read_request(line)
            if number in self.queue:
                raise Conflict("this connection is waiting for tiles; use another one meanwhile")
            self._check_bound(number, message)
            answer = self._operations[message.op](number, message, now)
            self._settle(now)
        except RdukitError as error:
            return Response(error_body(error))
        except Exception:  # the request's boundary: a bug must not end other clients' leases
            logger.exception("event=bug connection=%s", number)
            return Response(error_body(RdukitError("the node daemon failed on this request; its log has the reason")))
        return answer

    def take_ready(self) -> list[tuple[int, Response]]:
        """Return answers to requests that waited, by connection."""
        taken, self._ready = self._ready, []
        return taken

    def next_deadline(self) -> float | None:
        """Return when ``tick`` is due next, in the clock of ``now``; ``None``: only after another event."""
        times = (
            self.queue.next_deadline(),
            self.administration.next_step_at(),
            self.maintenance.next_step_at(),
            *(lease.kept_until for lease in self.leases.values()),
        )
        due = [when for when in times if when is not None]
        return min(due, default=None)

    def clock_stepped(self, seconds: float) -> None:
        """Shift due times by ``seconds``, by which the wall clock was set, so that remaining times are unchanged.

        Stored times are wall-clock times; durations do not depend on the wall clock.
        """
        self.started_at += seconds
        self.queue.shift(seconds)
        for lease in self.leases.values():
            if lease.kept_until is not None:
                lease.kept_until += seconds
        self.administration.clock_stepped(seconds)
        self.maintenance.clock_stepped(seconds)

    def tick(self, now: float) -> None:
        """Handle everything that is due: requests that waited too long, steps of a scenario, maintenance."""
        self.administration.run_due_steps(now)
        self.maintenance.run_due_steps(now)
        for lease_id, lease in list(self.leases.items()):
            if lease.kept_until is not None and lease.kept_until <= now:
                self.end(lease_id, LeaseEvent.HOLDERS_GONE, now, None)
        self._settle(now)

    def page_created(self, number: int, grant: PageGrant, page: HolderPage) -> None:
        """Record the page that ``handle`` granted and the shell created."""
        connection = self.connections.get(number)
        if connection is not None and grant.lease in connection.held:
            connection.pages[grant.lease] = page
            self.lease_changes += 1
            if self.leases[grant.lease].failure is not None:  # it happened before this page existed
                page.interrupt()

    def creation_failed(self, number: int, grant: RegionGrant | PageGrant | SocketGrant) -> None:
        """Revoke a grant of ``handle`` that the shell could not create or send."""
        if isinstance(grant, SocketGrant) and grant.lease in self.leases:
            self.leases[grant.lease].socket_mode = None
            self.lease_changes += 1
        connection = self.connections.get(number)
        if (
            isinstance(grant, RegionGrant)
            and connection is not None
            and connection.regions.pop(grant.region, None) is not None
        ):
            self.allocator.free(grant.lease, grant.region)

    def disconnected(self, number: int, now: float) -> None:
        """Remove a closed connection: leases without another holder end, and its regions in others are freed."""
        self.queue.leave(number)
        connection = self.connections[number]
        for lease_id in list(connection.held):
            lease = self.leases[lease_id]
            if lease.holders == {number}:
                self.end(lease_id, LeaseEvent.HOLDERS_GONE, now, connection.pid)
                continue
            lease.holders.discard(number)
            for region, owner in connection.regions.items():
                if owner == lease_id:
                    self.allocator.free(lease_id, region)
            lease.former += connection.totals(lease_id)
            self.allocator.detach(lease_id, now)
            self.record(NodeEventKind.DETACH, now, self.allocator.leases[lease_id], connection.pid)
        connection.pages.clear()  # unmapped now, even if the connection is still referenced
        del self.connections[number]
        self._settle(now)

    def kept_leases(self) -> list[KeptLease]:
        """Return the active leases whose programs will attach again, for the next daemon.

        These have a page, or a holder that requested ``keep``; other clients do not return.
        """
        return [
            KeptLease(
                self.allocator.leases[lease_id], lease.peer, lease.command, tuple(self.pids_of(lease)), lease.former,
                self.lease_totals(lease_id), None if lease.failure is None else error_body(lease.failure),
                lease.socket_mode,
            )
            for lease_id, lease in self.leases.items()
            if lease.restored is not None or self.pages_of(lease_id) or self._is_kept(lease_id)
        ]  # fmt: skip

    def restore_lease(self, kept: KeptLease, until: float, now: float) -> None:
        """Restore a lease of the previous daemon, until its programs attach to it or ``until``.

        Raises:
            InvalidArgument: this node cannot have granted it.
        """
        lease = kept.lease
        self.allocator.restore(lease)
        self.leases[lease.id] = ActiveLease(
            kept.peer, kept.command, former=kept.former, restored=kept.totals, kept_until=until,
            socket_mode=kept.socket_mode,
            failure=None if kept.failure is None else error_from_body(kept.failure, HwException),
        )  # fmt: skip
        self.lease_changes += 1
        self.record(NodeEventKind.RESTORE, now, lease, kept.peer.pid)

    def leave(self, now: float) -> None:
        """Stop the daemon but not its kept leases: closing connections no longer ends leases."""
        kept = {each.lease.id for each in self.kept_leases()}
        for lease_id in [lease_id for lease_id in self.leases if lease_id not in kept]:
            self.end(lease_id, LeaseEvent.NODE_STOP, now, None)
        for waiting in self.queue.waiting:
            self.queue.leave(waiting.connection)
        for lease_id, lease in self.leases.items():
            lease.restored = self.lease_totals(lease_id)
        for connection in self.connections.values():
            connection.held.clear()
            connection.kept.clear()
            connection.pages.clear()
            connection.regions.clear()

    def stop(self, now: float) -> None:
        """End every lease and drop the queue: the node goes down."""
        for waiting in self.queue.waiting:
            self.queue.leave(waiting.connection)
        for lease_id in list(self.allocator.leases):
            self.end(lease_id, LeaseEvent.NODE_STOP, now, None)

    def validate(self) -> None:
        """Check allocator and connections against each other.

        Raises:
            AssertionError: a bug.
        """
        self.allocator.validate()
        self.queue.validate()
        assert set(self.leases) == set(self.allocator.leases), "the allocator has the same active leases"
        holders: dict[LeaseId, set[int]] = {lease_id: set() for lease_id in self.leases}
        regions: dict[LeaseId, set[RegionId]] = {lease_id: set() for lease_id in self.leases}
        for number, connection in self.connections.items():
            assert set(connection.pages) <= set(connection.held), "pages are of leases that the connection holds"
            assert connection.kept <= set(connection.held), "a connection comes back for leases that it holds"
            for lease_id in connection.held:
                holders[lease_id].add(number)
            for region, lease_id in connection.regions.items():
                assert lease_id in connection.held, f"{region} belongs to a lease that its connection holds"
                regions[lease_id].add(region)
        for lease_id, lease in self.leases.items():
            assert holders[lease_id] == lease.holders, f"{lease_id}: its holders are those of the connections"
            assert (lease.kept_until is None) is bool(lease.holders), f"{lease_id}: it has holders or waits for one"
            assert regions[lease_id] == set(self.allocator.regions[lease_id]), f"{lease_id}: every region has its owner"
        for waiting in self.queue.waiting:
            assert waiting.connection in self.connections, "whoever waits is connected"
        self.administration.validate()
        self.maintenance.validate()

    # -- leases ------------------------------------------------------------------------------------------------------

    def _hello(self, number: int, message: SndRequest, now: float) -> Response:
        node = self.allocator.node
        return ok(
            version=self.version, platform=node.platform, node=self.name, minor=PROTOCOL_MINOR,
            features=list(FEATURES), pid=self._pid, admin=self.connections[number].is_admin,
            # Boxes at a lease's own socket must not see paths of the machine.
            **({} if self.connections[number].bound else {"database": dict(self.administration.database)}),
        )  # fmt: skip

    def _authorize(self, number: int, message: SndRequest, now: float) -> Response:
        token = message.text("token").encode()
        if self._admin_token is None or not hmac.compare_digest(self._admin_token.encode(), token):
            raise Unauthenticated("this is not the node's administration token; it is in the file admin.token")
        self.connections[number].is_admin = True
        return OK

    def lease_totals(self, lease_id: LeaseId) -> UsageTotals:
        """Sum the counters of all holders of an active lease."""
        lease = self.leases[lease_id]
        total = lease.former
        for number in lease.holders:
            total += self.connections[number].totals(lease_id)
        return total if lease.restored is None or total.runs >= lease.restored.runs else lease.restored

    def pid_of(self, lease_id: LeaseId) -> int | None:
        """Return the process that acquired an active lease, if it is visible here."""
        return self.leases[lease_id].peer.pid

    @property
    def lease_sockets(self) -> dict[LeaseId, int]:
        """Return the modes of active leases' own sockets."""
        return {lease_id: lease.socket_mode for lease_id, lease in self.leases.items() if lease.socket_mode is not None}

    def pages_of(self, lease_id: LeaseId) -> list[HolderPage]:
        """Return the status pages of a lease's holders."""
        pages = [self.connections[number].pages.get(lease_id) for number in self.leases[lease_id].holders]
        return [page for page in pages if page is not None]

    # -- leases ------------------------------------------------------------------------------------------------------

    def _check_bound(self, number: int, message: SndRequest) -> None:
        bound = self.connections[number].bound
        if bound is None:
            return
        if message.op not in LEASE_OPERATIONS:
            raise PermissionDenied(
                f"{message.op} is not for the socket of lease {bound}; expected {', '.join(sorted(LEASE_OPERATIONS))}"
            )
        asked = message.find_text("lease")
        if asked is not None and asked != bound:
            raise PermissionDenied(f"this socket is that of lease {bound}; {asked!r} cannot be used here")

    def _is_kept(self, lease_id: LeaseId) -> bool:
        return any(lease_id in self.connections[number].kept for number in self.leases[lease_id].holders)

    def grant(self, number: int, request: LeaseRequest, command: str | None, now: float) -> Response:
        """Grant a lease to a connection.

        Raises: as ``Allocator.acquire``.
        """
        lease_id, token = self._new_identity()
        connection = self.connections[number]
        lease = self.allocator.acquire(request, LeaseId(lease_id), token, now)
        connection.held[lease.id] = {}
        self.lease_changes += 1
        self.leases[lease.id] = ActiveLease(connection.peer, command, {number})
        self.enter_group(lease, connection.pid)
        self.record(NodeEventKind.GRANT, now, lease, connection.pid)
        return ok(lease=self.lease_body(lease))

    def _settle(self, now: float) -> None:
        """Grant freed tiles to waiting requests, and refuse those that waited too long."""
        if not len(self.queue):
            return
        granted: dict[int, Response] = {}
        commands = {waiting.connection: waiting.command for waiting in self.queue.waiting}

        def acquire(request: LeaseRequest, number: int) -> None:
            granted[number] = self.grant(number, request, commands[number], now)

        for settled in self.queue.settle(acquire, now):
            number, request, error = settled.connection, settled.request, settled.refusal
            if error is None:
                self._ready.append((number, granted[number]))
                continue
            pid = self.connections[number].pid
            self.events.record_refusal(now, request.application, request.tenant, request.job, pid, error.message)
            self._ready.append((number, Response(error_body(error))))

    def end(self, lease_id: LeaseId, event: LeaseEvent, now: float, pid: int | None, note: str = "") -> EndedLease:
        """End a lease, for all its holders. ``note``: reason, in addition to the event's own."""
        totals = self.lease_totals(lease_id) if lease_id in self.leases else UsageTotals()
        self.lease_changes += 1
        ended = self.allocator.end(lease_id, event, now)
        lease = self.leases.pop(lease_id)
        self.totals.book(ended.lease.tiles, totals)
        for number in lease.holders:
            connection = self.connections[number]
            connection.held.pop(lease_id, None)
            connection.pages.pop(lease_id, None)
            connection.kept.discard(lease_id)
            for region in [r for r, owner in connection.regions.items() if owner == lease_id]:
                del connection.regions[region]
        self.groups.leave(lease_id)
        row = application_row(self.allocator.node, ended, totals, lease.peer, lease.command, lease.failure)
        self.ended_rows.append(row)
        self.administration.remember_application(row)
        self.record(_END_EVENTS[ended.reason], now, ended.lease, pid, f"{ended.reason}{note}")
        return ended

    def record(self, kind: NodeEventKind, now: float, lease: Lease, pid: int | None, reason: str = "") -> None:
        """Record an event of a lease, in the event log and in the daemon's own log."""
        self.events.record(kind, now, lease, lease_paths(self.allocator.node, lease), pid, reason)
        logger.info("event=%s lease=%s application=%s pid=%s", kind, lease.id, lease.request.application, pid)

    def enter_group(self, lease: Lease, pid: int | None) -> None:
        """Move a holder's process into the lease's control group."""
        if pid is not None and pid != self._pid:
            self.groups.enter(lease.id, pid, len(lease.tiles))

    def lease_body(self, lease: Lease) -> dict[str, object]:
        """Return the holder's view of a lease."""
        record = self.leases[lease.id]
        return lease_body(self.allocator.node, lease, record.peer, record.command)

    def pids_of(self, lease: ActiveLease) -> list[int]:
        """List the processes that hold a lease, if visible."""
        return [pid for number in sorted(lease.holders) if (pid := self.connections[number].pid) is not None]

    def busiest(self, lease_id: LeaseId) -> DaemonConnection:
        """Return the holder that uses the tiles: a job's worker holds the lease, too, but only its box computes."""
        lease = self.leases[lease_id]
        holders = [self.connections[number] for number in sorted(lease.holders)]
        if not holders:
            return DaemonConnection(lease.peer, held={lease_id: {}})
        return max(holders, key=lambda connection: connection.totals(lease_id).exec_ns)
