"""The fork server: statuses, descriptors, what a fork sees of the one before, and ends of either side."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdukit.errors import Unavailable
from rdukit.system.forks import ForkedProcess, ForkServer
from support import shows
from support.helpers import wait_until

pytestmark = shows("modelbox", "up")

PROGRAM = """
import json, os, sys, time
from rdukit.system.forks import serve_forks
seen = []

def run(request):
    body = request.body
    seen.append(body["name"])
    if body.get("end") == "raise":
        raise RuntimeError("as it was told")
    if body.get("end") == "exit":
        sys.exit(9)
    if body.get("end") == "wait":
        time.sleep(60)
    said = {"seen": seen, "descriptors": [n for n in range(256) if os.path.lexists(f"/proc/self/fd/{n}")],
            "came": list(request.descriptors), "session": os.getsid(0) == os.getpid(),
            "name": open("/proc/self/comm").read().strip(), "in": sys.stdin.readline()}
    print(json.dumps(said))
    return body.get("status", 0)

serve_forks(int(sys.argv[1]), run)
"""
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def server() -> Iterator[ForkServer]:
    started = ForkServer.start([sys.executable, "-c", PROGRAM], ENVIRONMENT)
    wait_until(started.is_ready)
    yield started
    started.close()


def fork(server: ForkServer, folder: Path, **body: object) -> tuple[ForkedProcess, Path]:
    output = folder / f"{body['name']}.txt"
    with output.open("wb") as stream:
        return server.fork(body, stream.fileno()), output


def said(process: ForkedProcess, output: Path) -> dict[str, Any]:
    assert process.wait(30) == 0, output.read_text()
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_a_fork_has_its_own_session_name_and_descriptors(server: ForkServer, tmp_path: Path) -> None:
    answer = said(*fork(server, tmp_path, name="box-of-letters-and-more"))
    assert answer["session"]
    assert answer["name"] == "box-of-letters-"
    assert answer["descriptors"] == [0, 1, 2]
    assert answer["in"] == ""


def test_a_fork_sees_nothing_of_the_one_before(server: ForkServer, tmp_path: Path) -> None:
    said(*fork(server, tmp_path, name="first", secret="of the first"))
    assert said(*fork(server, tmp_path, name="second"))["seen"] == ["second"]


def test_a_fork_gets_the_descriptors_that_it_was_sent(server: ForkServer, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"a line\n")
    os.close(write_end)
    output = tmp_path / "said"
    with output.open("wb") as stream:
        process = server.fork({"name": "reader"}, stream.fileno(), read_end, (stream.fileno(),))
    os.close(read_end)
    answer = said(process, output)
    assert answer["in"] == "a line\n"
    assert answer["descriptors"] == [0, 1, 2, *answer["came"]]


@pytest.mark.parametrize(("body", "status"), [({"status": 3}, 3), ({"end": "exit"}, 9), ({"end": "raise"}, 1)])
def test_the_status_is_the_programs(server: ForkServer, tmp_path: Path, body: dict[str, Any], status: int) -> None:
    process, output = fork(server, tmp_path, name="ends", **body)
    assert process.wait(30) == process.poll() == status
    assert ("as it was told" in output.read_text()) is (status == 1)


def test_a_fork_that_is_killed_says_by_which_signal(server: ForkServer, tmp_path: Path) -> None:
    process, _ = fork(server, tmp_path, name="waits", end="wait")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert process.poll() is None
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    process.kill()  # nothing happens


def test_the_end_of_the_server_is_told_and_ends_no_caller(server: ForkServer, tmp_path: Path) -> None:
    process, _ = fork(server, tmp_path, name="waits", end="wait")
    os.kill(server.pid, signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    wait_until(server.has_ended)
    assert not server.is_ready()
    with pytest.raises(Unavailable, match=r"rejected the request|ended before"):
        fork(server, tmp_path, name="late")
    os.kill(process.pid, signal.SIGKILL)


def test_the_server_ends_with_its_client() -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", "import sys, time\nfrom rdukit.system.forks import ForkServer\n"
         f"print(ForkServer.start([sys.executable, '-c', {PROGRAM!r}], {ENVIRONMENT!r}).pid, flush=True)\n"
         "time.sleep(60)"],
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    client.kill()
    client.wait()
    client.stdout.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z (zombie)" in Path(f"/proc/{pid}/status").read_text())


def test_many_forks_at_once_each_get_their_own_answer(server: ForkServer, tmp_path: Path) -> None:
    forks = [fork(server, tmp_path, name=f"fork-{number}", status=number) for number in range(40)]
    assert [process.wait(60) for process, _ in forks] == list(range(40))
    assert [json.loads(output.read_text())["name"] for _, output in forks] == [f"fork-{n}" for n in range(40)]


BY_FORK = """
import os, signal, time
from rdukit.system.forks import ForkServer

server = ForkServer.by_fork(lambda request: 3, "by-fork")
while not server.is_ready():
    time.sleep(0.01)
forked = server.fork({"name": "one"}, 2)
assert forked.wait(60) == 3 and not server.has_ended()
os.kill(server.pid, signal.SIGKILL)
while not server.has_ended():
    time.sleep(0.01)
assert server.has_ended() and not server.is_ready()
"""


def test_a_server_made_by_a_fork_serves_and_its_end_is_seen() -> None:
    subprocess.run([sys.executable, "-c", BY_FORK], check=True, timeout=60)
