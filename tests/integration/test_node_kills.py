"""Clients and the node daemon are killed at random under load: nothing leaks, and what one has nobody else has.

A few seconds by default. In full: ``RDUKIT_STRESS_KILLS=1000 RDUKIT_STRESS_DAEMON_KILLS=50``; ``-s`` shows figures.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdukit.errors import RdukitError
from rdukit.files.atomic import sha256_of
from rdukit.hardware import find_node
from rdukit.snd import SndClient
from rdukit_node.inventory import lanes_of, tile_of_path
from support import shows, wait_until
from support.node.clients import DIARY, FINISHED, NURSERY, STOP, descendants, diary
from support.node.daemons import environment, node_command
from support.pefs.examples import write_example_pef

pytestmark = [shows("node"), pytest.mark.long]

KILLS = int(os.environ.get("RDUKIT_STRESS_KILLS", "40"))
DAEMON_KILLS = int(os.environ.get("RDUKIT_STRESS_DAEMON_KILLS", "3"))
#: Here leases end with the daemon: what programs do that attach again is asked elsewhere.
AT_ONCE = {"RDUKIT_SND_REATTACH_S": "0"}
PLATFORM = "SN10-8"
NODE = find_node(PLATFORM)
#: Hurt a tile, a channel, a link, an RDU; none of them for good.
FAULTS = ("tile-hang", "ddr-uncorrectable", "scratchpad-uncorrectable", "pcie-link-degraded", "thermal", "rdu-hang")


class StressedNode:
    """A daemon that is killed and started again on one home folder, and nurseries of clients."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "run/snd.sock"
        self.folders = [home / "light", home / "programs"]
        self.words = (home / "daemon.txt").open("wb")
        self.lives: list[int] = []
        self.start_times: list[float] = []
        #: Every process that was started, also if it never answered: all end with ``end``.
        self.started: list[subprocess.Popen[bytes]] = []
        self.nurseries: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Start the daemon, then the clients."""
        self.daemon = self.start()
        self.baseline = self.settled_holdings()
        pef = write_example_pef(self.home / "example.pef")
        self.nurseries.append(self.nursery(self.folders[0], 8))
        self.nurseries.append(self.nursery(self.folders[1], 2, "--pef", str(pef)))

    def start(self) -> "subprocess.Popen[bytes]":
        began = time.monotonic()
        process = subprocess.Popen(
            node_command("start", "--platform", PLATFORM, "--no-snml", "--with-parent"),
            env=environment(self.home, **AT_ONCE), stdout=self.words, stderr=self.words,
        )  # fmt: skip
        self.started.append(process)

        def answers() -> bool:
            assert process.poll() is None, (self.home / "daemon.txt").read_text()[-2000:]
            try:
                with SndClient(self.socket) as client:
                    return client.call("hello")["pid"] == process.pid
            except RdukitError:
                return False

        wait_until(answers, 120, "a daemon starts")
        self.lives.append(process.pid)
        self.start_times.append(time.monotonic() - began)
        return process

    def nursery(self, folder: Path, clients: int, *more: str) -> "subprocess.Popen[bytes]":
        folder.mkdir()
        process = subprocess.Popen(
            [*NURSERY, "--socket", str(self.socket),
             "--folder", str(folder), "--clients", str(clients), *more],
            env=environment(
                self.home, RDUKIT_NODE="daemon", RDUKIT_KERNELS="portable", RDUKIT_ACQUIRE_WAIT_S="5", **AT_ONCE
            ),
            stdout=self.words, stderr=self.words,
        )  # fmt: skip
        self.started.append(process)
        wait_until((folder / DIARY).exists, 120, "a nursery starts")
        return process

    def clients(self) -> list[int]:
        return [pid for nursery in self.nurseries for pid in descendants(nursery.pid)]

    def holdings(self) -> dict[str, int]:
        """What the daemon's process has of the machine."""
        process = Path(f"/proc/{self.daemon.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return {
            "descriptors": len(self.descriptors()),
            "threads": int(status["Threads"]),
            "regions": (process / "maps").read_text().count("rdukit-region"),
            "shared_kib": int(status.get("RssShmem", "0").split()[0]),
        }

    def settled_holdings(self) -> dict[str, int]:
        """What it has when it has opened all that it needs, and closed the connections that asked for it."""
        with SndClient(self.socket) as client:
            client.status()
        seen = [self.holdings()]

        def is_settled() -> bool:
            time.sleep(0.25)
            seen.append(self.holdings())
            return len(seen) > 4 and all(holdings == seen[-1] for holdings in seen[-5:])

        wait_until(is_settled, 60, "a daemon comes to rest")
        return seen[-1]

    def descriptors(self) -> list[str]:
        """What the daemon has open, besides what comes later: its log, locks of its control groups' folders, a spare.

        SQLite keeps one descriptor of the database after the first checkpoint, for the next one: to close it would drop
        the process's locks of the file.
        """
        found = []
        for link in Path(f"/proc/{self.daemon.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(link))
        database = str(self.home / "snfm/snfm.db")
        if found.count(database) == 2:
            found.remove(database)
        return sorted(name for name in found if not name.endswith("snd.log") and "/rdukit-" not in name)

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.daemon.wait()
        self.daemon = self.start()

    def end(self) -> None:
        for process in reversed(self.started):
            for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        self.words.close()


@pytest.fixture
def node() -> Iterator[StressedNode]:
    home = Path(tempfile.mkdtemp(prefix="snd-", dir="/tmp"))
    stressed = StressedNode(home)
    try:
        stressed.begin()
        yield stressed
    finally:
        print(f"statuses at the end: {[process.poll() for process in stressed.started]}; what was said:")
        stressed.end()
        print((home / "daemon.txt").read_text()[-3000:])
        shutil.rmtree(home, ignore_errors=True)


def do_harm(node: StressedNode, random_: random.Random) -> Counter[str]:
    """Kill, stop and go on, break and repair, until enough were killed."""
    done: Counter[str] = Counter()
    kills_between = max(1, KILLS // (DAEMON_KILLS + 1))
    deadline = time.monotonic() + 300 + KILLS
    while done["killed"] < KILLS or done["daemon killed"] < DAEMON_KILLS:
        assert time.monotonic() < deadline, f"it hangs: {done}"
        time.sleep(random_.random() * 0.03)
        found = node.clients()
        if not found:
            continue
        victim, draw = random_.choice(found), random_.random()
        with contextlib.suppress(ProcessLookupError):
            if draw < 0.6:
                os.kill(victim, signal.SIGKILL)
                done["killed"] += 1
            elif draw < 0.75:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(random_.random() * 0.05)
                os.kill(victim, signal.SIGCONT)
                done["stopped"] += 1
            elif draw < 0.85:
                with SndClient(node.socket) as client:
                    client.call("inject", events=[{"class": random_.choice(FAULTS)}])
                    client.call("repair", component="/NODE")
                done["broken"] += 1
        if done["killed"] >= (done["daemon killed"] + 1) * kills_between and done["daemon killed"] < DAEMON_KILLS:
            node.kill_daemon()
            done["daemon killed"] += 1
    return done


def check_event_log(database: Path) -> Counter[str]:
    """No two leases of a daemon's life had a tile or a lane at once; every grant of the last life has its end."""
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        events = [json.loads(text) for (text,) in connection.execute("SELECT event FROM events ORDER BY number")]
    kinds: Counter[str] = Counter()
    held: dict[str, str] = {}
    lanes: dict[tuple[str, int], str] = {}
    active: set[str] = set()
    seq, granted = 0, set()
    for event in events:
        kinds[event["kind"]] += 1
        if event["seq"] == 1:  # another life: what a killed daemon had granted is over, or restored
            held, lanes, active, seq = {}, {}, set(), 0
            kinds["lives"] += 1
        assert event["seq"] == seq + 1, "no event of a life is missing"
        seq = event["seq"]
        lease = event["lease"]
        if event["kind"] in ("grant", "restore"):
            assert event["kind"] == "restore" or lease not in granted
            granted.add(lease)
            active.add(lease)
            for path in event["tiles"]:
                assert held.setdefault(path, lease) == lease, f"{path} of {lease} was {held[path]}'s"
            for row in lanes_of(NODE, [tile_of_path(NODE, path).index for path in event["tiles"]]):
                for lane in range(row["first_lane"], row["first_lane"] + row["lanes"]):
                    assert lanes.setdefault((row["path"], lane), lease) == lease, f"lane {lane} of {row['path']}"
        elif event["kind"] in ("release", "death", "stop"):
            active.remove(lease)
            held = {path: holder for path, holder in held.items() if holder != lease}
            lanes = {lane: holder for lane, holder in lanes.items() if holder != lease}
        elif event["kind"] in ("attach", "detach", "interrupt"):
            assert lease in active
    assert not active, "every grant of the last life has its end"
    return kinds


def test_kills_of_clients_and_of_the_daemon_leak_nothing(node: StressedNode) -> None:
    done = do_harm(node, random.Random(4))

    for folder in node.folders:
        (folder / STOP).touch()

    def all_ended() -> bool:
        for pid in node.clients():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return all(nursery.poll() is not None for nursery in node.nurseries)

    wait_until(all_ended, 120, "every client finishes or gets an exception")
    assert [nursery.returncode for nursery in node.nurseries] == [0, 0]

    said = [line for folder in node.folders for line in diary(folder)]
    assert [line for line in said if line["what"] == "wrong"] == []
    assert {line["status"] for line in said if line["what"] == "exit"} == {FINISHED, -signal.SIGKILL}
    assert any(line["what"] == "done" for line in diary(node.folders[1])), "programs run to their end in between"

    with SndClient(node.socket) as client:
        wait_until(lambda: not client.status()["leases"], 60, "the last leases end")
        client.call("repair", component="/NODE")
        status = client.status()
        assert {tile["lease"] for tile in status["tiles"]} == {None}
        assert {tile["health"] for tile in status["tiles"]} == {"Online"}
        assert status["memory"]["used"] == 0
        assert (status["applications"], status["waiting"]) == (0, [])
        assert status["database"]["is_writable"]
        every_tile = client.acquire("all of it", NODE.tiles, status["memory"]["total"])
        client.release(every_tile["id"])

    with contextlib.suppress(AssertionError):
        wait_until(lambda: node.holdings()["descriptors"] == node.baseline["descriptors"], 60, "connections are closed")
    found = node.holdings()
    assert found["descriptors"] == node.baseline["descriptors"], "\n".join(node.descriptors())
    assert found["regions"] == 0
    assert found["threads"] <= node.baseline["threads"] + 1, "one more for control groups, which begins with a lease"
    assert found["shared_kib"] <= node.baseline["shared_kib"]
    node.daemon.terminate()
    assert node.daemon.wait(20) == 0
    assert not node.socket.exists()
    owner = sha256_of(str(node.socket).encode())[:12]
    assert list(Path("/sys/fs/cgroup").glob(f"**/rdukit-{owner}")) == []

    kinds = check_event_log(node.home / "snfm/snfm.db")
    assert kinds["lives"] == DAEMON_KILLS + 1
    exceptions = Counter(line["code"] for line in said if line["what"] == "exception")
    rounds = sum(line["what"] == "done" for line in said)
    print(f"\n{dict(done)} rounds={rounds} exceptions={dict(exceptions)} events={dict(kinds)}")
    print(f"daemon starts: slowest {max(node.start_times):.2f} s; at the end {found}, at first {node.baseline}")
