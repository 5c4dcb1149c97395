"""Which node a replica waits at, and which drain moves it."""

from dataclasses import asdict
from pathlib import Path

import pytest

from rdukit_platform.db.models import NodeRow
from rdukit_platform.nodes.registry import read_draining, read_rooms
from rdukit_platform.nodes.view import NodeCapacity, find_drain, has_free, is_best_here
from support import shows
from support.platform.processes import fresh_database

pytestmark = shows("node", "nodes", "endpoints")

EMPTY = NodeCapacity(64, 64, 8, rdu_tiles=8, rows=(8,) * 8, free_rows=(8,) * 8)
FULL = NodeCapacity(64, 0, 8, rdu_tiles=8, rows=(8,) * 8)
#: Enough tiles, and none of them side by side.
SCATTERED = NodeCapacity(64, 16, 8, rdu_tiles=8, rows=(8,) * 8, free_rows=(2,) * 8)
TILE = "/NODE/XRDU_0/RDU_1/TILE_3"


@pytest.mark.parametrize(
    ("tiles", "node", "has"),
    [
        (8, EMPTY, True), (16, EMPTY, True), (1, FULL, False), (2, SCATTERED, True), (4, SCATTERED, False),
        (16, SCATTERED, False), (1, NodeCapacity(64, 64, 0, rdu_tiles=8, free_rows=(8,) * 8), False),
        (4, NodeCapacity(8, 4, 1), True),
    ],
)  # fmt: skip
def test_tiles_are_free_where_they_are_side_by_side(tiles: int, node: NodeCapacity, has: bool) -> None:
    assert has_free(tiles, node) is has


def test_a_replica_waits_where_its_tiles_are_or_where_no_other_node_has_them() -> None:
    assert is_best_here("a", 4, {"a": EMPTY, "b": EMPTY})
    assert not is_best_here("a", 4, {"a": SCATTERED, "b": EMPTY})
    assert is_best_here("a", 4, {"a": FULL, "b": SCATTERED})
    assert is_best_here("a", 4, {})
    assert not is_best_here("a", 4, {"b": EMPTY}), "its daemon does not answer"


@pytest.mark.parametrize(
    ("cordon", "is_found"),
    [
        ({"component": "/NODE", "state": "draining", "deadline": 1}, True),
        ({"component": "/NODE/XRDU_0/RDU_1", "state": "draining", "deadline": 1}, True),
        ({"component": TILE, "state": "draining", "deadline": 1}, True),
        ({"component": "/NODE/XRDU_0/RDU_10", "state": "draining", "deadline": 1}, False),
        ({"component": "/NODE", "state": "draining", "deadline": None}, False),
        ({"component": "/NODE", "state": "cordoned", "deadline": None}, False),
    ],
)
def test_a_drain_moves_what_is_below_its_part_if_it_has_a_deadline(cordon: dict[str, object], is_found: bool) -> None:
    assert (find_drain([cordon], ["/NODE/XRDU_1/RDU_0/TILE_0", TILE]) == cordon) is is_found
    assert find_drain([cordon], []) is find_drain(None, [TILE]) is None


def test_the_database_tells_which_nodes_drain_and_which_take_something_new(tmp_path: Path) -> None:
    draining = {"component": "/NODE", "state": "draining", "deadline": 1}
    reports = {"a": {"cordons": [draining]}, "b": {"cordons": [{**draining, "state": "cordoned"}]}, "c": {}}
    with fresh_database(tmp_path) as database, database.write() as session:
        for name, report in reports.items():
            session.add(NodeRow(
                name=name, home_id=name, host=name, labels={}, state="leaving" if name == "c" else "up",
                capacity=asdict(EMPTY), leased=[], report=report, beats=0, beat_at=0.0, joined_at=0.0, changed_at=0.0,
            ))  # fmt: skip
        session.flush()
        assert read_draining(session) == {"a": [draining]}
        assert read_rooms(session) == {"a": EMPTY, "b": EMPTY}
