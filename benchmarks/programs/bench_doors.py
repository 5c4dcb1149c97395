"""Thousands of hostile connections and large uploads of strangers at a gateway and at a box: who else notices?

An honest caller asks for its own things and for health: alone, while another process attacks another server on this
machine (what that takes of its processors is not the door's doing), and while it attacks this one. The attack keeps
``--connections`` hostile connections open (a quarter each: idle, half-sent heads, heads byte by byte, heads that are
too long; what is closed is opened again) and ``--uploads`` strangers each send 1 GiB at once, again and again. Prints
how long health takes at most, the honest caller's 99th percentiles, and what memory the server took. ::

    python benchmarks/programs/bench_doors.py [--json FILE] [--connections 5000] [--uploads 100] [--seconds 15]
        [--addresses 1]

``--addresses``: from how many addresses the hostile process comes; the honest caller has one of its own.
"""

import argparse
import asyncio
import contextlib
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from rdukit_bench.comparisons.machine import write_json

from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.platform.processes import platform_under_test

BOX = Path(__file__).parents[2] / "tests/integration/platform_box.py"
GIB = 1 << 30
HONEST = "127.0.0.9"
CALLERS, PAUSE_S = 4, 0.04
#: Seconds after which a hostile connection that was closed is opened again.
AGAIN_S = 1.0


async def keep_open(host: str, port: int, source: str, kind: str, said: Counter[str]) -> None:
    """Keep a hostile connection open, for ever."""
    while True:
        writer = None
        try:
            reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
            said["opened"] += 1
            if kind != "idle":
                writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: ")
            if kind == "oversized":
                for _ in range(100):
                    writer.write(b"y" * 10_000)
                    await writer.drain()
            if kind == "slow":
                while not reader.at_eof():
                    writer.write(b"y")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1000), 1.0)
            else:
                await reader.read(1000)
            said["closed"] += 1
        except OSError:
            said["broken"] += 1
        finally:
            if writer is not None:
                writer.close()
        await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.5))


