"""What ``rdukit node status`` and ``events`` print for people."""

from rdukit_runtime.cli.node import event_line, status_lines

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
        "TEST-1 (sn10) on n1, up 1 min 0 s",
        "tiles   5 of 6 free",
        "memory  3 GiB of 4 GiB free",
        "apps    1 of 8",
        "",
        "/NODE/XRDU_0/RDU_0  . A .",
        "/NODE/XRDU_0/RDU_1  . . .",
        "",
        "   LEASE    APPLICATION  TENANT  JOB  TILES  MEMORY  USED   PHASE  PIDS   AGE",
        "A  lease-1  logreg       -       j1   1      1 GiB   1 MiB  exec   12,13  10 s",
    ]


def test_an_idle_node_has_no_table() -> None:
    assert status_lines(answer([]), now=50.0)[-1] == "no leases"


def test_an_event_is_one_line() -> None:
    event = {
        "seq": 3, "time": 0.0, "kind": "death", "lease": "lease-1", "application": "logreg", "tenant": None,
        "job": None, "pid": 12, "tiles": ["/NODE/XRDU_0/RDU_0/TILE_1"], "reason": "gone",
    }  # fmt: skip
    assert event_line(event) == (
        "    3  1970-01-01T00:00:00Z  death    lease-1  application=logreg  /NODE/XRDU_0/RDU_0/TILE_1  "
        "pid=12  reason=gone"
    )
