"""How long from a PEF on disk to its first section's result, in a fresh process without a C++ compiler?

Counted after ``import torch``: import of the runtime, reading and checking the PEF, leasing, loading the kernels, one
run of the fwd section. Each sample is a new process with an empty PATH, and Python's bytecode is cached, as in an
installed package. The peer is torch.compile with a warm cache,
which needs its compiler on the PATH: first forward and backward of the same model. ::

    python benchmarks/bench_load_time.py [--json FILE] [--samples 7] [--no-peer]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from comparison import write_json

OURS = """
import json, sys, time, torch
torch.set_num_threads(1)
began = time.perf_counter()
from rdukit_runtime.application import open_application
application = open_application(sys.argv[1], "load-time")
program = application.program
graph = program.find_graph(None)
application.run(None, program.choose_sections(graph, ["fwd"]), program.pef.hyperparameters)
ms = (time.perf_counter() - began) * 1e3
print(json.dumps({"ms": ms, "native": application.native_kernels}))
"""

PEER = """
import json, sys, time, torch
torch.set_num_threads(1)
from rdukit_zoo.registry import get_model
entry = get_model(sys.argv[1])
module = entry.build(**entry.sizes)
image, label = torch.randn(32, 784), torch.randint(10, (32,))
began = time.perf_counter()
loss, _ = torch.compile(module)(image, label)
loss.backward()
print(json.dumps({"ms": (time.perf_counter() - began) * 1e3}))
"""


def sample(code: str, argument: str, environ: dict[str, str]) -> dict[str, Any]:
    """Run ``code`` in a fresh process; its last line is JSON."""
    made = subprocess.run(
        [sys.executable, "-c", code, argument], capture_output=True, text=True, env=environ, check=True
    )
    result: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"),
            "PYTHONPYCACHEPREFIX": str(Path(folder) / "bytecode"),
        }
        for model in ("logreg", "ffn"):
            subprocess.run(
                [sys.executable, "-m", f"rdukit_zoo.{model}", "compile", "--pef-name", model, "--num-tiles", "4",
                 "--precision", "f32", "--output-folder", folder, "--log-level", "error"],
                check=True, env=environ,
            )  # fmt: skip
            pef = str(Path(folder) / model / f"{model}.pef")
            sample(OURS, pef, environ)
            ours = [sample(OURS, pef, {**environ, "PATH": "/nonexistent"}) for _ in range(options.samples)]
            row: dict[str, Any] = {
                "model": model, "median_ms": statistics.median(s["ms"] for s in ours),
                "native_kernels": ours[0]["native"],
            }  # fmt: skip
            if not options.no_peer:
                sample(PEER, model, environ)
                peer = [sample(PEER, model, environ) for _ in range(3)]
                row["torch_compile_warm_ms"] = statistics.median(s["ms"] for s in peer)
                row["ratio"] = row["torch_compile_warm_ms"] / row["median_ms"]
            rows.append(row)
            print(row, flush=True)
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
