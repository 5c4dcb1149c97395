"""Experts of a bundle: what a switch costs the host, what the emulated device would take, whether requests are lost.

Twenty Llamas of random weights, memory for five. In one process, in turns over all experts: bringing one into memory
and taking the program's parameters from it, next to a plain read of the same bytes, with the file in the page cache,
and dropped from it before. Then a server of the bundle: callers ask for texts of random experts; a process is killed.

    python benchmarks/programs/bench_experts.py --experts 20 --room 5
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import torch
from prometheus_client.parser import text_string_to_metric_families
from rdukit_bench.comparisons.machine import write_json
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from rdukit.hardware import find_chip
from rdukit_modelbox.verbs.compile import compile_text_serving
from rdukit_platform.backends.process_tree import tree_of
from rdukit_runtime.engine.parameter_sets import ParameterSet
from rdukit_serving.device.prepared_weights import prepare_weights
from rdukit_serving.experts.bundle import load_bundle
from rdukit_serving.experts.sizes import find_bundle
from rdukit_serving.shape import Shape
from rdukit_serving.text.program import TextProgram
from rdukit_zoo.language.llama import Llama, LlamaSizes
from rdukit_zoo.registry import get_model

CHIP: Final = "sn40l"
SIZES: Final = {
    "width": 512, "layers": 2, "heads": 8, "key_value_heads": 8, "feed_forward": 1408, "vocabulary": 8192,
    "context_length": 64, "prompt_length": 16,
}  # fmt: skip
PROMPT, MADE = 8, 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--experts", type=int, default=20)
    parser.add_argument("--room", type=int, default=5, help="experts that fit into the host's memory")
    parser.add_argument("--rounds", type=int, default=3, help="switches to each expert")
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    options = parser.parse_args()
    os.environ.setdefault("RDUKIT_KERNELS", "portable")  # a switch does not depend on what kernels compute
    folder = Path(tempfile.mkdtemp(prefix="experts-"))
    try:
        bundle = write_bundle(folder, options.experts, options.room)
        found = {"switch": switches(folder, options), "serving": serve(bundle, options)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=2))
    if options.output:
        write_json(options.output, found)


def write_bundle(folder: Path, experts: int, room: int) -> Path:
    """Compile the model, draw the experts, and write the bundle's file."""
    shape = Shape("llama", {**get_model("llama").sizes, **SIZES}, 4, "bf16", task="language-modelling", purpose="serve")
    compile_text_serving(get_model("llama"), shape, "llama", folder, "o3", CHIP, 1)
    words = {f"t{number} ": number for number in range(SIZES["vocabulary"])}
    Tokenizer(models.WordLevel(words, unk_token="t0 ")).save(str(folder / "tokenizer.json"))
    for number in range(experts):
        torch.manual_seed(number)
        state = Llama(LlamaSizes(**{**get_model("llama").sizes, **SIZES}), texts=0).state_dict()
        save_file({name: tensor.bfloat16() for name, tensor in state.items()}, folder / f"e{number}.safetensors")
    bundle: dict[str, Any] = {
        "apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "bench", "memory": {"host": 1 << 40},
        "configurations": [{"name": "llama", "pef": "llama/llama.pef"}],
        "experts": [
            {"name": f"e{n}", "configuration": "llama", "checkpoint": f"e{n}.safetensors"} for n in range(experts)
        ],
    }  # fmt: skip
    file = folder / "bundle.yaml"
    file.write_text(json.dumps(bundle))
    sizes = find_bundle(load_bundle(file)).fit.configurations[0]
    fixed = sizes.caches_bytes + sizes.graphs_bytes
    bundle["memory"] = {"host": room * sizes.weights_bytes, "hbm": fixed + room * sizes.weights_bytes}
    file.write_text(json.dumps(bundle))
    return file


