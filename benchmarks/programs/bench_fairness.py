"""Fairness of the queue: what do tenants wait for, and how much is used, by the scheduler's policy and by age alone?

Each file of ``benchmarks/traces`` describes a trace: jobs drawn by seed as ``rdukit simulate queue`` draws them, or
streams of jobs, each of one tenant. Nodes are SN30-8 that run as many jobs as they have tiles, under both policies.
Tenants of least use are the half that had the fewest tile-seconds. Times are the trace's, so that the machine's load
changes nothing. ::

    python benchmarks/programs/bench_fairness.py [TRACE …] [--json FILE] [--swf FOLDER] [--seed-offset 0]

``--swf`` writes the traces for ``rdukit simulate queue --swf``; that format has no priorities.
"""

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rdukit_bench.comparisons.machine import write_json

from rdukit.hardware import NODES
from rdukit_platform.nodes.topology import NodeLayout
from rdukit_platform.scheduler.figures import mean, percentile, sum_up
from rdukit_platform.scheduler.simulate import QueuePolicy, SimulatedRun, SimulatedSystem, simulate
from rdukit_platform.scheduler.traces import TraceJob, draw_trace

TRACES = Path(__file__).parents[1] / "traces"
PLATFORM = "SN30-8"


@dataclass(frozen=True, slots=True)
class Stream:
    """Jobs of one tenant, from ``at_s`` on, a mean of ``every_s`` apart; 0: all at once. Times are log-normal."""

    tenant: str
    jobs: int
    tiles: Sequence[int]
    median_s: float
    #: Of the times' logarithm.
    deviation: float
    every_s: float = 0.0
    at_s: float = 0.0
    longest_s: float = 6 * 3600.0
    #: Part of the jobs that have a run limit, of one to three times their time.
    limited: float = 0.8
    priority: int = 0


def draw_stream(stream: Stream, seed: int) -> list[TraceJob]:
    """Draw the jobs of a stream."""
    draw = random.Random(f"{seed} {stream.tenant} {stream.at_s:g}")
    at, jobs = stream.at_s, []
    for number in range(stream.jobs):
        runs_s = min(max(draw.lognormvariate(math.log(stream.median_s), stream.deviation), 1.0), stream.longest_s)
        limit_s = runs_s * draw.uniform(1.0, 3.0) if draw.random() < stream.limited else None
        name = f"{stream.tenant}-{stream.at_s:g}-{number}"
        jobs.append(
            TraceJob(name, stream.tenant, draw.choice(stream.tiles), at, runs_s, limit_s, stream.priority)
        )  # fmt: skip
        at += draw.expovariate(1.0 / stream.every_s) if stream.every_s else 0.0
    return jobs


def draw(recipe: Mapping[str, Any], offset: int) -> tuple[list[TraceJob], SimulatedSystem]:
    """Draw the jobs of a trace, by its seed and an offset, and return the nodes that they are for."""
    spec = NODES[PLATFORM]
    layout = NodeLayout(spec.chip.tiles, spec.rdus_per_xrdu)
    system = SimulatedSystem(spec.tiles, nodes=recipe["nodes"], layout=layout, applications=spec.tiles)
    if "drawn" in recipe:
        drawn = recipe["drawn"]
        trace = draw_trace(
            drawn["jobs"], drawn["tenants"], spec.tiles, drawn["seed"] + offset, drawn["load"], system.nodes
        )  # fmt: skip
    else:
        streams = [Stream(**stream) for stream in recipe["streams"]]
        trace = [job for stream in streams for job in draw_stream(stream, recipe["seed"] + offset)]
    if not recipe.get("limited", True):
        trace = [replace(job, run_limit_s=None) for job in trace]
    return trace, system


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one trace under one policy; seconds of trace time."""

    trace: str
    policy: str
    jobs: int
    utilisation: float
    wait_mean_s: float
    least_wait_mean_s: float
    least_wait_median_s: float
    wait_worst_s: float


def measure(name: str, policy: QueuePolicy, run: SimulatedRun, tiles: int) -> Row:
    """Sum a run up."""
    used, waits = defaultdict[str, float](float), defaultdict[str, list[float]](list)
    for done in run.jobs:
        used[done.job.tenant_id] += done.job.tiles * (done.ended - done.started)
        waits[done.job.tenant_id].append(done.waited_s)
    tenants = sorted(used, key=lambda tenant: used[tenant])
    least = [seconds for tenant in tenants[: max(len(tenants) // 2, 1)] for seconds in waits[tenant]]
    figures = sum_up(run, tiles)
    return Row(
        name, str(policy), figures.jobs, figures.utilisation, figures.wait_mean_s, mean(least), percentile(least, 0.5),
        max(done.waited_s for done in run.jobs),
    )  # fmt: skip


def to_swf(trace: Sequence[TraceJob]) -> str:
    """Return a trace in the Standard Workload Format; tenants are users by number."""
    users = {tenant: number for number, tenant in enumerate(sorted({job.tenant_id for job in trace}), 1)}
    lines = [
        f"{number} {job.at:.3f} -1 {job.runs_s:.3f} {job.tiles} -1 -1 {job.tiles} "
        f"{-1 if job.run_limit_s is None else round(job.run_limit_s, 3)} -1 1 {users[job.tenant_id]}" + " -1" * 6
        for number, job in enumerate(sorted(trace, key=lambda job: job.at), 1)
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    parser.add_argument("--json", default=None)
    parser.add_argument("--swf", type=Path, default=None)
    parser.add_argument("--seed-offset", type=int, default=0)
    options = parser.parse_args()
    names = options.traces or sorted(file.stem for file in TRACES.glob("*.yaml"))
    rows = list[Row]()
    print("| trace | policy | utilisation | mean wait | least use: mean | median | worst wait | of easy's |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in names:
        trace, system = draw(yaml.safe_load((TRACES / f"{name}.yaml").read_text()), options.seed_offset)
        if options.swf is not None:
            options.swf.mkdir(parents=True, exist_ok=True)
            (options.swf / f"{name}.swf").write_text(to_swf(trace))
        worst = 0.0
        for policy in (QueuePolicy.EASY, QueuePolicy.FAIR):
            row = measure(name, policy, simulate(trace, replace(system, policy=policy)), system.all_tiles)
            worst = worst or row.wait_worst_s
            least = f"{row.least_wait_mean_s:.0f} s | {row.least_wait_median_s:.0f} s"
            ratio = f"{row.wait_worst_s:.0f} s | {row.wait_worst_s / worst:.2f}"
            waits = f"{row.wait_mean_s:.0f} s | {least} | {ratio}"
            print(f"| {name} | {policy} | {row.utilisation:.2f} | {waits} |", flush=True)
            rows.append(row)
    if options.json:
        write_json(options.json, {"seed_offset": options.seed_offset, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
