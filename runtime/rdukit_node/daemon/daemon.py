"""The node daemon's decisions: requests of connections in, responses out. ``server`` is its shell.

No sockets, clock or randomness here: connections are numbers, times are arguments, ids and tokens come from a function
that is passed in, and memory is only accounted; the shell creates it and says so if that fails. Faults and everything
that changes the node is in ``administration``.
"""

import hmac
import logging
from collections.abc import Callable, Mapping
from typing import Final

from rdukit.errors import (
    Conflict,
    HwException,
    NoResources,
    PermissionDenied,
    RdukitError,
    RuntimeFault,
    Unauthenticated,
    error_from_body,
)
from rdukit_node.daemon.administration import Administration
from rdukit_node.daemon.connections import (
    OK,
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
    lease_status,
    ok,
    tile_rows,
)
from rdukit_node.daemon.events import NodeEventKind, NodeEventLog
from rdukit_node.daemon.protocol import FEATURES, LEASE_OPERATIONS, PROTOCOL_MINOR, SndRequest, error_body, read_request
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.leases.accounting import NodeTotals, UsageTotals
from rdukit_node.leases.allocator import Allocator, EndedLease, Lease, LeaseId, LeaseRequest, RegionId
from rdukit_node.leases.files import KeptLease
from rdukit_node.leases.queue import LeaseQueue, PendingLease
from rdukit_node.states import EndReason, LeaseEvent

logger = logging.getLogger(__name__)

_END_EVENTS: Final = {
    EndReason.RELEASED: NodeEventKind.RELEASE,
    EndReason.HOLDERS_GONE: NodeEventKind.DEATH,
    EndReason.NODE_STOPPED: NodeEventKind.STOP,
}
_NOBODY: Final = Peer()
#: Processes of one lease whose isolation is remembered, the latest.
MAX_REPORTS: Final = 64


