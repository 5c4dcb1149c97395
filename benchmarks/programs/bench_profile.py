"""What does ``rdukit profile`` cost a step? A training step profiled against the same step plain, and torch.profiler.

Each variant has a process of its own; they take turns, so a slow spell of the machine hits all. Times are the
processor's, which other programs disturb least: medians of ``--rounds``, each of some 50 ms. ::

    python benchmarks/programs/bench_profile.py [--model mlp|gpt2] [--rounds 61] [--json FILE]

``mlp``: 16 layers of 256, batch 32, mode o0: more than 50 sections. ``gpt2``: GPT-2 small, batch 1, 128 tokens, o1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rdukit_bench.comparisons.machine import write_json
from torch import nn

from rdukit.cli.tables import print_table

VARIANTS = ("plain", "profiled", "eager", "eager, torch.profiler")
LAYERS, WIDTH, BATCH, TOKENS = 16, 256, 32, 128


class Deep(nn.Module):
    """Layers with a ReLU after each: (x [B, F], y [B, F]) → loss []."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
        self.criterion = nn.MSELoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.criterion(self.layers(x), y)
        return loss


def make_model(name: str) -> tuple[nn.Module, dict[str, torch.Tensor], str]:
    """Return a model, its inputs by name, and the mode to compile it in."""
    torch.manual_seed(0)
    if name == "mlp":
        return Deep(), {"x": torch.randn(BATCH, WIDTH), "y": torch.randn(BATCH, WIDTH)}, "o0"
    from rdukit_zoo.registry import get_model

    entry = get_model("gpt2")
    sizes = {**entry.sizes, **entry.variants["small"].sizes, "context_length": TOKENS}
    inputs = entry.make_inputs(1, **sizes)
    return entry.build(**sizes), {t.sn_name: t.torch_tensor() for t in inputs}, "o1"


def our_step(name: str, folder: Path) -> Callable[[], Any]:
    """Return a step of a SambaFlow loop; the PEF is compiled where it is not there."""
    import sambaflow.samba as samba

    model, values, mode = make_model(name)
    samba.from_torch_model_(model)
    inputs = [samba.from_torch_tensor(value, name=key) for key, value in values.items()]
    optim = samba.optim.SGD(model.parameters(), lr=0.01)
    config = {"output_folder": str(folder), "pef_name": name, "optim_level": mode, "log_level": "error"}
    pef = folder / name / f"{name}.pef"
    if not pef.exists():
        samba.session.compile(model, tuple(inputs), optim, config_dict=config | {"precision": "f32"})
    traced = samba.utils.trace_graph(model, tuple(inputs), optim, pef=str(pef))

    def step() -> None:
        samba.session.run(inputs, traced)[0].torch_tensor()

    return step


def eager_step(name: str) -> Callable[[], Any]:
    """Return a step of a torch loop."""
    model, values, _ = make_model(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> float:
        optimizer.zero_grad()
        made = model(*values.values())
        loss = made if isinstance(made, torch.Tensor) else made[0]
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def work(variant: str, name: str, folder: Path) -> None:
    """Take samples as stdin asks for them: seconds of the processor for each step, a line each."""
    step = eager_step(name) if variant.startswith("eager") else our_step(name, folder)
    for _ in range(3):
        step()
    began = time.perf_counter()
    step()
    count = max(1, int(0.05 / (time.perf_counter() - began)))
    print("ready", flush=True)
    for _ in sys.stdin:
        began_ns = time.process_time_ns()
        if "profiler" in variant:
            with torch.profiler.profile():
                for _ in range(count):
                    step()
        else:
            for _ in range(count):
                step()
        print((time.process_time_ns() - began_ns) / count / 1e9, flush=True)


def start(variant: str, name: str, folder: Path) -> "subprocess.Popen[str]":
    """Start a variant's process and wait until it is ready."""
    environment = dict(os.environ)
    if variant == "profiled":
        environment |= {"RDUKIT_PROFILE_FOLDER": str(folder), "RDUKIT_PROFILE_EVENTS": "160000"}
    command = [sys.executable, __file__, "--worker", variant, "--model", name, "--folder", str(folder)]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    while "ready" not in (line := process.stdout.readline()):
        if not line:
            raise SystemExit(f"{variant} ended before it was ready")
    return process


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["mlp", "gpt2"], default="mlp")
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--json")
    parser.add_argument("--worker", choices=VARIANTS)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.model, args.folder)
        return
    samples: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        processes = {variant: start(variant, args.model, Path(folder)) for variant in VARIANTS}
        for _ in range(args.rounds):
            for variant, process in processes.items():
                assert process.stdin is not None and process.stdout is not None
                print("go", file=process.stdin, flush=True)
                samples[variant].append(float(process.stdout.readline()))
        for process in processes.values():
            process.communicate()
        sections = len(json.loads(next(Path(folder).glob("*.timeline")).read_text())["pefs"][0]["sections"])
    # A round's variants ran one after the other: their ratio is steadier than that of medians.
    ratios = {
        variant: median(a / b for a, b in zip(taken, samples[VARIANTS[number // 2 * 2]], strict=True))
        for number, (variant, taken) in enumerate(samples.items())
    }
    rows = [(v, f"{1e3 * median(taken):.3f} ms", f"{ratios[v]:.3f}") for v, taken in samples.items()]
    print_table((f"{args.model}, {sections} sections", "step (processor time)", "to its plain form"), rows)
    if args.json:
        write_json(args.json, {"model": args.model, "sections": sections, "samples_s": samples, "ratios": ratios})


if __name__ == "__main__":
    main()
