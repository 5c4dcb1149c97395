"""Decision over a long queue: how long does the scheduler's ``decide`` take, and how does it grow?

Queues of ``--jobs`` jobs of ``--tenants`` tenants, drawn by seed, wait for ``--nodes`` nodes of 64 tiles that are
almost full. Sizes are measured in turn, ``--rounds`` times; the answer is the best and the median time of one
decision for each size, and the processor time of the best. As in the scheduler's process, what is imported is no
concern of the garbage collector. ::

    python benchmarks/programs/bench_decide.py [--json FILE] [--jobs 10000] [--tenants 50] [--nodes 10] [--rounds 9]
"""

import argparse
import gc
import random
import statistics
import time

from rdukit_bench.comparisons.machine import write_json

from rdukit_platform.nodes.view import NodeCapacity
from rdukit_platform.scheduler.decide import decide
from rdukit_platform.scheduler.model import ActiveJob, NodeState, QueuedJob, QueueSnapshot, TenantShare

NOW = 1e6
TILES = 64
#: Jobs of four tiles that run on each node.
ACTIVE = 15


def make_snapshot(jobs: int, tenants: int, limited: float, nodes: int, seed: int = 1) -> QueueSnapshot:
    """Draw a queue. ``limited`` is the part of the jobs with a run limit, the active ones among them."""
    draw = random.Random(seed)

    def limit() -> float | None:
        return draw.uniform(10.0, 3600.0) if draw.random() < limited else None

    queued = tuple(
        QueuedJob(
            f"job-{number:06}",
            f"tenant-{draw.randrange(tenants)}",
            draw.choice((0, 1, 2, 4, 4, 8, 16, 64)),
            NOW - draw.uniform(0.0, 3600.0),
            priority=draw.choice((0, 0, 0, 0, 10, -10)),
            run_limit_s=limit(),
        )
        for number in range(jobs)
    )
    active = tuple(
        ActiveJob(
            f"run-{number}",
            f"tenant-{draw.randrange(tenants)}",
            4,
            True,
            NOW + limit_s if limit_s else None,
            f"node-{number % nodes}",
            began=NOW - draw.uniform(0.0, 3600.0),
            since=NOW - draw.uniform(3600.0, 7200.0),
        )
        for number, limit_s in enumerate(limit() for _ in range(ACTIVE * nodes))
    )
    free = TILES - 4 * ACTIVE
    capacity = NodeCapacity(TILES, free, TILES - ACTIVE, rdu_tiles=8, rows=(8,) * (TILES // 8), free_rows=(free,))
    return QueueSnapshot(
        now=NOW,
        queued=queued,
        active=active,
        nodes=tuple(NodeState(f"node-{number}", capacity, 2 * ACTIVE) for number in range(nodes)),
        has_other_tenants=True,
        shares={f"tenant-{t}": TenantShare(draw.choice((0.5, 1.0, 2.0)), draw.random() / 10) for t in range(tenants)},
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    gc.collect()
    gc.freeze()
    cases = {
        (jobs, name): make_snapshot(jobs, options.tenants, limited, options.nodes)
        for jobs in (options.jobs // 10, options.jobs)
        for name, limited in (("no run limits", 0.0), ("half have run limits", 0.5), ("all have run limits", 1.0))
    }
    taken: dict[tuple[int, str], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case, snapshot in cases.items():
            began, worked = time.perf_counter(), time.process_time()
            decide(snapshot)
            taken[case].append((time.perf_counter() - began, time.process_time() - worked))
    rows = [
        {
            "jobs": jobs, "case": name, "best_s": min(times)[0], "best_processor_s": min(cpu for _, cpu in times),
            "median_s": statistics.median(wall for wall, _ in times), "worst_s": max(times)[0],
        }
        for (jobs, name), times in taken.items()
    ]  # fmt: skip
    for row in rows:
        best_ms, cpu_ms, median_ms = (
            1000 * float(str(row[key])) for key in ("best_s", "best_processor_s", "median_s")
        )  # fmt: skip
        print(
            f"{row['jobs']:>7} jobs, {row['case']:<21} best {best_ms:7.1f} ms ({cpu_ms:.1f} ms of a processor), "
            f"median {median_ms:7.1f} ms"
        )
    if options.json:
        write_json(options.json, {"tenants": options.tenants, "nodes": options.nodes, "rows": rows})


if __name__ == "__main__":
    main()
