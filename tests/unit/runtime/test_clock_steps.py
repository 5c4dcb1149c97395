"""Somebody sets the wall clock while requests wait, resets are under way and rows gather: nothing is due sooner or
later for it."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.hardware import GIB
from rdukit.snd import SndClient
from rdukit_node.daemon.daemon import NodeDaemon
from rdukit_node.daemon.database_writer import DatabaseWriter
from rdukit_node.daemon.server import SndServer, listening
from rdukit_node.faults.store import FaultStore
from support import FakeClock
from support.node.harness import DaemonHarness, acquire

STEPS = (-86_400.0, 86_400.0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[FakeClock, Path]]:
    """A daemon behind a socket, on a clock that stands still; each request wakes it."""
    desk = DaemonHarness()
    path = tmp_path / "snd.sock"
    with listening(path) as listener:
        server = SndServer(desk.daemon, listener, desk.clock)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield desk.clock, path
        finally:
            server.stop("the test is over")
            SndClient(path).close()  # wakes it
            thread.join()


@pytest.mark.parametrize("step", STEPS)
def test_a_request_waits_as_long_as_it_said_whatever_the_wall_clock_does(
    served: tuple[FakeClock, Path], step: float
) -> None:
    clock, path = served
    with SndClient(path) as holder, socket.socket(socket.AF_UNIX) as waiter:
        holder.acquire("first", 4, GIB)
        waiter.connect(str(path))
        request = {"op": "acquire", "protocol": 1, "application": "late", "tiles": 1, "memory_bytes": 0, "wait_s": 30}
        waiter.sendall(json.dumps(request).encode() + b"\n")
        while not holder.status()["waiting"]:
            pass
        clock.advance(10)
        clock.step(step)
        for _ in range(3):
            (row,) = holder.status()["waiting"]
        assert row["since"] == pytest.approx(clock.now() - 10)
        clock.advance(19)
        holder.status()
        assert holder.status()["waiting"], "29 of 30 s are over"
        clock.advance(1)
        holder.status()
        waiter.settimeout(20)  # a bug must not hang the test
        answer: dict[str, Any] = json.loads(waiter.recv(65536))
        assert "waited 30.0 s" in answer["error"]["message"]
        assert holder.status()["waiting"] == []


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
