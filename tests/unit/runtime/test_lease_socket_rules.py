"""A connection at a lease's own socket: that lease's operations, and no other."""

from dataclasses import replace

import pytest

from rdukit_node.daemon.connections import Peer, SocketGrant
from rdukit_node.daemon.protocol import LEASE_OPERATIONS, OPERATIONS
from rdukit_node.leases.allocator import LeaseId
from support import shows
from support.node.harness import ADMIN_TOKEN, DaemonHarness, acquire

pytestmark = shows("node", "wire", "security")

#: Legal arguments of every operation; a lease's are filled in.
ARGUMENTS: dict[str, dict[str, object]] = {
    "acquire": {"application": "a", "tiles": 1, "memory_bytes": 0}, "authorize": {"token": ADMIN_TOKEN},
    "inject": {"events": [{"class": "tile-error"}]}, "scenario": {"text": "steps: []"}, "clear": {"fault": "uuid-1"},
    "repair": {"component": "/NODE"}, "reset": {"component": "/NODE"}, "release": {}, "socket": {},
    "replace": {"component": "/NODE"}, "reset_counts": {"component": "/NODE"},
    "cordon": {"component": "/NODE"}, "drain": {"component": "/NODE"}, "uncordon": {"component": "/NODE"},
    "plan_maintenance": {"component": "/NODE", "reason": "r"}, "end_maintenance": {"window": "w"},
    "set_policy": {
        "error_type": "e", "fault_type": "f", "count": 1, "window_s": 1, "action": "a", "severity": "Minor",
    },
}  # fmt: skip


@pytest.fixture
def desk() -> DaemonHarness:
    """Connection 1 holds leases L1 and L2; 5 came by L1's own socket, as a process of the daemon's user."""
    desk = DaemonHarness()
    desk.connect(1, is_admin=True)
    for _ in range(2):
        acquire(desk, 1, tiles=1)
    desk.daemon.connected(5, Peer(5000, 0, "root", is_admin=True), LeaseId("L1"))
    return desk


def test_it_serves_what_a_program_does_under_its_lease(desk: DaemonHarness) -> None:
    hello = desk.ok(5, "hello")
    assert hello["admin"] is False and "socket" in hello["features"]
    assert desk.ok(5, "attach", lease="L1", token="token-1")["lease"]["id"] == "L1"
    desk.page(5, "L1")
    region = desk.ok(5, "allocate", lease="L1", bytes=4096, name="weights")["region"]["id"]
    desk.ok(5, "free", lease="L1", region=region)
    desk.ok(5, "report", lease="L1", counters={"runs": 3})
    assert desk.ok(5, "interrupt", lease="L1")["fault"] is None
    desk.ok(5, "isolation", lease="L1", report={"affinity": "applied"})
    desk.daemon.validate()


@pytest.mark.parametrize("op", sorted(set(OPERATIONS) - LEASE_OPERATIONS))
def test_everything_else_is_refused_with_a_reason(desk: DaemonHarness, op: str) -> None:
    desk.ok(5, "attach", lease="L1", token="token-1")
    arguments = dict(ARGUMENTS.get(op, {}))
    if "lease" in OPERATIONS[op]:
        arguments["lease"] = "L1"
    error = desk.error(5, op, **arguments)
    assert error["code"] == "permission-denied"
    assert error["message"].startswith(f"{op} is not for the socket of lease L1; expected allocate, attach")
    assert len(desk.daemon.allocator.leases) == 2 and not desk.daemon.connections[5].is_admin


@pytest.mark.parametrize("op", sorted(op for op in LEASE_OPERATIONS if "lease" in OPERATIONS[op]))
def test_no_other_lease_can_be_touched_even_with_its_token(desk: DaemonHarness, op: str) -> None:
    more: dict[str, dict[str, object]] = {
        "attach": {"token": "token-2"}, "reattach": {"token": "token-2", "regions": []},
        "allocate": {"bytes": 1, "name": "a"}, "free": {"region": "region-1"}, "report": {"counters": {}},
        "isolation": {"report": {}},
    }  # fmt: skip
    error = desk.error(5, op, lease="L2", **more.get(op, {}))
    assert (error["code"], error["message"]) == (
        "permission-denied", "this socket is that of lease L1; 'L2' cannot be used here",
    )  # fmt: skip


def test_only_a_holder_makes_one_and_who_is_another_user_can_reach_it(desk: DaemonHarness) -> None:
    desk.connect(2)
    assert desk.code(2, "socket", lease="L1") == "permission-denied"
    desk.ok(2, "attach", lease="L1", token="token-1")
    answer = desk.ask(2, "socket", lease="L1", mode="600")
    assert answer.grant == SocketGrant(LeaseId("L1")) and desk.daemon.lease_sockets == {"L1": 0o666}
    desk.ok(1, "socket", lease="L2", mode="660")
    assert desk.daemon.lease_sockets["L2"] == 0o660  # type: ignore[index]
    assert desk.code(1, "socket", lease="L2", mode="777") == "invalid-argument"
    desk.ok(1, "release", lease="L2")
    desk.daemon.validate()
    assert desk.daemon.lease_sockets == {"L1": 0o666}


def test_the_next_daemon_serves_it_again(desk: DaemonHarness) -> None:
    desk.ok(1, "keep", lease="L1")
    desk.ok(1, "socket", lease="L1", mode="660")
    (kept,) = desk.daemon.kept_leases()
    after = DaemonHarness()
    after.daemon.restore_lease(kept, 1e9, 0.0)
    assert after.daemon.lease_sockets == {"L1": 0o660}
    after.daemon.validate()
    before = DaemonHarness()
    before.daemon.restore_lease(replace(kept, socket_mode=None), 1e9, 0.0)
    assert before.daemon.lease_sockets == {}


def test_reports_of_more_and_more_processes_take_no_more_memory(desk: DaemonHarness) -> None:
    for number in range(10, 210):
        desk.daemon.connected(number, Peer(number, 1000, "ada"), LeaseId("L1"))
        desk.ok(number, "attach", lease="L1", token="token-1")
        desk.ok(number, "isolation", lease="L1", report={"n": number})
    assert len(desk.daemon.leases[LeaseId("L1")].isolation) == 64
    assert "209" in desk.daemon.leases[LeaseId("L1")].isolation
