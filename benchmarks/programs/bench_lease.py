"""What does the node daemon cost: a lease, and a region of device memory handed over?

A daemon with 64 tiles on which seven applications hold leases; an eighth acquires and releases. Then 16 MB of device
memory: the hand-over itself (its descriptor passed over a socket, mapped, touched, unmapped); the same from process to
process, from the moment before sending to the first byte read, with the time that the kernel takes to wake the
receiver; the whole ``allocate`` request with the daemon's decision and the region's creation; and the peer, the same
bytes through a pipe, which copies. ::

    python benchmarks/programs/bench_lease.py [--json FILE] [--samples 2000]
"""

import argparse
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rdukit_bench.comparisons.machine import write_json

from rdukit.hardware import MIB
from rdukit_node.leases.memory import create_region, map_region
from rdukit_node.private_node import open_lease

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.node.daemons import running_daemon

REGION_BYTES = 16 * MIB


def microseconds(step: Callable[[], object], samples: int) -> dict[str, float]:
    """Median and 99th percentile of one call."""
    step()
    taken = []
    for _ in range(samples):
        began = time.perf_counter()
        step()
        taken.append((time.perf_counter() - began) * 1e6)
    taken.sort()
    return {"median_us": statistics.median(taken), "p99_us": taken[int(len(taken) * 0.99)]}


def hand_over(samples: int) -> dict[str, float]:
    """Pass one region over a socket, map, touch and unmap it, without a change of process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    region = create_region("region", REGION_BYTES)

    def step() -> None:
        socket.send_fds(theirs, [b"x"], [region])
        _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
        view = map_region(descriptor, REGION_BYTES)
        os.close(descriptor)
        assert view[0] == 0

    figures = microseconds(step, samples)
    for end in (ours, theirs):
        end.close()
    os.close(region)
    return figures


def hand_over_between_processes(samples: int) -> dict[str, float]:
    """Median and 99th percentile of passing one region from process to process, in microseconds."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        ours.close()
        while theirs.recv(1):
            descriptor = create_region("region", REGION_BYTES)
            socket.send_fds(theirs, [struct.pack("d", time.perf_counter())], [descriptor])
            os.close(descriptor)
        os._exit(0)
    theirs.close()
    taken = []
    for _ in range(samples):
        ours.send(b"x")
        data, (descriptor,), _, _ = socket.recv_fds(ours, 8, 1)
        view = map_region(descriptor, REGION_BYTES)
        os.close(descriptor)
        assert view[0] == 0
        taken.append((time.perf_counter() - struct.unpack("d", data)[0]) * 1e6)
        del view
    ours.close()
    os.waitpid(child, 0)
    taken.sort()
    return {"median_us": statistics.median(taken), "p99_us": taken[int(len(taken) * 0.99)]}


def copy_through_a_pipe() -> None:
    """Return the same bytes, copied from another thread of this process."""
    source, target = bytearray(REGION_BYTES), bytearray(REGION_BYTES)
    reader, writer = os.pipe()

    def write() -> None:
        view = memoryview(source)
        while view:
            view = view[os.write(writer, view) :]

    thread = threading.Thread(target=write)
    thread.start()
    view = memoryview(target)
    while view:
        view = view[os.readv(reader, [view]) :]
    thread.join()
    os.close(reader)
    os.close(writer)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--samples", type=int, default=2000)
    options = parser.parse_args()
    results: dict[str, Any] = {
        "hand_over": hand_over(options.samples),
        "between_processes": hand_over_between_processes(options.samples),
    }
    with running_daemon("SN30-8") as daemon:
        os.environ.update(RDUKIT_HOME=str(daemon.home), RDUKIT_NODE="daemon")
        others = [daemon.connect() for _ in range(7)]
        for number, client in enumerate(others):
            client.acquire(f"app-{number}", 8, MIB)
        with daemon.connect() as client:
            results["lease"] = microseconds(
                lambda: client.release(client.acquire("eighth", 4, MIB)["id"]), options.samples
            )
        with open_lease("eighth", arch="sn30", tiles=4, memory_bytes=32 * REGION_BYTES) as lease:
            results["allocate_and_free"] = microseconds(
                lambda: lease.allocate("region", REGION_BYTES).free(), options.samples
            )
            kept = []
            began = time.perf_counter()
            for number in range(32):
                kept.append(lease.allocate(f"region-{number}", REGION_BYTES))
            results["allocate_us"] = (time.perf_counter() - began) * 1e6 / len(kept)
            assert all(region.buffer[0] == 0 for region in kept)
        results["copy"] = microseconds(copy_through_a_pipe, 20)
        for client in others:
            client.close()
    for title, figures in (
        ("lease and release", results["lease"]),
        ("16 MB handed over", results["hand_over"]),
        ("16 MB from process to process", results["between_processes"]),
        ("16 MB allocated and given back", results["allocate_and_free"]),
        ("16 MB copied through a pipe", results["copy"]),
    ):
        print(f"{title:32} {figures['median_us']:9.1f} us median {figures['p99_us']:9.1f} us p99")
    print(f"{'16 MB allocated':32} {results['allocate_us']:9.1f} us")
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
