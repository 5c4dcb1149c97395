"""The node daemon's decisions, without a socket."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rdukit.hardware import GIB
from support import shows
from support.node.harness import DaemonHarness, acquire

pytestmark = shows("node", "wire")


@pytest.fixture
def desk() -> Iterator[DaemonHarness]:
    desk = DaemonHarness()
    desk.connect(1)
    desk.connect(2)
    yield desk
    desk.daemon.validate()


def test_a_lease_ends_when_its_only_connection_closes(desk: DaemonHarness) -> None:
    acquire(desk, 2)
    desk.daemon.disconnected(2, desk.clock.now())
    assert desk.ok(1, "status")["leases"] == []
    assert desk.kinds() == ["grant", "death"]


def test_a_lease_lives_while_one_of_its_connections_does(desk: DaemonHarness) -> None:
    lease = acquire(desk, 2)
    desk.ok(1, "attach", lease=lease["id"], token=lease["token"])
    assert desk.ok(1, "status")["leases"][0]["pids"] == [1001, 1002]
    desk.daemon.disconnected(2, desk.clock.now())
    desk.daemon.validate()
    assert desk.ok(1, "status")["leases"][0]["pids"] == [1001]
    assert desk.kinds() == ["grant", "attach", "detach"]


def test_attaching_twice_holds_once(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1)
    desk.ok(1, "attach", lease=lease["id"], token=lease["token"])
    desk.daemon.validate()
    assert desk.kinds() == ["grant"]


def test_a_wrong_token_does_not_attach(desk: DaemonHarness) -> None:
    lease = acquire(desk, 2)
    assert desk.code(1, "attach", lease=lease["id"], token="token-2") == "unauthenticated"
    assert desk.code(1, "attach", lease="L99", token="token-1") == "not-found"


def test_only_a_holder_may_use_or_release_a_lease(desk: DaemonHarness) -> None:
    lease = acquire(desk, 2)["id"]
    assert desk.code(1, "release", lease=lease) == "permission-denied"
    assert desk.code(1, "allocate", lease=lease, bytes=1, name="r") == "permission-denied"
    assert desk.code(1, "report", lease=lease, counters={}) == "permission-denied"
    region = desk.ok(2, "allocate", lease=lease, bytes=1, name="r")["region"]["id"]
    assert desk.code(1, "free", lease=lease, region=region) == "permission-denied"


def test_a_release_ends_the_lease_for_all_its_holders(desk: DaemonHarness) -> None:
    lease = acquire(desk, 2)
    desk.ok(1, "attach", lease=lease["id"], token=lease["token"])
    desk.ok(1, "allocate", lease=lease["id"], bytes=10, name="r")
    desk.ok(2, "release", lease=lease["id"])
    desk.daemon.validate()
    assert desk.code(1, "allocate", lease=lease["id"], bytes=1, name="r") == "lease-lost"
    assert desk.code(2, "release", lease=lease["id"]) == "invalid-transition"
    assert desk.ok(1, "status")["memory"]["used"] == 0


def test_regions_of_a_holder_that_left_are_free_again(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, memory_bytes=100)
    desk.ok(2, "attach", lease=lease["id"], token=lease["token"])
    assert desk.ask(2, "allocate", lease=lease["id"], bytes=100, name="r").grant is not None
    assert desk.code(1, "allocate", lease=lease["id"], bytes=1, name="r") == "out-of-device-memory"
    desk.daemon.disconnected(2, desk.clock.now())
    desk.ok(1, "allocate", lease=lease["id"], bytes=100, name="r")


def test_memory_that_could_not_be_created_is_not_accounted(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, memory_bytes=100)
    answer = desk.ask(1, "allocate", lease=lease["id"], bytes=100, name="r")
    assert answer.grant is not None
    desk.daemon.creation_failed(1, answer.grant)
    desk.daemon.validate()
    desk.ok(1, "allocate", lease=lease["id"], bytes=100, name="r")


def test_counters_of_all_holders_add_up_also_of_those_that_left(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1)
    desk.ok(2, "attach", lease=lease["id"], token=lease["token"])
    desk.ok(1, "report", lease=lease["id"], counters={"runs": 1, "phase": "setup"})
    desk.ok(1, "report", lease=lease["id"], counters={"runs": 3})
    desk.ok(2, "report", lease=lease["id"], counters={"runs": 10, "host_seconds": 0.5, "phase": "exec"})
    expected = {"runs": 13, "host_seconds": 0.5, "phase": "exec"}
    assert expected.items() <= desk.ok(1, "status")["leases"][0]["counters"].items()
    desk.daemon.disconnected(2, desk.clock.now())
    assert desk.ok(1, "status")["leases"][0]["counters"]["runs"] == 13


def test_neither_status_nor_events_show_a_token(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1)
    shown = json.dumps([desk.ok(1, "status"), desk.ok(1, "events")])
    assert lease["id"] in shown
    assert lease["token"] not in shown


def test_status_says_who_has_each_tile(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1)
    desk.clock.advance(7)
    status = desk.ok(1, "status")
    assert (status["platform"], status["chip"], status["uptime_s"]) == ("TEST-1", "sn10", 7)
    assert [tile["lease"] for tile in status["tiles"]] == [lease["id"], lease["id"], None, None]
    assert status["tiles"][2] == {
        "path": "/NODE/XRDU_0/RDU_0/TILE_2", "rdu": 0, "tile": 2, "lease": None, "application": None,
        "health": "Online", "cordon": None,
    }  # fmt: skip
    assert {"total": 384 * GIB, "used": GIB}.items() <= status["memory"].items()


def test_a_refusal_is_an_event(desk: DaemonHarness) -> None:
    assert desk.code(1, "acquire", application="big", tiles=5, memory_bytes=0) == "no-resources"
    event = desk.ok(1, "events")["events"][0]
    assert (event["kind"], event["application"], event["lease"]) == ("refuse", "big", None)


def test_events_come_in_pages_and_none_twice(desk: DaemonHarness) -> None:
    for _ in range(130):
        desk.ok(1, "release", lease=acquire(desk, 1)["id"])
    seen: list[int] = []
    while page := desk.ok(1, "events", since=seen[-1] if seen else 0)["events"]:
        assert len(page) <= 100
        seen += [event["seq"] for event in page]
    assert seen == list(range(1, 261))


def test_stopping_ends_every_lease(desk: DaemonHarness) -> None:
    acquire(desk, 1)
    acquire(desk, 2)
    desk.daemon.stop(desk.clock.now())
    assert desk.kinds() == ["grant", "grant", "stop", "stop"]


class Clients(RuleBasedStateMachine):
    """Random clients of one daemon."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = DaemonHarness("SN10-8")
        self.next_number = 1
        self.known: list[Mapping[str, Any]] = []

    @property
    def open(self) -> list[int]:
        return sorted(self.desk.daemon.connections)

    @rule()
    def connect(self) -> None:
        self.desk.connect(self.next_number)
        self.next_number += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.desk.daemon.disconnected(data.draw(st.sampled_from(self.open)), 0.0)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tiles=st.integers(1, 9))
    def acquire(self, data: st.DataObject, tiles: int) -> None:
        number = data.draw(st.sampled_from(self.open))
        body: Any = self.desk.ask(number, "acquire", application="a", tiles=tiles, memory_bytes=100).body
        if body["ok"]:
            self.known.append(body["lease"])

    @precondition(lambda self: self.open and self.known)
    @rule(data=st.data(), op=st.sampled_from(["attach", "attach", "allocate", "allocate", "free", "release", "report"]))
    def use(self, data: st.DataObject, op: str) -> None:
        number = data.draw(st.sampled_from(self.open))
        lease = data.draw(st.sampled_from(self.known))
        more: dict[str, object] = {
            "attach": {"token": lease["token"]},
            "allocate": {"bytes": 40, "name": "r"},
            "free": {"region": f"region-{data.draw(st.integers(1, 20))}"},
            "report": {"counters": {"runs": 1}},
        }.get(op, {})
        body: Any = self.desk.ask(number, op, lease=lease["id"], **more).body
        assert body["ok"] or body["error"]["code"] != "internal"

    @invariant()
    def books_agree(self) -> None:
        self.desk.daemon.validate()


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
