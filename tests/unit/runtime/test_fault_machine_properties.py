"""Whatever happens in whatever order, the fault machine's books agree, and a restart changes nothing that it knows."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from rdukit.errors import Conflict
from rdukit.hardware import find_node
from rdukit_node.faults.catalogue import fault_classes
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import FaultOutcome, FaultSnapshot, Injection, TileOwner, nobody
from rdukit_node.faults.pending import NewRows, PendingRows
from rdukit_node.inventory import components
from support import shows

pytestmark = shows("faults")

NODE = find_node("TEST-1")
PATHS = [component.path for component in components(NODE) if not component.is_empty_slot]
SECOND = 10**9

injections = st.builds(
    Injection,
    st.sampled_from(sorted(fault_classes())),
    st.none(),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([{}, {}, {"persists": True}, {"resets_that_fail": 1}, {"resets_that_fail": None}]),
)
steps = st.one_of(
    st.tuples(st.just("inject"), st.lists(injections, min_size=1, max_size=3)),
    st.tuples(st.just("clear"), st.integers(0, 5)),
    st.tuples(st.just("repair"), st.sampled_from(PATHS)),
    st.tuples(st.just("reset"), st.sampled_from([path for path in PATHS if "TILE" in path or path.endswith("/RDU_0")])),
    st.tuples(st.just("wait"), st.integers(1, 4000)),
)


def owner_of(path: str) -> TileOwner | None:
    number = int(path[-1])
    return None if number == 3 else TileOwner(f"app-{number // 2}", None, None, f"lease-{number // 2}")


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=14), st.sampled_from([0, 5 * SECOND]), st.sampled_from([6, 10_000]))
def test_the_rows_agree_after_every_step(sequence: list[tuple[str, object]], rdu_reset_ns: int, max_rows: int) -> None:
    numbers = itertools.count()
    now = 10**18
    machine = FaultMachine(
        NODE, lambda: f"uuid-{next(numbers)}", now_ns=now, rdu_reset_ns=rdu_reset_ns, max_rows=max_rows
    )
    pending = PendingRows()
    for kind, value in sequence:
        now += SECOND // 2
        outcome = FaultOutcome()
        if kind == "inject":
            assert isinstance(value, list)
            outcome = machine.inject(value, owner_of, now)
            assert len(outcome.error_uuids) >= 1
        elif kind == "clear" and machine.active_faults():
            assert isinstance(value, int)
            active = machine.active_faults()
            fault = active[value % len(active)]
            row, returned, outcome = machine.clear(fault.fault_uuid, "root", owner_of, now)
            assert not row.is_active and outcome.cleared == (fault.fault_uuid,)
            assert returned is None or returned in {row.fault_uuid for row in machine.active_faults(fault.comp_name)}
        elif kind == "repair":
            outcome = machine.repair(str(value), "root", now)
            assert not machine.active_faults(str(value)) or machine.next_due_ns is not None
        elif kind == "reset":
            try:
                _, outcome = machine.reset(str(value), owner_of, now)
            except Conflict:
                assert machine.next_due_ns is not None or machine.presence_of(str(value)) == "Absent"
        elif kind == "wait":
            assert isinstance(value, int)
            now += value * SECOND
            outcome = machine.advance(owner_of, now)
            assert machine.next_due_ns is None or machine.next_due_ns > now
        machine.validate()
        leases = [hit.owner.lease for hit in outcome.interrupts]
        assert len(leases) == len(set(leases)), "a lease is interrupted once"
        known = {row.err_uuid for row in machine.errors}
        assert all(hit.error.err_uuid in known for hit in outcome.interrupts)
        pending.add(NewRows(machine.take_changes()), now_ns=0)

    machine.advance(nobody, now + 3600 * SECOND)
    changes = machine.take_changes()
    pending.add(NewRows(changes), now_ns=0)
    kept = {row.err_uuid for row in machine.errors}, {row.fault_uuid for row in machine.faults}
    written = pending.changes()
    snapshot = FaultSnapshot(
        tuple(row for row in written.errors if row.err_uuid in kept[0]),
        tuple(row for row in written.faults if row.fault_uuid in kept[1]),
        machine.hangs,
        written.op_states,
        written.policies,
        written.conditions,
    )
    assert {row.err_uuid: row for row in snapshot.errors} == {row.err_uuid: row for row in machine.errors}
    second = FaultMachine(NODE, lambda: f"uuid-{next(numbers)}", max_rows=max_rows)
    second.restore(
        FaultSnapshot(machine.errors, machine.faults, snapshot.hangs, snapshot.op_states, snapshot.policies,
                 snapshot.conditions), now,
    )  # fmt: skip
    second.validate()
    if max_rows == 6:
        return  # a restart may forget rows that the first machine still kept for the database
    assert (second.errors, second.faults, second.hangs) == (machine.errors, machine.faults, machine.hangs)
    assert second.op_states() == machine.op_states() and second.unusable_tiles() == machine.unusable_tiles()
    assert sorted(map(repr, second.conditions)) == sorted(map(repr, machine.conditions))
