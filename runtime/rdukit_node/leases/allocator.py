"""The allocator of one node's tiles and memory: a pure machine without clock, sockets or randomness.

Times, ids and tokens come in as arguments. A call either succeeds completely, or raises without changes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NewType

from rdukit.errors import InvalidArgument, LeaseLost, LeaseWithdrawn, NoResources, NotFound, OutOfDeviceMemory
from rdukit.hardware import NodeSpec
from rdukit.units import format_bytes
from rdukit_node.inventory import node_tiles
from rdukit_node.leases.placement import (
    FreeCapacity,
    Placement,
    find_placement,
    longest_run,
    max_memory,
    max_tiles,
    whole_capacity,
)
from rdukit_node.states import (
    EndReason,
    LeaseEvent,
    LeaseState,
    LeaseStep,
    TileEvent,
    TileState,
    next_lease_state,
    next_tile_state,
)

LeaseId = NewType("LeaseId", str)
RegionId = NewType("RegionId", str)

#: Number of ended leases remembered, to explain failures of late calls.
_REMEMBERED: Final = 1024
#: Steps kept of one lease's history: the first and the newest.
_MAX_HISTORY: Final = 64


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request of an application: ``tiles`` tiles and ``memory_bytes`` of device memory."""

    application: str
    tiles: int
    memory_bytes: int
    tenant: str | None = None
    job: str | None = None
    #: Leases with the same launch count as one application; a lease without a launch counts alone.
    launch: str | None = None
    #: Mask of usable tiles, bit ``t`` for the flat tile ``t``; ``None``: all.
    affinity: int | None = None
    #: Seconds after which the application will have ended, if known.
    run_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Tiles and memory granted to an application, exclusively."""

    id: LeaseId
    token: str = field(repr=False)
    request: LeaseRequest
    #: Flat tile numbers, ascending.
    tiles: tuple[int, ...]
    #: ``(flat RDU number, bytes)``; adds up to the request's memory.
    memory: tuple[tuple[int, int], ...]
    granted_at: float

    @property
    def memory_bytes(self) -> int:
        return self.request.memory_bytes


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """Device memory that an application allocated within its lease."""

    id: RegionId
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class EndedLease:
    """The record of a lease that ended."""

    lease: Lease
    reason: EndReason
    ended_at: float
    history: tuple[LeaseStep, ...]


class Allocator:
    """The grants of one node. Not for several threads at once."""

    def __init__(self, node: NodeSpec, max_applications: int | None = None) -> None:
        self.node: Final = node
        #: Distinct launches that may hold leases at once.
        self.max_applications: Final = node.max_applications if max_applications is None else max_applications
        if self.max_applications < 1:
            raise InvalidArgument(f"max_applications is {self.max_applications}; expected 1 or more")
        #: Flat numbers of tiles that are not granted, because they or their RDU are broken; a lease may still hold
        #: them.
        self.out_of_service: frozenset[int] = frozenset()
        #: Flat numbers of tiles that an administrator excludes from grants; present holders keep them.
        self.held_back: frozenset[int] = frozenset()
        #: Maintenance to come: start in seconds since the epoch, and the tiles that are not there from then on.
        self.upcoming: tuple[tuple[float, frozenset[int]], ...] = ()
        #: By flat RDU number: bytes of device memory that are no longer granted.
        self.memory_retired: tuple[int, ...] = (0,) * node.rdus
        #: Leases in state ``active``, in order of their grants, and no others.
        self.leases: Final[dict[LeaseId, Lease]] = {}
        #: By flat tile number: the lease in ``leases`` that has the tile; ``None``: the tile is free.
        self.tile_holders: Final[list[LeaseId | None]] = [None] * node.tiles
        #: By flat RDU number: bytes granted to leases in ``leases``; never above the RDU's memory.
        self.memory_granted: Final[list[int]] = [0] * node.rdus
        #: Regions of each lease in ``leases``; every one has an entry, empty at first.
        self.regions: Final[dict[LeaseId, dict[RegionId, RegionRecord]]] = {}
        #: Sum of each lease's regions in bytes; never above its granted bytes.
        self.memory_allocated: Final[dict[LeaseId, int]] = {}
        #: Leases in a final state, oldest first; the newest ones only.
        self.ended: Final[OrderedDict[LeaseId, EndedLease]] = OrderedDict()
        self._history: Final[dict[LeaseId, list[LeaseStep]]] = {}

    @property
    def memory_total(self) -> int:
        """Bytes of device memory of the node."""
        return self.node.rdus * self.node.chip.ddr_bytes

    @property
    def room(self) -> FreeCapacity:
        """Free capacity."""
        return self._room_without(frozenset())

    def _room_until(self, end: float | None) -> FreeCapacity:
        """Return capacity that is free now and, if that is known, until ``end``."""
        late = [tiles for start, tiles in self.upcoming if end is not None and end > start]
        return self._room_without(frozenset().union(*late))

    def _room_without(self, tiles: frozenset[int]) -> FreeCapacity:
        capacity, broken = self.node.chip.ddr_bytes, self.out_of_service | self.held_back | tiles
        return FreeCapacity(
            [holder is None and index not in broken for index, holder in enumerate(self.tile_holders)],
            [max(0, capacity - n - gone) for n, gone in zip(self.memory_granted, self.memory_retired, strict=True)],
        )

    @property
    def healthy_room(self) -> FreeCapacity:
        """Capacity that would be free without leases."""
        capacity = self.node.chip.ddr_bytes
        return FreeCapacity(
            [index not in self.out_of_service for index in range(self.node.tiles)],
            [max(0, capacity - gone) for gone in self.memory_retired],
        )

    def set_health(self, out_of_service: frozenset[int], memory_retired: Sequence[int]) -> None:
        """Set the parts that may not be granted from now on. Leases keep such parts until they end.

        Args:
            out_of_service: flat tile numbers. memory_retired: bytes by flat RDU number.
        """
        if not all(0 <= index < self.node.tiles for index in out_of_service):
            raise InvalidArgument(f"no such tile among {sorted(out_of_service)}; expected 0 to {self.node.tiles - 1}")
        if len(memory_retired) != self.node.rdus or min(memory_retired) < 0:
            raise InvalidArgument(f"retired memory needs {self.node.rdus} numbers from 0, one an RDU")
        self.out_of_service, self.memory_retired = out_of_service, tuple(memory_retired)

    @property
    def applications(self) -> set[str]:
        """The launches that hold leases."""
        return {_launch_of(lease.id, lease.request) for lease in self.leases.values()}

    def acquire(self, request: LeaseRequest, lease_id: LeaseId, token: str, now: float) -> Lease:
        """Grant tiles and memory, exclusively.

        Raises:
            InvalidArgument: a number or the affinity mask is not valid on this node.
            NoResources: impossible at present; the message has the reason and what would fit. The error's detail
                ``fits_when_empty`` shows whether waiting can help.
        Source:
            Runtime reference 3.2; ``placement`` says which of the rules are ours.
        """
        self._check_request(request)
        if lease_id in self.leases or lease_id in self.ended:
            raise InvalidArgument(f"lease id {lease_id} was used before; ids must be unique")
        running = self.applications
        if _launch_of(lease_id, request) not in running and len(running) >= self.max_applications:
            raise NoResources(
                f"{self.node.platform} already runs {len(running)} applications, its limit; wait for one to end, or "
                "give all leases of one launch the same launch name; `rdukit node status` lists them",
                applications=len(running), max_applications=self.max_applications, fits_when_empty=True,
            )  # fmt: skip
        room = self._room_until(None if request.run_limit_s is None else now + request.run_limit_s)
        placement = find_placement(self.node, request.tiles, request.memory_bytes, room, request.affinity)
        if placement is None:
            raise self._no_resources(request, room)
        lease = Lease(lease_id, token, request, placement.tiles, placement.memory, now)
        self._grant(lease, placement)
        return lease

    def restore(self, lease: Lease) -> None:
        """Grant again the lease of an earlier daemon of this node, even if its parts are out of service.

        Raises:
            InvalidArgument: the node has not these tiles, or they are granted.
        """
        node = self.node
        taken = [index for index in lease.tiles if not 0 <= index < node.tiles or self.tile_holders[index] is not None]
        if (
            taken
            or not lease.tiles
            or lease.id in self.leases
            or {i // node.chip.tiles for i in lease.tiles} != {rdu for rdu, _ in lease.memory}
        ):
            raise InvalidArgument(f"lease {lease.id} does not belong to this node, {node.platform}")
        self._grant(lease, Placement(lease.tiles, lease.memory))

    def check_possible(self, request: LeaseRequest) -> None:
        """Check that the request would fit if there were no leases.

        Raises:
            InvalidArgument, NoResources: as ``acquire``; waiting cannot help.
        """
        self._check_request(request)
        fit = find_placement(self.node, request.tiles, request.memory_bytes, self.healthy_room, request.affinity)
        if fit is None:
            raise self._no_resources(request, self.room)

    def attach(self, lease_id: LeaseId, now: float) -> Lease:
        """Record another holder. The caller has checked the token.

        Raises:
            LeaseLost, NotFound: the lease ended, or never was.
        """
        lease = self.find_active(lease_id)
        self._step(lease_id, LeaseEvent.ATTACH, now)
        return lease

    def detach(self, lease_id: LeaseId, now: float) -> None:
        """Record that a holder left while others stay. Raises as ``attach``."""
        self.find_active(lease_id)
        self._step(lease_id, LeaseEvent.DETACH, now)

    def end(self, lease_id: LeaseId, event: LeaseEvent, now: float) -> EndedLease:
        """End a lease: its tiles, memory and regions are free afterwards.

        Args:
            event: any but ``attach`` and ``detach``.
        Raises:
            NotFound: the lease never existed.
            InvalidTransition: it ended before; carries its history.
        """
        if lease_id not in self.leases:
            if (former := self.ended.get(lease_id)) is not None:
                next_lease_state(lease_id, former.reason.final_state, event, former.history)
            raise _unknown(lease_id)
        if LeaseEvent(event) in (LeaseEvent.ATTACH, LeaseEvent.DETACH):
            raise InvalidArgument(f"{event} does not end a lease; expected any other event")
        reason = self._step(lease_id, event, now)
        assert reason is not None
        lease = self.leases.pop(lease_id)
        tiles = node_tiles(self.node)
        for index in lease.tiles:
            next_tile_state(tiles[index].path, self._tile_state(index), TileEvent.END)
            self.tile_holders[index] = None
        for rdu, count in lease.memory:
            self.memory_granted[rdu] -= count
        del self.regions[lease_id], self.memory_allocated[lease_id]
        ended = EndedLease(lease, reason, now, tuple(self._history.pop(lease_id)))
        self.ended[lease_id] = ended
        while len(self.ended) > _REMEMBERED:
            self.ended.popitem(last=False)
        return ended

    def allocate(self, lease_id: LeaseId, region_id: RegionId, name: str, region_bytes: int) -> RegionRecord:
        """Account ``region_bytes`` of the lease's memory to a new region.

        Raises:
            LeaseLost, NotFound: the lease ended, or never was.
            OutOfDeviceMemory: the lease has less left than that.
            InvalidArgument: ``region_bytes`` is below 1, or the region's id was used before.
        """
        lease = self.find_active(lease_id)
        if region_bytes < 1:
            raise InvalidArgument(f"region {name!r} has {region_bytes} bytes; expected 1 or more")
        if region_id in self.regions[lease_id]:
            raise InvalidArgument(f"lease {lease_id} already has a region {region_id}")
        used = self.memory_allocated[lease_id]
        if used + region_bytes > lease.memory_bytes:
            raise OutOfDeviceMemory(
                f"region {name!r} needs {format_bytes(region_bytes)}, but lease {lease_id} of "
                f"{lease.request.application!r} has {format_bytes(lease.memory_bytes - used)} left of "
                f"{format_bytes(lease.memory_bytes)}; ask for more memory when acquiring the lease, or free regions",
                lease=lease_id, requested=region_bytes, left=lease.memory_bytes - used, granted=lease.memory_bytes,
            )  # fmt: skip
        region = RegionRecord(region_id, name, region_bytes)
        self.regions[lease_id][region_id] = region
        self.memory_allocated[lease_id] = used + region_bytes
        return region

    def free(self, lease_id: LeaseId, region_id: RegionId) -> None:
        """Free a region.

        Raises:
            LeaseLost, NotFound: the lease ended or never existed; or the region belongs to another lease.
        """
        self.find_active(lease_id)
        region = self.regions[lease_id].pop(region_id, None)
        if region is None:
            raise NotFound(f"lease {lease_id} has no region {region_id!r}; it may have been freed before")
        self.memory_allocated[lease_id] -= region.bytes

    def find_active(self, lease_id: LeaseId) -> Lease:
        """Return the active lease ``lease_id``.

        Raises:
            LeaseLost: it ended; says when and why. LeaseWithdrawn: an administrator ended it.
            NotFound: there never was such a lease, or it ended long ago.
        """
        lease = self.leases.get(lease_id)
        if lease is None:
            if (ended := self.ended.get(lease_id)) is not None:
                kind = LeaseWithdrawn if ended.reason.is_withdrawn else LeaseLost
                raise kind(
                    f"lease {lease_id} of {ended.lease.request.application!r} ended: {ended.reason}; acquire a new one",
                    lease=lease_id, reason=str(ended.reason), ended_at=ended.ended_at,
                )  # fmt: skip
            raise _unknown(lease_id)
        return lease

    def validate(self) -> None:
        """Re-derive every total from the leases and compare.

        Raises:
            AssertionError: a bug: the machine contradicts itself.
        """
        holders: list[LeaseId | None] = [None] * self.node.tiles
        granted = [0] * self.node.rdus
        for lease_id, lease in self.leases.items():
            _assert(lease.id == lease_id and lease_id not in self.ended, f"lease {lease_id} is in one place")
            _assert(len(lease.tiles) >= lease.request.tiles, f"lease {lease_id} has the tiles it asked for")
            for index in lease.tiles:
                _assert(holders[index] is None, f"tile {index} is in one lease only")
                holders[index] = lease_id
            rdus = {index // self.node.chip.tiles for index in lease.tiles}
            _assert({rdu for rdu, _ in lease.memory} == rdus, f"lease {lease_id} has memory where its tiles are")
            _assert(sum(n for _, n in lease.memory) == lease.memory_bytes, f"lease {lease_id} has its memory")
            for rdu, count in lease.memory:
                granted[rdu] += count
            if len(rdus) > 1:
                _assert(len(lease.tiles) == len(rdus) * self.node.chip.tiles, f"lease {lease_id} has whole RDUs")
            else:
                _assert(lease.tiles[-1] - lease.tiles[0] + 1 == len(lease.tiles), f"{lease_id}: contiguous tiles")
            allocated = sum(region.bytes for region in self.regions[lease_id].values())
            _assert(allocated == self.memory_allocated[lease_id] <= lease.memory_bytes, f"{lease_id}: regions add up")
        _assert(holders == self.tile_holders, "tile holders are those of the leases")
        _assert(granted == self.memory_granted, "granted memory is that of the leases")
        _assert(all(count <= self.node.chip.ddr_bytes for count in granted), "no RDU's memory is granted twice")
        for table in (self.regions, self.memory_allocated, self._history):
            _assert(set(table) == set(self.leases), "each table has the active leases, and no others")
        _assert(len(self.applications) <= self.max_applications, "no more applications than the limit")

    def _check_request(self, request: LeaseRequest) -> None:
        if request.tiles < 1:
            raise InvalidArgument(f"{request.tiles} tiles requested; expected 1 to {self.node.tiles}")
        if request.memory_bytes < 0:
            raise InvalidArgument(f"{request.memory_bytes} bytes of memory requested; expected 0 or more")
        mask = request.affinity
        if mask is None:
            return
        if not 0 < mask < 1 << self.node.tiles:
            raise InvalidArgument(
                f"tile affinity {mask:#x} is not valid on {self.node.platform}; expected one bit for each of its "
                f"{self.node.tiles} tiles, 0x1 to {(1 << self.node.tiles) - 1:#x}"
            )
        empty = whole_capacity(self.node)
        if find_placement(self.node, request.tiles, 0, empty, mask) is None:
            raise InvalidArgument(
                f"tile affinity {mask:#x} does not allow {request.tiles} tiles on {self.node.platform}, which has "
                f"{self.node.chip.tiles} tiles an RDU; at most {max_tiles(self.node, request.tiles, 0, empty, mask)} "
                "fit under this mask"
            )

    def _grant(self, lease: Lease, placement: Placement) -> None:
        tiles = node_tiles(self.node)
        for index in placement.tiles:
            next_tile_state(tiles[index].path, self._tile_state(index), TileEvent.GRANT)
        for index in placement.tiles:
            self.tile_holders[index] = lease.id
        for rdu, count in placement.memory:
            self.memory_granted[rdu] += count
        self.leases[lease.id] = lease
        self.regions[lease.id] = {}
        self.memory_allocated[lease.id] = 0
        self._history[lease.id] = [LeaseStep(lease.granted_at, "grant", LeaseState.ACTIVE)]

    def _tile_state(self, index: int) -> TileState:
        return TileState.FREE if self.tile_holders[index] is None else TileState.LEASED

    def _step(self, lease_id: LeaseId, event: LeaseEvent, now: float) -> EndReason | None:
        history = self._history[lease_id]
        state, reason = next_lease_state(lease_id, LeaseState.ACTIVE, event, history)
        history.append(LeaseStep(now, str(event), state))
        if len(history) > _MAX_HISTORY:
            del history[1]
        return reason

    def _no_resources(self, request: LeaseRequest, room: FreeCapacity) -> NoResources:
        node, tiles, memory, mask = self.node, request.tiles, request.memory_bytes, request.affinity
        fits_when_empty = find_placement(node, tiles, memory, self.healthy_room, mask) is not None
        fits_when_repaired = find_placement(node, tiles, memory, whole_capacity(node), mask) is not None
        fewer_tiles = max_tiles(node, tiles, memory, room, mask)
        less_memory = max_memory(node, tiles, room, mask)
        free = sum(room.tile_is_free)
        asked = f"{_tiles(tiles)} with {format_bytes(memory)}" + (f" under affinity {mask:#x}" if mask else "")
        if fits_when_empty:
            why = (
                f"{free} of {node.tiles} tiles are free, at most {longest_run(node, room)} in a row inside one RDU, "
                f"and at most {format_bytes(max(room.memory_free))} of one RDU's memory"
            )
            if self.held_back:
                why += f"; {len(self.held_back)} are cordoned or in maintenance (`snfadm -l maintenance`)"
            if sum(room.tile_is_free) < sum(self.room.tile_is_free):
                why += "; the lease would outlast the start of a maintenance window (`snfadm -l maintenance`)"
        elif fits_when_repaired:
            why = (
                f"{len(self.out_of_service)} of {node.tiles} tiles and {format_bytes(sum(self.memory_retired))} of "
                "memory are out of service (`snfadm -l fault`)"
            )
        else:
            why = (
                f"the whole node has {node.tiles} tiles, {node.chip.tiles} in each RDU, and "
                f"{format_bytes(node.chip.ddr_bytes)} of memory for each RDU"
            )
        offers = [f"{_tiles(fewer_tiles)} with that memory"] if fewer_tiles else []
        if less_memory is not None:
            offers.append(f"{_tiles(tiles)} with up to {format_bytes(less_memory)}")
        now_fits = f"what would fit now: {', or '.join(offers)}" if offers else "no similar request would fit now"
        step = (
            "ask for that, or wait for a lease to end (setting acquire.wait_s)"
            if fits_when_empty
            else "ask for less, or repair the node"
            if fits_when_repaired
            else "ask for less; waiting cannot help"
        )
        return NoResources(
            f"{node.platform} cannot grant {asked}: {why}; {now_fits}. Next: {step} (`rdukit node status` shows who "
            "holds what)",
            requested_tiles=tiles, requested_memory_bytes=memory, free_tiles=free, fits_tiles=fewer_tiles,
            fits_memory_bytes=less_memory, fits_when_empty=fits_when_empty, out_of_service=len(self.out_of_service),
        )  # fmt: skip


def _launch_of(lease_id: LeaseId, request: LeaseRequest) -> str:
    # A lease without a launch is a separate application; the prefix distinguishes it from launches named like an id.
    return f"launch:{request.launch}" if request.launch is not None else f"lease:{lease_id}"


def _tiles(count: int) -> str:
    return "1 tile" if count == 1 else f"{count} tiles"


def _unknown(lease_id: str) -> NotFound:
    return NotFound(f"there is no lease {lease_id!r}; `rdukit node status` lists the leases")


def _assert(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"allocator: it should hold that {what}")
