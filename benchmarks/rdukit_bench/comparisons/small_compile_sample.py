"""One compile of a small training model in a fresh process, as JSON: seconds of the wall's and the CPU's clock.

``WHO CASE FOLDER``; WHO is ``ours`` or ``peer``. Counted from the module built in memory, with torch imported, to the
PEF, or to the end of the peer's first forward and backward. CPU time is that of the process and all that it started.
"""

import json
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from rdukit_bench.comparisons.o1_compile_sample import cpu_seconds
from rdukit_bench.comparisons.training_cases import compile_ours, get_case, make_case


def peer(module: nn.Module, batch: Mapping[str, torch.Tensor]) -> None:
    """Run a compiled forward and backward for the first time."""
    loss = torch.compile(module)(*batch.values())
    loss.backward()


def measure(who: str, name: str, folder: Path) -> dict[str, float]:
    """Build the module, then count."""
    case = get_case(name)
    module, batch = make_case(case)
    began, cpu_began = time.perf_counter(), cpu_seconds()
    if who == "ours":
        compile_ours(case, module, batch, folder)
    else:
        peer(module, batch)
    return {"wall_s": time.perf_counter() - began, "cpu_s": cpu_seconds() - cpu_began}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    who, name, folder = sys.argv[1:]
    print(json.dumps(measure(who, name, Path(folder))))