def switches(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time switches between experts, of which ``room`` stay in memory, next to reads of the same bytes."""
    found: dict[str, Any] = {}
    with TextProgram(folder / "llama" / "llama.pef", None) as program:
        program.warm_up()
        files = [folder / f"e{number}.weights" for number in range(options.experts)]
        for number, file in enumerate(files):
            prepare_weights(program.pef, folder / f"e{number}.safetensors", file)
        size = files[0].stat().st_size
        buffer = bytearray(size)
        for where, drop in (("cached", False), ("from_disk", True)):
            held: list[ParameterSet] = []
            times: dict[str, list[float]] = {"read": [], "load": [], "take": [], "first_run": [], "next_run": []}
            for _ in range(options.rounds):
                for file in files:
                    _forget(file, drop)
                    times["read"].append(_timed(lambda file=file: _read(file, buffer)))  # type: ignore[misc]
                    _forget(file, drop)
                    began = time.perf_counter()
                    parameters = ParameterSet(program.pef, file)
                    parameters.touch()
                    loaded = time.perf_counter()
                    program.use(parameters)
                    times["load"].append(time.perf_counter() - began)
                    times["take"].append(time.perf_counter() - loaded)
                    times["first_run"].append(_timed(lambda: program.advance([0], [1], [0])))
                    times["next_run"].append(_timed(lambda: program.advance([0], [1], [0])))
                    held.append(parameters)
                    if len(held) > options.room:
                        held.pop(0).close()
            program.use(None)
            for parameters in held:
                parameters.close()
            found[where] = {f"{name}_ms": 1e3 * statistics.median(each) for name, each in times.items()}
            whole = [a + b - c for a, b, c in zip(times["load"], times["first_run"], times["next_run"], strict=True)]
            found[where]["of_read"] = statistics.median(times["load"]) / statistics.median(times["read"])
            found[where]["with_first_run_of_read"] = statistics.median(whole) / statistics.median(times["read"])
    return {"bytes": size, **found}


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _read(file: Path, buffer: bytearray) -> None:
    with file.open("rb", buffering=0) as stream:
        view = memoryview(buffer)
        while view:
            view = view[stream.readinto(view) :]


def _forget(file: Path, drop: bool) -> None:
    """Take a file out of the page cache."""
    if drop:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def serve(bundle: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Ask a server of the bundle for texts of random experts, and kill its process once."""
    announced, home = bundle.parent / "announced.json", bundle.parent / "home"
    command = [
        str(Path(sys.executable).with_name("rdukit")), "serve", "--bundle", str(bundle), "--rest-port", "0",
        "--grpc-port", "0", "--announce", str(announced),
    ]  # fmt: skip
    environment = {**os.environ, "RDUKIT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        while not announced.exists():
            if process.poll() is not None:
                raise SystemExit("the server ended")
            time.sleep(0.1)
        url = json.loads(announced.read_text())["rest"]
        with httpx.Client(base_url=url, trust_env=False, timeout=600) as client:
            return _load(client, process.pid, options)
    finally:
        process.terminate()
        process.wait()


def _load(client: httpx.Client, pid: int, options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(0)
    asked = [f"e{draw.randrange(options.experts)}" for _ in range(options.requests)]
    tries: list[int] = []

    def ask(expert: str) -> tuple[bool, float]:
        """Ask until a text comes; says whether its expert had to be loaded, and the seconds until then."""
        body = {"model": expert, "prompt": [1] * PROMPT, "max_tokens": MADE, "temperature": 0, "ignore_eos": True}
        began = time.perf_counter()
        was_live = client.get(f"/v1/models/{expert}").json()["state"] == "Live"
        for number in range(20):
            answer = client.post("/v1/completions", json=body)
            if answer.status_code == 200 and answer.json()["model"] == expert:
                tries.append(number)
                return was_live, time.perf_counter() - began
            time.sleep(0.1)
        raise SystemExit(f"no answer of {expert}: {answer.text}")

    with ThreadPoolExecutor(options.callers) as pool:
        answers = [pool.submit(ask, expert) for expert in asked]
        answers[len(answers) // 2].result()
        (device,) = [
            facts.pid
            for facts in tree_of(pid)
            if "rdukit_serving.device.process" in Path(f"/proc/{facts.pid}/cmdline").read_text()
        ]
        os.kill(device, signal.SIGKILL)
        found = [answer.result() for answer in answers]
    metrics = _metrics(client)
    weights, switched = metrics["rdukit_box_expert_weights_bytes"], metrics["rdukit_box_expert_switches_total"]
    formula = sum(switched[name] * weights[name] for name in weights) / find_chip(CHIP).ddr_bandwidth
    emulated_s = sum(metrics["rdukit_box_expert_emulated_switch_seconds_total"].values())
    loads = metrics["rdukit_box_model_load_seconds"]
    return {
        "requests": len(asked), "answered": len(found), "asked_again_after_the_kill": sum(map(bool, tries)),
        "loads": sum(metrics["rdukit_box_expert_loads_total"].values()),
        "load_ms": 1e3 * statistics.median(loads.values()),
        "seconds_live": _median([seconds for was_live, seconds in found if was_live]),
        "seconds_not_live": _median([seconds for was_live, seconds in found if not was_live]),
        "emulated_switches": sum(switched.values()), "emulated_switch_s": emulated_s, "by_formula_s": formula,
    }  # fmt: skip


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _metrics(client: httpx.Client) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("model", "")] = sample.value
    return found


if __name__ == "__main__":
    main()
