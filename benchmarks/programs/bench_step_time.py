"""How long is one training step, against eager and torch.compile, in one process and one run?

Batch 32, f32, one thread, SGD with momentum; each variant does what a user's loop does: hand over the batch, run
forward, backward and update. Variants are timed in turn, medians of ``--rounds``. ::

    python benchmarks/programs/bench_step_time.py [--json FILE] [--rounds 15] [--modes o1,o3]
"""

import argparse
import copy
import os
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rdukit_bench.comparisons.machine import write_json
from rdukit_bench.comparisons.model import ComparisonRow
from rdukit_bench.comparisons.report import make_table
from rdukit_bench.comparisons.timing import rows_against_peers, time_in_turn

import sambaflow.samba as samba
from rdukit.cli.tables import print_tables
from rdukit_zoo.registry import get_model
from sambaflow.samba import utils

BATCH, LR, MOMENTUM = 32, 0.01, 0.9


def peer_step(module: torch.nn.Module, args: tuple[torch.Tensor, ...], fused: bool) -> Callable[[], Any]:
    """Return a step of a torch loop."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, fused=fused)

    def step() -> None:
        optimizer.zero_grad()
        loss, _ = module(*args)
        loss.backward()
        optimizer.step()

    return step


def our_step(model: str, mode: str, args: tuple[torch.Tensor, ...], folder: str) -> Callable[[], Any]:
    """Return a step of a SambaFlow loop: ``session.run`` with all sections."""
    samba.session.reset()
    entry = get_model(model)
    utils.set_seed(0)
    net = entry.build(**entry.sizes)
    samba.from_torch_model_(net)
    inputs = entry.make_inputs(BATCH, **entry.sizes)
    optim = samba.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    config = {"output_folder": folder, "pef_name": f"{model}-{mode}", "optim_level": mode, "num_tiles": 4,
              "precision": "f32", "log_level": "error"}  # fmt: skip
    pef = samba.session.compile(net, inputs, optim, config_dict=config)
    traced = utils.trace_graph(net, inputs, optim, pef=pef)
    session, scalars = samba.session, {"lr": LR, "momentum": MOMENTUM}
    image, label = args

    def step() -> None:
        batch = [samba.from_torch_tensor(image, name="image"), samba.from_torch_tensor(label, name="label")]
        session.run(input_tensors=batch, output_tensors=traced, hyperparam_dict=scalars)

    return step


def measure(model: str, mode: str, rounds: int, folder: str) -> list[ComparisonRow]:
    """Ours against each peer for one model and mode."""
    entry = get_model(model)
    utils.set_seed(0)
    module = entry.build(**entry.sizes)
    image, label = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    args = (image, label)
    variants: dict[str, Callable[[], Any]] = {
        "eager": peer_step(copy.deepcopy(module), args, fused=False),
        "eager + fused": peer_step(copy.deepcopy(module), args, fused=True),
        "torch.compile": peer_step(torch.compile(copy.deepcopy(module)), args, fused=True),  # type: ignore[arg-type]
        "rdukit": our_step(model, mode, args, folder),
    }
    timings = time_in_turn(variants, rounds, repeats=50)
    return rows_against_peers("step_time", f"{model} {mode}", timings, ours="rdukit", unit="us")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--modes", default="o3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for model in ("logreg", "ffn")
            for mode in options.modes.split(",")
            for row in measure(model, mode, options.rounds, folder)
        ]
    print_tables([make_table(rows)])
    if options.json:
        write_json(options.json, {"rows": [row.body() for row in rows]})


if __name__ == "__main__":
    main()
