"""The fault machine: from hardware events to errors, faults, resets, operational states and interrupted programs."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from rdukit.errors import Conflict, InvalidArgument, NotFound
from rdukit.hardware import GIB, find_node
from rdukit_node.faults.catalogue import fault_classes
from rdukit_node.faults.enums import Action, FaultSeverity, HangEvent, HangOutcome, RduState
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import FaultSnapshot, Injection, Policy, TileOwner, nobody
from rdukit_node.inventory import ComponentHealth, ComponentKind, Presence, components
from support import shows

pytestmark = shows("faults")

NODE = find_node("SN30-8")
RDU = "/NODE/XRDU_0/RDU_0"
TILE = f"{RDU}/TILE_1"
DIMM = next(c.path for c in components(NODE) if c.kind == "DIMM")
NOW = 1_700_000_000 * 10**9
SECOND = 10**9

ALICE = TileOwner("alice-app", "alice", "job-1", "lease-a")
BOB = TileOwner("bob-app", "bob", "job-2", "lease-b")

MakeMachine = Callable[..., FaultMachine]


def owner_of(path: str) -> TileOwner | None:
    """Alice has tiles 0 to 3 of the first RDU, Bob the other four."""
    if not path.startswith(RDU + "/"):
        return None
    return ALICE if int(path[-1]) < 4 else BOB


@pytest.fixture
def make() -> Iterator[MakeMachine]:
    made: list[FaultMachine] = []
    numbers = itertools.count(1)

    def make_machine(**options: object) -> FaultMachine:
        made.append(FaultMachine(NODE, lambda: f"uuid-{next(numbers)}", now_ns=NOW, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_machine
    for machine in made:
        machine.validate()


def test_a_new_node_is_healthy_and_perfect(make: MakeMachine) -> None:
    machine = make()
    assert machine.is_healthy and machine.health_of("/NODE") == ComponentHealth.ONLINE
    assert all(row.perfect and row.available_tiles == 8 and row.since == NOW for row in machine.op_states())
    assert machine.unusable_tiles() == frozenset() and machine.retired_memory(0) == 0


def test_repeats_of_an_error_are_one_row_that_counts(make: MakeMachine) -> None:
    machine = make()
    first = machine.inject([Injection("ddr-correctable", DIMM, seed=1)], owner_of, NOW)
    again = machine.inject([Injection("ddr-correctable", DIMM, count=5, seed=2)], owner_of, NOW + SECOND)
    assert first.error_uuids == again.error_uuids == ("uuid-1",)
    (row,) = machine.errors
    assert (row.err_count, row.orig_timestamp, row.last_timestamp) == (6, NOW, NOW + SECOND)
    assert [notice.kind for notice in first.notices] == ["error"] and not again.notices
    assert machine.is_healthy


def test_at_the_threshold_within_the_window_errors_become_one_fault(make: MakeMachine) -> None:
    machine = make()
    machine.inject([Injection("ddr-correctable", DIMM, count=23)], owner_of, NOW)
    machine.inject([Injection("ddr-correctable", DIMM)], owner_of, NOW + 86_401 * SECOND)
    assert machine.is_healthy, "23 of the 24 are older than a day"
    outcome = machine.inject([Injection("ddr-correctable", DIMM, count=23)], owner_of, NOW + 86_402 * SECOND)
    (fault,) = machine.active_faults()
    assert outcome.fault_uuids == (fault.fault_uuid,)
    assert (fault.fault_type, fault.severity, fault.action) == ("FTYPE_DIMM_CE_RATE", FaultSeverity.MINOR, Action.NONE)
    assert machine.errors[0].fault_uuid == fault.fault_uuid and machine.errors[0].err_count == 47
    assert machine.op_states()[0].state is RduState.FUNCTIONAL and machine.unusable_tiles() == frozenset()
    assert machine.health_of(DIMM) == machine.health_of(RDU) == machine.health_of("/NODE") == ComponentHealth.DEGRADED


def test_a_hung_tile_that_a_reset_cures_is_back_at_once_and_in_the_hang_log(make: MakeMachine) -> None:
    machine = make()
    outcome = machine.inject([Injection("tile-hang", TILE)], owner_of, NOW)
    (hang,) = machine.hangs
    assert (hang.event, hang.outcome, hang.comp_name) == (HangEvent.TILE_RESET, HangOutcome.SUCCEEDED, TILE)
    assert machine.is_healthy and machine.op_states()[0].perfect
    (interrupt,) = outcome.interrupts
    assert (interrupt.code, interrupt.owner, interrupt.fault) == ("tile-fault", ALICE, None)
    assert interrupt.error.application == "alice-app" and interrupt.error.tenant == "alice"


def test_a_tile_whose_reset_fails_is_excluded_until_a_reset_cures_it(make: MakeMachine) -> None:
    machine = make()
    outcome = machine.inject([Injection("tile-hang", TILE, data={"resets_that_fail": 2})], owner_of, NOW)
    (fault,) = machine.active_faults()
    assert (fault.fault_type, fault.action) == ("FTYPE_TILE_EXCLUDED", Action.EXCLUDE_TILE)
    assert outcome.interrupts[0].fault == fault
    assert outcome.interrupts[0].as_json()["detail"]["fault_uuid"] == fault.fault_uuid  # type: ignore[index]
    assert machine.unusable_tiles() == {1} and machine.health_of(TILE) == ComponentHealth.EXCLUDED
    state = machine.op_states()[0]
    assert (state.state, state.available_tiles, state.perfect) == (RduState.DEGRADED, 7, False)

    cleared, returned, _ = machine.clear(fault.fault_uuid, "root", nobody, NOW + SECOND)
    assert not cleared.is_active and "cleared by root at 2023-11-14T22:13:21Z" in cleared.fault_desc
    (second,) = machine.active_faults()
    assert second.fault_uuid == returned != fault.fault_uuid and second.err_uuid != fault.err_uuid
    assert machine.unusable_tiles() == {1}

    _, returned, outcome = machine.clear(second.fault_uuid, "root", nobody, NOW + 2 * SECOND)
    assert returned is None and machine.is_healthy and machine.op_states()[0].perfect
    assert "state" in [notice.kind for notice in outcome.notices]


def test_hangs_that_come_too_often_exclude_a_tile_although_resets_pass(make: MakeMachine) -> None:
    machine = make()
    for number in range(3):
        assert machine.is_healthy
        machine.inject([Injection("tile-hang", TILE)], nobody, NOW + number * SECOND)
    assert machine.unusable_tiles() == {1}
    _, returned, _ = machine.clear(machine.active_faults()[0].fault_uuid, "root", nobody, NOW + 9 * SECOND)
    assert returned is None and machine.is_healthy, "nothing is broken: it only looked so"


def test_an_uncorrectable_memory_error_hits_one_owner_and_retires_the_channel(make: MakeMachine) -> None:
    machine = make()
    event = Injection("ddr-uncorrectable", DIMM, seed=5)
    outcome = machine.inject([event], owner_of, NOW)
    (interrupt,) = outcome.interrupts
    assert interrupt.code == "dram-uncorrectable" and interrupt.owner in (ALICE, BOB)
    assert make().inject([event], owner_of, NOW).interrupts[0].owner == interrupt.owner, "the seed decides"
    (fault,) = machine.active_faults()
    assert fault.suspects == (DIMM, DIMM.rpartition("/")[0], RDU)
    assert machine.retired_memory(0) == 128 * GIB and machine.op_states()[0].state is RduState.DEGRADED
    chosen = make().inject([Injection("ddr-uncorrectable", DIMM, data={"lease": "lease-b"})], owner_of, NOW)
    assert [hit.owner for hit in chosen.interrupts] == [BOB]


def test_an_rdu_error_ends_every_program_on_it_once(make: MakeMachine) -> None:
    machine = make()
    outcome = machine.inject([Injection("rdu-removed", RDU)], owner_of, NOW)
    assert [hit.owner for hit in outcome.interrupts] == [ALICE, BOB]
    assert machine.presence_of(TILE) == Presence.ABSENT and machine.health_of(TILE) == ComponentHealth.OFFLINE
    assert machine.op_states()[0].state is RduState.UNAVAILABLE
    assert machine.unusable_tiles() == set(range(8)) and machine.retired_memory(0) == NODE.chip.ddr_bytes
    with pytest.raises(Conflict, match="is not there"):
        machine.reset(RDU, nobody, NOW)


def test_a_link_that_is_down_reroutes_until_none_is_left(make: MakeMachine) -> None:
    machine = make()
    links = [c.path for c in components(NODE) if c.kind == "PCIE" and c.rdu == 0]
    for link in links[:-1]:
        assert not machine.inject([Injection("pcie-link-down", link)], owner_of, NOW).interrupts
        assert machine.op_states()[0].state is RduState.DEGRADED
    outcome = machine.inject([Injection("pcie-link-down", links[-1])], owner_of, NOW)
    assert machine.op_states()[0].state is RduState.UNAVAILABLE
    assert {hit.owner for hit in outcome.interrupts} == {ALICE, BOB}
    assert machine.active_faults()[0].suspects == (links[0], RDU, "/NODE/XRDU_0")


def test_while_an_rdu_is_being_reset_it_is_pending_and_nothing_is_healthy(make: MakeMachine) -> None:
    machine = make(rdu_reset_ns=5 * SECOND)
    hang, outcome = machine.reset(RDU, owner_of, NOW)
    assert hang.event is HangEvent.CHIP_RESET and hang.outcome is HangOutcome.IN_PROGRESS
    assert {hit.code for hit in outcome.interrupts} == {"hardware-error"} and len(outcome.interrupts) == 2
    assert machine.op_states()[0].state is RduState.PENDING and not machine.is_healthy
    assert (
        machine.health_of("/NODE") == ComponentHealth.DEGRADED
        and machine.health_of(TILE) == ComponentHealth.UNAVAILABLE
    )
    assert machine.unusable_tiles() == set(range(8)) and machine.next_due_ns == NOW + 5 * SECOND
    with pytest.raises(Conflict, match="is being reset"):
        machine.reset(TILE, nobody, NOW)
    assert machine.advance(nobody, NOW + 4 * SECOND) == machine.advance(nobody, NOW + 4 * SECOND)
    machine.advance(nobody, NOW + 5 * SECOND)
    assert machine.is_healthy and machine.hangs[-1].outcome is HangOutcome.SUCCEEDED and machine.next_due_ns is None


def test_an_rdu_that_does_not_come_back_is_unavailable_until_it_is_repaired(make: MakeMachine) -> None:
    machine = make(rdu_reset_ns=SECOND)
    machine.inject([Injection("rdu-init", RDU)], owner_of, NOW)
    assert machine.op_states()[0].state is RduState.PENDING
    outcome = machine.advance(nobody, NOW + SECOND)
    (fault,) = machine.active_faults()
    assert outcome.fault_uuids == (fault.fault_uuid,) and fault.fault_type == "FTYPE_RDU_INIT"
    assert machine.op_states()[0].state is RduState.UNAVAILABLE
    _, returned, _ = machine.clear(fault.fault_uuid, "root", nobody, NOW + 2 * SECOND)
    assert returned is not None and machine.op_states()[0].state is RduState.UNAVAILABLE
    repaired = machine.repair("/NODE/XRDU_0", "root", NOW + 3 * SECOND)
    assert (repaired.repaired, repaired.cleared) == (1, (returned,)) and machine.is_healthy
    assert machine.repair("/NODE", "root", NOW + 4 * SECOND).repaired == 0


def test_a_reset_of_the_rdu_cures_tiles_but_their_faults_stay_until_cleared(make: MakeMachine) -> None:
    machine = make()
    machine.inject([Injection("tile-hang", TILE, data={"resets_that_fail": 1})], nobody, NOW)
    machine.reset(RDU, nobody, NOW + SECOND)
    assert machine.op_states()[0].state is RduState.DEGRADED and machine.conditions == ()
    assert machine.clear(machine.active_faults()[0].fault_uuid, "root", nobody, NOW + 2 * SECOND)[1] is None
    assert machine.is_healthy


def test_a_tile_is_reset_by_request_and_its_program_ends(make: MakeMachine) -> None:
    machine = make()
    hang, outcome = machine.reset(TILE, owner_of, NOW)
    assert hang.outcome is HangOutcome.SUCCEEDED and [hit.owner for hit in outcome.interrupts] == [ALICE]
    assert machine.errors[0].err_type == "ETYPE_TILE_RESET"
    with pytest.raises(InvalidArgument, match="which cannot be reset; expected a TILE or an RDU"):
        machine.reset(DIMM, nobody, NOW)


def test_a_policy_can_make_errors_retire_an_rdu(make: MakeMachine) -> None:
    machine = make()
    machine.set_policy(Policy("ETYPE_DDR_CE", "FTYPE_DIMM_UE", 3, 10, Action.RETIRE_RDU, FaultSeverity.CRITICAL))
    outcome = machine.inject([Injection("ddr-correctable", DIMM, count=3)], owner_of, NOW)
    assert machine.op_states()[0].state is RduState.UNAVAILABLE
    assert [hit.code for hit in outcome.interrupts] == ["hardware-error"] * 2
    (fault,) = machine.active_faults()
    assert fault.severity is FaultSeverity.CRITICAL and fault.recovery_act


@pytest.mark.parametrize(
    "name",
    [entry.name for entry in fault_classes().values() if entry.severity is FaultSeverity.CRITICAL and entry.persists],
)
def test_what_has_a_critical_fault_whose_cause_stays_is_not_granted_until_it_is_repaired(
    make: MakeMachine, name: str
) -> None:
    machine = make()
    is_nodes = fault_classes()[name].kind is ComponentKind.NODE
    path, rdus = ("/NODE", machine.node.rdus) if is_nodes else (RDU, 1)
    machine.inject([Injection(name, path)], owner_of, NOW)
    unavailable = [state for state in machine.op_states() if state.state is RduState.UNAVAILABLE]
    tiles = frozenset(range(rdus * machine.node.chip.tiles))
    assert len(unavailable) == rdus and machine.unusable_tiles() == tiles, "its own, and no other's"
    machine.validate()
    (fault,) = machine.active_faults(path)
    _, returned, _ = machine.clear(fault.fault_uuid, "root", nobody, NOW)
    assert returned and machine.unusable_tiles() == tiles, "the cause is still there"
    again = make()
    again.restore(FaultSnapshot(machine.errors, machine.faults, machine.hangs, machine.op_states(), machine.policies,
                           machine.conditions), NOW)  # fmt: skip
    assert again.unusable_tiles() == tiles
    again.validate()
    machine.repair(path, "root", NOW)
    assert machine.unusable_tiles() == frozenset() and machine.is_healthy
    machine.validate()


def test_programs_go_on_when_the_hosts_memory_fails_but_nobody_gets_tiles_any_more(make: MakeMachine) -> None:
    machine = make()
    machine.inject([Injection("tile-excluded", TILE)], nobody, NOW)
    outcome = machine.inject([Injection("host-memory")], owner_of, NOW)
    assert outcome.interrupts == ()
    assert len(machine.unusable_tiles()) == machine.node.rdus * machine.node.chip.tiles
    assert machine.health_of("/NODE") == machine.health_of(RDU) == ComponentHealth.UNAVAILABLE
    machine.reset(RDU, owner_of, NOW)
    assert machine.op_states()[0].state is RduState.UNAVAILABLE, "a reset does not mend the host"
    (fault,) = [fault for fault in machine.active_faults() if fault.comp_name == "/NODE"]
    assert fault.action is Action.RETIRE_NODE and fault.recovery_act.endswith("snfadm --repair /NODE")
    machine.repair(TILE, "root", NOW)
    assert len(machine.unusable_tiles()) == machine.node.rdus * machine.node.chip.tiles
    machine.inject([Injection("tile-excluded", TILE)], nobody, NOW)
    machine.repair("/NODE", "root", NOW)
    assert machine.is_healthy
    machine.validate()


def test_a_reset_that_is_under_way_when_the_hosts_memory_fails_gives_nothing_back(make: MakeMachine) -> None:
    machine = make(rdu_reset_ns=10)
    machine.inject([Injection("rdu-hang", RDU), Injection("host-memory")], nobody, NOW)
    machine.validate()
    machine.advance(nobody, NOW + 20)
    assert len(machine.unusable_tiles()) == machine.node.rdus * machine.node.chip.tiles
    machine.validate()
    machine.repair("/NODE", "root", NOW + 30)
    assert machine.is_healthy and not machine.unusable_tiles()
    machine.validate()


def test_of_several_events_none_happens_if_one_is_not_legal(make: MakeMachine) -> None:
    machine = make()
    for wrong, legal in (
        (Injection("tile-melt"), "expected ddr-correctable"),
        (Injection("tile-hang", "/NODE/XRDU_9"), "expected /NODE/XRDU_0 to /NODE/XRDU_3"),
        (Injection("rdu-hang", TILE), "rdu-hang affects a RDU"),
        (Injection("fan", count=0), "expected 1 to 1000000"),
        (Injection("fan", seed=-1), "expected 0 to "),
        (Injection("fan", data={"persists": 1}), "expected true, false"),
        (Injection("fan", data={"resets_that_fail": -1}), "null for all"),
        (Injection("fan", data={"x": "y" * 5000}), "4096 bytes at most"),
        (Injection("fan", data={"x": float("nan")}), "not JSON"),
    ):
        with pytest.raises(InvalidArgument, match=legal):
            machine.inject([Injection("tile-excluded", TILE), wrong], owner_of, NOW)
    assert machine.errors == () and machine.is_healthy


def test_a_component_above_or_none_is_drawn_from_by_seed(make: MakeMachine) -> None:
    drawn = [make().inject([Injection("tile-hang", RDU, seed=9)], nobody, NOW).notices[0].component for _ in range(2)]
    assert drawn[0] == drawn[1] and drawn[0].startswith(f"{RDU}/TILE_")
    machine = make()
    machine.inject([Injection("tile-hang") for _ in range(20)], nobody, NOW)
    assert len(machine.errors) > 5, "without a seed they are spread"


def test_clearing_what_is_not_there_or_is_cleared_is_refused(make: MakeMachine) -> None:
    machine = make()
    with pytest.raises(NotFound, match="unknown fault 'x'"):
        machine.clear("x", "root", nobody, NOW)
    machine.inject([Injection("host-pcie", RDU)], nobody, NOW)
    machine.repair("/NODE", "root", NOW)
    with pytest.raises(Conflict, match="was already cleared by root"):
        machine.clear(machine.faults[0].fault_uuid, "root", nobody, NOW)


def test_a_stronger_fault_of_the_same_type_is_a_fault_of_its_own(make: MakeMachine) -> None:
    machine = make()
    machine.inject([Injection("thermal", RDU, count=3), Injection("thermal-shutdown", RDU)], nobody, NOW)
    assert [fault.action for fault in machine.active_faults()] == [Action.NONE, Action.RETIRE_RDU]
    machine.inject([Injection("tile-excluded", TILE), Injection("tile-hang", TILE, count=3)], nobody, NOW)
    assert len(machine.active_faults(TILE)) == 1, "two reasons to exclude a tile are one fault"


def test_changes_are_the_rows_in_their_newest_form_and_then_forgotten(make: MakeMachine) -> None:
    machine = make()
    assert len(machine.take_changes().policies) == len(machine.policies)
    assert not machine.take_changes()
    machine.inject([Injection("tile-excluded", TILE)] * 3, owner_of, NOW)
    changes = machine.take_changes()
    assert [row.err_count for row in changes.errors] == [3] and len(changes.faults) == 1
    assert [row.rdu for row in changes.op_states] == [0] and len(changes.conditions) == 1
    machine.repair(TILE, "root", NOW)
    changes = machine.take_changes()
    assert changes.conditions_gone == ((TILE, "tile-excluded"),) and not changes.conditions
    assert not changes.faults[0].is_active


def test_a_machine_goes_on_from_what_another_one_wrote(make: MakeMachine) -> None:
    first, second = make(), make()
    first.inject([Injection("ddr-correctable", DIMM, count=23), Injection("tile-excluded", TILE)], owner_of, NOW)
    first.set_policy(Policy("ETYPE_FAN", "FTYPE_FAN", 1, 60, Action.NONE, FaultSeverity.MAJOR))
    snapshot = FaultSnapshot(
        first.errors, first.faults, first.hangs, first.op_states(), first.policies, first.conditions
    )  # fmt: skip
    second.restore(snapshot, NOW + SECOND)
    assert (second.errors, second.faults, second.hangs) == (first.errors, first.faults, first.hangs)
    assert second.op_states() == first.op_states() and second.unusable_tiles() == {1}
    second.inject([Injection("ddr-correctable", DIMM)], owner_of, NOW + SECOND)
    assert len(second.active_faults(DIMM)) == 1, "the window goes on too"
    second.inject([Injection("fan", "/NODE/XRDU_0")], owner_of, NOW + SECOND)
    assert len(second.active_faults("/NODE/XRDU_0")) == 3


def test_a_reset_that_a_dead_daemon_left_is_found_out(make: MakeMachine) -> None:
    first, second = make(rdu_reset_ns=SECOND), make(rdu_reset_ns=SECOND)
    first.inject([Injection("rdu-init", RDU)], nobody, NOW)
    snapshot = FaultSnapshot(
        first.errors, first.faults, first.hangs, first.op_states(), first.policies, first.conditions
    )
    second.restore(snapshot, NOW + SECOND)
    assert second.hangs[0].outcome is HangOutcome.FAILED
    assert second.op_states()[0].state is RduState.UNAVAILABLE, "what stops a reset is still there"
    assert second.active_faults()[0].fault_type == "FTYPE_RDU_INIT"


def test_rows_about_another_platform_are_history_only(make: MakeMachine) -> None:
    big = make()
    big.inject([Injection("tile-excluded", "/NODE/XRDU_3/RDU_1/TILE_7")], nobody, NOW)
    numbers = itertools.count()
    small = FaultMachine(find_node("TEST-1"), lambda: f"small-{next(numbers)}")
    small.restore(FaultSnapshot(big.errors, big.faults, conditions=big.conditions), NOW)
    small.validate()
    assert small.is_healthy and len(small.faults) == 1 and small.conditions == ()


def test_old_rows_are_forgotten_and_open_ones_never(make: MakeMachine) -> None:
    machine = make(max_rows=10)
    machine.inject([Injection("tile-excluded", TILE)], nobody, NOW)
    for number in range(50):
        machine.inject([Injection("host-memory")], nobody, NOW + number)
        machine.repair("/NODE", "root", NOW + number) if number else None
        machine.inject([Injection("tile-excluded", TILE)], nobody, NOW + number)
        machine.take_changes()
        machine.validate()
    assert len(machine.errors) <= 11 and len(machine.faults) <= 11
    assert len(machine.active_faults(TILE)) == 1


def test_counting_a_storm_is_bounded(make: MakeMachine) -> None:
    machine = make()
    event = Injection("pcie-correctable", f"{RDU}/PCIE_0")
    for number in range(20_000):
        machine.inject((event,), nobody, NOW + number * 100_000)
    assert machine.errors[0].err_count == machine.pcie_replays()[0] == 20_000
    assert len(machine.errors) == len(machine.active_faults()) == 1
    assert len(machine.errors[0].recent) <= 32
