"""What a step of R virtual ranks of LeNet takes in time and memory, next to R processes that exchange over gloo.

Both train the same PEF on the same samples; their parameters must be equal bit for bit. A step is the median of those
after the first, of rank 0. Memory is the proportional share (PSS) of all processes after the last step.

Run: python benchmarks/programs/bench_virtual_ranks.py [--ranks 64] [--batch 8] [--steps 5] [--json FILE]
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

SIDE: Final = 28


def main() -> None:
    """Measure, or be one of the programs that are measured."""
    if "run" in sys.argv[1:2]:
        train()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8, help="samples of a replica")
    parser.add_argument("--steps", type=int, default=5, help="steps after the first")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "--data-parallel", "-b", str(args.batch), "--pef", compile_lenet(Path(folder), args.batch)]
        words += ["--steps", str(args.steps), "--replicas", str(args.ranks)]
        virtual = launch([*words, "--virtual-ranks", str(args.ranks)], 1)
        processes = launch(words, args.ranks)
    hashes = {row["parameters"] for row in (*virtual, *processes)}
    found = {
        "ranks": args.ranks, "batch": args.batch, "same_bits": len(hashes) == 1,
        "virtual_step_s": virtual[0]["step_s"], "gloo_step_s": processes[0]["step_s"],
        "virtual_bytes": virtual[0]["pss_bytes"], "gloo_bytes": sum(row["pss_bytes"] for row in processes),
    }  # fmt: skip
    found["faster"] = found["gloo_step_s"] / found["virtual_step_s"]
    found["memory_ratio"] = found["virtual_bytes"] / found["gloo_bytes"]
    print(json.dumps(found, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))
    sys.exit(0 if found["same_bits"] else 1)


def inputs_of(count: int, first: int = 0) -> Any:
    """Return samples from number ``first`` on, which depend on their number only."""
    import torch

    from sambaflow import samba

    rows = [torch.randn(1, SIDE, SIDE, generator=torch.Generator().manual_seed(first + n)) for n in range(count)]
    label = torch.tensor([(first + n) % 10 for n in range(count)])
    return samba.from_torch_tensor(torch.stack(rows), name="image"), samba.from_torch_tensor(label, name="label")


def build(seed: int = 1) -> tuple[Any, Any]:
    """Return LeNet, converted, and its optimizer."""
    import torch

    from rdukit_zoo.vision.lenet import LeNet
    from sambaflow import samba

    torch.manual_seed(seed)
    model = LeNet()
    samba.from_torch_model_(model)
    return model, samba.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def compile_lenet(folder: Path, batch: int) -> str:
    """Compile for the batch of one replica; returns the PEF's path."""
    from sambaflow import samba

    model, optimizer = build()
    options = {
        "output_folder": str(folder), "pef_name": "lenet", "precision": "f32", "data_parallel": True, "world_size": 2,
    }  # fmt: skip
    return samba.session.compile(model, inputs_of(batch), optimizer, config_dict=options)


def launch(words: list[str], count: int) -> list[dict[str, Any]]:
    """Run as many processes as ranks; returns what each measured."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RDUKIT_DISTRIBUTED_TRANSPORT": "gloo"}
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True,
            env={**environment, **({"PMI_RANK": str(rank), "PMI_SIZE": str(count)} if count > 1 else {})},
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        said = [process.communicate()[0] for process in running]
    finally:
        for process in running:
            process.kill()
    return [json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in said]


def train() -> None:
    """Train as one rank, or as all of them; prints what it measured."""
    from rdukit_runtime.engine.collectives import gather_facts
    from sambaflow import samba
    from sambaflow.samba import utils
    from sambaflow.samba.utils.argparser import parse_app_args

    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=int)
        parser.add_argument("--replicas", type=int)

    args = parse_app_args(sys.argv[1:], common_parser_fn=options)
    total = args.replicas * args.batch_size
    count = total if args.virtual_ranks > 1 else args.batch_size
    first = 0 if args.virtual_ranks > 1 else utils.get_rank() * args.batch_size
    model, optimizer = build()
    outputs = utils.trace_graph(model, inputs_of(count, first), optimizer, pef=args.pef)
    seconds = []
    for step in range(args.steps + 1):
        inputs = inputs_of(count, step * total + first)
        began = time.perf_counter()
        samba.session.run(inputs, outputs, data_parallel=True)
        seconds.append(time.perf_counter() - began)
    gather_facts("trained")  # memory counts while all are there
    pss = next(line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    gather_facts("measured")
    samba.session.to_cpu(model)
    digest = hashlib.sha256(b"".join(value.data.numpy().tobytes() for value in model.state_dict().values()))
    found = {"step_s": statistics.median(seconds[1:]), "pss_bytes": int(pss.split()[1]) << 10}
    print(json.dumps({**found, "parameters": digest.hexdigest()}), flush=True)


if __name__ == "__main__":
    main()
