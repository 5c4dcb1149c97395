"""Cordons, drains, releases by an administrator and maintenance windows, in the daemon's decisions."""

from collections.abc import Iterator

import pytest

from rdukit_node.cli.fault_views import VIEWS, maintenance_rows, view_lines
from rdukit_node.cli.status_text import status_lines
from support import shows
from support.node.harness import DaemonHarness, acquire

pytestmark = shows("node", "tools")

NODE, RDU = "/NODE", "/NODE/XRDU_0/RDU_0"
TILE = f"{RDU}/TILE_0"


@pytest.fixture
def desk() -> Iterator[DaemonHarness]:
    desk = DaemonHarness("SN10-8")
    for number in (1, 2, 3):
        desk.connect(number)
    desk.connect(9, is_admin=True)
    yield desk
    desk.daemon.validate()


def pass_time(desk: DaemonHarness, seconds: float) -> None:
    desk.clock.advance(seconds)
    desk.daemon.tick(desk.clock.now())


def ns(desk: DaemonHarness, seconds: float) -> int:
    return int((desk.clock.now() + seconds) * 1e9)


def test_only_administrators_change_what_is_allocated(desk: DaemonHarness) -> None:
    for op, arguments in {
        "cordon": {"component": NODE}, "uncordon": {"component": NODE}, "drain": {"component": NODE},
        "evict": {"lease": "L1"}, "plan_maintenance": {"component": NODE, "reason": "fans"},
        "end_maintenance": {"window": "mw-1"},
    }.items():  # fmt: skip
        assert desk.code(1, op, **arguments) == "permission-denied", op
    assert desk.ok(1, "maintenance") == {"ok": True, "cordons": [], "windows": []}


def test_a_cordoned_tile_is_not_granted_and_its_lease_stays(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, tiles=2)
    row = desk.ok(9, "cordon", component=TILE, reason="noisy")["cordon"]
    assert (row["state"], row["by"], row["leases"]) == ("cordoned", "ada", [lease["id"]])
    desk.ok(1, "allocate", lease=lease["id"], bytes=1, name="r")
    desk.ok(1, "release", lease=lease["id"])
    assert acquire(desk, 1, tiles=2)["tiles"][0] == f"{RDU}/TILE_1"
    tiles = desk.ok(1, "status")["tiles"]
    assert [tile["cordon"] for tile in tiles[:2]] == ["cordoned", None]
    assert desk.ok(9, "uncordon", component="/NODE/XRDU_0")["uncordoned"] == [TILE]
    assert acquire(desk, 2, tiles=1)["tiles"] == [TILE]
    assert [kind for kind in desk.kinds() if "cordon" in kind] == ["cordon", "uncordon"]


def test_who_waits_gets_the_tiles_when_the_cordon_is_taken_back(desk: DaemonHarness) -> None:
    desk.ok(9, "cordon", component=NODE)
    refused = desk.error(1, "acquire", application="app", tiles=1, memory_bytes=0)
    assert "32 are cordoned" in refused["message"]
    assert refused["detail"]["fits_when_empty"] is True
    assert desk.find_answer(2, "acquire", application="app", tiles=1, memory_bytes=0, wait_s=60) is None
    desk.ok(9, "uncordon", component=NODE)
    assert [number for number, _ in desk.daemon.take_ready()] == [2]


def test_a_cordon_above_keeps_what_is_below(desk: DaemonHarness) -> None:
    desk.ok(9, "cordon", component="/NODE/XRDU_0")
    assert desk.code(9, "uncordon", component=TILE) == "conflict"
    assert desk.code(9, "uncordon", component="/NODE/XRDU_1") == "not-found"
    assert desk.code(9, "cordon", component="/NODE/XRDU_7") == "not-found"
    assert desk.code(9, "cordon", component=f"{RDU}/PCIE_0") == "invalid-argument"


def test_a_drain_waits_for_leases_and_then_ends_them(desk: DaemonHarness) -> None:
    inside, outside = acquire(desk, 1, tiles=4), acquire(desk, 2, tiles=4)
    page = desk.page(1, inside["id"])
    row = desk.ok(9, "drain", component=RDU, deadline_s=30, reason="repair")["cordon"]
    assert (row["state"], row["leases"]) == ("draining", [inside["id"]])
    pass_time(desk, 29)
    desk.ok(1, "allocate", lease=inside["id"], bytes=1, name="r")
    assert desk.daemon.next_deadline() == pytest.approx(desk.clock.now() + 1)
    pass_time(desk, 2)
    assert page.interrupts == 1
    lost = desk.error(1, "interrupt", lease=inside["id"])
    assert lost["code"] == "lease-withdrawn"
    assert "drained" in lost["message"]
    desk.ok(2, "allocate", lease=outside["id"], bytes=1, name="r")
    assert desk.ok(1, "maintenance")["cordons"][0]["state"] == "drained"
    assert desk.daemon.next_deadline() is None
    evicted = [event for event in desk.ok(1, "events")["events"] if event["kind"] == "evict"]
    assert [(event["lease"], "repair" in event["reason"]) for event in evicted] == [(inside["id"], True)]