async def upload(host: str, port: int, source: str, path: str, said: Counter[str]) -> None:
    """1 GiB without a token, as far as it is taken; then again."""
    block = bytes(1 << 16)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {GIB}\r\nContent-Type: application/json\r\n\r\n"
    while True:
        writer = None
        try:
            _, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
            writer.write(head.encode())
            for _ in range(GIB // len(block)):
                writer.write(block)
                await writer.drain()
                said["upload MiB"] += len(block) / (1 << 20)  # type: ignore[assignment]
            said["uploads taken whole"] += 1
        except OSError:
            said["uploads cut"] += 1
        finally:
            if writer is not None:
                writer.close()
        await asyncio.sleep(AGAIN_S)


async def attack(host: str, port: int, path: str, connections: int, uploads: int, addresses: int) -> None:
    """Until its input ends."""
    said: Counter[str] = Counter()
    kinds = ("idle", "half", "slow", "oversized")
    sources = [f"127.0.1.{1 + number}" for number in range(addresses)]
    tasks = [
        asyncio.create_task(keep_open(host, port, sources[at % addresses], kinds[at // addresses % 4], said))
        for at in range(connections)
    ]
    tasks += [asyncio.create_task(upload(host, port, sources[at % addresses], path, said)) for at in range(uploads)]
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({name: round(value) for name, value in said.items()}), flush=True)
    for task in tasks:
        task.cancel()


async def measure(host: str, port: int, ask: bytes, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds of each of the honest caller's requests, and of each health answer on a new connection."""
    mine: list[float] = []
    health: list[float] = []
    end = time.monotonic() + seconds

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> float:
        began = time.monotonic()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"the honest caller was answered {head!r}")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return time.monotonic() - began

    async def call() -> None:
        reader, writer = await asyncio.open_connection(host, port, local_addr=(HONEST, 0))
        while time.monotonic() < end:
            mine.append(await one(reader, writer, ask))
            await asyncio.sleep(PAUSE_S)
        writer.close()

    async def look() -> None:
        while time.monotonic() < end:
            began = time.monotonic()
            reader, writer = await asyncio.open_connection(host, port, local_addr=(HONEST, 0))
            await one(reader, writer, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            writer.close()
            health.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)

    await asyncio.gather(look(), *(call() for _ in range(CALLERS)))
    return mine, health


class Memory:
    """The most resident memory that a process has while the block lasts."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self.before = self.most = self._read()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _read(self) -> int:
        return int(self._file.read_text().split()[1]) * resource.getpagesize()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.most = max(self.most, self._read())

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def attacked(host: str, port: int, path: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Return the hostile process, while the block lasts; then what it saw."""
    figures: dict[str, Any] = {}
    command = [
        sys.executable, __file__, "--attack", host, str(port), path, "--connections", str(options.connections),
        "--uploads", str(options.uploads), "--addresses", str(options.addresses),
    ]  # fmt: skip
    process = subprocess.Popen(["nice", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdout.readline()
        time.sleep(5.0)  # until what can be open is
        yield figures
        process.stdin.close()
        figures |= json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def try_door(
    name: str, url: str, pid: int, ask: bytes, path: str, decoy: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure one server alone, while the ``decoy`` is attacked, and under attack itself."""
    host, _, port_text = url.removeprefix("http://").partition(":")
    port = int(port_text)
    run = uvloop.run
    run(measure(host, port, ask, 2.0))
    alone, _ = run(measure(host, port, ask, options.seconds))
    other_host, _, other_port = decoy.removeprefix("http://").partition(":")
    with attacked(other_host, int(other_port), "/v1/train", options):
        elsewhere, _ = run(measure(host, port, ask, options.seconds))
    with Memory(pid) as memory, attacked(host, port, path, options) as said:
        beside, health = run(measure(host, port, ask, options.seconds))
    p99s = [statistics.quantiles(each, n=100)[98] for each in (alone, elsewhere, beside)]
    figures = {
        "health_most_s": max(health), "health_median_s": statistics.median(health), "p99_alone_s": p99s[0],
        "p99_elsewhere_s": p99s[1], "p99_beside_s": p99s[2], "p99_ratio": p99s[2] / p99s[0],
        "p99_ratio_to_elsewhere": p99s[2] / p99s[1], "memory_mb": (memory.most - memory.before) / 1e6,
        "requests": len(beside), "hostile": said,
    }  # fmt: skip
    milliseconds = [f"{each * 1e3:.1f}" for each in p99s]
    print(f"{name}: health {figures['health_most_s']:.3f} s at most, memory +{figures['memory_mb']:.0f} MB, p99 alone "
          f"{milliseconds[0]}, attack elsewhere {milliseconds[1]}, here {milliseconds[2]} ms")  # fmt: skip
    print(f"  p99 {figures['p99_ratio_to_elsewhere']:.2f} of that beside an attack elsewhere; hostile: {said}")
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--uploads", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--addresses", type=int, default=1)
    parser.add_argument("--only", choices=["gateway", "box"])
    parser.add_argument("--attack", nargs=3, metavar=("HOST", "PORT", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.attack:
        host, port, path = options.attack
        uvloop.run(attack(host, int(port), path, options.connections, options.uploads, options.addresses))
        return
    figures = {}
    ask = "GET {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n"
    with tempfile.TemporaryDirectory(prefix="rdk-", dir="/tmp") as text:
        folder = Path(text)
        (folder / "tokens").write_text("secret\n")
        tokens = {"RDUKIT_BOX_TOKENS": str(folder / "tokens"), "RDUKIT_HOME": str(folder)}
        decoy = ProcessBackend().start(BoxSpec("logreg", folder / "decoy", environment=tokens))
        if options.only != "box":
            with platform_under_test(folder / "home", BOX, {}) as platform:
                token = (folder / "home" / "token").read_text().strip()
                asked = ask.format("/v1/me", token).encode()
                figures["gateway"] = try_door(
                    "gateway",
                    platform.running["url"],
                    platform.pid_of("gateway"),
                    asked,
                    "/v1/artifacts",
                    decoy.rest_url,
                    options,
                )
        if options.only != "gateway":
            box = ProcessBackend().start(BoxSpec("logreg", folder / "box", environment=tokens))
            try:
                asked = ask.format("/v1/describe", "secret").encode()
                figures["box"] = try_door("box", box.rest_url, box.pid, asked, "/v1/train", decoy.rest_url, options)
            finally:
                box.stop()
        decoy.stop()
    if options.json:
        write_json(options.json, {"doors": figures})


if __name__ == "__main__":
    main()
