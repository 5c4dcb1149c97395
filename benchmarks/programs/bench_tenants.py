"""Eight tenants at once on one node: what is their total throughput, against the best way of running them in turn?

Each tenant trains its own PEF for about ``--seconds``; all begin together. The packings: one, two, four or eight at
once, one group after the other, in turn, ``--rounds`` times. The answer: the throughput of eight at once over that of
the best packing. ::

    python benchmarks/programs/bench_tenants.py [--json FILE] [--rounds 5] [--seconds 0.5]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rdukit_bench.comparisons.machine import write_json

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.node.daemons import RunningDaemon, environment, running_daemon

PROGRAM = Path(__file__).parents[2] / "tests/integration/tenant_programs.py"
PACKINGS = (1, 2, 4, 8)


def run(daemon: RunningDaemon, node: str, *arguments: str) -> list[dict[str, Any]]:
    """Return what the tenants' programs say."""
    finished = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        env=environment(daemon.home, RDUKIT_NODE=node, RDUKIT_KERNELS="portable"),
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in finished.stdout.splitlines()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_daemon("SN30-8", ["--no-snml"]) as daemon:
        run(daemon, "private", "compile", folder)
        (alone,) = run(daemon, "daemon", "run", folder, "--at-once", "1", "--steps", "200")
        steps = [
            max(1, int(options.seconds * row["steps"] / (row["ended"] - row["began"]))) for row in alone["tenants"]
        ]
        packings = ",".join(map(str, PACKINGS * options.rounds))
        said = run(daemon, "daemon", "run", folder, "--at-once", packings, "--steps", ",".join(map(str, steps)))
    throughput = {
        at_once: statistics.median(sum(steps) / row["wall_s"] for row in said if row["at_once"] == at_once)
        for at_once in PACKINGS
    }
    digests = {tuple(row["digest"] for row in line["tenants"]) for line in said}
    best = max(throughput.values())
    for at_once, rate in throughput.items():
        print(f"{at_once} at once: {rate:9.1f} steps/s, {rate / best:.3f} of the best")
    verdict = "equal" if len(digests) == 1 else "DIFFER"
    print(f"eight at once over the best packing: {throughput[8] / best:.3f}; outputs {verdict}")
    if options.json:
        write_json(options.json, {"steps": steps, "throughput": throughput, "ratio": throughput[8] / best})


if __name__ == "__main__":
    main()
