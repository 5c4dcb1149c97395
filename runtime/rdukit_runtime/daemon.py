"""The node daemon's decisions: requests of connections in, answers out. ``server`` is its shell.

No sockets, clock or randomness here: connections are numbers, times are arguments, ids and tokens come from a function
that is passed in, and memory is only accounted; the shell creates it and says so if that fails.
"""

import hmac
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rdukit.errors import NoResources, PermissionDenied, RdukitError, Unauthenticated
from rdukit_runtime.allocator import Allocator, EndedLease, Lease, LeaseId, RegionId, Request
from rdukit_runtime.events import EventKind, EventLog
from rdukit_runtime.inventory import node_tiles
from rdukit_runtime.protocol import Message, error_body, read_message
from rdukit_runtime.states import COUNTER_NAMES, EndReason, LeaseEvent

logger = logging.getLogger(__name__)

Counters = dict[str, float | str]

_END_EVENTS: Final = {
    EndReason.RELEASED: EventKind.RELEASE,
    EndReason.HOLDERS_GONE: EventKind.DEATH,
    EndReason.NODE_STOPPED: EventKind.STOP,
}


@dataclass(frozen=True, slots=True)
class RegionGrant:
    """Memory that the shell has to create and send along with the answer."""

    lease: LeaseId
    region: RegionId
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request; with ``grant``, a descriptor of that region goes with it."""

    body: Mapping[str, object]
    grant: RegionGrant | None = None


@dataclass(slots=True)
class Connection:
    """What is known of one open connection."""

    #: The process at the other end, as the kernel said when it connected; ``None`` if it cannot be seen from here.
    pid: int | None
    #: Active leases that this connection holds, and what it counted under each.
    held: dict[LeaseId, Counters] = field(default_factory=dict)
    #: Regions that this connection allocated and has not freed, each with its lease (a key of ``held``).
    regions: dict[RegionId, LeaseId] = field(default_factory=dict)


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
    ) -> None:
        """``new_identity`` returns a lease id that was never used and a secret token."""
        self.allocator: Final = allocator
        self.events: Final = EventLog()
        #: Open connections by the shell's number.
        self.connections: Final[dict[int, Connection]] = {}
        self._name = name
        self._version = version
        self._started_at = started_at
        self._new_identity = new_identity
        #: Connections that hold each active lease; never empty.
        self._holders: Final[dict[LeaseId, set[int]]] = {}
        #: Counters of holders that left, for each active lease.
        self._former_counters: Final[dict[LeaseId, Counters]] = {}
        self._next_region = 1
        self._operations: Final[Mapping[str, Callable[[int, Message, float], Answer]]] = {
            "hello": self._hello,
            "status": self._status,
            "acquire": self._acquire,
            "attach": self._attach,
            "release": self._release,
            "allocate": self._allocate,
            "free": self._free,
            "report": self._report,
            "events": self._events,
        }

    def connected(self, number: int, pid: int | None) -> None:
        """A connection was accepted."""
        self.connections[number] = Connection(pid)

    def handle(self, number: int, line: bytes, now: float) -> Answer:
        """Answer one request line of connection ``number``. Never raises: whatever is wrong becomes the answer."""
        try:
            message = read_message(line)
            return self._operations[message.op](number, message, now)
        except RdukitError as error:
            return Answer(error_body(error))
        except Exception:  # a request's border: a bug must not end the other clients' leases
            logger.exception("event=bug connection=%s", number)
            return Answer(error_body(RdukitError("the node daemon failed on this request; its log has the reason")))

    def creation_failed(self, number: int, grant: RegionGrant) -> None:
        """The shell could not create or send a region that ``handle`` granted: take it back."""
        connection = self.connections.get(number)
        if connection is not None and connection.regions.pop(grant.region, None) is not None:
            self.allocator.free(grant.lease, grant.region)

    def disconnected(self, number: int, now: float) -> None:
        """A connection closed: leases that nobody else holds end, its regions in the others are freed."""
        connection = self.connections.pop(number)
        for lease_id, counters in connection.held.items():
            holders = self._holders[lease_id]
            holders.discard(number)
            if not holders:
                self._end(lease_id, LeaseEvent.HOLDERS_GONE, now, connection.pid)
                continue
            for region, owner in connection.regions.items():
                if owner == lease_id:
                    self.allocator.free(lease_id, region)
            _add_counters(self._former_counters[lease_id], counters)
            self.allocator.detach(lease_id, now)
            self._record(EventKind.DETACH, now, self.allocator.leases[lease_id], connection.pid)

    def stop(self, now: float) -> None:
        """The node goes down: every lease ends."""
        for lease_id in list(self.allocator.leases):
            self._end(lease_id, LeaseEvent.NODE_STOP, now, None)

    def validate(self) -> None:
        """Check the books of allocator and connections against each other.

        Raises:
            AssertionError: a bug.
        """
        self.allocator.validate()
        active = set(self.allocator.leases)
        holders: dict[LeaseId, set[int]] = {}
        regions: dict[LeaseId, set[RegionId]] = {lease_id: set() for lease_id in active}
        for number, connection in self.connections.items():
            for lease_id in connection.held:
                holders.setdefault(lease_id, set()).add(number)
            for region, lease_id in connection.regions.items():
                assert lease_id in connection.held, f"{region} belongs to a lease that its connection holds"
                regions[lease_id].add(region)
        assert holders == self._holders, "holders are those of the connections"
        assert set(holders) == active, "each active lease has a holder, and no other lease has"
        assert set(self._former_counters) == active, "each active lease has former counters"
        for lease_id in active:
            assert regions[lease_id] == set(self.allocator.regions[lease_id]), f"{lease_id}: every region has its owner"

    # -- operations --------------------------------------------------------------------------------------------------

    def _hello(self, number: int, message: Message, now: float) -> Answer:
        node = self.allocator.node
        return _ok(version=self._version, platform=node.platform, node=self._name)

    def _status(self, number: int, message: Message, now: float) -> Answer:
        allocator, node = self.allocator, self.allocator.node
        tiles = []
        for tile, holder in zip(node_tiles(node), allocator.tile_holders, strict=True):
            application = None if holder is None else allocator.leases[holder].request.application
            tiles.append(
                {
                    "path": tile.path, "rdu": tile.rdu, "tile": tile.tile, "lease": holder,
                    "application": application, "health": "Online",
                }
            )  # fmt: skip
        return _ok(
            platform=node.platform,
            chip=node.chip.name,
            node=self._name,
            version=self._version,
            tiles=tiles,
            leases=[self._lease_status(lease) for lease in allocator.leases.values()],
            memory={"total": allocator.memory_total, "used": sum(allocator.memory_granted)},
            applications=len(allocator.applications),
            max_applications=allocator.max_applications,
            uptime_s=max(0.0, now - self._started_at),
        )

    def _acquire(self, number: int, message: Message, now: float) -> Answer:
        request = Request(
            application=message.text("application"),
            tiles=message.number("tiles"),
            memory_bytes=message.number("memory_bytes"),
            tenant=message.find_text("tenant"),
            job=message.find_text("job"),
            launch=message.find_text("launch"),
            affinity=message.find_number("affinity"),
        )
        lease_id, token = self._new_identity()
        connection = self.connections[number]
        try:
            lease = self.allocator.acquire(request, LeaseId(lease_id), token, now)
        except NoResources as error:
            pid = connection.pid
            self.events.record_refusal(now, request.application, request.tenant, request.job, pid, error.message)
            raise
        connection.held[lease.id] = {}
        self._holders[lease.id] = {number}
        self._former_counters[lease.id] = {}
        self._record(EventKind.GRANT, now, lease, connection.pid)
        return _ok(lease=self._lease_body(lease))

    def _attach(self, number: int, message: Message, now: float) -> Answer:
        lease = self.allocator.find_active(LeaseId(message.text("lease")))
        if not hmac.compare_digest(lease.token.encode(), message.text("token").encode()):
            raise Unauthenticated(f"the token is not that of lease {lease.id}; use the one that acquire returned")
        connection = self.connections[number]
        if lease.id not in connection.held:
            self.allocator.attach(lease.id, now)
            connection.held[lease.id] = {}
            self._holders[lease.id].add(number)
            self._record(EventKind.ATTACH, now, lease, connection.pid)
        return _ok(lease=self._lease_body(lease))

    def _release(self, number: int, message: Message, now: float) -> Answer:
        lease_id = LeaseId(message.text("lease"))
        if lease_id in self.allocator.leases:
            self._held_lease(number, lease_id)
        self._end(lease_id, LeaseEvent.RELEASE, now, self.connections[number].pid)
        return _ok()

    def _allocate(self, number: int, message: Message, now: float) -> Answer:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        region_id = RegionId(f"region-{self._next_region}")
        region = self.allocator.allocate(lease.id, region_id, message.text("name"), message.number("bytes"))
        self._next_region += 1
        self.connections[number].regions[region_id] = lease.id
        return Answer(
            {"ok": True, "region": {"id": region.id, "bytes": region.bytes}},
            RegionGrant(lease.id, region.id, region.name, region.bytes),
        )

    def _free(self, number: int, message: Message, now: float) -> Answer:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        region_id = RegionId(message.text("region"))
        self.allocator.free(lease.id, region_id)
        for holder in self._holders[lease.id]:
            self.connections[holder].regions.pop(region_id, None)
        return _ok()

    def _report(self, number: int, message: Message, now: float) -> Answer:
        lease = self._held_lease(number, LeaseId(message.text("lease")))
        self.connections[number].held[lease.id].update(message.counters("counters"))
        return _ok()

    def _events(self, number: int, message: Message, now: float) -> Answer:
        events = self.events.page(message.number("since", 0))
        return _ok(events=[event.as_json() for event in events], last=self.events.last)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _held_lease(self, number: int, lease_id: LeaseId) -> Lease:
        lease = self.allocator.find_active(lease_id)
        if lease_id not in self.connections[number].held:
            raise PermissionDenied(f"this connection does not hold lease {lease_id}; attach to it with its token first")
        return lease

    def _end(self, lease_id: LeaseId, event: LeaseEvent, now: float, pid: int | None) -> EndedLease:
        ended = self.allocator.end(lease_id, event, now)
        for number in self._holders.pop(lease_id):
            connection = self.connections.get(number)  # the one that is closing is gone already
            if connection is not None:
                connection.held.pop(lease_id, None)
                for region in [r for r, owner in connection.regions.items() if owner == lease_id]:
                    del connection.regions[region]
        del self._former_counters[lease_id]
        self._record(_END_EVENTS[ended.reason], now, ended.lease, pid, str(ended.reason))
        return ended

    def _record(self, kind: EventKind, now: float, lease: Lease, pid: int | None, reason: str = "") -> None:
        self.events.record(kind, now, lease, self._paths(lease), pid, reason)
        logger.info("event=%s lease=%s application=%s pid=%s", kind, lease.id, lease.request.application, pid)

    def _paths(self, lease: Lease) -> tuple[str, ...]:
        tiles = node_tiles(self.allocator.node)
        return tuple(tiles[index].path for index in lease.tiles)

    def _lease_body(self, lease: Lease) -> dict[str, object]:
        request = lease.request
        return {
            "id": lease.id, "token": lease.token, "application": request.application, "tenant": request.tenant,
            "job": request.job, "launch": request.launch, "tiles": list(self._paths(lease)),
            "memory_bytes": lease.memory_bytes, "granted_at": lease.granted_at,
        }  # fmt: skip

    def _lease_status(self, lease: Lease) -> dict[str, object]:
        body = self._lease_body(lease)
        del body["token"]  # status is for everybody who may connect; the token is for holders
        holders = sorted(self._holders[lease.id])
        counters = dict(self._former_counters[lease.id])
        for number in holders:
            _add_counters(counters, self.connections[number].held[lease.id])
        pids = [pid for number in holders if (pid := self.connections[number].pid) is not None]
        return {
            **body,
            "memory_allocated": self.allocator.memory_allocated[lease.id],
            "pids": pids,
            "counters": counters,
        }


def _add_counters(total: Counters, more: Counters) -> None:
    for name in COUNTER_NAMES:
        if name in more:
            count, former = more[name], total.get(name, 0)
            assert not isinstance(count, str)
            assert not isinstance(former, str)
            total[name] = former + count
    if "phase" in more:
        total["phase"] = more["phase"]


def _ok(**more: object) -> Answer:
    return Answer({"ok": True, **more})
