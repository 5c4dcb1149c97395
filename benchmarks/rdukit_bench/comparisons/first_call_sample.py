"""One fresh process of the first-call comparison; milliseconds since ``import torch`` was done, as JSON.

``runtime PEF``: the runtime alone, PEF to the fwd section's result. ``program CASE PEF``: a program's first whole step,
with import of the SDK and trace. ``peer CASE``: torch.compile, to the loss and to the end of the step. Building the
module and making the batch is not counted for anyone.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def runtime(pef: str) -> dict[str, float]:
    """Read the PEF, lease, load the kernels, run forward."""
    began = time.perf_counter()
    from rdukit_runtime.application import open_application

    application = open_application(pef, "first-call")
    program = application.program
    graph = program.find_graph(None)
    application.run(None, program.choose_sections(graph, ["fwd"]), program.pef.hyperparameters)
    return {"ms": _since(began), "native": application.native_kernels}


def program(name: str, pef: str) -> dict[str, float]:
    """Run a SambaFlow program from its import of the SDK to the first loss."""
    from rdukit_bench.comparisons.training_cases import get_case, make_case

    case = get_case(name)
    module, batch = make_case(case)
    began = time.perf_counter()
    from rdukit_bench.comparisons.training_cases import our_step

    float(our_step(case, module, batch, Path(pef).parent, pef)())
    return {"ms": _since(began)}


def peer(name: str) -> dict[str, float]:
    """Run the same step by torch.compile and the fused optimizer."""
    from rdukit_bench.comparisons.training_cases import get_case, make_case

    module, batch = make_case(get_case(name))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    began = time.perf_counter()
    loss = torch.compile(module)(*batch.values())
    float(loss)
    forward_ms = _since(began)
    loss.backward()
    optimizer.step()
    return {"forward_ms": forward_ms, "ms": _since(began)}


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    KINDS: Mapping[str, Callable[..., dict[str, float]]] = {"runtime": runtime, "program": program, "peer": peer}
    kind, *arguments = sys.argv[1:]
    print(json.dumps(KINDS[kind](*arguments)))
