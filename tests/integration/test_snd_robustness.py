"""The node daemon as a process: nonsense from clients, sudden ends, second starts, its commands."""

import getpass
import json
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.errors import LeaseLost, Unavailable
from rdukit.snd import SndClient
from rdukit_node.daemon.protocol import MAX_REQUEST_BYTES
from rdukit_node.private_node import open_lease
from support import shows
from support.node.daemons import (
    RunningDaemon,
    environment,
    node_command,
    running_daemon,
    start_daemon,
    stop_daemon,
)

pytestmark = shows("node", "wire")


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1") as running:
        yield running


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def raw(daemon: RunningDaemon) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(daemon.socket))
        yield connection


def ask(connection: socket.socket, line: bytes) -> dict[str, object]:
    connection.sendall(line + b"\n")
    return read_answer(connection)


def read_answer(connection: socket.socket) -> dict[str, object]:
    data = b""
    while not data.endswith(b"\n"):
        data += connection.recv(1)
    answer: dict[str, object] = json.loads(data)
    return answer


def run_node(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        node_command(*arguments), env=environment(home), capture_output=True, text=True, check=False, timeout=60
    )


HELLO = b'{"op": "hello", "protocol": 1}'


def test_the_connection_stays_usable_after_wrong_requests(raw: socket.socket) -> None:
    for line in (
        b"",
        b"\x00\xff",
        b"[" * 50_000,
        b'{"op": "nothing", "protocol": 1}',
        b'{"op": "hello", "protocol": 9}',
    ):
        assert ask(raw, line)["ok"] is False
    assert ask(raw, HELLO)["ok"] is True


def test_an_oversized_line_is_refused_once_and_the_next_one_is_answered(raw: socket.socket) -> None:
    raw.sendall(b"x" * 1_000_000 + b"\n" + HELLO + b"\n")
    first, second = read_answer(raw), read_answer(raw)
    assert f"longer than {MAX_REQUEST_BYTES} bytes" in json.dumps(first)
    assert second["ok"] is True


def test_many_requests_at_once_are_answered_in_order(raw: socket.socket) -> None:
    raw.sendall((HELLO + b"\n" + b'{"op": "events", "protocol": 1}\n') * 200)
    answers = [read_answer(raw) for _ in range(400)]
    assert ["platform" in answer for answer in answers] == [True, False] * 200


def test_a_request_may_come_in_pieces(raw: socket.socket) -> None:
    for byte in HELLO + b"\n":
        raw.sendall(bytes([byte]))
    assert read_answer(raw)["ok"] is True


def test_random_bytes_do_not_kill_it(daemon: RunningDaemon) -> None:
    generator = random.Random(7)
    words = [
        b'{"op":',
        b'"acquire"',
        b'"protocol": 1',
        b"}",
        b"\n",
        b"[",
        b"]",
        b'"lease"',
        b":",
        b",",
        b"1e999",
        b"null",
    ]
    for _ in range(60):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(daemon.socket))
            for _ in range(generator.randrange(1, 20)):
                piece = generator.randbytes(50) if generator.random() < 0.5 else b"".join(generator.choices(words, k=9))
                try:
                    connection.sendall(piece)
                except OSError:
                    break
    with daemon.connect() as client:
        assert client.call("hello")["platform"] == "TEST-1"
        assert client.status()["leases"] == []


def test_a_client_that_never_reads_does_not_hold_up_the_others(daemon: RunningDaemon, raw: socket.socket) -> None:
    raw.setblocking(False)
    line = b'{"op": "status", "protocol": 1}\n'
    sent = 0
    for _ in range(20_000):
        _, writable, _ = select.select([], [raw], [], 0.2)
        if not writable:
            break
        sent += raw.send(line * 50)
    assert sent > 0
    with daemon.connect() as client:
        client.call("hello")


def test_idle_connections_make_room_for_more_than_the_limit_and_holders_of_leases_stay(daemon: RunningDaemon) -> None:
    open_ones: list[SndClient] = []
    try:
        with daemon.connect() as holder:
            holder.acquire("app", 1, 0)
            for _ in range(600):
                open_ones.append(daemon.connect())
                open_ones[-1].call("hello")
            assert len(holder.status()["leases"]) == 1
            open_ones[-1].call("hello")
            with pytest.raises(Unavailable):
                open_ones[0].call("hello")
    finally:
        for client in open_ones:
            client.close()


def test_a_second_daemon_on_the_socket_is_refused_and_the_first_goes_on(daemon: RunningDaemon) -> None:
    second = run_node(daemon.home, "start")
    assert second.returncode == 6
    assert f"(process {daemon.process.pid}) already serves" in second.stderr
    with daemon.connect() as client:
        client.call("hello")


