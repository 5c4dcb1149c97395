"""Leases of a daemon that ended, in the hands of the next one."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.hardware import GIB
from rdukit_node.leases.files import LeaseFile, encode
from support import shows
from support.node.harness import DaemonHarness, acquire

pytestmark = shows("node")


def restarted(desk: DaemonHarness, folder: Path, patience: float = 10) -> DaemonHarness:
    """The daemon after ``desk``'s."""
    file = LeaseFile(folder / "leases.json")
    file.write(encode(desk.daemon.kept_leases()))
    desk.daemon.leave(desk.clock.now())
    after = DaemonHarness(first_id=100)
    for kept in file.read():
        after.daemon.restore_lease(kept, after.clock.now() + patience, after.clock.now())
    after.daemon.validate()
    for number in (1, 2):
        after.connect(number)
    return after


@pytest.fixture
def desk() -> DaemonHarness:
    found = DaemonHarness()
    for number in (1, 2):
        found.connect(number)
    return found


def test_a_lease_goes_on_with_its_tiles_its_regions_and_its_counts(desk: DaemonHarness, tmp_path: Path) -> None:
    lease = acquire(desk, 1, tiles=2)
    desk.page(1, lease["id"]).count_run(1, 2, 3, 4, 5)
    after = restarted(desk, tmp_path)
    assert after.code(2, "acquire", application="thief", tiles=4, memory_bytes=0) == "no-resources"
    (row,) = after.ok(2, "status")["leases"]
    assert (row["tiles"], row["pids"], row["counters"]["runs"]) == (list(lease["tiles"]), [], 1)
    regions = [{"name": "weights", "bytes": 100}, {"name": "cache", "bytes": 200}]
    assert after.code(1, "reattach", lease=lease["id"], token="guessed", regions=regions) == "unauthenticated"
    answer = after.ok(1, "reattach", lease=lease["id"], token=lease["token"], regions=regions)
    assert answer["lease"]["tiles"] == lease["tiles"]
    assert after.ok(2, "status")["leases"][0]["memory_allocated"] == 300
    after.ok(1, "free", lease=lease["id"], region=answer["regions"][0])
    page = after.page(1, lease["id"])
    for _ in range(3):
        page.count_run(1, 2, 3, 4, 5)
    after.clock.advance(100)
    after.daemon.tick(after.clock.now())
    after.daemon.validate()
    after.ok(1, "release", lease=lease["id"])
    assert [row["runs"] for row in after.daemon.ended_rows] == [3], "what its page says, nothing twice"
    after.daemon.validate()


def test_who_does_not_come_in_time_has_lost_it_and_its_counts_are_booked(desk: DaemonHarness, tmp_path: Path) -> None:
    lease = acquire(desk, 1, tiles=4)
    desk.page(1, lease["id"]).count_run(1, 2, 3, 4, 5)
    after = restarted(desk, tmp_path)
    after.clock.step(1000)
    after.daemon.clock_stepped(1000)
    after.clock.advance(9.99)
    after.daemon.tick(after.clock.now())
    assert after.ok(2, "status")["leases"]
    after.clock.advance(0.01)
    after.daemon.tick(after.clock.now())
    assert after.ok(2, "status")["leases"] == []
    assert [row["runs"] for row in after.daemon.ended_rows] == [1]
    assert after.code(1, "reattach", lease=lease["id"], token=lease["token"], regions=[]) == "lease-lost"
    acquire(after, 2, tiles=4)
    after.daemon.validate()


def test_a_failure_of_its_hardware_is_not_forgotten(desk: DaemonHarness, tmp_path: Path) -> None:
    desk.connect(9, is_admin=True)
    lease = acquire(desk, 1, tiles=2)
    desk.page(1, lease["id"])
    desk.ok(9, "inject", events=[{"class": "tile-excluded", "component": lease["tiles"][0]}])
    after = restarted(desk, tmp_path)
    after.ok(1, "reattach", lease=lease["id"], token=lease["token"], regions=[])
    assert after.page(1, lease["id"]).interrupts == 1
    assert after.ok(1, "interrupt", lease=lease["id"])["fault"]["code"] == "tile-fault"


def test_clients_that_do_not_come_back_are_not_waited_for(desk: DaemonHarness, tmp_path: Path) -> None:
    acquire(desk, 1, tiles=2)
    assert restarted(desk, tmp_path).ok(2, "status")["leases"] == []
    assert [row["reason"] for row in desk.daemon.ended_rows] == ["the node daemon stopped"]


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"leases": [1]}', '{"leases": [{"lease": {}}]}'])
def test_a_file_that_is_damaged_keeps_nothing_and_stops_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "leases.json").write_text(text)
    file = LeaseFile(tmp_path / "leases.json")
    assert file.read() == []
    assert file.damage["reason"] and (tmp_path / "leases.json.damaged").read_text() == text


def test_a_flipped_bit_in_the_leases_is_reported_and_gives_no_lease_other_tiles(
    desk: DaemonHarness, tmp_path: Path
) -> None:
    lease = acquire(desk, 1, tiles=2)
    desk.page(1, lease["id"])
    data = encode(desk.daemon.kept_leases())
    assert b'"tiles": [0, 1]' in data
    file = LeaseFile(tmp_path / "leases.json")
    file.write(data.replace(b'"tiles": [0, 1]', b'"tiles": [2, 1]'))
    assert file.read() == [] and "checksum" in str(file.damage["reason"])


def test_a_lease_of_another_platform_is_not_restored(desk: DaemonHarness, tmp_path: Path) -> None:
    large = DaemonHarness("SN10-8")
    large.connect(1)
    acquire(large, 1, tiles=4, memory_bytes=GIB)
    lease = acquire(large, 1, tiles=4, memory_bytes=GIB)
    large.page(1, lease["id"])
    (kept,) = large.daemon.kept_leases()
    with pytest.raises(InvalidArgument, match="does not belong to this node"):
        desk.daemon.restore_lease(kept, 0, 0)
    desk.daemon.validate()
