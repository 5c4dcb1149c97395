"""A user who opens connections, or asks, without end: root and other users still reach the node daemon."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from support import shows, wait_until
from support.node.daemons import RunningDaemon, running_daemon

pytestmark = [
    shows("node", "security"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]

NOBODY, GAMES = 65534, 5
#: What root's own tools may take, on a machine that is busy with other tests; the bar of one second is for a quiet one.
SOON_S = 5.0

#: Becomes a user, opens idle connections until none is admitted or there are enough, says so, and keeps them.
_OPENER = """
import os, socket, sys
path, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgid(uid); os.setuid(uid)
kept = []
for _ in range(count):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(b'{"op":"hello","protocol":1}\\n')
    if b'"ok":true' in connection.recv(65536):
        kept.append(connection)
print(len(kept), flush=True)
sys.stdin.read()
"""

#: Becomes a user and asks for the status over many connections, as fast as it is answered.
_ASKER = """
import os, selectors, socket, sys
path, uid = sys.argv[1], int(sys.argv[2])
os.setgid(uid); os.setuid(uid)
lines = b'{"op":"status","protocol":1}\\n' * 100
watched = selectors.DefaultSelector()
for _ in range(32):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.setblocking(False)
    watched.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
print("asks", flush=True)
while True:
    for key, ready in watched.select():
        try:
            key.fileobj.recv(65536) if ready & selectors.EVENT_READ else key.fileobj.send(lines)
        except BlockingIOError:
            pass
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """A daemon at a socket that all users may connect to."""
    with running_daemon("SN30-8") as running:
        running.home.chmod(0o711)
        running.socket.parent.chmod(0o711)
        running.socket.chmod(0o666)
        yield running


def start(program: str, daemon: RunningDaemon, *arguments: int) -> "subprocess.Popen[str]":
    started = subprocess.Popen(
        [sys.executable, "-c", program, str(daemon.socket), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None and started.stdout.readline().strip()
    return started


def send_without_end(connection: socket.socket) -> None:
    for _ in range(10_000):
        connection.sendall(b"x" * 65536)


def end(started: "subprocess.Popen[str]") -> None:
    started.kill()
    started.communicate()


def test_root_and_other_users_are_answered_while_one_user_opens_connections_without_end(daemon: RunningDaemon) -> None:
    with daemon.connect() as holder:
        holder.acquire("kept", 1, 0)
        opener = start(_OPENER, daemon, NOBODY, 700)
        try:
            begun = time.monotonic()
            with daemon.connect() as root:
                assert root.call("hello")["admin"] is True
                root.call("cordon", component="/NODE/XRDU_0", reason="a look")
                root.call("uncordon", component="/NODE/XRDU_0")
                assert [lease["application"] for lease in root.status()["leases"]] == ["kept"]
            assert time.monotonic() - begun < SOON_S
            other = start(_OPENER, daemon, GAMES, 1)
            end(other)
        finally:
            end(opener)


def test_a_user_is_answered_in_turn_while_another_asks_without_end(daemon: RunningDaemon) -> None:
    asker = start(_ASKER, daemon, NOBODY)
    try:
        begun = time.monotonic()
        with daemon.connect() as root:
            for _ in range(20):
                root.call("hello")
        assert time.monotonic() - begun < SOON_S
    finally:
        end(asker)


def test_a_client_that_waits_for_tiles_and_sends_without_end_is_cut_off(daemon: RunningDaemon) -> None:
    request = {"op": "acquire", "protocol": 1, "application": "a", "tiles": 64, "memory_bytes": 0, "wait_s": 600}
    with daemon.connect() as holder, socket.socket(socket.AF_UNIX) as waiter:
        holder.acquire("all", 64, 0)
        waiter.connect(str(daemon.socket))
        waiter.sendall(json.dumps(request).encode() + b"\n")
        wait_until(lambda: len(holder.status()["waiting"]) == 1, what="the request waits")
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            send_without_end(waiter)
        assert holder.status()["waiting"] == []
