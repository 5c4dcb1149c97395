"""Tiles of a job near each other: one RDU, else one XRDU, else few; nodes of one rack where as few do."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from rdukit.hardware import NodeSpec, fill_fewest, find_chip
from rdukit_node.leases.placement import FreeCapacity, find_placement
from rdukit_platform.cli.show import describe_place
from rdukit_platform.nodes.topology import NodeLayout, place_members
from rdukit_platform.nodes.view import NodeCapacity, members_that_fit, view_for_scheduler
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import NO_LABELS, NodeState, QueuedJob, QueueSnapshot
from rdukit_platform.scheduler.node_room import rows_of
from support import shows

pytestmark = shows("scheduler")

RDU, XRDUS = 4, 3
#: Three XRDUs of two RDUs of four tiles.
LAYOUT = NodeLayout(RDU, 2)
SPEC = NodeSpec("SMALL", find_chip("sn10"), XRDUS, 2)


def mask(*rdus: str) -> int:
    return sum(1 << place for place, tile in enumerate("".join(rdus)) if tile == "-")


def members_in(free: int, tiles: int) -> int:
    return members_that_fit(tiles, RDU, rows_of(free, RDU))


@given(st.integers(0, (1 << 24) - 1), st.integers(1, 12), st.integers(1, 6))
def test_members_get_rows_or_whole_rdus_as_near_as_they_can_be_and_the_daemon_gives_them(
    free: int, tiles: int, members: int
) -> None:
    found = place_members(tiles, members, free, LAYOUT)
    assert (found is None) == (members_in(free, tiles) < members)
    if found is None:
        return
    together = 0
    for each in found.masks:
        assert each & ~free == 0 and each & together == 0
        together |= each
        # The daemon has no choice but these, and takes them.
        room = FreeCapacity([free >> index & 1 == 1 for index in range(24)], [SPEC.chip.ddr_bytes] * 6)
        placed = find_placement(SPEC, tiles, 0, room, affinity=each)
        assert placed is not None and sum(1 << index for index in placed.tiles) == each
    used = {index // RDU for index in range(24) if together >> index & 1}
    assert (found.rdus, found.xrdus) == (len(used), len({rdu // 2 for rdu in used}))
    in_rdu = [members_in(free >> rdu * RDU & 0xF, tiles) for rdu in range(6)]
    if members > 1 or tiles > RDU:
        assert (found.distance == 0) == (max(in_rdu) >= members)
        # As few XRDUs as can be: no smaller choice of them has room; whole RDUs of a member may be of several.
        each, needed = -(-tiles // RDU), members * -(-tiles // RDU)
        in_xrdu = [members_in(free >> xrdu * 8 & 0xFF, min(tiles, RDU)) for xrdu in range(XRDUS)]
        fewer = combinations(in_xrdu, found.xrdus - 1)
        assert each >= 1 and all(sum(some) < needed for some in fewer)


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 20))
def test_the_fewest_rooms_are_filled(rooms: list[int], needed: int) -> None:
    found = fill_fewest(rooms, needed)
    assert (found is None) == (sum(rooms) < needed)
    if found is not None:
        assert sum(number for _, number in found) == needed
        assert all(0 < number <= rooms[index] for index, number in found)
        assert sum(sorted(rooms)[-len(found) + 1 :] if len(found) > 1 else ()) < needed
        assert len({index for index, _ in found}) == len(found)


def node(name: str, *rdus: str, labels: frozenset[tuple[str, str]] = NO_LABELS) -> NodeState:
    free = mask(*rdus)
    capacity = NodeCapacity(
        RDU * len(rdus), free.bit_count(), 8, rdu_tiles=RDU, rows=(RDU,) * len(rdus),
        free_rows=tuple(rows_of(free, RDU)), free_mask=free, xrdu_rdus=2,
    )  # fmt: skip
    return NodeState(name, capacity, 8, labels, is_linked=True)


def placed(job: QueuedJob, *nodes: NodeState) -> str | list[str | None]:
    decision = decide(QueueSnapshot(100.0, (job,), (), nodes))
    parts = decision.parts.get("job", ())
    return sorted(str(part.node) for part in parts) if parts else decision.placements["job"]


def test_a_job_goes_where_its_rdus_are_of_one_xrdu_and_members_where_they_have_one_rdu() -> None:
    apart, pair = node("apart", "----", "xxxx", "xxxx", "----"), node("pair", "xxxx", "xxxx", "----", "----", "xxx-")
    assert placed(QueuedJob("job", "t", 8, 90.0), apart, pair) == "pair"
    two = QueuedJob("job", "t", 4, 90.0, members=2)
    assert placed(two, node("two", "--xx", "--xx"), node("one", "xxxx", "----", "----")) == "one"
    assert placed(two, node("far", "--xx", "xxxx", "--xx"), node("near", "--xx", "--xx", "----x")) == "near"


def test_as_few_nodes_as_suffice_are_of_one_rack_where_such_ones_do() -> None:
    a, b = frozenset({("rack", "a")}), frozenset({("rack", "b")})
    gang = QueuedJob("job", "t", 8, 90.0, members=2)
    nodes = [node("a1", "----", labels=a), node("b1", "----", labels=b), node("b2", "----", labels=b)]
    assert placed(gang, *nodes) == ["b1", "b2"]
    # Fewer nodes count more.
    more = QueuedJob("job", "t", 12, 90.0, members=3)
    nodes = [node("a1", "----", "----", labels=a), *nodes[1:], node("b3", "----", labels=b)]
    assert placed(more, *nodes) == ["a1", "b1"]


def test_a_node_says_how_many_rdus_an_xrdu_has_and_a_job_what_it_is_on() -> None:
    paths = [f"/NODE/XRDU_{x}/RDU_{r}/TILE_{t}" for x in range(2) for r in range(2) for t in range(4)]
    tiles = [
        {"path": path, "rdu": at // 4, "tile": at % 4, "lease": None, "health": "online"}
        for at, path in enumerate(paths)
    ]
    assert view_for_scheduler({"tiles": tiles}).xrdu_rdus == 2
    assert view_for_scheduler({"tiles": [{**tile, "path": None} for tile in tiles]}).xrdu_rdus == 0
    attempt = {"outcome": None, "node": "one", "tiles": paths[:8], "parts": [{"node": "two", "tiles": paths[:1]}]}
    assert describe_place(attempt) == "one: 8 tiles, 2 RDUs of 1 XRDU; two: 1 tile, 1 RDU of 1 XRDU"
    assert describe_place({**attempt, "outcome": "succeeded"}) == ""
