"""Hostile bytes on the node's sockets, in PEFs and its database: no crash, hang or lease; refused with reasons."""

import array
import contextlib
import io
import json
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rdukit.errors import NoResources, OutOfDeviceMemory, PefError, Unavailable
from rdukit.snd import SndClient
from rdukit_node.daemon.protocol import OPERATIONS
from rdukit_runtime.application import open_application
from support import shows
from support.node.daemons import RunningDaemon, environment, node_command, running_daemon
from support.pefs.examples import write_example_pef
from support.tiers import every_third_short

pytestmark = shows("node", "wire", "snml", "faults")

CONNECTIONS = int(os.environ.get("RDUKIT_STRESS_CONNECTIONS", "2000"))
HELLO = b'{"op": "hello", "protocol": 1}\n'


@pytest.fixture(scope="module")
def announcement(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "node.json"


@pytest.fixture(scope="module")
def node(announcement: Path) -> Iterator[RunningDaemon]:
    with running_daemon("TEST-1", ["--snml-port", "0", "--announce", str(announcement)]) as running:
        with running.connect() as client:  # what begins with the first lease has begun
            client.release(client.acquire("first", 1, 1)["id"])
        yield running


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """The daemon answers, has no lease, and holds nothing more than before."""
    if "node" not in request.fixturenames:
        yield
        return
    daemon: RunningDaemon = request.getfixturevalue("node")
    before = held_by(daemon)
    yield
    with daemon.connect() as client:
        assert client.call("hello")["platform"] == "TEST-1"
        status = client.status()
    assert (status["leases"], status["waiting"], status["memory"]["used"]) == ([], [], 0)
    deadline = time.monotonic() + 60
    while held_by(daemon) > before:
        assert time.monotonic() < deadline, f"{held_by(daemon)} descriptors of {before} at first"
        time.sleep(0.02)


def held_by(daemon: RunningDaemon) -> int:
    """Descriptors of the daemon besides those that come and go: log, database, locks of control groups."""
    found = 0
    for link in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += not any(word in os.readlink(link) for word in ("/rdukit-", "snd.log", "snfm.db"))
    return found


def connect(daemon: RunningDaemon, timeout_s: float = 10) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(daemon.socket))
    connection.settimeout(timeout_s)
    return connection


def read_answer(connection: socket.socket) -> dict[str, object]:
    data = b""
    while not data.endswith(b"\n"):
        data += (got := connection.recv(65536))
        assert got, "the daemon closed the connection"
    answer: dict[str, object] = json.loads(data)
    return answer


# -- the socket ------------------------------------------------------------------------------------------------------


def test_a_half_closed_connection_still_gets_its_answer_and_ends(node: RunningDaemon) -> None:
    with connect(node) as connection:
        connection.sendall(HELLO + b'{"op": "hel')
        connection.shutdown(socket.SHUT_WR)
        assert read_answer(connection)["ok"] is True
        assert connection.recv(1) == b"", "what was not finished is not answered"


def test_a_lease_ends_when_its_holder_closes_the_writing_side(node: RunningDaemon) -> None:
    with connect(node) as connection:
        connection.sendall(b'{"op": "acquire", "protocol": 1, "application": "a", "tiles": 4, "memory_bytes": 1}\n')
        assert read_answer(connection)["ok"] is True
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_descriptors_that_a_client_sends_are_not_kept(node: RunningDaemon) -> None:
    reader, writer = os.pipe()
    with connect(node) as connection, os.fdopen(reader, "rb") as pipe:
        for _ in range(50):
            rights = array.array("i", [writer] * 8)
            connection.sendmsg([HELLO], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights.tobytes())])
            assert read_answer(connection)["ok"] is True
        os.close(writer)
        os.set_blocking(reader, False)
        assert pipe.read() == b"", "nobody else has the pipe's other end"


def test_thousands_of_connections_come_and_go_and_others_are_answered(node: RunningDaemon) -> None:
    generator = random.Random(3)
    with node.connect() as bystander:
        for number in range(CONNECTIONS):
            connection = connect(node)
            if generator.random() < 0.3:
                with contextlib.suppress(OSError):
                    connection.send(HELLO[: generator.randrange(1, len(HELLO) + 1)])
            connection.close()
            if number % 50 == 0:
                bystander.call("hello")


def test_a_client_waits_for_its_turn_when_the_daemon_s_line_of_connections_is_full(home: Path) -> None:
    path = home / "busy.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as busy, contextlib.ExitStack() as stack:
        busy.bind(str(path))
        busy.listen(1)
        for _ in range(2):
            stack.enter_context(SndClient(path))
        began = time.monotonic()
        with pytest.raises(Unavailable):
            SndClient(path, timeout_s=0.2)
        assert time.monotonic() - began > 0.15

        def accept() -> None:
            time.sleep(0.1)
            stack.enter_context(busy.accept()[0])

        with ThreadPoolExecutor(1) as pool:
            pool.submit(accept)
            stack.enter_context(SndClient(path, timeout_s=60))


