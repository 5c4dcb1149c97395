"""Whatever the order of requests, no tile is in two leases and every total is right."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from rdukit.errors import InvalidArgument, NoResources, OutOfDeviceMemory
from rdukit.hardware import GIB, ChipSpec, NodeSpec
from rdukit_node.leases.allocator import Allocator, LeaseId, LeaseRequest, RegionId
from rdukit_node.leases.placement import find_placement
from rdukit_node.states import LeaseEvent
from support import shows

pytestmark = shows("node", "isolation")

NODE = NodeSpec("SMALL", ChipSpec("small", 4, 1, 1, 1, 1.0, 1, 10 * GIB, 1.0, 0, 0.0, 1, 1.0), 2, 2, max_applications=6)


class Grants(RuleBasedStateMachine):
    """Random applications on a small node."""

    leases: Bundle[LeaseId] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.allocator = Allocator(NODE)
        self.count = 0

    @rule(
        target=leases,
        tiles=st.integers(0, 18),
        memory=st.one_of(st.integers(0, 12), st.just(45)).map(lambda gib: gib * GIB + 1),
        launch=st.sampled_from([None, None, "a", "b"]),
        affinity=st.one_of(st.none(), st.none(), st.integers(0, 1 << 17)),
    )
    def acquire(self, tiles: int, memory: int, launch: str | None, affinity: int | None) -> LeaseId:
        self.count += 1
        lease_id = LeaseId(f"L{self.count}")
        request = LeaseRequest("app", tiles, memory, launch=launch, affinity=affinity)
        room = self.allocator.room
        try:
            lease = self.allocator.acquire(request, lease_id, "t", float(self.count))
        except InvalidArgument:
            return lease_id
        except NoResources as refusal:
            if "fits_tiles" in refusal.detail:
                assert find_placement(NODE, tiles, memory, room, affinity) is None
                fits = refusal.detail["fits_tiles"]
                assert isinstance(fits, int)
                assert fits == 0 or find_placement(NODE, fits, memory, room, affinity) is not None
                bytes_that_fit = refusal.detail["fits_memory_bytes"]
                if isinstance(bytes_that_fit, int):
                    assert find_placement(NODE, tiles, bytes_that_fit, room, affinity) is not None
                    assert find_placement(NODE, tiles, bytes_that_fit + 1, room, affinity) is None
            return lease_id
        assert all(room.tile_is_free[index] for index in lease.tiles)
        assert affinity is None or all(affinity >> index & 1 for index in lease.tiles)
        return lease_id

    @rule(lease=consumes(leases), event=st.sampled_from([LeaseEvent.RELEASE, LeaseEvent.HOLDERS_GONE]))
    def end(self, lease: LeaseId, event: LeaseEvent) -> None:
        if lease in self.allocator.leases:
            self.allocator.end(lease, event, 0.0)

    @rule(lease=leases, share=st.floats(0.01, 1.5))
    def allocate(self, lease: LeaseId, share: float) -> None:
        if lease not in self.allocator.leases:
            return
        self.count += 1
        granted = self.allocator.leases[lease].memory_bytes
        before = self.allocator.memory_allocated[lease]
        size = max(1, int(granted * share))
        try:
            self.allocator.allocate(lease, RegionId(f"r{self.count}"), "r", size)
        except OutOfDeviceMemory:
            assert before + size > granted

    @rule(lease=leases, data=st.data())
    def free(self, lease: LeaseId, data: st.DataObject) -> None:
        if regions := sorted(self.allocator.regions.get(lease, {})):
            self.allocator.free(lease, data.draw(st.sampled_from(regions)))

    @invariant()
    def books_agree(self) -> None:
        self.allocator.validate()

    def teardown(self) -> None:
        for lease in list(self.allocator.leases):
            self.allocator.end(lease, LeaseEvent.NODE_STOP, 0.0)
        assert all(self.allocator.room.tile_is_free)
        assert self.allocator.room.memory_free == [NODE.chip.ddr_bytes] * NODE.rdus
        self.allocator.validate()


TestGrants = Grants.TestCase
TestGrants.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
