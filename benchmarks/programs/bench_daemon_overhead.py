"""What does a step cost more when the node daemon holds the lease, and its tools look on, than on the private node?

One compiled program is opened twice in one process: on the private node, and on a daemon's lease with shared memory
and a status page, while other processes run sntilestat once a second and ask for the exporter's figures. Steps run in
turn, in blocks; the ratio of the medians is the answer. Kernels: native for logreg (batch 32), portable for GPT-2 small
(1 x 128), whose native kernels take minutes to compile. ::

    python benchmarks/programs/bench_daemon_overhead.py [--json FILE] [--models logreg,gpt2] [--rounds 15]
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rdukit_bench.comparisons.machine import write_json
from torch import nn
from torch.nn import functional

import sambaflow.samba as samba
from rdukit_runtime.application import Application, open_application
from rdukit_zoo.modules import Block
from rdukit_zoo.registry import get_model
from sambaflow.samba import utils

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.node.daemons import RunningDaemon, environment, running_daemon

WATCHERS = {
    "sntilestat": "from rdukit_node.cli.sntilestat import main; main()",
    "scrape": """
import time
from rdukit.snd import SndClient
from rdukit_node.settings import node_paths
client = SndClient(node_paths().socket)
while True:
    for operation in ("status", "counters", "op_state", "faults", "errors"):
        client.call(operation)
    time.sleep(1)
""",
}


class Gpt2(nn.Module):
    """GPT-2 (Radford and others, 2019) with its loss."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, length: int = 1024
    ) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens_BL: torch.Tensor, targets_BL: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_BLD = self.words(tokens_BL) + self.places(torch.arange(tokens_BL.shape[1]))
        for layer in self.layers:
            x_BLD = layer(x_BLD)
        logits = self.head(self.norm(x_BLD))
        return functional.cross_entropy(logits.flatten(0, 1), targets_BL.flatten()), logits


def compile_program(name: str, folder: str) -> str:
    """Return a training program. Returns its PEF's path."""
    samba.session.reset()
    utils.set_seed(0)
    if name == "gpt2":
        net: nn.Module = Gpt2()
        inputs: tuple[Any, ...] = (
            samba.randint(50257, (1, 128), name="tokens"), samba.randint(50257, (1, 128), name="targets")
        )  # fmt: skip
    else:
        entry = get_model(name)
        net, inputs = entry.build(**entry.sizes), entry.make_inputs(32, **entry.sizes)
    samba.from_torch_model_(net)
    optim = samba.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    mode = "o1" if name == "gpt2" else "o3"
    config = {"output_folder": folder, "pef_name": name, "optim_level": mode, "num_tiles": 4,
              "precision": "f32", "log_level": "error"}  # fmt: skip
    return str(samba.session.compile(net, inputs, optim, config_dict=config))


def stepper(application: Application) -> Callable[[], None]:
    """Return a step: hand over a batch, run all sections, read the loss."""
    program, pef = application.program, application.pef
    graph = program.find_graph(None)
    sections = program.choose_sections(graph)
    generator = torch.Generator().manual_seed(1)
    for symbol in pef.symbols.values():
        if symbol.kind == "parameter" and symbol.name in {name for s in pef.sections for name in s.inputs}:
            program.write(symbol.name, torch.randn(symbol.shape, generator=generator) * 0.02)
    batch = [
        (name, torch.randint(10, pef.symbols[name].shape, generator=generator)
         if "int" in pef.symbols[name].host_dtype else torch.randn(pef.symbols[name].shape, generator=generator))
        for name in graph.inputs
    ]  # fmt: skip
    loss = graph.losses[0]

    def step() -> None:
        program.write_all(batch)
        application.run(graph.name, sections, pef.hyperparameters)
        program.read(loss)

    return step


def open_on(node: str, pef: str, daemon: RunningDaemon) -> Application:
    """Return the program on the daemon's node, or on a private one."""
    os.environ.update(RDUKIT_HOME=str(daemon.home), RDUKIT_NODE=node)
    return open_application(pef, "overhead")


@contextlib.contextmanager
def watched(daemon: RunningDaemon) -> Iterator[None]:
    """Tools look at the node once a second."""
    arguments = {"sntilestat": ["-i", "1", "--count", "0"], "scrape": []}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, *arguments[name]], env=environment(daemon.home),
                         stdout=subprocess.DEVNULL)
        for name, code in WATCHERS.items()
    ]  # fmt: skip
    time.sleep(2)
    assert all(process.poll() is None for process in processes), "a watcher ended"
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def measure(name: str, rounds: int, block_s: float) -> dict[str, Any]:
    """Medians of blocks in turn, and the ratio of the two."""
    with tempfile.TemporaryDirectory() as folder, running_daemon("SN30-8", ["--no-snml"]) as daemon:
        os.environ.update(RDUKIT_HOME=str(daemon.home), RDUKIT_NODE="private")  # native kernels are trusted by home
        pef = compile_program(name, folder)
        with (
            open_on("private", pef, daemon) as private,
            open_on("daemon", pef, daemon) as shared,
            watched(daemon),
        ):
            steps = {"private": stepper(private), "daemon": stepper(shared)}
            for step in steps.values():
                for _ in range(2):
                    step()
            began = time.perf_counter()
            steps["private"]()
            repeats = max(1, int(block_s / (time.perf_counter() - began)))
            taken: dict[str, list[float]] = {which: [] for which in steps}
            for number in range(rounds):
                for which in list(steps) if number % 2 else list(steps)[::-1]:
                    began = time.perf_counter()
                    for _ in range(repeats):
                        steps[which]()
                    taken[which].append((time.perf_counter() - began) / repeats * 1e6)
            native = private.native_kernels
    medians = {which: statistics.median(values) for which, values in taken.items()}
    pairs = [b / a for a, b in zip(taken["private"], taken["daemon"], strict=True)]
    return {
        "model": name, "native_kernels": native, "repeats": repeats, "rounds": rounds, "medians_us": medians,
        "ratio": medians["daemon"] / medians["private"], "median_of_pair_ratios": statistics.median(pairs),
        "ratio_of_fastest": min(taken["daemon"]) / min(taken["private"]),
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", default=None)
    parser.add_argument("--models", default="logreg,gpt2")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block-s", type=float, default=0.5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.models.split(","):
        os.environ["RDUKIT_KERNELS"] = "portable" if name == "gpt2" else "native"
        row = measure(name, options.rounds, options.block_s)
        rows.append(row)
        medians = row["medians_us"]
        kinds = {"medians": "ratio", "pairs": "median_of_pair_ratios", "fastest": "ratio_of_fastest"}
        ratios = "  ".join(f"{kind} {row[key]:.4f}" for kind, key in kinds.items())
        print(f"{name:8} private {medians['private']:12.1f} us  daemon {medians['daemon']:12.1f} us  ratio of {ratios}")
        print(f"         {row['rounds']} blocks of {row['repeats']}, {row['native_kernels']} native kernels")
    if options.json:
        write_json(options.json, {"rows": rows})


if __name__ == "__main__":
    main()
