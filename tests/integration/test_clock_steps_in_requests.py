"""Somebody sets the wall clock while a request waits at the daemon's socket: it waits as long as it said."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.hardware import GIB
from rdukit.snd import SndClient
from rdukit_node.daemon.listener import listening
from rdukit_node.daemon.server import SndServer
from support import FakeClock, shows
from support.node.harness import DaemonHarness

pytestmark = shows("node")

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