def test_a_drain_without_a_deadline_lets_leases_end_by_themselves(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1)
    desk.ok(9, "drain", component=NODE)
    pass_time(desk, 10**6)
    desk.ok(1, "release", lease=lease["id"])
    assert desk.ok(1, "maintenance")["cordons"][0]["state"] == "drained"
    assert desk.code(2, "acquire", application="app", tiles=1, memory_bytes=0) == "no-resources"


def test_an_administrator_releases_somebodys_lease_and_the_log_says_who_and_why(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, job="job-1")
    told = desk.ok(9, "evict", lease=lease["id"], reason="stuck", on_behalf_of="tok-7")["released"]
    assert (told["lease"], told["job"]) == (lease["id"], "job-1")
    assert desk.code(1, "allocate", lease=lease["id"], bytes=1, name="r") == "lease-withdrawn"
    (event,) = [event for event in desk.ok(1, "events")["events"] if event["kind"] == "evict"]
    assert event["reason"] == "released by an administrator: tok-7 (through ada): stuck"
    assert desk.code(9, "evict", lease=lease["id"]) == "lease-withdrawn"
    assert acquire(desk, 2)["tiles"] == lease["tiles"]


def test_maintenance_drains_from_its_start_and_ends_by_itself(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, tiles=4)
    window = desk.ok(
        9, "plan_maintenance", component=RDU, starts_at=ns(desk, 100), ends_at=ns(desk, 200), grace_s=10, reason="fan"
    )["window"]
    assert acquire(desk, 2, tiles=28)
    pass_time(desk, 99)
    assert desk.ok(1, "status")["tiles"][0]["cordon"] is None
    pass_time(desk, 2)
    assert desk.ok(1, "status")["tiles"][0]["cordon"] == "draining"
    assert desk.code(9, "uncordon", component=RDU) == "conflict"
    assert desk.daemon.next_deadline() == pytest.approx(desk.clock.now() + 9)
    pass_time(desk, 10)
    assert desk.code(1, "allocate", lease=lease["id"], bytes=1, name="r") == "lease-withdrawn"
    pass_time(desk, 90)
    assert desk.ok(1, "maintenance")["windows"] == []
    assert acquire(desk, 3, tiles=4)["tiles"] == lease["tiles"]
    told = [event["reason"] for event in desk.ok(1, "events")["events"] if event["kind"] == "maintenance"]
    assert [text.replace(":", "").split(" ", 2)[:2] for text in told] == [
        [window["window"], w] for w in ("planned", "began", "ended")
    ]


def test_nothing_is_granted_that_would_outlast_the_start_of_maintenance(desk: DaemonHarness) -> None:
    desk.ok(9, "plan_maintenance", component=RDU, starts_at=ns(desk, 100), reason="fan")
    assert acquire(desk, 1, tiles=4, run_limit_s=50)["tiles"][0] == TILE
    desk.ok(9, "plan_maintenance", component=NODE, starts_at=ns(desk, 1000), reason="power")
    late = desk.error(2, "acquire", application="app", tiles=1, memory_bytes=0, run_limit_s=2000)
    assert late["code"] == "no-resources"
    assert "outlast the start" in late["message"]
    assert acquire(desk, 2, tiles=4, run_limit_s=500)["tiles"][0] == "/NODE/XRDU_0/RDU_1/TILE_0"


def test_a_window_is_cancelled_and_one_that_ends_before_its_start_is_refused(desk: DaemonHarness) -> None:
    window = desk.ok(9, "plan_maintenance", component=NODE, starts_at=ns(desk, 5), reason="fan")["window"]["window"]
    desk.ok(9, "end_maintenance", window=window)
    assert desk.code(9, "end_maintenance", window=window) == "not-found"
    wrong = {"component": NODE, "starts_at": ns(desk, 9), "ends_at": ns(desk, 8), "reason": "fan"}
    assert desk.code(9, "plan_maintenance", **wrong) == "invalid-argument"


def test_status_and_the_listing_show_what_is_kept_back(desk: DaemonHarness) -> None:
    acquire(desk, 1, tiles=1)
    desk.ok(9, "drain", component=RDU, reason="repair")
    desk.ok(9, "plan_maintenance", component=NODE, starts_at=ns(desk, 60), reason="power")
    status = desk.ok(1, "status")
    lines = status_lines(status, desk.clock.now())
    assert any("28 of 32 free, 4 cordoned" in line for line in lines)
    assert f"cordon  {RDU} draining, 1 lease to end: repair" in lines
    assert f"{RDU}  A - - -" in lines
    shown = view_lines(VIEWS["maintenance"], maintenance_rows(desk.ok(1, "maintenance"), ns(desk, 0)))
    assert [line.split()[:2] for line in shown] == [[RDU, "draining"], [NODE, "planned"]]
