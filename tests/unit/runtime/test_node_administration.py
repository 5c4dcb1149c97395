"""Faults and what follows from them, in the daemon's decisions: without a socket and without a database."""

from collections.abc import Iterator

import pytest

from rdukit_node.daemon.connections import Peer
from support import shows
from support.node.harness import ADMIN_TOKEN, DaemonHarness, acquire

pytestmark = shows("node", "faults", "wire")

TILE = "/NODE/XRDU_0/RDU_0/TILE_0"


@pytest.fixture
def desk() -> Iterator[DaemonHarness]:
    desk = DaemonHarness("SN10-8")
    desk.connect(1)
    desk.connect(2)
    desk.connect(9, is_admin=True)
    yield desk
    desk.daemon.validate()


def inject(
    desk: DaemonHarness, fault: str, component: str | None = None, **more: object
) -> tuple[list[str], list[str]]:
    event = {"class": fault, **({} if component is None else {"component": component}), **more}
    answer = desk.ok(9, "inject", events=[event])
    return answer["errors"], answer["faults"]


def test_everybody_may_look_and_only_administrators_may_change_anything(desk: DaemonHarness) -> None:
    for op in (
        "inventory",
        "op_state",
        "errors",
        "faults",
        "policies",
        "hangs",
        "applications",
        "catalogue",
        "counters",
    ):
        desk.ok(1, op)
    assert desk.code(1, "inject", events=[{"class": "tile-hang", "component": TILE}]) == "permission-denied"
    assert desk.code(1, "clear", fault="x") == "permission-denied"
    assert desk.code(1, "repair", component=TILE) == "permission-denied"
    assert desk.code(1, "reset", component=TILE) == "permission-denied"
    assert desk.code(1, "scenario", text="steps: []") == "permission-denied"
    assert desk.ok(1, "hello")["admin"] is False
    assert desk.code(1, "authorize", token="guess") == "unauthenticated"
    desk.ok(1, "authorize", token=ADMIN_TOKEN)
    assert desk.ok(1, "hello")["admin"] is True
    desk.ok(1, "inject", events=[{"class": "tile-hang", "component": TILE}])


def test_an_uncorrectable_error_agrees_everywhere_at_once(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, tiles=2, memory_bytes=100, tenant="blue", job="job-7")
    page = desk.page(1, lease["id"])
    (error,), faults = inject(desk, "scratchpad-uncorrectable", TILE)
    (row,) = desk.ok(2, "errors")["errors"]
    assert (row["err_uuid"], row["comp_name"], row["err_count"]) == (error, TILE, 1)
    assert (row["application"], row["tenant"], row["job"]) == ("app", "blue", "job-7")
    assert page.interrupts == 1
    told = desk.ok(1, "interrupt", lease=lease["id"])["fault"]
    assert told["code"] == "scratchpad-uncorrectable"
    assert told["detail"]["component"] == TILE
    assert told["detail"]["error_uuid"] == error
    assert told["detail"]["recovery"]
    status = desk.ok(2, "status")
    assert status["leases"][0]["fault"]["code"] == "scratchpad-uncorrectable"
    assert "interrupt" in desk.kinds()
    assert desk.code(1, "allocate", lease=lease["id"], bytes=1, name="r") == "scratchpad-uncorrectable"
    assert desk.code(1, "report", lease=lease["id"], counters={"runs": 1}) == "scratchpad-uncorrectable"
    assert faults == [fault["fault_uuid"] for fault in desk.ok(2, "faults")["faults"]]


