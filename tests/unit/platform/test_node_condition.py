"""What works on a node: in the scheduler's eyes, and in people's."""

import pytest

from rdukit_platform.console.tiles import view_nodes
from rdukit_platform.nodes.view import (
    NodeCapacity,
    active_faults,
    healthy_rows,
    is_usable,
    node_health,
    view_for_scheduler,
)
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import NodeState, QueuedJob, QueueSnapshot
from support import shows

pytestmark = shows("nodes", "console", "faults")


def tiles(*rdus: str) -> list[dict[str, object]]:
    """A node's tiles, an RDU a word: o online, x excluded, u unavailable, w worn but working, h held."""
    healths = {"o": "Online", "x": "Excluded", "u": "Unavailable", "w": "Degraded", "h": "Online", "-": "Offline"}
    return [
        {
            "path": f"/NODE/XRDU_0/RDU_{rdu}/TILE_{number}", "rdu": rdu, "tile": number, "health": healths[letter],
            "lease": "lease-1" if letter == "h" else None, "application": "train" if letter == "h" else None,
        }
        for rdu, word in enumerate(rdus)
        for number, letter in enumerate(word)
    ]  # fmt: skip


def status(*rdus: str) -> dict[str, object]:
    return {"tiles": tiles(*rdus), "leases": [], "max_applications": 8}


def rdu(state: str, number: int = 0) -> dict[str, object]:
    return {"comp_name": f"/NODE/XRDU_0/RDU_{number}", "state": state, "reason": "tile excluded: it hangs"}


def fault(uuid: str, severity: str = "Major", at: int = 1, state: str = "ACTIVE") -> dict[str, object]:
    return {
        "fault_uuid": uuid, "fault_type": "FTYPE_TILE_EXCLUDED", "fault_state": state, "severity": severity,
        "comp_name": "/NODE/XRDU_0/RDU_0/TILE_1", "fault_desc": "tile excluded: it hangs",
        "recovery_act": "Reset the RDU and clear the fault.", "timestamp": at, "application": "logreg-train",
        "tenant": "t", "job": "job-1",
    }  # fmt: skip


def alone(capacity: NodeCapacity) -> tuple[NodeState]:
    return (NodeState("n", capacity, 4),)


def why_waits(count: int, *rdus: str) -> str | None:
    snapshot = QueueSnapshot(100.0, (QueuedJob("j", "t", count, 90.0),), (), alone(view_for_scheduler(status(*rdus))))
    wait = decide(snapshot).waits.get("j")
    return None if wait is None else wait.why


@pytest.mark.parametrize(
    ("health", "usable"),
    [("Online", True), ("Degraded", True), ("Excluded", False), ("Unavailable", False), ("Offline", False)],
)
def test_only_tiles_that_work_can_be_leased(health: str, usable: bool) -> None:
    assert is_usable({"health": health}) is usable


def test_a_broken_tile_is_neither_free_nor_counted_though_somebody_may_still_hold_it() -> None:
    view = view_for_scheduler(status("ohxo", "uuuu"))
    assert (view.tiles, view.free_tiles, view.broken_tiles, view.rdu_tiles) == (3, 2, 5, 4)
    assert view.rows == (2, 1)


def test_rows_of_healthy_tiles_end_at_a_broken_tile_and_at_the_rdus_end() -> None:
    assert healthy_rows(tiles("ohow", "xoxo", "uuuu", "oooo")) == (4, 1, 1, 4)
    assert healthy_rows([]) == ()


@pytest.mark.parametrize(
    ("count", "rdus", "words"),
    [
        (1, ("oxoo",), None),
        (2, ("oxoo",), None),
        (3, ("oxoo",), "it needs 3 adjacent tiles in an RDU, but the longest healthy row has 2; 1 of 4 are out of"),
        (4, ("oxoo",), "it needs 4 tiles, but the node has 3 healthy ones; 1 of 4 are out of service"),
        (4, ("oxoo", "oooo"), None),
        (8, ("oooo", "oxoo", "oooo"), None),
        (
            8,
            ("oxoo", "oxoo", "oooo"),
            "it needs 2 whole RDUs, but only 1 have all their tiles; 2 of 12 are out of service",
        ),
        (9, ("oooo", "oooo"), "it needs 9 tiles, but the node has 8 healthy ones"),
    ],
)
def test_a_job_that_broken_tiles_keep_out_says_so(count: int, rdus: tuple[str, ...], words: str | None) -> None:
    why = why_waits(count, *rdus)
    assert why is None if words is None else why is not None and why.startswith(words)


