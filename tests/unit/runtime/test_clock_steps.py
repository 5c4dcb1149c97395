"""Somebody sets the wall clock while requests wait, resets are under way and rows gather: nothing is due sooner or
later for it."""

from pathlib import Path

import pytest

from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.database_writer import DatabaseWriter
from rdukit_node.faults.store import FaultStore
from support import shows
from support.node.harness import DaemonHarness, acquire

pytestmark = shows("node", "faults")

STEPS = (-86_400.0, 86_400.0)


@pytest.mark.parametrize("step", STEPS)
def test_what_is_due_stays_as_far_away_as_it_was(step: float) -> None:
    desk = DaemonHarness()
    desk.connect(1, is_admin=True)
    desk.connect(2)
    started = desk.ok(1, "status")["uptime_s"]
    acquire(desk, 1, tiles=4)
    assert desk.find_answer(2, "acquire", application="late", tiles=4, memory_bytes=0, wait_s=5) is None
    desk.ok(1, "scenario", text="steps:\n- {at: 3, class: fan}\n- {at: 7, class: fan}\n")
    for seconds in (3, 2, 2):
        desk.clock.step(step)
        desk.daemon.clock_stepped(step)
        due = desk.daemon.next_deadline()
        assert due is not None and due - desk.clock.now() == pytest.approx(seconds)
        desk.clock.advance(seconds)
        desk.daemon.tick(desk.clock.now())
    assert desk.daemon.next_deadline() is None
    assert desk.ok(1, "status")["uptime_s"] == pytest.approx(started + 7)
    desk.daemon.validate()


@pytest.mark.parametrize("step", STEPS)
def test_the_reset_of_an_rdu_takes_as_long_as_it_takes(step: float) -> None:
    desk = DaemonHarness(rdu_reset_s=10)
    desk.connect(1, is_admin=True)
    desk.ok(1, "reset", component="/NODE/XRDU_0/RDU_0")
    desk.clock.step(step)
    desk.daemon.clock_stepped(step)
    states = []
    for _ in range(2):
        states.append(desk.ok(1, "op_state")["rdus"][0]["state"])
        desk.clock.advance(9.99)
        desk.daemon.tick(desk.clock.now())
    assert [*states, desk.ok(1, "op_state")["rdus"][0]["state"]] == ["PENDING", "PENDING", "FUNCTIONAL"]


def test_rows_that_gather_are_written_though_the_clock_was_set_back(tmp_path: Path) -> None:
    desk = DaemonHarness()
    desk.connect(1)
    daemon: NodeDaemon = desk.daemon
    journal = DatabaseWriter(daemon, FaultStore.open(tmp_path / "snfm.db"))
    journal.write(desk.clock.now())
    acquire(desk, 1)
    desk.clock.step(-86_400)
    journal.clock_stepped(-86_400)
    due = journal.due_in(desk.clock.now())
    assert due is not None and due < 1
    journal.close(desk.clock.now())
