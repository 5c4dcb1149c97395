"""What does the node daemon cost: a lease, and a region of device memory handed over?

A daemon with 64 tiles on which seven applications hold leases; an eighth acquires and releases, and hands 16 MB over from
the daemon to itself, zeroed, without a copy. The peer of the hand-over is the same memory through a pipe, which copies. ::

    python benchmarks/bench_lease.py [--json FILE] [--samples 2000]
"""

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from comparison import write_json

from rdukit.hardware import MIB
from rdukit_runtime.node import open_lease
from rdukit_runtime.testing import running_daemon

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


def copy_through_a_pipe() -> None:
    """The same bytes, copied from another thread of this process."""
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
    results: dict[str, Any] = {}
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
            results["hand_over"] = microseconds(lambda: lease.allocate("region", REGION_BYTES).free(), options.samples)
            kept = []
            began = time.perf_counter()
            for number in range(32):
                kept.append(lease.allocate(f"region-{number}", REGION_BYTES))
            results["hand_over_only_us"] = (time.perf_counter() - began) * 1e6 / len(kept)
            assert all(region.buffer[0] == 0 for region in kept)
        results["copy"] = microseconds(copy_through_a_pipe, 20)
        for client in others:
            client.close()
    print(f"lease and release   {results['lease']['median_us']:8.1f} us median, {results['lease']['p99_us']:.1f} us p99")
    print(f"16 MB handed over   {results['hand_over_only_us']:8.1f} us (with giving back {results['hand_over']['median_us']:.1f} us)")
    print(f"16 MB copied        {results['copy']['median_us']:8.1f} us")
    write_json(options.json, results)


if __name__ == "__main__":
    main()
