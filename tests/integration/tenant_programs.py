"""Eight small training programs, each with its own PEF, that run on one node: alone, a few at a time, or all at once.

Run as a program by ``test_node_tenants`` and ``bench_tenants``; ``RDUKIT_HOME`` says which node. ::

    python tenant_programs.py compile FOLDER
    python tenant_programs.py run FOLDER --at-once 8 --seconds 0.2
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sambaflow.samba as samba
from rdukit.snd import SndClient
from sambaflow.samba import utils

BATCH, LR, MOMENTUM = 16, 0.05, 0.9
#: Width, layers and mode of each tenant's network.
TENANTS = (
    (32, 1, "o0"), (48, 2, "o1"), (64, 1, "o3"), (96, 3, "o1"),
    (24, 4, "o3"), (128, 1, "o1"), (80, 2, "o3"), (40, 3, "o0"),
)  # fmt: skip


class Network(nn.Module):
    """Linear layers with ReLU, and cross entropy: (image [B, 64], label [B]) → (loss [], logits [B, 10])."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        sizes = [64, *[width] * layers]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.head, self.criterion = nn.Linear(width, 10), nn.CrossEntropyLoss()

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            image = torch.relu(layer(image))
        logits = self.head(image)
        return self.criterion(logits, label), logits


def build(number: int) -> tuple[nn.Module, tuple[Any, ...], Any]:
    """Network, inputs and optimizer of one tenant, the same in every process."""
    samba.session.reset()
    width, layers, _ = TENANTS[number]
    utils.set_seed(number)
    net = Network(width, layers)
    samba.from_torch_model_(net)
    inputs = (
        samba.randn(BATCH, 64, name="image", batch_dim=0),
        samba.randint(10, (BATCH,), name="label", batch_dim=0),
    )
    return net, inputs, samba.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)


def compile_all(folder: Path) -> None:
    """A PEF for each tenant."""
    for number, (_, _, mode) in enumerate(TENANTS):
        net, inputs, optim = build(number)
        config = {"output_folder": str(folder), "pef_name": f"tenant-{number}", "optim_level": mode, "num_tiles": 2,
                  "precision": "f32", "log_level": "error"}  # fmt: skip
        path = samba.session.compile(net, inputs, optim, config_dict=config)
        (folder / f"tenant-{number}.path").write_text(str(path))


def make_step(number: int, folder: Path) -> Callable[[], list[torch.Tensor]]:
    """Open the tenant's session; the step trains on one batch and returns its outputs."""
    net, inputs, optim = build(number)
    traced = utils.trace_graph(net, inputs, optim, pef=(folder / f"tenant-{number}.path").read_text())
    generator = torch.Generator().manual_seed(number)
    scalars = {"lr": LR, "momentum": MOMENTUM}

    def step() -> list[torch.Tensor]:
        batch = [
            samba.from_torch_tensor(torch.randn(BATCH, 64, generator=generator), name="image"),
            samba.from_torch_tensor(torch.randint(10, (BATCH,), generator=generator), name="label"),
        ]
        outputs = samba.session.run(input_tensors=batch, output_tensors=traced, hyperparam_dict=scalars)
        return [samba.to_torch(output) for output in outputs]

    return step


def live(
    number: int, folder: Path, steps: int, barrier: Barrier, results: "multiprocessing.Queue[dict[str, Any]]"
) -> None:
    """One tenant's process: begin with the others, train, say what came out."""
    step = make_step(number, folder)
    digest = hashlib.sha256()
    barrier.wait(60)
    began = time.monotonic()
    for _ in range(steps):
        for output in step():
            digest.update(output.detach().numpy().tobytes())
    ended = time.monotonic()
    barrier.wait(120)  # everybody still holds the lease
    with SndClient(Path(os.environ["RDUKIT_HOME"]) / "run/snd.sock") as client:
        (lease,) = [lease for lease in client.status()["leases"] if os.getpid() in lease["pids"]]
    barrier.wait(60)
    results.put(
        {"tenant": number, "digest": digest.hexdigest(), "began": began, "ended": ended, "steps": steps,
         "lease": lease["id"], "tiles": lease["tiles"], "isolation": lease["isolation"]}
    )  # fmt: skip


def run_some(numbers: list[int], folder: Path, steps: list[int]) -> list[dict[str, Any]]:
    """These tenants at once."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(len(numbers)), context.Queue()
    processes = [context.Process(target=live, args=(n, folder, steps[n], barrier, results)) for n in numbers]
    for process in processes:
        process.start()
    said = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    return said


def main() -> None:
    """Compile, or run and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("compile", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at-once", default="1,8", help="Packings, one after the other.")
    parser.add_argument("--steps", default="20", help="Steps of each tenant, or of all.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.verb == "compile":
        compile_all(options.folder)
        return
    words = options.steps.split(",")
    steps = [int(word) for word in words] if len(words) > 1 else [int(words[0])] * len(TENANTS)
    for at_once in map(int, options.at_once.split(",")):
        tenants = list(range(len(TENANTS)))
        said, wall_s = [], 0.0
        for first in range(0, len(tenants), at_once):
            group = run_some(tenants[first : first + at_once], options.folder, steps)
            wall_s += max(row["ended"] for row in group) - min(row["began"] for row in group)
            said += group
        said.sort(key=lambda row: row["tenant"])
        print(json.dumps({"at_once": at_once, "wall_s": wall_s, "tenants": said}), flush=True)


if __name__ == "__main__":
    main()