def test_clients_that_read_slowly_get_every_answer_and_hold_nobody_up(node: RunningDaemon) -> None:
    requests = 200
    slow = [connect(node) for _ in range(20)]
    try:
        for connection in slow:
            connection.sendall(b'{"op": "catalogue", "protocol": 1}\n' * requests)
        with node.connect() as client:
            for _ in range(20):
                client.call("hello")
        lines = 0
        while lines < requests:
            lines += slow[0].recv(20_000).count(b"\n")
        assert lines == requests
    finally:
        for connection in slow:
            connection.close()


def test_mutated_requests_are_answered_one_by_one(node: RunningDaemon) -> None:
    generator = random.Random(11)
    legal = {
        "lease": "lease-1", "token": "x", "region": "r", "bytes": 10, "tiles": 1, "memory_bytes": 1, "application": "a",
        "events": [{"class": "fan"}], "component": "/NODE", "report": {}, "counters": {}, "name": "n", "fault": "f",
        "text": "steps: []",
    }  # fmt: skip
    with connect(node) as connection:
        for _ in range(400):
            op = generator.choice([op for op in OPERATIONS if op not in ("acquire", "set_policy")])
            line = bytearray(json.dumps({"op": op, "protocol": 1, **{
                name: legal[name] for name in OPERATIONS[op] if name in legal and generator.random() < 0.8
            }}).encode())  # fmt: skip
            for _ in range(generator.randrange(0, 3)):
                line[generator.randrange(len(line))] = generator.choice(b'\x00\xff{}[]",:019eE.-\\')
            connection.sendall(bytes(line) + b"\n")
            assert "ok" in read_answer(connection)
    with node.connect() as client:
        client.call("repair", component="/NODE")


@pytest.mark.parametrize("wire", ["tcp", "unix"])
def test_garbage_where_grpc_is_expected_ends_that_connection_only(
    node: RunningDaemon, announcement: Path, wire: str
) -> None:
    said, generator = json.loads(announcement.read_text()), random.Random(5)
    pieces = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"]
    for _ in range(60):
        if wire == "tcp":
            connection = socket.create_connection(("127.0.0.1", said["snml_port"]), 10)
        else:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(said["snml_socket"])
        with connection, contextlib.suppress(OSError):
            connection.sendall(generator.choice(pieces) + generator.randbytes(generator.randrange(300)))
    assert node.process.poll() is None


# -- PEFs ------------------------------------------------------------------------------------------------------------


def grants(daemon: RunningDaemon) -> int:
    with daemon.connect() as client:
        found, since = 0, 0
        while events := client.call("events", since=since)["events"]:
            found += sum(event["kind"] == "grant" for event in events)
            since = events[-1]["seq"]
        return found


def flipped(data: bytes, generator: random.Random) -> bytes:
    """Some bytes changed, cut off, doubled or left out."""
    changed = bytearray(data)
    for _ in range(generator.randrange(1, 6)):
        place = generator.randrange(len(changed))
        match generator.randrange(4):
            case 0:
                changed[place] = generator.randrange(256)
            case 1:
                del changed[place : place + generator.randrange(1, 50)]
            case 2:
                changed[place:place] = generator.randbytes(generator.randrange(1, 9))
            case _:
                changed[place] ^= 1 << generator.randrange(8)
    return bytes(changed)


def changed_value(value: object, generator: random.Random) -> object:
    """The same JSON with one value somewhere that does not belong there."""
    if isinstance(value, dict) and value and generator.random() < 0.9:
        name = generator.choice(sorted(value))
        return {**value, name: changed_value(value[name], generator)}
    if isinstance(value, list) and value and generator.random() < 0.9:
        place = generator.randrange(len(value))
        return [*value[:place], changed_value(value[place], generator), *value[place + 1 :]]
    return generator.choice(
        [None, -1, 0, 3, 10**30, 1.5, True, "", "x" * 5000, "../../etc/passwd", "\x00", [], [[]] * 9, {}, {"": None}]
    )


