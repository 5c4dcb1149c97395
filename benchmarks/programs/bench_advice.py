"""Does the advice of ``rdukit profile`` name the cause of slowness, and does its change gain what it predicts? ::

    python benchmarks/programs/bench_advice.py [--rounds 7] [--cases NAME,…] [--json FILE]

Ten programs are slow on purpose. Each is compiled and profiled by its command, as users do. The cause is right if the
first advice, the largest gain, names the change that the case was made for. Then the change is measured in turns with
the program as it is: by ``--try`` where it can be applied, else by ``--try-with`` and the program with the change in
its text. With 7 rounds or more, advice is confirmed or withdrawn; fewer are quicker, and give the gain alone.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rdukit_bench.comparisons.machine import write_json

from rdukit.cli.tables import print_table
from rdukit_runtime.profile.program_run import profile_program
from rdukit_runtime.report.advice import Advice
from rdukit_runtime.report.make import build_page
from rdukit_runtime.report.try_advice import Trials

#: Programs of one file; options choose what is slow.
PROGRAM = """
import sys, time
import torch
from torch import nn
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args

class Chain(nn.Module):
    def __init__(self, width, layers, waves):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.waves = waves
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        for _ in range(self.waves):
            x = torch.relu(x * 1.01 + 0.1)
        return x

