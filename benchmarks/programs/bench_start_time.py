"""How long until things are there: ``import sambaflow`` beyond ``import torch``, and ``rdukit up`` to ready?

Each import sample is a fresh process; both imports are measured inside it, so the ratio is of one run. The platform is
started with an empty home on free ports, and stopped. ::

    python benchmarks/programs/bench_start_time.py [--json FILE] [--samples 7]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from rdukit_bench.comparisons.machine import write_json

IMPORTS = """
import json, time
began = time.perf_counter()
import torch
between = time.perf_counter()
import sambaflow
print(json.dumps([between - began, time.perf_counter() - between]))
"""


def import_seconds() -> tuple[float, float]:
    """Seconds of ``import torch``, and of ``import sambaflow`` after it."""
    made = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    torch_s, ours_s = json.loads(made.stdout.splitlines()[-1])
    return float(torch_s), float(ours_s)


def up_seconds(port: int = 18080) -> float:
    """Seconds from the command to the gateway's first healthy answer."""
    with tempfile.TemporaryDirectory(prefix="rdukit-") as home:
        environ = {**os.environ, "RDUKIT_HOME": home}
        rdukit = str(Path(sys.executable).with_name("rdukit"))
        began = time.perf_counter()
        process = subprocess.Popen(
            [rdukit, "up", "--port", str(port)], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                        if answer.status == 200:
                            return time.perf_counter() - began
                except OSError:
                    if process.poll() is not None or time.perf_counter() - began > 60:
                        raise SystemExit("the platform did not come up") from None
                    time.sleep(0.02)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--samples", type=int, default=7)
    options = parser.parse_args()
    imports = [import_seconds() for _ in range(options.samples)]
    ups = [up_seconds() for _ in range(3)]
    figures = {
        "import_torch_s": statistics.median(pair[0] for pair in imports),
        "import_sambaflow_beyond_torch_s": statistics.median(pair[1] for pair in imports),
        "up_to_ready_s": statistics.median(ups),
    }
    for name, value in figures.items():
        print(f"{name:34} {value:.3f}")
    if options.json:
        write_json(options.json, figures)


if __name__ == "__main__":
    main()
