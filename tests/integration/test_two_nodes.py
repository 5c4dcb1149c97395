"""Two emulated nodes on one machine, both at work: neither's tiles, faults, books or tools get into the other's."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from rdukit.errors import Unavailable
from rdukit.snd import SndClient
from rdukit_node.settings import node_paths
from rdukit_node.snml.client import SnmlClient
from support import shows
from support.node.daemons import (
    RunningDaemon,
    environment,
    node_command,
    running_daemon,
    start_daemon,
    stop_daemon,
)

pytestmark = shows("node", "snfadm", "snconfig")

LOADED_S = 2.0


@dataclass
class Node:
    """One of the two, and the options of tools that mean it."""

    daemon: RunningDaemon
    socket: Path
    platform: str
    snml_port: int

    def connect(self) -> SndClient:
        return SndClient(self.socket)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        first = stack.enter_context(running_daemon("SN30-8", ["--snml-port", "0"]))
        # The second lives in the first one's home: a socket of its own is all that it needs.
        second_socket, announced = first.home / "two.sock", first.home / "two.json"
        more = ["--snml-port", "0", "--socket", str(second_socket), "--announce", str(announced), "--name", "two"]
        second = start_daemon(first.home, "SN40L-16", more)
        stack.callback(stop_daemon, second)
        monkeypatch.setenv("RDUKIT_HOME", str(first.home))
        ready = json.loads(announced.read_text())
        log = (first.home / "logs/snd.log").read_text()
        one_port = json.loads(log[log.index('{"database"') :].splitlines()[0])["snml_port"]
        yield (
            Node(first, first.socket, "SN30-8", one_port),
            Node(second, second_socket, "SN40L-16", ready["snml_port"]),
        )


def tool(node: Node, module: str, *words: str) -> str:
    command = ["-c", f"from rdukit_node.cli.{module} import {module} as tool; tool()"]
    python = node_command()[0]
    done = subprocess.run(
        [python, *command, "--socket", str(node.socket), *words],
        env=environment(node.daemon.home), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class Load:
    """Threads that take and give back tiles of one node, and note whether an answer was of another."""

    def __init__(self, node: Node, workers: int = 2) -> None:
        self.node, self.stop, self.rounds, self.wrong = node, threading.Event(), 0, 0
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(workers)]
        for thread in self.threads:
            thread.start()

    def work(self, number: int) -> None:
        with self.node.connect() as client:
            while not self.stop.is_set():
                lease = client.acquire(f"{self.node.platform}-{number}", 2, 1 << 20, tenant=self.node.platform)
                status = client.status()
                self.wrong += status["platform"] != self.node.platform
                self.wrong += any(one["tenant"] != self.node.platform for one in status["leases"])
                client.release(lease["id"])
                self.rounds += 1

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


@pytest.mark.long
def test_two_nodes_under_load_keep_apart(two: tuple[Node, Node]) -> None:
    loads = [Load(node) for node in two]
    try:
        began = time.monotonic()
        faults = {}
        for node, tile in zip(two, ("/NODE/XRDU_0/RDU_0/TILE_7", "/NODE/XRDU_7/RDU_1/TILE_3"), strict=True):
            told = tool(node, "snfadm", "--inject", "tile-excluded", "-c", tile, "--json")
            assert told
            with node.connect() as client:
                (row,) = client.call("faults")["faults"]
                faults[node.platform] = row
                assert row["comp_name"] == tile
            assert node.platform.split("-")[0] in tool(node, "snconfig", "show", "Node", "static").upper()
            with SnmlClient(f"127.0.0.1:{node.snml_port}", token="") as snml:
                assert snml.ask("GetSystemPlatformInfo").platform_name == f"DataScale {node.platform}"
        assert two[0].snml_port != two[1].snml_port
        assert faults["SN30-8"]["fault_uuid"] != faults["SN40L-16"]["fault_uuid"]
        for node, other in (two, two[::-1]):
            listed = tool(node, "snfadm", "-l", "fault", "--json")
            assert faults[node.platform]["fault_uuid"] in listed
            assert faults[other.platform]["fault_uuid"] not in listed
        time.sleep(max(0.0, LOADED_S - (time.monotonic() - began)))
    finally:
        for load in loads:
            load.end()
    assert all(load.rounds > 50 and load.wrong == 0 for load in loads), [(x.rounds, x.wrong) for x in loads]
    for node in two:
        with node.connect() as client:
            assert client.status()["leases"] == []
            tenants = {row["tenant"] for row in client.call("applications", limit=1000)["applications"]}
            assert tenants == {node.platform}


def test_what_ends_one_node_leaves_the_other_alone(two: tuple[Node, Node]) -> None:
    one, other = two
    with one.connect() as held:
        held.acquire("survivor", 4, 1 << 20)
        with other.connect() as client:
            client.acquire("casualty", 4, 1 << 20)
            client.call("inject", events=[{"class": "tile-excluded", "component": "/NODE/XRDU_1/RDU_0/TILE_0"}])
            other.daemon.process.kill()
            other.daemon.process.communicate()
            with pytest.raises(Unavailable):
                client.status()
        assert [lease["application"] for lease in held.status()["leases"]] == ["survivor"]
        # The tools read the dead node's own database, not that of the one which answers.
        assert "/NODE/XRDU_1/RDU_0/TILE_0" in tool(other, "snfadm", "-l", "fault")
        assert "TILE" not in tool(one, "snfadm", "-l", "fault")


def test_a_second_daemon_on_the_same_socket_or_the_same_state_is_refused(
    two: tuple[Node, Node], tmp_path: Path
) -> None:
    one, other = two
    with pytest.raises(RuntimeError, match="serves"):
        start_daemon(one.daemon.home, "TEST-1", ["--socket", str(other.socket)])
    state = node_paths(other.socket).database.parents[1]
    with pytest.raises(RuntimeError, match="serves"):
        start_daemon(one.daemon.home, "TEST-1", ["--socket", str(one.daemon.home / "3.sock"), "--state", str(state)])
    for node in two:
        with node.connect() as client:
            assert client.status()["platform"] == node.platform