def options(parser):
    for name, value in (("--width", 64), ("--layers", 2), ("--waves", 0), ("--load-ms", 0), ("--read-every", 0)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--convert", action="store_true")
    parser.add_argument("--prefetch", action="store_true")
    parser.add_argument("--new-inputs", action="store_true")
    parser.add_argument("--compile-first", action="store_true")

def load(args, dtype):
    until = time.perf_counter() + args.load_ms / 1000
    while time.perf_counter() < until and args.load_ms:
        pass
    return torch.ones(args.batch_size, args.width, dtype=dtype)

class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return args.num_iterations
    def __getitem__(self, number):
        return load(args, torch.float32)

args = parse_app_args(argv=sys.argv[1:], common_parser_fn=options)
utils.set_seed(0)
model = Chain(args.width, args.layers, args.waves)
samba.from_torch_model_(model)
inputs = (samba.randn(args.batch_size, args.width, name="x", batch_dim=0),)
if args.command == "compile" or args.compile_first:
    pef = samba.session.compile(model, inputs, None, name="slow", inference=True, config_dict=vars(args))
if args.command != "compile":
    traced = utils.trace_graph(model, inputs, None, inference=True, pef=pef if args.compile_first else args.pef)
    ready = torch.ones(args.batch_size, args.width, dtype=torch.float32 if args.convert else torch.bfloat16)
    workers = {"num_workers": 2, "prefetch_factor": 2} if args.prefetch else {}
    loads = torch.utils.data.DataLoader(Batches(), batch_size=None, **workers) if args.load_ms else None
    for step, batch in enumerate(loads or [None] * args.num_iterations):
        if args.load_ms:
            inputs = (samba.from_torch_tensor(batch, name="x", batch_dim=0),)
        elif args.new_inputs:
            inputs = (samba.from_torch_tensor(ready, name="x", batch_dim=0),)
        out = samba.session.run(inputs, traced)
        if args.read_every and step % args.read_every == 0:
            samba.to_torch(out[0])
"""


@dataclass(frozen=True, slots=True)
class SlowCase:
    """A program that is slow on purpose: options of both commands, of the run, and the change that should come first.

    ``by_hand``: options of the run that stand for the change in the program's text.
    """

    name: str
    options: str
    change: str
    run: str = "-n 100"
    by_hand: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    compiles: bool = True


CASES = (
    SlowCase("batch 1, small layers", "-b 1", "--batch-size", "-n 400"),
    SlowCase("batch 1, large weights", "-b 1 --width 2048 --layers 3", "--batch-size"),
    SlowCase("mode o0, chain of operators", "-b 256 --width 1024 --layers 1 --waves 12 -o0", "-o3"),
    SlowCase("f32 products", "-b 256 --width 1024 --layers 4 --precision f32", "--precision bf16", "-n 40"),
    SlowCase("f32 memory", "-b 1024 --width 8192 --layers 0 --waves 1 --precision f32", "--precision bf16", "-n 60"),
    SlowCase("loader", "-b 64 --width 256 --load-ms 4", "DataLoader", by_hand="--prefetch"),
    SlowCase("outputs read", "-b 512 --width 4096 --layers 0 --waves 1 --precision f32 --read-every 1", "if step %",
             by_hand="--read-every 10"),
    SlowCase("inputs converted", "-b 512 --width 4096 --layers 0 --waves 1 --new-inputs --convert", "inputs.to(",
             by_hand="no-convert"),
    SlowCase("portable kernels", "-b 8 --width 64 --layers 1 --waves 40", "RDUKIT_KERNELS=native", "-n 200",
             variables={"RDUKIT_KERNELS": "portable"}),
    SlowCase("compiles before each run", "-b 64 --width 128 --compile-first", "python PROGRAM compile", compiles=False),
)  # fmt: skip


def command_of(case: SlowCase, folder: Path, verb: str) -> list[str]:
    """Return the command of a case."""
    words = [sys.executable, str(folder / "slow.py"), verb, *shlex.split(case.options)]
    if verb == "compile":
        return [*words, "--output-folder", str(folder), "--pef-name", "slow", "--log-level", "error"]
    own = ["--log-level", "error", "--output-folder", str(folder)]
    return [*words, *shlex.split(case.run), *(["--pef", str(folder / "slow" / "slow.pef")] if case.compiles else own)]


def by_hand(case: SlowCase, command: list[str]) -> list[str]:
    """Return the command of the program with the change in its text."""
    if case.by_hand == "no-convert":
        return [word for word in command if word != "--convert"]
    return [*command, *shlex.split(case.by_hand)]


def measure_case(case: SlowCase, rounds: int) -> dict[str, Any]:
    """Profile a case and measure its first advice."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "slow.py").write_text(PROGRAM)
        environment = {**os.environ, **case.variables}
        if case.compiles:
            subprocess.run(command_of(case, folder, "compile"), env=environment, check=True, stdout=subprocess.DEVNULL)
        command = command_of(case, folder, "run")
        environment = {name: value for name, value in environment.items() if name not in case.variables}
        found = profile_program(command, 100_000, environment, 2)
        if found.status:
            raise SystemExit(f"{case.name}: the program ended with status {found.status}")
        page = build_page(case.name, found.recordings, found.spans, [], environment)
        listed = [(each.change.partition("#")[0].strip(), round(each.gain, 2)) for each in page.advice]
        print(f"{case.name}: {page.verdict.bound.value}; {listed}", flush=True)
        first = page.advice[0] if page.advice else None
        is_right = first is not None and first.change.startswith(case.change)
        tried: Advice | None = None
        if rounds and is_right and first is not None and (first.apply or case.by_hand):
            trials = Trials(command, found, rounds, environment, lambda line: print("  ", line, flush=True))
            if first.apply:
                (tried,) = trials.try_all([first])
            else:
                (tried,) = trials.try_command([first], by_hand(case, command))
        trial = tried.trial if tried else None
        return {
            "case": case.name, "right": is_right, "first": listed[0][0] if listed else "",
            "predicted": first.gain if first else None, "measured": trial.gain or None if trial else None,
            "words": trial.words if trial else "", "state": trial.state.value if trial else "",
        }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="0: only causes")
    parser.add_argument("--cases", help="parts of names, separated by commas")
    parser.add_argument("--json")
    args = parser.parse_args()
    parts = args.cases.split(",") if args.cases else [""]
    records = [measure_case(case, args.rounds) for case in CASES if any(part in case.name for part in parts)]
    rows = [
        (r["case"], r["first"][:32], "yes" if r["right"] else "no", *(f"{r[key]:.2f}" if r[key] else "" for key in
         ("predicted", "measured")), r["state"] or "not tried")
        for r in records
    ]  # fmt: skip
    print_table(("case", "first advice", "right cause", "predicted", "measured", "outcome"), rows)
    near = [r for r in records if r["measured"] and 1 / 1.5 <= r["measured"] / r["predicted"] <= 1.5]
    print(f"right cause first: {sum(r['right'] for r in records)} of {len(records)}; gain within 1.5x: {len(near)}")
    if args.json:
        write_json(args.json, json.loads(json.dumps({"rounds": args.rounds, "records": records})))


if __name__ == "__main__":
    main()
