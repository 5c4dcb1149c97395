"""All-reduce by gloo and by rdukit's data plane in turn, in one run: medians, and ratios of speed.

OMP_NUM_THREADS=1 python benchmarks/programs/bench_collectives.py --ranks 2 4

``time`` is by the clock, ``CPU`` the seconds of one rank's core. On a loaded machine only the second says much.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rdukit_runtime.collectives.group import collectives_of

#: What is reduced: elements and type.
SIZES = ((1024, torch.float32), (4_200_000, torch.float32), (4_200_000, torch.bfloat16))


def main() -> None:
    """Print a line for each number of ranks and each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for size in options.ranks:
        with tempfile.TemporaryDirectory(prefix="collectives-") as folder:
            mp.spawn(measure, (size, options.rounds, str(Path(folder) / "store")), size)


def measure(rank: int, size: int, rounds: int, store: str) -> None:
    """Measure as one of ``size`` ranks; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    group = dist.group.WORLD
    assert group is not None
    ours = collectives_of(group)
    first: float | None = None
    for count, dtype in SIZES:
        given = torch.randn(count).to(dtype)
        tensor = given.clone()
        ways: dict[str, Callable[[], object]] = {
            "gloo": lambda tensor=tensor: dist.all_reduce(tensor),
            "ours": lambda tensor=tensor: ours.all_reduce([tensor], [tensor]),
        }
        clock: dict[str, list[float]] = {way: [] for way in ways}
        cores: dict[str, list[float]] = {way: [] for way in ways}
        for number in range((rounds if count > 10_000 else 20 * rounds) + 2):
            for way, call in ways.items():
                tensor.copy_(given)
                ours.barrier()
                began, used = time.perf_counter(), time.process_time()
                call()
                used, took = time.process_time() - used, time.perf_counter() - began
                if number > 1:
                    clock[way].append(took)
                    cores[way].append(used)
        times = {way: 1e3 * statistics.median(found) for way, found in clock.items()}
        seconds = {way: 1e3 * statistics.median(found) for way, found in cores.items()}
        if rank == 0:
            line = f"{size} ranks, {count * dtype.itemsize:>9} bytes {str(dtype).removeprefix('torch.'):>8}: "
            line += f"time gloo {times['gloo']:.3f} ours {times['ours']:.3f} ms, "
            line += f"ratio {times['gloo'] / times['ours']:.2f}; "
            line += f"CPU gloo {seconds['gloo']:.3f} ours {seconds['ours']:.3f} ms, "
            line += f"ratio {seconds['gloo'] / seconds['ours']:.2f}"
            if dtype == torch.bfloat16 and first is not None:
                line += f"; over our f32 by the clock {first / times['ours']:.2f}"
            print(line, flush=True)
        first = times["ours"]
    ours.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