def with_changed_json(data: bytes, generator: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        victim = generator.choice([name for name in names if name.endswith(".json")])
        for name in names:
            body = old.read(name)
            if name == victim:
                body = json.dumps(changed_value(json.loads(body), generator)).encode()
            new.writestr(name, body)
    return out.getvalue()


@pytest.mark.parametrize("mutate", [flipped, with_changed_json], ids=["bytes", "json"])
def test_a_mutated_pef_is_refused_before_a_lease_or_runs_as_it_says(
    node: RunningDaemon,
    mutate: Callable[[bytes, random.Random], bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(node.home))
    monkeypatch.setenv("RDUKIT_NODE", "daemon")
    monkeypatch.setenv("RDUKIT_ISOLATION_MODE", "off")  # this process is the tests'
    good = write_example_pef(tmp_path / "good.pef").read_bytes()
    generator, refused, opened = random.Random(17), 0, 0
    before = grants(node)
    bad = tmp_path / "bad.pef"
    for number in range(int(os.environ.get("RDUKIT_STRESS_PEFS", "150"))):
        bad.write_bytes(mutate(good, generator))
        try:
            with open_application(bad, f"fuzzed-{number}"):
                opened += 1
        except PefError:
            refused += 1
            assert grants(node) == before + opened
        except (NoResources, OutOfDeviceMemory):  # a legal PEF that this node has no room for
            continue
    assert refused > 20, "or the mutations are too mild"


# -- databases -------------------------------------------------------------------------------------------------------


def foreign_schema(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE thesis (words TEXT)")
        connection.execute("INSERT INTO thesis VALUES ('precious')")
        connection.commit()


def newer_version(path: Path) -> None:
    good_database(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
        connection.commit()


def with_a_trigger(path: Path) -> None:
    good_database(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TRIGGER evil AFTER INSERT ON events BEGIN DELETE FROM error; END")
        connection.commit()


def damaged_pages(path: Path) -> None:
    good_database(path)
    data = bytearray(path.read_bytes())
    generator = random.Random(2)
    for place in range(4096, len(data), 37):
        data[place] = generator.randrange(256)
    path.write_bytes(data)


def illegal_row(path: Path) -> None:
    good_database(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO hang_log VALUES (1, -5, 'x', -1, 'WHAT', 'EVER', NULL)")
        connection.commit()


def huge_file(path: Path) -> None:
    good_database(path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # sparse


def good_database(path: Path) -> None:
    from rdukit_node.faults.store import FaultStore

    FaultStore.open(path).close()


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start_and_wait(home: Path, timeout_s: float = 20) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        node_command("start", "--platform", "TEST-1", "--no-snml"),
        env=environment(home), capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip


def start_and_end(home: Path) -> tuple[str, str, int]:
    """A daemon that is ended as soon as it is ready: what it said then, its other words, its exit status."""
    process = subprocess.Popen(
        node_command("start", "--platform", "TEST-1", "--no-snml"),
        env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    ready = process.stdout.readline()
    process.terminate()
    _, words = process.communicate(timeout=60)
    return ready, words, process.returncode


@pytest.mark.parametrize(
    "make",
    every_third_short(
        [
            lambda path: path.write_bytes(random.Random(1).randbytes(50_000)),
            lambda path: path.write_bytes(b"SQLite format 3\0" + random.Random(1).randbytes(50_000)),
            with_a_trigger,
            damaged_pages,
            illegal_row,
        ]
    ),
    ids=["random", "random after the header", "trigger", "damaged", "illegal row"],
)
def test_a_database_that_is_damaged_is_set_aside_and_the_node_starts(
    home: Path, make: Callable[[Path], object]
) -> None:
    path = home / "snfm/snfm.db"
    path.parent.mkdir()
    make(path)
    before = path.read_bytes()
    ready, words, status = start_and_end(home)
    assert ready and status == 0, words
    assert "Traceback" not in words
    (aside,) = path.parent.glob("snfm.db.damaged-*Z")
    assert aside.read_bytes() == before


@pytest.mark.parametrize(
    ("make", "reason"),
    every_third_short(
        [
            (foreign_schema, "not those of a fault database"),
            (newer_version, "version 99"),
            (huge_file, "cannot be used"),
            (lambda path: path.mkdir(), "not a regular file"),
            (os.mkfifo, "not a regular file"),
            (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
        ]
    ),
    ids=["foreign", "newer", "huge", "folder", "pipe", "link to a device"],
)
def test_a_database_that_cannot_be_used_stops_the_start_and_is_left_alone(
    home: Path, make: Callable[[Path], object], reason: str
) -> None:
    path = home / "snfm/snfm.db"
    path.parent.mkdir()
    make(path)
    before = path.lstat(), path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 20 else b""
    finished = start_and_wait(home)
    assert finished.returncode == 2, finished.stderr
    assert reason in finished.stderr
    assert "Traceback" not in finished.stderr
    after = path.lstat(), path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 20 else b""
    assert after[1] == before[1]
    assert (after[0].st_ino, after[0].st_size, after[0].st_mode) == (
        before[0].st_ino,
        before[0].st_size,
        before[0].st_mode,
    )
    assert not (home / "run/snd.sock").exists()


def test_a_link_to_a_good_database_is_used_where_it_is(home: Path) -> None:
    real = home / "elsewhere.db"
    good_database(real)
    (home / "snfm").mkdir()
    (home / "snfm/snfm.db").symlink_to(real)
    ready, words, _ = start_and_end(home)
    assert ready.startswith("snd ready"), words
    assert (home / "snfm/snfm.db").is_symlink()
