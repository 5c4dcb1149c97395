"""How much longer does a deeper Llama take to compile, and how much does a second compile take?

Every sample is a fresh process with a home folder of its own, O1. Seconds are those of ``session.compile``, tracing
included, imports of torch and the SDK not. ``cpu`` adds up all processes: on a machine that others use it is steadier
than the clock. ``again`` compiles the deepest model in a home in which only the shallowest was compiled.

With ``--kernels native`` the C++ headers are precompiled first, by compiling a model of another width. ::

    python benchmarks/programs/bench_compile_time.py [--json FILE] [--samples 3] [--layers 4 8 32] [--width 256]
        [--kernels portable] [--only inference]
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rdukit_bench.comparisons.machine import write_json
from rich.console import Console
from rich.table import Table

COMPILE = """
import json, resource, sys, time
import torch
from torch import nn
from sambaflow import samba

layers, width, is_training, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "training", sys.argv[4]
HEADS, VOCABULARY, BATCH, LENGTH = 4, 512, 2, 64

def turned(x):
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
    def forward(self, x, cos, sin):
        heads = (BATCH, LENGTH, HEADS, width // HEADS)
        q, k, v = (p(x).view(heads).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(x.shape))

class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(3 * width, width, bias=False)
    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn, self.mlp = Attention(), Mlp()
    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))

class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.lm_head = Norm(), nn.Linear(width, VOCABULARY, bias=False)
        angles = torch.rand(LENGTH, width // HEADS)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
    def forward(self, input_ids, labels=None):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.lm_head(self.norm(x))
        if labels is None:
            return logits
        return nn.functional.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1)), logits

def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)

model = Llama()
samba.from_torch_model_(model)
names = ["input_ids", "labels"] if is_training else ["input_ids"]
inputs = {name: samba.SambaTensor(shape=(BATCH, LENGTH), dtype=torch.int64, name=name) for name in names}
optimizers = [samba.optim.AdamW(model.parameters(), lr=1e-3)] if is_training else []
config = {"pef_name": "llama", "output_folder": folder, "optim_level": "o1", "log_level": "error"}
clock, cpu = time.perf_counter(), cpu_seconds()
samba.session.compile(model, inputs, *optimizers, name="llama", inference=not is_training, config_dict=config)
print(json.dumps({"wall": time.perf_counter() - clock, "cpu": cpu_seconds() - cpu}))
"""


def compile_seconds(layers: int, width: int, kind: str, home: Path, kernels: str) -> dict[str, float]:
    """Seconds of one compile in a fresh process that keeps what it keeps in ``home``."""
    environ = {**os.environ, "RDUKIT_HOME": str(home), "RDUKIT_KERNELS": kernels, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="rdukit-pef-") as folder:
        command = [sys.executable, "-W", "ignore", "-c", COMPILE, str(layers), str(width), kind, folder]
        made = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"the compile of {layers} layers failed:\n{made.stderr}")
    found: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
    return found


def measure(kind: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Medians for one kind (training, inference), each depth in turn, ``samples`` times."""
    warm = scratch / f"{kind}-warm"
    warm.mkdir()
    if options.kernels == "native":
        compile_seconds(2, 2 * options.width, kind, warm, "native")
        shutil.rmtree(warm / "sections", ignore_errors=True)
    samples: dict[str, list[dict[str, float]]] = {}
    for number in range(options.samples):
        for layers in options.layers:
            home = scratch / f"{kind}-{number}-{layers}"
            shutil.copytree(warm, home)
            seconds = compile_seconds(layers, options.width, kind, home, options.kernels)
            samples.setdefault(str(layers), []).append(seconds)
        first = scratch / f"{kind}-{number}-{options.layers[0]}"
        again = compile_seconds(options.layers[-1], options.width, kind, first, options.kernels)
        samples.setdefault("again", []).append(again)
    medians = {
        name: {unit: statistics.median(sample[unit] for sample in taken) for unit in ("wall", "cpu")}
        for name, taken in samples.items()
    }
    least = medians[str(options.layers[0])]
    ratios = {name: {unit: found[unit] / least[unit] for unit in found} for name, found in medians.items()}
    return {"kind": kind, "kernels": options.kernels, "seconds": medians, "ratios": ratios}


def report(rows: Sequence[Mapping[str, Any]], layers: Sequence[int]) -> None:
    """Print seconds and ratios over the shallowest."""
    names = [*map(str, layers), "again"]
    table = Table(title="Seconds to compile a Llama of so many layers, O1, and how often those of the shallowest")
    for column in ("kind", "kernels", "unit", *names, *(f"x {name}" for name in names[1:])):
        table.add_column(column, justify="left" if column in {"kind", "kernels", "unit"} else "right")
    for row in rows:
        for unit in ("wall", "cpu"):
            seconds = (f"{row['seconds'][name][unit]:.2f}" for name in names)
            ratios = (f"{row['ratios'][name][unit]:.2f}" for name in names[1:])
            table.add_row(row["kind"], row["kernels"], unit, *seconds, *ratios)
    Console(width=140).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--kernels", choices=["portable", "native"], default="portable")
    parser.add_argument("--only", choices=["inference", "training"], default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rdukit-bench-") as scratch:
        kinds = [options.only] if options.only else ["inference", "training"]
        rows = [measure(kind, options, Path(scratch)) for kind in kinds]
    report(rows, options.layers)
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
