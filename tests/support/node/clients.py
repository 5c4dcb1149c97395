"""Cheap clients of a node daemon for tests that kill them: a nursery process forks them, each says what happens.

A client takes a lease, checks that its memory is zeros at first and its own until the end, counts runs, releases and
begins anew. That tiles are exclusive is witnessed by the kernel: a client that holds tiles also holds a POSIX lock on
one byte a tile, which the kernel gives back before it closes a killed process's sockets. ::

    python -P tests/support/node/clients.py --socket run/snd.sock --folder clients --clients 8 [--pef example.pef]
"""

import argparse
import ctypes
import fcntl
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import HwException, LeaseLost, NoResources, RdukitError, Unavailable
from rdukit.hardware import NodeSpec, find_node
from rdukit.snd import SndClient
from rdukit_node.inventory import tile_of_path
from rdukit_node.leases.client import DaemonLease

#: In the folder: what clients say, one JSON object a line; and, when it exists, clients end.
DIARY: Final = "diary.jsonl"
STOP: Final = "stop"
FINISHED, WRONG = 0, 9
#: The command of a nursery, without its arguments.
NURSERY: Final = (sys.executable, "-P", __file__)
_PR_SET_CHILD_SUBREAPER: Final = 36
_EXPECTED: Final = (LeaseLost, HwException, Unavailable, NoResources)


class BrokenPromise(Exception):
    """A promise of the node was broken."""


@dataclass(frozen=True, slots=True)
class HeldTiles:
    """A lease, and what else its client was told."""

    lease: DaemonLease
    node: NodeSpec
    daemon_pid: int
    token: str


class Client:
    """One forked client."""

    def __init__(self, socket: Path, folder: Path, seed: int, pef: Path | None) -> None:
        self.socket: Final = socket
        self.folder: Final = folder
        self.random: Final = random.Random(seed)
        self.pef: Final = pef

    @property
    def must_end(self) -> bool:
        return (self.folder / STOP).exists()

    def say(self, what: str, **more: object) -> None:
        say(self.folder, what, **more)

    def live(self) -> None:
        """Lease after lease until the folder says stop; an exception of the node is said, and is no reason to end."""
        while not self.must_end:
            try:
                share = self.random.random()
                if self.pef is not None:
                    self._run_program(self.pef)
                elif share < 0.2:
                    self._share()
                else:
                    self._hold()
                self.say("done")
            except _EXPECTED as error:
                self.say("exception", code=error.code)
                time.sleep(self.random.random() * 0.02)

    def _hold(self) -> None:
        wait_s = self.random.choice((0.0, 0.05, 5.0))
        with self._lease(self.random.randrange(1, 13), wait_s) as held, self._witness(held):
            self._work(held.lease, self.random.random() * 0.03)

    def _share(self) -> None:
        """Share the lease with a child; either may be killed."""
        with self._lease(self.random.randrange(1, 5), 1.0) as held:
            child = os.fork()
            if child == 0:
                end_with(self.folder, lambda: self._attach(held.lease.id, held.token))
            try:
                self._work(held.lease, 0.01)
            finally:
                os.waitpid(child, 0)

    def _attach(self, lease_id: str, token: str) -> None:
        try:
            with SndClient(self.socket) as client:
                hello = client.call("hello")
                chip = find_node(str(hello["platform"])).chip
                body = client.attach(lease_id, token)
                with DaemonLease(client, body, chip, True, hello["features"]) as lease:
                    self._work(lease, 0.02)
        except RdukitError as error:  # the other holder released, or was killed before
            self.say("exception", code=error.code)

    @contextmanager
    def _lease(self, tiles: int, wait_s: float) -> Iterator[HeldTiles]:
        with SndClient(self.socket) as client:
            hello = client.call("hello")
            body = client.acquire("stress", tiles, 1 << 20, wait_s, tenant=f"t{self.random.randrange(3)}")
            node = find_node(str(hello["platform"]))
            with DaemonLease(client, body, node.chip, False, hello["features"]) as lease:
                yield HeldTiles(lease, node, int(hello["pid"]), str(body["token"]))

    @contextmanager
    def _witness(self, held: HeldTiles) -> Iterator[None]:
        """Lock a byte for each tile of this daemon's life."""
        with (self.folder / f"tiles-{held.daemon_pid}").open("ab") as file:
            for path in held.lease.tiles:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, tile_of_path(held.node, path).index)
                except OSError as cause:
                    raise BrokenPromise(f"{path} of {held.lease.id} is somebody else's too") from cause
            yield
            fcntl.lockf(file, fcntl.LOCK_UN)

    def _work(self, lease: DaemonLease, seconds: float) -> None:
        mark = self.random.randrange(1, 256)
        regions = []
        for number in range(self.random.randrange(1, 4)):
            size = self.random.randrange(1, 100_000)
            region = lease.allocate(f"r{number}", size)
            if any(region.buffer):
                raise BrokenPromise(f"memory of {lease.id} is not zeros")
            region.buffer[:] = bytes([mark]) * size
            regions.append(region)
        end = time.monotonic() + seconds
        while True:
            lease.page.count_run(1, 10, 20, 30, 40)
            lease.check()
            if time.monotonic() >= end:
                break
            time.sleep(0.002)
        for region in regions:
            if bytes(region.buffer) != bytes([mark]) * region.bytes:
                raise BrokenPromise(f"somebody wrote into the memory of {lease.id}")
        regions[0].free()

    def _run_program(self, pef: Path) -> None:
        import torch

        from rdukit_runtime.application import open_application

        with open_application(pef, "program") as application:
            weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
            for name, value in {"x": torch.ones(4, 3), "weight": weight, "bias": torch.zeros(2)}.items():
                application.program.write(name, value)
            for _ in range(self.random.randrange(1, 20)):
                application.run("main", (0,), {})
            found = application.program.read("y")
            if not torch.equal(found.float(), torch.tensor([[3.0, 12.0]] * 4)):
                raise BrokenPromise(f"y is {found.tolist()}")