class NodeDaemon:
    """One node and everybody connected to it."""

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
    ) -> None:
        """``new_identity`` returns a lease id that was never used and a secret token."""
        self.allocator: Final = allocator
        self.events: Final = NodeEventLog()
        self.name: Final = name
        #: Open connections by the shell's number.
        self.connections: Final[dict[int, DaemonConnection]] = {}
        self.totals: Final = NodeTotals(allocator.node)
        #: Leases whose hardware failed, and the error that each use of them raises.
        self.failed_leases: Final[dict[LeaseId, RdukitError]] = {}
        #: What was applied to isolate each active lease's processes, as they and the shell said.
        self.isolation: Final[dict[LeaseId, dict[str, object]]] = {}
        #: Accounting rows of leases that ended, for whoever writes them down; oldest first.
        self.ended_rows: Final[list[dict[str, object]]] = []
        self._version = version
        self._started_at = started_at
        self._new_identity = new_identity
        self._admin_token = admin_token
        self._pid = pid
        self._groups: ControlGroups = NoControlGroups() if groups is None else groups
        #: Connections that hold each active lease; never empty.
        self._holders: Final[dict[LeaseId, set[int]]] = {}
        #: Modes of the sockets of their own that active leases have.
        self.lease_sockets: Final[dict[LeaseId, int]] = {}
        #: What holders that left had counted, for each active lease.
        self._former_totals: Final[dict[LeaseId, UsageTotals]] = {}
        #: Who acquired each active lease, and its command line where the client said it.
        self._owners: Final[dict[LeaseId, tuple[Peer, str | None]]] = {}
        #: Restored leases that nobody has attached to yet: until when they are kept; what their programs had counted.
        self._orphans: Final[dict[LeaseId, float]] = {}
        self._last_totals: Final[dict[LeaseId, UsageTotals]] = {}
        #: Changes whenever there is something else to keep.
        self.lease_changes = 0
        self._line: Final = LeaseQueue()
        #: Answers to requests that waited: connection → answer.
        self._ready: list[tuple[int, Response]] = []
        self._next_region = 1
        self.administration: Final = Administration(self, faults)
        self._operations: Final[Mapping[str, Callable[[int, SndRequest, float], Response | None]]] = {
            "hello": self._hello,
            "status": self._status,
            "acquire": self._acquire,
            "attach": self._attach,
            "reattach": self._reattach,
            "keep": self._keep,
            "socket": self._socket,
            "release": self._release,
            "allocate": self._allocate,
            "free": self._free,
            "report": self._report,
            "events": self._events,
            "authorize": self._authorize,
            "page": self._page,
            "interrupt": self._interrupt,
            "isolation": self._isolation,
            "counters": self._counters,
            **self.administration.operations,
        }

    # -- what the shell says -----------------------------------------------------------------------------------------

    def connected(self, number: int, peer: Peer = _NOBODY, lease: LeaseId | None = None) -> None:
        """A connection was accepted, at the socket of ``lease``'s own if that is given."""
        self.connections[number] = DaemonConnection(peer, peer.is_admin and lease is None, lease)

    def handle(self, number: int, line: bytes, now: float) -> Response | None:
        """Answer one request line of connection ``number``. Never raises: whatever is wrong becomes the answer.

        Returns:
            ``None`` for a request that waits: ``take_ready`` has its answer later.
        """
        try:
            message = read_request(line)
            if number in self._line:
                raise Conflict("this connection waits for tiles; use another one meanwhile")
            self._check_bound(number, message)
            answer = self._operations[message.op](number, message, now)
            self._settle(now)
        except RdukitError as error:
            return Response(error_body(error))
        except Exception:  # a request's border: a bug must not end the other clients' leases
            logger.exception("event=bug connection=%s", number)
            return Response(error_body(RdukitError("the node daemon failed on this request; its log has the reason")))
        return answer

    def take_ready(self) -> list[tuple[int, Response]]:
        """Answers to requests that waited, by connection."""
        taken, self._ready = self._ready, []
        return taken

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next, in the clock of ``now``; ``None``: not until something happens."""
        times = (self._line.next_deadline(), self.administration.next_step_at(), *self._orphans.values())
        due = [when for when in times if when is not None]
        return min(due, default=None)

    def clock_stepped(self, seconds: float) -> None:
        """The wall clock was set forward, or back, by ``seconds``: what is due stays as far away as it was.

        Times that are written down are those of the wall clock; how long something lasts is not its business.
        """
        self._started_at += seconds
        self._line.shift(seconds)
        for lease_id in self._orphans:
            self._orphans[lease_id] += seconds
        self.administration.clock_stepped(seconds)

    def tick(self, now: float) -> None:
        """Do what is due: requests that waited too long, steps of a scenario."""
        self.administration.run_due_steps(now)
        for lease_id in [lease_id for lease_id, until in self._orphans.items() if until <= now]:
            self._end(lease_id, LeaseEvent.HOLDERS_GONE, now, None)
        self._settle(now)

    def page_created(self, number: int, grant: PageGrant, page: HolderPage) -> None:
        """The shell created the page that ``handle`` granted."""
        connection = self.connections.get(number)
        if connection is not None and grant.lease in connection.held:
            connection.pages[grant.lease] = page
            self.lease_changes += 1
            if grant.lease in self.failed_leases:  # it happened before this page was there
                page.interrupt()

    def creation_failed(self, number: int, grant: RegionGrant | PageGrant | SocketGrant) -> None:
        """The shell could not create or send what ``handle`` granted: take it back."""
        if isinstance(grant, SocketGrant):
            self.lease_sockets.pop(grant.lease, None)
            self.lease_changes += 1
        connection = self.connections.get(number)
        if (
            isinstance(grant, RegionGrant)
            and connection is not None
            and connection.regions.pop(grant.region, None) is not None
        ):
            self.allocator.free(grant.lease, grant.region)

    def disconnected(self, number: int, now: float) -> None:
        """A connection closed: leases that nobody else holds end, its regions in the others are freed."""
        self._line.leave(number)
        connection = self.connections[number]
        for lease_id in list(connection.held):
            holders = self._holders[lease_id]
            if holders == {number}:
                self._end(lease_id, LeaseEvent.HOLDERS_GONE, now, connection.pid)
                continue
            holders.discard(number)
            for region, owner in connection.regions.items():
                if owner == lease_id:
                    self.allocator.free(lease_id, region)
            self._former_totals[lease_id] += connection.totals(lease_id)
            self.allocator.detach(lease_id, now)
            self._record(NodeEventKind.DETACH, now, self.allocator.leases[lease_id], connection.pid)
        connection.pages.clear()  # unmapped now, whoever else still refers to the connection
        del self.connections[number]
        self._settle(now)

    def kept_leases(self) -> list[KeptLease]:
        """Everything that the next daemon has to know of the active leases whose programs will attach again.

        Those are the ones with a page, or of whom a holder said ``keep``: other clients do not come back.
        """
        return [
            KeptLease(
                lease, *self._owners[lease_id],
                tuple(pid for n in sorted(self._holders[lease_id]) if (pid := self.connections[n].pid) is not None),
                self._former_totals[lease_id], self.lease_totals(lease_id),
                error_body(self.failed_leases[lease_id]) if lease_id in self.failed_leases else None,
                self.lease_sockets.get(lease_id),
            )
            for lease_id, lease in self.allocator.leases.items()
            if lease_id in self._last_totals or self.pages_of(lease_id) or self._is_kept(lease_id)
        ]  # fmt: skip

    def restore_lease(self, kept: KeptLease, until: float, now: float) -> None:
        """Keep a lease of the daemon before for its programs, until they attach to it or ``until``.

        Raises:
            InvalidArgument: this node cannot have granted it.
        """
        lease = kept.lease
        self.allocator.restore(lease)
        self._holders[lease.id] = set()
        self._former_totals[lease.id], self._last_totals[lease.id] = kept.former, kept.totals
        self._owners[lease.id] = (kept.peer, kept.command)
        self._orphans[lease.id] = until
        if kept.socket_mode is not None:
            self.lease_sockets[lease.id] = kept.socket_mode
        if kept.failure is not None:
            self.failed_leases[lease.id] = error_from_body(kept.failure, HwException)
        self.lease_changes += 1
        self._record(NodeEventKind.RESTORE, now, lease, kept.peer.pid)

    def leave(self, now: float) -> None:
        """The daemon ends, and the leases that it keeps do not: connections that close from now on mean nothing."""
        kept = {each.lease.id for each in self.kept_leases()}
        for lease_id in [lease_id for lease_id in self.allocator.leases if lease_id not in kept]:
            self._end(lease_id, LeaseEvent.NODE_STOP, now, None)
        for waiting in self._line.waiting:
            self._line.leave(waiting.connection)
        for lease_id in self.allocator.leases:
            self._last_totals[lease_id] = self.lease_totals(lease_id)
        for connection in self.connections.values():
            connection.held.clear()
            connection.kept.clear()
            connection.pages.clear()
            connection.regions.clear()

    def stop(self, now: float) -> None:
        """The node goes down: every lease ends, nobody waits any more."""
        for waiting in self._line.waiting:
            self._line.leave(waiting.connection)
        for lease_id in list(self.allocator.leases):
            self._end(lease_id, LeaseEvent.NODE_STOP, now, None)

    def validate(self) -> None:
        """Check the books of allocator and connections against each other.

        Raises:
            AssertionError: a bug.
        """
        self.allocator.validate()
        self._line.validate()
        active = set(self.allocator.leases)
        holders: dict[LeaseId, set[int]] = {}
        regions: dict[LeaseId, set[RegionId]] = {lease_id: set() for lease_id in active}
        for number, connection in self.connections.items():
            assert set(connection.pages) <= set(connection.held), "pages are of leases that the connection holds"
            assert connection.kept <= set(connection.held), "what a connection comes back for, it holds"
            for lease_id in connection.held:
                holders.setdefault(lease_id, set()).add(number)
            for region, lease_id in connection.regions.items():
                assert lease_id in connection.held, f"{region} belongs to a lease that its connection holds"
                regions[lease_id].add(region)
        assert holders == {k: v for k, v in self._holders.items() if v}, "holders are those of the connections"
        orphans = {lease_id for lease_id, held_by in self._holders.items() if not held_by}
        assert orphans == set(self._orphans), "who has no holder waits for one"
        assert set(self._holders) == active, "each active lease has its holders, and no other lease has"
        assert set(self._former_totals) == set(self._owners) == active, "each active lease has its books"
        assert {*self.failed_leases, *self.isolation, *self.lease_sockets} <= active, (
            "what is known of a lease goes with it"
        )
        for lease_id in active:
            assert regions[lease_id] == set(self.allocator.regions[lease_id]), f"{lease_id}: every region has its owner"
        for waiting in self._line.waiting:
            assert waiting.connection in self.connections, "whoever waits is connected"
        self.administration.validate()

    # -- leases ------------------------------------------------------------------------------------------------------

    def _hello(self, number: int, message: SndRequest, now: float) -> Response:
        node = self.allocator.node
        return ok(
            version=self._version, platform=node.platform, node=self.name, minor=PROTOCOL_MINOR,
            features=list(FEATURES), pid=self._pid, admin=self.connections[number].is_admin,
        )  # fmt: skip

    def _authorize(self, number: int, message: SndRequest, now: float) -> Response:
        token = message.text("token").encode()
        if self._admin_token is None or not hmac.compare_digest(self._admin_token.encode(), token):
            raise Unauthenticated("this is not the node's administration token; it is in the file admin.token")
        self.connections[number].is_admin = True
        return OK

    def _acquire(self, number: int, message: SndRequest, now: float) -> Response | None:
        request = LeaseRequest(
            application=message.text("application"),
            tiles=message.number("tiles"),
            memory_bytes=message.number("memory_bytes"),
            tenant=message.find_text("tenant"),
            job=message.find_text("job"),
            launch=message.find_text("launch"),
            affinity=message.find_number("affinity"),
        )
        wait_s, command = message.real("wait_s", 0.0), message.find_text("command")
        try:
            if len(self._line):
                self.allocator.check_possible(request)
                before = "1 request waits" if len(self._line) == 1 else f"{len(self._line)} requests wait"
                raise NoResources(
                    f"{before} before this one; wait too (setting acquire.wait_s), or try again later",
                    waiting=len(self._line), fits_when_empty=True,
                )  # fmt: skip
            return self._grant(number, request, command, now)
        except NoResources as error:
            pid = self.connections[number].pid
            waits = wait_s > 0 and bool(error.detail.get("fits_when_empty"))
            if waits:
                self._line.join(PendingLease(number, request, now, now + wait_s, error.with_traceback(None), command))
            kind = NodeEventKind.WAIT if waits else NodeEventKind.REFUSE
            self.events.record_refusal(
                now, request.application, request.tenant, request.job, pid, error.message, kind
            )  # fmt: skip
            if waits:
                return None
            raise

    def _grant(self, number: int, request: LeaseRequest, command: str | None, now: float) -> Response:
        lease_id, token = self._new_identity()
        connection = self.connections[number]
        lease = self.allocator.acquire(request, LeaseId(lease_id), token, now)
        connection.held[lease.id] = {}
        self.lease_changes += 1
        self._holders[lease.id] = {number}
        self._former_totals[lease.id] = UsageTotals()
        self._owners[lease.id] = (connection.peer, command)
        self._enter_group(lease, connection.pid)
        self._record(NodeEventKind.GRANT, now, lease, connection.pid)
        return ok(lease=self._lease_body(lease))

    def _attach(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self.allocator.find_active(LeaseId(message.text("lease")))
        if not hmac.compare_digest(lease.token.encode(), message.text("token").encode()):
            raise Unauthenticated(f"the token is not that of lease {lease.id}; use the one that acquire returned")
        connection = self.connections[number]
        if lease.id not in connection.held:
            self.allocator.attach(lease.id, now)
            connection.held[lease.id] = {}
            self._holders[lease.id].add(number)
            self._orphans.pop(lease.id, None)
            self.lease_changes += 1
            self._enter_group(lease, connection.pid)
            self._record(NodeEventKind.ATTACH, now, lease, connection.pid)
        return ok(lease=self._lease_body(lease))

    def _reattach(self, number: int, message: SndRequest, now: float) -> Response:
        """Attach to a lease of before the daemon started, with the regions that this holder has mapped."""
        regions = message.mappings("regions")
        lease = self.allocator.find_active(LeaseId(message.text("lease")))
        if lease.id in self.connections[number].held:
            raise Conflict(f"this connection holds lease {lease.id} already")
        answer = self._attach(number, message, now)
        ids: list[str] = []
        for region in regions:
            region_id = RegionId(f"region-{self._next_region}")
            self.allocator.allocate(lease.id, region_id, str(region["name"]), int(str(region["bytes"])))
            self._next_region += 1
            self.connections[number].regions[region_id] = lease.id
            ids.append(region_id)
        self.connections[number].kept.add(lease.id)
        return Response({**answer.body, "regions": ids})

    def _keep(self, number: int, message: SndRequest, now: float) -> Response:
        """This holder attaches to the lease again when the daemon was restarted."""
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        self.connections[number].kept.add(lease.id)
        self.lease_changes += 1
        return OK

    def _socket(self, number: int, message: SndRequest, now: float) -> Response:
        """A socket on which only this lease can be used, for who computes under it; asked for again, it is the same.

        Who is not the daemon's user could not connect to a socket of the daemon's user alone.
        """
        connection = self.connections[number]
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        if lease.id not in self.lease_sockets:
            self.lease_sockets[lease.id] = message.number("mode", 0o600) if connection.peer.is_admin else 0o666
            self.lease_changes += 1
        return Response({"ok": True}, SocketGrant(lease.id))

    def _release(self, number: int, message: SndRequest, now: float) -> Response:
        lease_id = LeaseId(message.text("lease"))
        if lease_id in self.allocator.leases:
            self._held_lease(number, lease_id)
        self._end(lease_id, LeaseEvent.RELEASE, now, self.connections[number].pid)
        return OK

    def _allocate(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._usable_lease(number, message)
        region_id = RegionId(f"region-{self._next_region}")
        region = self.allocator.allocate(lease.id, region_id, message.text("name"), message.number("bytes"))
        self._next_region += 1
        self.connections[number].regions[region_id] = lease.id
        return Response(
            {"ok": True, "region": {"id": region.id, "bytes": region.bytes}},
            RegionGrant(lease.id, region.id, region.name, region.bytes),
        )

    def _free(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        region_id = RegionId(message.text("region"))
        self.allocator.free(lease.id, region_id)
        for holder in self._holders[lease.id]:
            self.connections[holder].regions.pop(region_id, None)
        return OK

    def _report(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        self.connections[number].held[lease.id].update(message.counters("counters"))
        self._usable_lease(number, message)  # a client without a page learns here that its hardware failed
        return OK

    def _page(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        if lease.id in self.connections[number].pages:
            raise RuntimeFault(f"this connection has a status page of lease {lease.id} already")
        return Response({"ok": True}, PageGrant(lease.id))

    def _interrupt(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        failure = self.failed_leases.get(lease.id)
        return ok(fault=None if failure is None else error_body(failure)["error"])

    def _isolation(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        pid = str(self.connections[number].pid or number)
        reports = self.isolation.setdefault(lease.id, {})
        reports.pop(pid, None)
        while len(reports) >= MAX_REPORTS:
            del reports[next(iter(reports))]
        reports[pid] = dict(message.mapping("report"))
        return OK

    # -- looking -----------------------------------------------------------------------------------------------------

    def _status(self, number: int, message: SndRequest, now: float) -> Response:
        allocator, node = self.allocator, self.allocator.node
        waiting = [
            {
                "application": w.request.application, "tiles": w.request.tiles, "tenant": w.request.tenant,
                "job": w.request.job, "memory_bytes": w.request.memory_bytes, "since": w.since,
                "reason": w.reason.message,
            }
            for w in self._line.waiting
        ]  # fmt: skip
        return ok(
            platform=node.platform,
            chip=node.chip.name,
            node=self.name,
            version=self._version,
            tiles=tile_rows(allocator, self.administration.faults.health_of),
            leases=[self._lease_status(lease) for lease in allocator.leases.values()],
            memory={
                "total": allocator.memory_total,
                "used": sum(allocator.memory_granted),
                "retired": sum(allocator.memory_retired),
                "free": sum(allocator.room.memory_free),
            },
            applications=len(allocator.applications),
            max_applications=allocator.max_applications,
            uptime_s=max(0.0, now - self._started_at),
            rdus=self.administration.rdu_rows(),
            waiting=waiting,
            database=dict(self.administration.database),
        )

    def _events(self, number: int, message: SndRequest, now: float) -> Response:
        events = self.events.page(message.number("since", 0))
        return ok(events=[event.as_json() for event in events], last=self.events.last)

    def _counters(self, number: int, message: SndRequest, now: float) -> Response:
        allocator = self.allocator
        totals = {lease_id: self.lease_totals(lease_id) for lease_id in allocator.leases}
        tiles, rdus = self.totals.rows(
            [(allocator.leases[lease_id].tiles, count) for lease_id, count in totals.items()],
            allocator.tile_holders,
            self.administration.replays(),
        )
        leases = []
        for lease_id, lease in allocator.leases.items():
            peer, command = self._owners[lease_id]
            busiest = self._busiest(lease_id)
            leases.append(
                {
                    "id": lease_id, "application": lease.request.application, "tenant": lease.request.tenant,
                    "job": lease.request.job, "user": peer.user, "pid": busiest.pid,
                    "command": command or lease.request.application, "phase": busiest.phase(lease_id),
                    "tiles": list(lease_paths(allocator.node, lease)), **totals[lease_id].as_json(),
                }
            )  # fmt: skip
        return ok(time_ns=int(now * 1e9), tiles=tiles, rdus=rdus, leases=leases)

    def lease_totals(self, lease_id: LeaseId) -> UsageTotals:
        """What all holders of an active lease have counted."""
        total = self._former_totals[lease_id]
        for number in self._holders[lease_id]:
            total += self.connections[number].totals(lease_id)
        last = self._last_totals.get(lease_id)  # until a holder that came back has shown its page
        return total if last is None or total.runs >= last.runs else last

    def pid_of(self, lease_id: LeaseId) -> int | None:
        """The process that acquired an active lease, where it can be seen."""
        return self._owners[lease_id][0].pid

    def pages_of(self, lease_id: LeaseId) -> list[HolderPage]:
        """The status pages of a lease's holders."""
        pages = [self.connections[number].pages.get(lease_id) for number in self._holders[lease_id]]
        return [page for page in pages if page is not None]

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _check_bound(self, number: int, message: SndRequest) -> None:
        bound = self.connections[number].bound
        if bound is None:
            return
        if message.op not in LEASE_OPERATIONS:
            raise PermissionDenied(
                f"{message.op} is not for the socket of lease {bound}; legal: {', '.join(sorted(LEASE_OPERATIONS))}"
            )
        asked = message.find_text("lease")
        if asked is not None and asked != bound:
            raise PermissionDenied(f"this socket is that of lease {bound}; {asked!r} cannot be used here")

    def _is_kept(self, lease_id: LeaseId) -> bool:
        return any(lease_id in self.connections[number].kept for number in self._holders[lease_id])

    def _held_lease(self, number: int, lease_id: LeaseId) -> Lease:
        lease = self.allocator.find_active(lease_id)
        if lease_id not in self.connections[number].held:
            raise PermissionDenied(f"this connection does not hold lease {lease_id}; attach to it with its token first")
        return lease

    def _usable_lease(self, number: int, message: SndRequest) -> Lease:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        failure = self.failed_leases.get(lease.id)
        if failure is not None:
            raise error_from_body(failure.body())
        return lease

    def _settle(self, now: float) -> None:
        """Grant to those who wait what has become free, and send those away who waited too long."""
        if not len(self._line):
            return
        granted: dict[int, Response] = {}
        commands = {waiting.connection: waiting.command for waiting in self._line.waiting}

        def acquire(request: LeaseRequest, number: int) -> None:
            granted[number] = self._grant(number, request, commands[number], now)

        for settled in self._line.settle(acquire, now):
            number, request, error = settled.connection, settled.request, settled.refusal
            if error is None:
                self._ready.append((number, granted[number]))
                continue
            pid = self.connections[number].pid
            self.events.record_refusal(now, request.application, request.tenant, request.job, pid, error.message)
            self._ready.append((number, Response(error_body(error))))

    def _end(self, lease_id: LeaseId, event: LeaseEvent, now: float, pid: int | None) -> EndedLease:
        totals = self.lease_totals(lease_id) if lease_id in self._holders else UsageTotals()
        self.lease_changes += 1
        self._orphans.pop(lease_id, None)
        self._last_totals.pop(lease_id, None)
        self.lease_sockets.pop(lease_id, None)
        ended = self.allocator.end(lease_id, event, now)
        peer, command = self._owners.pop(lease_id)
        self.totals.book(ended.lease.tiles, totals)
        for number in self._holders.pop(lease_id):
            connection = self.connections[number]
            connection.held.pop(lease_id, None)
            connection.pages.pop(lease_id, None)
            connection.kept.discard(lease_id)
            for region in [r for r, owner in connection.regions.items() if owner == lease_id]:
                del connection.regions[region]
        del self._former_totals[lease_id]
        self.isolation.pop(lease_id, None)
        self._groups.leave(lease_id)
        failure = self.failed_leases.pop(lease_id, None)
        row = application_row(self.allocator.node, ended, totals, peer, command, failure)
        self.ended_rows.append(row)
        self.administration.remember_application(row)
        self._record(_END_EVENTS[ended.reason], now, ended.lease, pid, str(ended.reason))
        return ended

    def _record(self, kind: NodeEventKind, now: float, lease: Lease, pid: int | None, reason: str = "") -> None:
        self.events.record(kind, now, lease, lease_paths(self.allocator.node, lease), pid, reason)
        logger.info("event=%s lease=%s application=%s pid=%s", kind, lease.id, lease.request.application, pid)

    def _enter_group(self, lease: Lease, pid: int | None) -> None:
        if pid is not None and pid != self._pid:
            self._groups.enter(lease.id, pid, len(lease.tiles))

    def _lease_body(self, lease: Lease) -> dict[str, object]:
        peer, command = self._owners[lease.id]
        return lease_body(self.allocator.node, lease, peer, command)

    def _lease_status(self, lease: Lease) -> dict[str, object]:
        holders = sorted(self._holders[lease.id])
        pids = [pid for number in holders if (pid := self.connections[number].pid) is not None]
        body = self._lease_body(lease)
        failure = self.failed_leases.get(lease.id)
        totals, allocated = self.lease_totals(lease.id), self.allocator.memory_allocated[lease.id]
        by_node = dict(self._groups.report(lease.id))
        if not by_node and not pids:
            by_node["cgroup"] = "unavailable: the holder's process is in a namespace that cannot be seen from here"
        isolation = {**self.isolation.get(lease.id, {}), "node": by_node}
        phase = self._busiest(lease.id).phase(lease.id)
        return lease_status(body, totals, phase, allocated, pids, failure, isolation)

    def _busiest(self, lease_id: LeaseId) -> DaemonConnection:
        """The holder that the tiles work for: a job's worker holds the lease too, and only its box runs anything."""
        holders = [self.connections[number] for number in sorted(self._holders[lease_id])]
        if not holders:
            return DaemonConnection(self._owners[lease_id][0], held={lease_id: {}})
        return max(holders, key=lambda connection: connection.totals(lease_id).exec_ns)