def test_a_daemon_that_was_killed_leaves_a_socket_that_the_next_one_replaces(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(home))
    monkeypatch.setenv("RDUKIT_NODE", "auto")
    monkeypatch.setenv("RDUKIT_SND_REATTACH_S", "0")
    first = start_daemon(home)
    held = open_lease("app", arch="sn10", tiles=4, memory_bytes=100)
    region = held.allocate("weights", 50)
    first.process.kill()
    first.process.communicate()
    assert first.socket.exists()
    with pytest.raises(LeaseLost, match="is lost"):
        held.allocate("cache", 50)
    region.free()
    held.release()
    with open_lease("app", arch="sn10", tiles=4, memory_bytes=100) as private:
        assert private.kind == "private"
    second = start_daemon(home, settings={"RDUKIT_SND_REATTACH_S": "0"})
    try:
        with open_lease("app", arch="sn10", tiles=4, memory_bytes=100) as lease:
            assert lease.kind == "daemon"
    finally:
        assert stop_daemon(second) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(home: Path, number: signal.Signals) -> None:
    announced = home / "node.json"
    daemon = start_daemon(home, "SN10-8", ["--announce", str(announced)])
    expected = {"pid": daemon.process.pid, "platform": "SN10-8", "socket": str(daemon.socket)}
    assert expected.items() <= json.loads(announced.read_text()).items()
    with daemon.connect() as client:
        client.acquire("app", 1, 0)
        daemon.process.send_signal(number)
        daemon.process.communicate(timeout=60)
        words = (home / "snd.stderr").read_text()
        assert daemon.process.returncode == 0, words
        assert number.name in words
        assert not daemon.socket.exists()
        with pytest.raises(Unavailable):
            client.call("hello")


def test_it_ends_with_its_parent_if_asked_to(home: Path) -> None:
    command = node_command("start", "--platform", "TEST-1", "--with-parent")
    parent = subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" TERM; "$@" & wait', "sh", *command],
        env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    assert parent.stdout.readline().startswith("snd ready")
    parent.kill()
    _, words = parent.communicate(timeout=60)  # returns when the daemon has closed its streams
    assert "its parent process ended" in words
    assert not (home / "run" / "snd.sock").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["start", "--platform", "SN99"], 2, "expected SN10-8"),
        (["start", "--socket", "/tmp/" + "x" * 120], 2, "longer than 107 bytes"),
        (["start", "--max-applications", "-1"], 2, "expected 1 or more"),
        (["status"], 7, "rdukit node start"),
        (["events"], 7, "rdukit node start"),
    ],
)
def test_wrong_commands_say_what_would_be_right(home: Path, arguments: list[str], status: int, words: str) -> None:
    finished = run_node(home, *arguments)
    assert finished.returncode == status
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_file_that_is_no_socket_is_not_overwritten(home: Path) -> None:
    precious = home / "thesis.txt"
    precious.write_text("words")
    finished = run_node(home, "start", "--socket", str(precious))
    assert finished.returncode == 6
    assert "is not a socket" in finished.stderr
    assert precious.read_text() == "words"


def test_status_and_events_show_a_lease(daemon: RunningDaemon) -> None:
    with daemon.connect() as client:
        lease = client.acquire("logreg", 3, 1 << 20, tenant="t1", job="j1")
        text = run_node(daemon.home, "status").stdout
        assert "/NODE/XRDU_0/RDU_0  A A A ." in text
        assert f"A {lease['id']} logreg {getpass.getuser()} t1 j1 3" in " ".join(text.split())
        status = json.loads(run_node(daemon.home, "status", "--json").stdout)
        assert status["leases"][0]["tiles"] == lease["tiles"]
        client.release(lease["id"])
    events = [json.loads(line) for line in run_node(daemon.home, "events", "--json").stdout.splitlines()]
    assert [event["kind"] for event in events if event["lease"] == lease["id"]] == ["grant", "release"]
    assert f"release    {lease['id']}  application=logreg" in run_node(daemon.home, "events").stdout


def test_following_shows_events_as_they_happen(daemon: RunningDaemon) -> None:
    with daemon.connect() as client:
        last = client.call("events")["last"]
        follower = subprocess.Popen(
            node_command("events", "--follow", "--json", "--since", str(last)),
            env=environment(daemon.home), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert follower.stdout is not None
        try:
            client.release(client.acquire("seen", 1, 0)["id"])
            kinds = [json.loads(follower.stdout.readline())["kind"] for _ in range(2)]
        finally:
            follower.send_signal(signal.SIGINT)
            follower.communicate(timeout=60)
    assert kinds == ["grant", "release"]
    assert follower.returncode == 0  # the way to end it