def say(folder: Path, what: str, **more: object) -> None:
    """Append a line to the diary, in one write."""
    line = json.dumps({"time": time.monotonic(), "pid": os.getpid(), "what": what, **more}) + "\n"
    descriptor = os.open(folder / DIARY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def diary(folder: Path) -> list[Mapping[str, Any]]:
    """Read the entries so far."""
    path = folder / DIARY
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def end_with(folder: Path, life: Any) -> None:
    """Live and end this process: with ``FINISHED``, or with ``WRONG`` and the reason in the diary."""
    status = WRONG
    try:
        life()
        status = FINISHED
    except BaseException as error:  # noqa: BLE001  a process's border
        say(folder, "wrong", reason=f"{type(error).__name__}: {error}")
    os._exit(status)


def descendants(pid: int) -> list[int]:
    """Return the present processes below ``pid``."""
    found: list[int] = []
    rest = [pid]
    while rest:
        try:
            words = Path(f"/proc/{(parent := rest.pop())}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        rest += map(int, words)
        found += map(int, words)
    return found


def run_nursery(socket: Path, folder: Path, clients: int, pef: Path | None, seed: int) -> None:
    """Keep so many clients alive until the folder says stop; then wait for the last one."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # children of killed clients end here
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if pef is not None:
        import rdukit_runtime.application  # noqa: F401  once, not in every fork
    born: set[int] = set()
    say(folder, "ready", clients=clients)
    while True:
        ends = (folder / STOP).exists()
        while len(born) < clients and not ends:
            seed += 1
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                end_with(folder, Client(socket, folder, seed, pef).live)
            born.add(pid)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            if ends:
                break
            continue
        if pid:
            born.discard(pid)
            say(folder, "exit", child=pid, status=os.waitstatus_to_exitcode(status))
        else:
            time.sleep(0.002)


def main() -> None:
    """Run a nursery."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--pef", type=Path, default=None, help="Clients run this program instead.")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    run_nursery(options.socket, options.folder, options.clients, options.pef, options.seed)
    sys.exit(0)


if __name__ == "__main__":
    main()
