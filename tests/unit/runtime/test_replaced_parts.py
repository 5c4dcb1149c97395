"""Parts that are replaced: other serial numbers, nothing broken, and errors that are counted anew."""

import itertools

import pytest

from rdukit.errors import InvalidArgument
from rdukit.hardware import find_node
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import FaultSnapshot, Injection, nobody
from rdukit_node.faults.pending import NewRows, PendingRows
from rdukit_node.inventory import find_component, inventory_rows, serial_number
from support import shows

pytestmark = shows("snfadm", "faults")

NODE = find_node("SN30-8")
RDU = "/NODE/XRDU_0/RDU_0"


def new_machine() -> FaultMachine:
    numbers = itertools.count()
    return FaultMachine(
        NODE, lambda: f"uuid-{next(numbers)}",
        serial_of=lambda path, replaced: serial_number("sm-01", find_component(NODE, path), replaced),
    )  # fmt: skip


def serials(machine: FaultMachine) -> dict[str, object]:
    return {str(row["comp_name"]): row["serial"] for row in inventory_rows(NODE, "sm-01", replaced=machine.replaced)}


def test_each_part_in_a_place_has_a_serial_number_of_its_own() -> None:
    machine = new_machine()
    before = serials(machine)
    told, _ = machine.replace(RDU, "root", 1)
    after = serials(machine)
    assert told == {path: after[path] for path in told} and RDU in told and len(told) > 1
    assert {path for path in after if after[path] != before[path]} == set(told)
    again, _ = machine.replace(RDU, "root", 2)
    assert len({before[RDU], told[RDU], again[RDU]}) == 3
    assert all(path.startswith(RDU) for path in told)


def test_what_is_broken_goes_with_the_old_part_and_a_later_fault_names_the_new_one() -> None:
    machine = new_machine()
    machine.inject([Injection("tile-excluded", f"{RDU}/TILE_0")], nobody, 1)
    machine.inject([Injection("chip-reset", RDU, data={"persists": True})], nobody, 2)
    serial = machine.replace(RDU, "root", 3)[0][RDU]
    assert machine.is_healthy and not machine.conditions
    machine.inject([Injection("chip-reset", RDU, data={"persists": True})], nobody, 4)
    named = {fault.comp_ser_num for fault in machine.active_faults() if fault.comp_name == RDU}
    assert named <= {serial}
    machine.validate()


@pytest.mark.parametrize("act", ["replace", "reset_counts"])
def test_errors_before_make_no_fault_with_those_after(act: str) -> None:
    def inject(machine: FaultMachine, count: int, at: int) -> None:
        machine.inject([Injection("ddr-correctable", f"{RDU}/DDRCH_0", count=count)], nobody, at)

    (policy,) = [each for each in new_machine().policies if each.error_type == "ETYPE_DDR_CE"]
    assert policy.count > 1
    for acts in (False, True):
        machine = new_machine()
        inject(machine, policy.count - 1, 1)
        if acts and act == "replace":
            machine.replace(RDU, "root", 2)
        elif acts:
            assert machine.reset_counts(RDU) == 1
        again = new_machine()
        again.restore(FaultSnapshot(errors=machine.errors, replaced=tuple(machine.replaced.items())), 3)
        for each in (machine, again):
            inject(each, 1, 4)
            assert bool(each.active_faults()) is not acts
            assert [row.err_count for row in each.errors] == [policy.count], "totals remain"
            each.validate()


def test_a_replacement_is_written_and_waits_with_the_other_rows() -> None:
    machine, waiting = new_machine(), PendingRows()
    machine.take_changes()
    machine.replace(f"{RDU}/DDRCH_0", "root", 1)
    changes = machine.take_changes()
    assert changes and dict(changes.replaced) == dict(machine.replaced)
    waiting.add(NewRows(changes), now_ns=1)
    assert waiting.changes().replaced == changes.replaced and len(waiting) >= len(changes.replaced)
    waiting.clear()
    assert not waiting.changes().replaced
    assert not machine.take_changes().replaced


def test_what_has_no_part_to_replace_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no replaceable part"):
        new_machine().replace(f"{RDU}/TILE_0", "root", 1)
