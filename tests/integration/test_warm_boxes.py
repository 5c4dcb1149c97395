"""Boxes forked from a worker's fork server: they work, end in order, and outlive neither it nor whoever started it."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rdukit.box.client import BoxClient
from rdukit.box.image import BoxEnd
from rdukit.http.unix_sockets import REST_SOCKET
from rdukit.interfaces import SystemClock
from rdukit.system.forks import ForkServer
from rdukit_platform.backends.contract import BoxLimits, BoxOwner, BoxSpec
from rdukit_platform.backends.process import ProcessBackend
from rdukit_platform.backends.process_tree import start_ticks, tree_of
from rdukit_platform.backends.warm import WarmBoxes
from support import shows, wait_until

pytestmark = shows("job-boxes", "logreg")

COMMAND = (sys.executable, "-m", "rdukit_modelbox")


@contextlib.contextmanager
def started() -> Iterator[WarmBoxes]:
    with contextlib.closing(WarmBoxes(COMMAND, {}, SystemClock())) as boxes:
        wait_until(lambda: boxes.find() is not None)
        yield boxes


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmBoxes]:
    with started() as boxes:
        yield boxes


def server_of(warm: WarmBoxes) -> ForkServer:
    server = warm.find()
    assert server is not None
    return server


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


def test_a_forked_box_works_and_so_do_its_operations(warm: WarmBoxes, tmp_path: Path) -> None:
    backend = ProcessBackend(records=tmp_path / "records", warm=warm)
    spec = BoxSpec("logreg", tmp_path / "state", owner=BoxOwner("job", 1), outputs=[tmp_path / "out"], has_sockets=True)
    (tmp_path / "out").mkdir()
    box = backend.start(spec)
    assert name_of(box.pid) == "box-logreg"
    assert [found.owner.id for found in backend.owned()] == ["job"]
    names, has_ended = set[str](), threading.Event()

    def watch() -> None:
        while not has_ended.is_set():
            names.update(name_of(facts.pid) for facts in tree_of(box.pid))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    forked = {"rdukit-verb", "rdukit-verbs"}
    with BoxClient(box.rest_url) as client:
        # A verb may be over before anybody looks: then the next one is looked at.
        for number in range(100):
            operation = client.submit("preprocess", {}, {}, str(tmp_path / "out" / str(number)))
            *_, last = client.events(operation["id"])
            assert last["operation"]["state"] == "succeeded"
            if forked <= names:
                break
        has_ended.set()
        watcher.join()
    assert forked <= names
    everything = [facts.pid for facts in tree_of(box.pid)]
    box.stop()
    assert box.events()[-1].end is BoxEnd.EXITED
    wait_until(lambda: all(start_ticks(pid) is None for pid in everything))
    assert backend.owned() == () and server_of(warm).is_ready()


def test_a_forked_box_answers_for_itself_and_not_for_the_one_that_its_routes_were_built_with(
    warm: WarmBoxes, tmp_path: Path
) -> None:
    backend = ProcessBackend(records=tmp_path / "records", warm=warm)
    boxes = {name: backend.start(BoxSpec(name, tmp_path / name, has_sockets=True)) for name in ("lenet", "logreg")}
    for name, box in boxes.items():
        assert name_of(box.pid) == f"box-{name}"
        with BoxClient(box.rest_url) as client:
            described = client.describe()
            assert described["name"] == name
            transport = httpx.HTTPTransport(uds=str(tmp_path / name / REST_SOCKET))
            with httpx.Client(transport=transport, base_url="http://box") as caller:
                assert caller.get("/openapi.json").json()["info"]["title"] == described["title"]
            operation = client.submit("preprocess", {}, {}, "")
            assert [found["id"] for found in client.operations()] == [operation["id"]]
        box.stop()


def test_a_box_with_little_memory_is_started_anew(warm: WarmBoxes, tmp_path: Path) -> None:
    backend = ProcessBackend(records=tmp_path / "records", warm=warm)
    box = backend.start(BoxSpec("logreg", tmp_path / "state", limits=BoxLimits(memory_bytes=1 << 30)))
    assert name_of(box.pid) != "box-logreg"
    box.stop()


@pytest.mark.long
def test_a_killed_server_takes_its_boxes_along_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started() as warm:
        monkeypatch.setattr("rdukit_platform.backends.warm.RESTART_S", 0.0)
        backend = ProcessBackend(records=tmp_path / "records", warm=warm)
        box = backend.start(BoxSpec("logreg", tmp_path / "state"))
        os.kill(server_of(warm).pid, signal.SIGKILL)
        wait_until(lambda: not box.is_alive())
        assert box.events()[-1].end is BoxEnd.KILLED
        wait_until(lambda: start_ticks(box.pid) is None)
        meanwhile = backend.start(BoxSpec("logreg", tmp_path / "other"))
        assert meanwhile.is_ready()
        meanwhile.stop()
        wait_until(lambda: warm.find() is not None)


@pytest.mark.long
def test_all_end_with_whoever_started_them(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from rdukit.interfaces import SystemClock\n"
        "from rdukit_platform.backends.contract import BoxSpec; from rdukit_platform.backends.process import *\n"
        f"warm = WarmBoxes({COMMAND!r}, {{}}, SystemClock())\n"
        "while warm.find() is None: time.sleep(0.05)\n"
        f"box = ProcessBackend(records=Path({str(tmp_path)!r}), warm=warm).start(\n"
        f"    BoxSpec('logreg', Path({str(tmp_path)!r}) / 'box'))\n"
        "print(warm.find().pid, box.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        server, box = map(int, worker.stdout.readline().split())
        below = [facts.pid for facts in tree_of(server)]
        assert box in below and name_of(box) == "box-logreg"
        worker.kill()
    wait_until(lambda: all(start_ticks(pid) is None for pid in below))