def test_faults_and_their_end_are_in_the_log_but_not_each_error(
    desk: DaemonHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rdukit_node.daemon.administration")
    inject(desk, "pcie-correctable", "/NODE/XRDU_0/RDU_0/PCIE_0", count=3)
    assert caplog.records == []
    _, (fault,) = inject(desk, "tile-excluded", TILE)
    desk.ok(9, "repair", component=TILE)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert lines[0] == (
        "ERROR",
        f"event=fault component={TILE} fault={fault}: Major FTYPE_TILE_EXCLUDED: tile excluded: it does not answer; "
        "action: exclude-tile",
    )
    assert [line.split()[0] for _, line in lines[1:]] == ["event=clear", "event=repair"]


def test_a_failure_of_one_tenants_tile_leaves_the_others_alone(desk: DaemonHarness) -> None:
    mine, other = acquire(desk, 1), acquire(desk, 2)
    pages = desk.page(1, mine["id"]), desk.page(2, other["id"])
    inject(desk, "tile-hang", mine["tiles"][0], data={"resets_that_fail": None})
    assert [page.interrupts for page in pages] == [1, 0]
    desk.ok(2, "allocate", lease=other["id"], bytes=1, name="r")
    assert desk.ok(2, "interrupt", lease=other["id"])["fault"] is None


def test_a_tile_that_is_excluded_is_not_granted_until_it_is_repaired(desk: DaemonHarness) -> None:
    inject(desk, "tile-hang", TILE, data={"resets_that_fail": None})
    status = desk.ok(1, "status")
    assert status["tiles"][0]["health"] == "Excluded"
    assert status["rdus"][0]["perfect"] is False
    assert status["rdus"][0]["available_tiles"] == 3
    lease = acquire(desk, 1, tiles=3)
    assert TILE not in lease["tiles"]
    refused = desk.error(2, "acquire", application="all", tiles=32, memory_bytes=0)
    assert "out of service" in refused["message"]
    assert refused["detail"]["fits_when_empty"] is False
    assert desk.ok(9, "repair", component=TILE)["repaired"] == 1
    assert desk.ok(1, "status")["tiles"][0]["health"] == "Online"
    assert TILE in acquire(desk, 2, tiles=1)["tiles"]


def test_a_fault_that_is_cleared_without_repair_returns_under_a_new_id(desk: DaemonHarness) -> None:
    _, (fault,) = inject(desk, "pcie-link-down", "/NODE/XRDU_0/RDU_0/PCIE_0")
    cleared = desk.ok(9, "clear", fault=fault)
    assert cleared["fault"]["fault_state"] == "CLEARED"
    assert cleared["returned"] not in (None, fault)
    (active,) = desk.ok(1, "faults")["faults"]
    assert active["fault_uuid"] == cleared["returned"]
    assert len(desk.ok(1, "faults", cleared=True)["faults"]) == 2
    assert desk.ok(9, "repair", component="/NODE")["cleared"] == [cleared["returned"]]
    assert desk.ok(1, "faults")["faults"] == []


def test_answers_that_promise_something_are_durable(desk: DaemonHarness) -> None:
    answer = desk.ask(9, "inject", events=[{"class": "ddr-correctable"}])
    assert answer.is_durable
    assert desk.daemon.administration.faults.take_changes().errors
    assert not desk.ask(9, "errors").is_durable


def test_a_storm_is_one_row_and_every_event_counts(desk: DaemonHarness) -> None:
    component = desk.ok(1, "inventory")["components"]
    dimm = next(row["comp_name"] for row in component if "DIMM" in row["comp_name"])
    for _ in range(20):
        desk.ok(9, "inject", events=[{"class": "ddr-correctable", "component": dimm, "seed": 1}] * 500)
    rows = desk.ok(1, "errors", component=dimm)["errors"]
    assert sum(row["err_count"] for row in rows) == 10_000
    assert len(rows) <= 2


def test_a_wrong_event_changes_nothing_even_beside_right_ones(desk: DaemonHarness) -> None:
    events = [{"class": "ddr-correctable"}, {"class": "gremlins"}]
    error = desk.error(9, "inject", events=events)
    assert error["code"] == "invalid-argument"
    assert "ddr-correctable" in error["message"]
    assert desk.ok(1, "errors")["errors"] == []


def test_steps_of_a_scenario_happen_when_they_are_due(desk: DaemonHarness) -> None:
    text = f"""
seed: 3
steps:
  - {{at: 5, class: tile-excluded, component: {TILE}}}
  - {{at: 10, repair: {TILE}}}
"""
    assert desk.ok(9, "scenario", text=text)["steps"] == 2
    start = desk.clock.now()
    assert desk.daemon.next_deadline() == start + 5
    desk.clock.advance(5)
    desk.daemon.tick(desk.clock.now())
    assert desk.ok(1, "status")["tiles"][0]["health"] == "Excluded"
    desk.clock.advance(5)
    desk.daemon.tick(desk.clock.now())
    assert desk.ok(1, "status")["tiles"][0]["health"] == "Online"
    assert desk.daemon.next_deadline() is None


def test_policies_can_be_changed_and_only_to_legal_words(desk: DaemonHarness) -> None:
    policy = desk.ok(1, "policies")["policies"][0]
    changed = {name: policy[name] for name in ("error_type", "fault_type", "action", "severity")}
    answer = desk.ok(9, "set_policy", **changed, count=3, window_s=60)
    assert (answer["policy"]["count"], answer["policy"]["window_s"]) == (3, 60)
    assert (
        desk.error(9, "set_policy", **{**changed, "action": "dance"}, count=3, window_s=60)["code"]
        == "invalid-argument"
    )


def test_each_application_leaves_an_accounting_row(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, tiles=2, tenant="blue", command="python train.py")
    desk.page(1, lease["id"]).count_run(sections=3, cycles=10, flops=20, ddr_read=30, ddr_written=5)
    desk.daemon.disconnected(1, desk.clock.now())
    desk.connect(1)
    (row,) = desk.ok(1, "applications")["applications"]
    assert (row["lease"], row["tenant"], row["command"], row["user"]) == (lease["id"], "blue", "python train.py", "ada")
    assert (row["runs"], row["cycles"], row["bytes"]) == (1, 10, 35)
    assert "closed" in row["reason"]
    counters = desk.ok(1, "counters")
    assert counters["rdus"][0]["ddr_read_bytes"] == 30, "what ended is still counted"


def test_counters_tell_who_works_on_which_tiles(desk: DaemonHarness) -> None:
    lease = acquire(desk, 1, tiles=2)
    desk.ok(2, "attach", lease=lease["id"], token=lease["token"])
    desk.page(1, lease["id"])
    page = desk.page(2, lease["id"])
    page.enter(1)
    page.count_run(1, 1, 1, 1, 1)
    counters = desk.ok(1, "counters")
    (row,) = counters["leases"]
    assert (row["pid"], row["user"], row["phase"]) == (1002, "ada", "run")
    assert [tile["lease"] for tile in counters["tiles"][:3]] == [lease["id"], lease["id"], None]
    assert counters["tiles"][0]["exec_ns"] == counters["tiles"][1]["exec_ns"] > 0


def test_a_waiting_request_is_granted_when_there_is_room(desk: DaemonHarness) -> None:
    first = acquire(desk, 1, tiles=32)
    arguments = {"application": "late", "tiles": 4, "memory_bytes": 0, "wait_s": 30}
    assert desk.find_answer(2, "acquire", **arguments) is None
    (waiting,) = desk.ok(1, "status")["waiting"]
    assert waiting["application"] == "late"
    assert "0 of 32 tiles are free" in waiting["reason"]
    assert desk.code(2, "hello") == "conflict", "who waits cannot say anything else"
    desk.ok(1, "release", lease=first["id"])
    ((number, answer),) = desk.daemon.take_ready()
    assert number == 2
    assert answer.body["ok"]
    assert "wait" in desk.kinds()


def test_a_waiting_request_ends_at_its_deadline_or_with_its_connection(desk: DaemonHarness) -> None:
    acquire(desk, 1, tiles=32)
    desk.connect(3)
    for number in (2, 3):
        assert desk.find_answer(number, "acquire", application="late", tiles=4, memory_bytes=0, wait_s=5) is None
    desk.daemon.disconnected(3, desk.clock.now())
    desk.clock.advance(5)
    desk.daemon.tick(desk.clock.now())
    ((number, answer),) = desk.daemon.take_ready()
    assert number == 2
    error = answer.body["error"]
    assert isinstance(error, dict)
    assert error["code"] == "no-resources"
    assert "waited 5.0 s" in error["message"]
    assert desk.ok(1, "status")["waiting"] == []


def test_nobody_overtakes_those_who_wait(desk: DaemonHarness) -> None:
    acquire(desk, 1, tiles=20)
    assert desk.find_answer(2, "acquire", application="large", tiles=32, memory_bytes=0, wait_s=5) is None
    assert "waits before this one" in desk.error(9, "acquire", application="small", tiles=1, memory_bytes=0)["message"]


def test_what_can_never_fit_is_refused_and_does_not_wait(desk: DaemonHarness) -> None:
    assert desk.code(1, "acquire", application="huge", tiles=33, memory_bytes=0, wait_s=5) == "no-resources"


def test_what_can_never_fit_is_told_so_also_while_others_wait(desk: DaemonHarness) -> None:
    acquire(desk, 1, tiles=32, memory_bytes=0)
    assert desk.find_answer(2, "acquire", application="next", tiles=1, memory_bytes=0, wait_s=5) is None
    error = desk.error(9, "acquire", application="huge", tiles=999, memory_bytes=0)
    assert "waiting cannot help" in error["message"]
    assert error["detail"]["fits_when_empty"] is False


def test_retired_memory_is_not_free(desk: DaemonHarness) -> None:
    before = desk.ok(1, "status")["memory"]
    inject(desk, "ddr-uncorrectable", "/NODE/XRDU_0/RDU_0/DDRCH_0")
    after = desk.ok(1, "status")["memory"]
    assert before["free"] == before["total"]
    assert after["free"] == after["total"] - after["retired"] < before["free"]


def test_a_process_that_cannot_be_seen_is_said_not_to_be_in_a_group(desk: DaemonHarness) -> None:
    desk.daemon.connected(5, Peer(None))
    acquire(desk, 5)
    (lease,) = desk.ok(1, "status")["leases"]
    assert lease["pids"] == []
    assert "invisible namespace" in lease["isolation"]["node"]["cgroup"]


def test_two_programs_of_one_name_are_told_apart_in_a_fault(desk: DaemonHarness) -> None:
    leases = [acquire(desk, 1, tiles=2), acquire(desk, 2, tiles=2)]
    for number, lease in enumerate(leases, 1):
        inject(desk, "tile-excluded", lease["tiles"][0])
        fault = desk.ok(number, "interrupt", lease=lease["id"])["fault"]
        assert f"under app ({lease['id']}, process {1000 + number});" in fault["message"]
    for op in ("errors", "faults"):
        assert [(row["lease"], row["pid"]) for row in desk.ok(9, op)[op]] == [
            (leases[0]["id"], 1001), (leases[1]["id"], 1002),
        ]  # fmt: skip


def test_each_fault_says_what_helps_a_real_node_and_what_helps_here(desk: DaemonHarness) -> None:
    """The class: following the second advice ends the fault, and it does not come back."""
    for entry in desk.ok(9, "catalogue")["classes"]:
        inject(desk, entry["name"], None, count=2000)
        for fault in desk.ok(9, "faults")["faults"]:
            real, _, command = fault["recovery_act"].partition(" On emulated hardware: snfadm ")
            assert real in entry["suggestion"] and real
            option, value = command.split()
            if option == "--repair":
                desk.ok(9, "repair", component=value)
            else:
                assert desk.ok(9, "clear", fault=value)["returned"] is None
        assert desk.ok(9, "faults")["faults"] == [], entry["name"]