def test_a_job_that_broken_tiles_keep_out_holds_up_nobody() -> None:
    node = view_for_scheduler(status("oxoo"))
    queued = (QueuedJob("big", "t", 3, 0.0), QueuedJob("small", "t", 1, 90.0))
    decision = decide(QueueSnapshot(100.0, queued, (), alone(node), starve_s=10.0))
    assert decision.admissions == ("small",)


@pytest.mark.parametrize(
    ("states", "word"),
    [
        (["FUNCTIONAL", "FUNCTIONAL"], "FUNCTIONAL"),
        (["FUNCTIONAL", "DEGRADED"], "DEGRADED"),
        (["FUNCTIONAL", "UNAVAILABLE"], "DEGRADED"),
        (["UNAVAILABLE", "UNAVAILABLE"], "UNAVAILABLE"),
        (["PENDING"], "PENDING"),
        ([], "FUNCTIONAL"),
    ],
)
def test_a_node_is_as_well_as_its_rdus(states: list[str], word: str) -> None:
    assert node_health({"tiles": tiles("oo"), "rdus": [rdu(state, i) for i, state in enumerate(states)]}) == word


def test_a_daemon_that_tells_only_of_tiles_still_shows_its_node_degraded() -> None:
    assert node_health({"tiles": tiles("ox")}) == "DEGRADED"


def test_active_faults_come_the_worst_first_then_the_newest() -> None:
    rows = [
        fault("a", "Minor", 9),
        fault("b", "Major", 1),
        fault("c", "Major", 2),
        fault("d", "Critical", state="CLEARED"),
    ]
    assert [row["fault_uuid"] for row in active_faults(rows)] == ["c", "b", "a"]


def test_the_page_marks_what_is_broken_and_says_what_to_do() -> None:
    waiting = [
        {"application": "big", "tiles": 8, "memory_bytes": 1 << 30, "since": 100.0, "reason": "0 tiles are free"}
    ]
    node = {
        "name": "n", "state": "up", "health": "DEGRADED", **status("hxw-", "uuuu"), "rdus": [rdu("DEGRADED")],
        "faults": [fault("f1")], "waiting": waiting, "database": {"is_writable": False, "reason": "the disk is full"},
    }  # fmt: skip
    (view,) = view_nodes([node])
    ((_, (first, second)),) = view["picture"].xrdus
    assert [tile.style for tile in first.tiles] == ["c0", "bad", "free worn", "dark"]
    assert {tile.style for tile in second.tiles} == {"gone"}
    assert (first.state, first.tone, first.reason) == ("DEGRADED", "warn", "tile excluded: it hangs")
    assert second.state == ""
    assert [(mark.health, mark.tiles) for mark in view["picture"].marks] == [
        ("Excluded", 1), ("Degraded", 1), ("Offline", 1), ("Unavailable", 4),
    ]  # fmt: skip
    (line,) = view["faults"]
    assert (line.tone, line.component, line.job) == ("warn", "/NODE/XRDU_0/RDU_0/TILE_1", "job-1")
    assert line.advice == "Reset the RDU and clear the fault."
    (request,) = view["waiting"]
    assert (request.application, request.memory, request.reason) == ("big", "1 GiB", "0 tiles are free")
    assert (view["tone"], view["broken"], view["unwritten"]) == ("warn", 6, "the disk is full")
    assert view["jobs"] == ["job-1"]


def test_a_tile_that_broke_under_its_holder_names_both() -> None:
    node = {"name": "n", "state": "up", **status("h"), "leases": [{"id": "lease-1", "application": "train"}]}
    node["tiles"][0]["health"] = "Excluded"  # type: ignore[index]
    (view,) = view_nodes([node])
    square = view["picture"].xrdus[0][1][0].tiles[0]
    assert square.style == "bad"
    assert square.title.endswith("Excluded, taken out of service after a fault; still held by train (no tenant)")


def test_a_daemon_of_an_earlier_version_is_shown_without_faults() -> None:
    (view,) = view_nodes([{"name": "n", "state": "up", "tiles": tiles("oo")}])
    assert (view["health"], view["tone"], view["faults"], view["waiting"], view["unwritten"]) == (
        "",
        "good",
        [],
        [],
        "",
    )


def test_a_cordoned_tile_is_not_free_and_jobs_wait_for_it() -> None:
    cordoned = status("oooo")
    for tile in cordoned["tiles"]:  # type: ignore[attr-defined]
        tile["cordon"] = "cordoned"
    view = view_for_scheduler(cordoned)
    assert (view.tiles, view.free_tiles, view.cordoned_tiles) == (4, 0, 4)
    snapshot = QueueSnapshot(100.0, (QueuedJob("j", "t", 2, 90.0),), (), alone(view))
    assert "0 of 4 are free, 4 are cordoned" in decide(snapshot).waits["j"].why
