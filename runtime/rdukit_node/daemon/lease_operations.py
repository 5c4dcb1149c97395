"""Operations of the daemon's socket on leases: acquire, attach, allocate and further operations of holders.

The second part of the pure decisions of ``daemon.NodeDaemon``.
"""

import hmac
from collections.abc import Callable, Mapping
from typing import Final

from rdukit.errors import Conflict, NoResources, PermissionDenied, RuntimeFault, Unauthenticated, error_from_body
from rdukit_node.daemon.connections import OK, NodeLedger, PageGrant, Peer, RegionGrant, Response, SocketGrant, ok
from rdukit_node.daemon.events import NodeEventKind
from rdukit_node.daemon.protocol import SndRequest, error_body
from rdukit_node.leases.allocator import Lease, LeaseId, LeaseRequest, RegionId
from rdukit_node.leases.queue import PendingLease
from rdukit_node.leases.user_limits import check_user_limits, check_user_waiting
from rdukit_node.states import LeaseEvent

#: Largest number of processes per lease whose isolation is stored, the latest.
MAX_REPORTS: Final = 64


class LeaseOperations:
    """Operations on leases by the daemon's connections."""

    def __init__(self, daemon: NodeLedger) -> None:
        self._daemon = daemon
        self._next_region = 1
        self.operations: Final[Mapping[str, Callable[[int, SndRequest, float], Response | None]]] = {
            "acquire": self._acquire,
            "attach": self._attach,
            "reattach": self._reattach,
            "keep": self._keep,
            "socket": self._socket,
            "release": self._release,
            "allocate": self._allocate,
            "free": self._free,
            "report": self._report,
            "page": self._page,
            "interrupt": self._interrupt,
            "isolation": self._isolation,
        }

    def _acquire(self, number: int, message: SndRequest, now: float) -> Response | None:
        request = LeaseRequest(
            application=message.text("application"),
            tiles=message.number("tiles"),
            memory_bytes=message.number("memory_bytes"),
            tenant=message.find_text("tenant"),
            job=message.find_text("job"),
            launch=message.find_text("launch"),
            affinity=message.find_number("affinity"),
            run_limit_s=message.find_real("run_limit_s"),
        )
        wait_s, command = message.real("wait_s", 0.0), message.find_text("command")
        try:
            self._check_user(number, request)
            if len(self._daemon.queue):
                self._daemon.allocator.check_possible(request)
                before = (
                    "1 request waits" if len(self._daemon.queue) == 1 else f"{len(self._daemon.queue)} requests wait"
                )
                raise NoResources(
                    f"{before} before this one; also wait (setting acquire.wait_s), or try again later",
                    waiting=len(self._daemon.queue), fits_when_empty=True,
                )  # fmt: skip
            return self._daemon.grant(number, request, command, now)
        except NoResources as error:
            pid = self._daemon.connections[number].pid
            waits = wait_s > 0 and bool(error.detail.get("fits_when_empty"))
            if waits:
                peer = self._daemon.connections[number].peer
                if not peer.is_admin:
                    check_user_waiting(_name_of(peer), self._waiting_of(peer))
                self._daemon.queue.join(
                    PendingLease(number, request, now, now + wait_s, error.with_traceback(None), command)
                )
            kind = NodeEventKind.WAIT if waits else NodeEventKind.REFUSE
            self._daemon.events.record_refusal(
                now, request.application, request.tenant, request.job, pid, error.message, kind
            )  # fmt: skip
            if waits:
                return None
            raise

    def _check_user(self, number: int, request: LeaseRequest) -> None:
        peer = self._daemon.connections[number].peer
        if peer.is_admin:
            return
        leases = self._daemon.allocator.leases
        held = [leases[each].request for each, record in self._daemon.leases.items() if record.peer.uid == peer.uid]
        check_user_limits(_name_of(peer), request, held, self._waiting_of(peer), self._daemon.user_limits)

    def _waiting_of(self, peer: Peer) -> list[LeaseRequest]:
        connections = self._daemon.connections
        return [
            each.request for each in self._daemon.queue.waiting if connections[each.connection].peer.uid == peer.uid
        ]  # fmt: skip

    def _attach(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._daemon.allocator.find_active(LeaseId(message.text("lease")))
        if not hmac.compare_digest(lease.token.encode(), message.text("token").encode()):
            raise Unauthenticated(f"the token is not that of lease {lease.id}; use the one that acquire returned")
        connection = self._daemon.connections[number]
        if lease.id not in connection.held:
            self._daemon.allocator.attach(lease.id, now)
            connection.held[lease.id] = {}
            record = self._daemon.leases[lease.id]
            record.holders.add(number)
            record.kept_until = None
            self._daemon.lease_changes += 1
            self._daemon.enter_group(lease, connection.pid)
            self._daemon.record(NodeEventKind.ATTACH, now, lease, connection.pid)
        return ok(lease=self._daemon.lease_body(lease))

    def _reattach(self, number: int, message: SndRequest, now: float) -> Response:
        """Attach to a lease from before the daemon's start, with the regions that this holder has mapped."""
        regions = message.mappings("regions")
        lease = self._daemon.allocator.find_active(LeaseId(message.text("lease")))
        if lease.id in self._daemon.connections[number].held:
            raise Conflict(f"this connection holds lease {lease.id} already")
        answer = self._attach(number, message, now)
        ids: list[str] = []
        for region in regions:
            region_id = RegionId(f"region-{self._next_region}")
            self._daemon.allocator.allocate(lease.id, region_id, str(region["name"]), int(str(region["bytes"])))
            self._next_region += 1
            self._daemon.connections[number].regions[region_id] = lease.id
            ids.append(region_id)
        self._daemon.connections[number].kept.add(lease.id)
        return Response({**answer.body, "regions": ids})

    def _keep(self, number: int, message: SndRequest, now: float) -> Response:
        """Record that this holder attaches to the lease again after a restart of the daemon."""
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        self._daemon.connections[number].kept.add(lease.id)
        self._daemon.lease_changes += 1
        return OK

    def _socket(self, number: int, message: SndRequest, now: float) -> Response:
        """Give the lease its own socket, for boxes that use it; a second request gets the same socket.

        Its mode lets other users than the daemon's connect.
        """
        connection = self._daemon.connections[number]
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        record = self._daemon.leases[lease.id]
        if record.socket_mode is None:
            record.socket_mode = message.number("mode", 0o600) if connection.peer.is_admin else 0o666
            self._daemon.lease_changes += 1
        return Response({"ok": True}, SocketGrant(lease.id))

    def _release(self, number: int, message: SndRequest, now: float) -> Response:
        lease_id = LeaseId(message.text("lease"))
        if lease_id in self._daemon.allocator.leases:
            self._held_lease(number, lease_id)
        self._daemon.end(lease_id, LeaseEvent.RELEASE, now, self._daemon.connections[number].pid)
        return OK

    def _allocate(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._usable_lease(number, message)
        region_id = RegionId(f"region-{self._next_region}")
        region = self._daemon.allocator.allocate(lease.id, region_id, message.text("name"), message.number("bytes"))
        self._next_region += 1
        self._daemon.connections[number].regions[region_id] = lease.id
        return Response(
            {"ok": True, "region": {"id": region.id, "bytes": region.bytes}},
            RegionGrant(lease.id, region.id, region.name, region.bytes),
        )

    def _free(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        region_id = RegionId(message.text("region"))
        self._daemon.allocator.free(lease.id, region_id)
        for holder in self._daemon.leases[lease.id].holders:
            self._daemon.connections[holder].regions.pop(region_id, None)
        return OK

    def _report(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        self._daemon.connections[number].held[lease.id].update(message.counters("counters"))
        self._usable_lease(number, message)  # a client without a page learns here that its hardware failed
        return OK

    def _page(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        if lease.id in self._daemon.connections[number].pages:
            raise RuntimeFault(f"this connection has a status page of lease {lease.id} already")
        return Response({"ok": True}, PageGrant(lease.id))

    def _interrupt(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        failure = self._daemon.leases[lease.id].failure
        return ok(fault=None if failure is None else error_body(failure)["error"])

    def _isolation(self, number: int, message: SndRequest, now: float) -> Response:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        pid = str(self._daemon.connections[number].pid or number)
        reports = self._daemon.leases[lease.id].isolation
        reports.pop(pid, None)
        while len(reports) >= MAX_REPORTS:
            del reports[next(iter(reports))]
        reports[pid] = dict(message.mapping("report"))
        return OK

    def _held_lease(self, number: int, lease_id: LeaseId) -> Lease:
        lease = self._daemon.allocator.find_active(lease_id)
        if lease_id not in self._daemon.connections[number].held:
            raise PermissionDenied(f"this connection does not hold lease {lease_id}; attach to it with its token first")
        return lease

    def _usable_lease(self, number: int, message: SndRequest) -> Lease:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        failure = self._daemon.leases[lease.id].failure
        if failure is not None:
            raise error_from_body(failure.body())
        return lease


def _name_of(peer: Peer) -> str:
    return peer.user or str(peer.uid)
