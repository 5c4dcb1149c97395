"""What ``rdukit node status`` and ``events`` print for people."""

from typing import Any

from rdukit_node.cli.status_text import event_line, status_lines
from support import shows

pytestmark = shows("tools")

LEASE: dict[str, object] = {
    "id": "lease-1", "application": "logreg", "tenant": None, "job": "j1", "tiles": ["/NODE/XRDU_0/RDU_0/TILE_1"],
    "memory_bytes": 1 << 30, "memory_allocated": 1 << 20, "pids": [12, 13], "counters": {"phase": "exec"},
    "granted_at": 40.0,
}  # fmt: skip


def answer(leases: list[dict[str, object]]) -> dict[str, object]:
    return {
        "platform": "TEST-1", "chip": "sn10", "node": "n1", "uptime_s": 60.0, "applications": len(leases),
        "max_applications": 8, "memory": {"total": 4 << 30, "used": 1 << 30}, "leases": leases,
        "tiles": [
            {"path": f"/NODE/XRDU_0/RDU_{r}/TILE_{t}", "lease": "lease-1" if leases and (r, t) == (0, 1) else None}
            for r in range(2)
            for t in range(3)
        ],
    }  # fmt: skip


def test_status_shows_the_tiles_by_rdu_and_the_leases_as_a_table() -> None:
    assert status_lines(answer([LEASE]), now=50.0) == [
        "TEST-1 (sn10) on n1, up 1 min",
        "tiles   5 of 6 free",
        "memory  3 GiB of 4 GiB free",
        "apps    1 of 8",
        "",
        "/NODE/XRDU_0/RDU_0  . A .",
        "/NODE/XRDU_0/RDU_1  . . .",
        "",
        "   LEASE    APPLICATION  USER  TENANT  JOB  TILES  MEMORY  USED   PHASE  PIDS   AGE",
        "A  lease-1  logreg       -     -       j1   1      1 GiB   1 MiB  exec   12,13  10 s",
    ]


def test_an_idle_node_has_no_table() -> None:
    assert status_lines(answer([]), now=50.0)[-1] == "no leases"


def test_what_is_out_of_service_is_not_free_and_says_why() -> None:
    found: dict[str, Any] = answer([LEASE])
    found["tiles"][0]["health"] = "Excluded"
    found["rdus"] = [
        {"comp_name": "/NODE/XRDU_0/RDU_0", "state": "DEGRADED", "reason": "a tile hangs"},
        {"comp_name": "/NODE/XRDU_0/RDU_1", "state": "FUNCTIONAL", "reason": "init passed"},
    ]
    lines = status_lines(found, now=50.0)
    assert "tiles   4 of 6 free, 1 out of service (x)" in lines
    assert "/NODE/XRDU_0/RDU_0  x A .  DEGRADED: a tile hangs" in lines
    assert "/NODE/XRDU_0/RDU_1  . . ." in lines


def test_who_waits_is_listed_with_the_reason() -> None:
    found: dict[str, Any] = answer([LEASE])
    found["waiting"] = [
        {"application": "gpt", "tiles": 8, "memory_bytes": 1 << 30, "since": 45.0, "reason": "1 of 8 are free"}
    ]
    assert status_lines(found, now=50.0)[-3:] == [
        "",
        "WAITING  TILES  MEMORY  SINCE  REASON",
        "gpt      8      1 GiB   5 s    1 of 8 are free",
    ]


def test_a_database_that_takes_nothing_is_said() -> None:
    found: dict[str, Any] = answer([])
    found["database"] = {"path": "/snfm.db", "is_writable": True, "reason": "", "pending": 0}
    assert not any("snfm.db" in line for line in status_lines(found, now=50.0))
    found["database"] = {"path": "/snfm.db", "is_writable": False, "reason": "disk full", "pending": 3}
    assert "faults  are not written down: /snfm.db: disk full; 3 rows wait" in status_lines(found, now=50.0)


def test_a_lease_whose_use_a_failure_ended_says_so() -> None:
    failed = {**LEASE, "fault": {"code": "tile-fault", "message": "TILE_1 hangs"}, "user": "ann"}
    lines = status_lines(answer([failed]), now=50.0)
    assert "  FAULT  " in lines[-2]
    assert lines[-1] == "A  TILE_1 hangs"


def test_an_event_of_the_hardware_names_its_component_and_ids() -> None:
    event = {
        "seq": 5, "time": 0.0, "kind": "fault", "lease": None, "application": "", "tenant": None, "job": None,
        "pid": None, "tiles": [], "reason": "Major FTYPE_DIMM_UE", "component": "/NODE/XRDU_0/RDU_0",
        "error_uuid": "e-1", "fault_uuid": "f-1",
    }  # fmt: skip
    assert event_line(event) == (
        "    5  1970-01-01T00:00:00Z  fault      /NODE/XRDU_0/RDU_0  reason=Major FTYPE_DIMM_UE  error=e-1  fault=f-1"
    )


def test_an_event_is_one_line() -> None:
    event = {
        "seq": 3, "time": 0.0, "kind": "death", "lease": "lease-1", "application": "logreg", "tenant": None,
        "job": None, "pid": 12, "tiles": ["/NODE/XRDU_0/RDU_0/TILE_1"], "reason": "gone",
    }  # fmt: skip
    assert event_line(event) == (
        "    3  1970-01-01T00:00:00Z  death      lease-1  application=logreg  /NODE/XRDU_0/RDU_0/TILE_1  "
        "pid=12  reason=gone"
    )
