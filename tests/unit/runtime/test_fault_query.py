"""Filters choose rows of errors, faults and hangs, page by page."""

import itertools

import pytest

from rdukit.errors import InvalidArgument, NotFound
from rdukit.hardware import find_node
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import Injection, nobody
from rdukit_node.faults.query import find_errors, find_faults, find_hangs
from support import shows

pytestmark = shows("faults", "wire")


@pytest.fixture(scope="module")
def machine() -> FaultMachine:
    numbers = itertools.count()
    made = FaultMachine(find_node("SN30-8"), lambda: f"uuid-{next(numbers)}")
    made.inject([Injection("tile-excluded", f"/NODE/XRDU_1/RDU_0/TILE_{tile}") for tile in range(4)], nobody, 100)
    made.inject([Injection("ddr-correctable", "/NODE/XRDU_1/RDU_1", count=24)], nobody, 200)
    made.inject([Injection("host-memory")], nobody, 300)
    made.inject([Injection("tile-excluded", "/NODE/XRDU_1/RDU_0/TILE_0")], nobody, 400)
    made.repair("/NODE/XRDU_1/RDU_0/TILE_3", "root", 500)
    return made


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 6),
        ({"component": "/NODE/XRDU_1/RDU_0"}, 4),
        ({"component": "/XRDU_1/RDU_0/TILE_1"}, 1),
        ({"component": "/XRDU_1/RDU_0/TILE"}, 0),
        ({"component": "/NODE"}, 6),
        ({"type": "ETYPE_TILE_BAD"}, 4),
        ({"type": "tile_bad"}, 4),
        ({"since": 300}, 2),
        ({"until": 100}, 4),
        ({"since": 150, "until": 250}, 2),
        ({"fault": None, "limit": 5}, 5),
    ],
)
def test_errors_are_filtered(machine: FaultMachine, filters: dict[str, object], count: int) -> None:
    assert len(find_errors(machine.errors, **filters).rows) == count


def test_faults_are_the_active_ones_unless_cleared_ones_or_one_of_them_are_asked_for(machine: FaultMachine) -> None:
    assert len(find_faults(machine.faults).rows) == 5
    everything = find_faults(machine.faults, cleared=True).rows
    assert len(everything) == 6
    gone = next(row for row in everything if not row.is_active)
    assert find_faults(machine.faults, fault=gone.fault_uuid).rows == (gone,)
    assert len(find_errors(machine.errors, fault=gone.fault_uuid).rows) == 1
    assert [row.fault_type for row in find_faults(machine.faults, severity="critical").rows] == ["FTYPE_HOST_MEMORY"]
    assert len(find_faults(machine.faults, severity="Major").rows) == 4
    assert len(find_faults(machine.faults, type="tile_excluded").rows) == 3


def test_pages_follow_each_other_without_gaps(machine: FaultMachine) -> None:
    first = find_errors(machine.errors, limit=4)
    assert len(first.rows) == 4 and first.more
    second = find_errors(machine.errors, limit=4, after=first.rows[-1].err_uuid)
    assert first.rows + second.rows == machine.errors and not second.more
    with pytest.raises(NotFound, match="to continue after"):
        find_errors(machine.errors, after="nobody")


def test_hangs_are_the_newest(machine: FaultMachine) -> None:
    assert len(find_hangs(machine.hangs)) == len(machine.hangs)
    assert find_hangs(machine.hangs, "/NODE/XRDU_0") == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0}, {"limit": True}, {"since": -1}, {"since": 1.5}, {"component": ""}, {"severity": "bad"},
        {"cleared": "yes"}, {"colour": "red"}, {"type": 3},
    ],
)  # fmt: skip
def test_a_filter_that_is_not_legal_is_refused(machine: FaultMachine, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="expected "):
        find_faults(machine.faults, **wrong)
