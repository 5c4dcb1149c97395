"""How fast does a box in a container answer and train, against the same box on the host?

The same PEFs, data and requests go to both. Each installation runs native kernels of its own: the host compiles the PEF
that is served, the container builds that PEF's kernels anew (``rdukit pef build``), and each compiles by itself what it
trains; products go the ways that the host has measured. A side without native kernels is not measured. The container
runs as docs/containers.md has it, its port published on the loopback address; both boxes are up all the time on one
core, the client (h2load) on the other, and they are asked in turn. A figure is the best of the rounds, since what else
the machine does only takes away. Beside it: the same container without the port's forwarding (``at its address``), and
the processor's time that its box needs for a request, which other work on the machine disturbs least. ::

    python benchmarks/programs/bench_container.py [--image rdukit/modelbox:latest] [--rounds 5] [--seconds 2]
        [--json FILE]

Needs docker, the image (docs/containers.md), h2load and g++. Only ratios within one run mean anything.
"""

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import serving_model
import torch
from bench_serving import print_bars
from rdukit_bench.comparisons.machine import write_json
from safetensors.torch import save_file
from serving_load import CONNECT_MS, Target, put_under_load
from serving_peers import free_ports
from serving_process import ServerProcess, cpu_seconds_of

from rdukit.box.client import BoxClient
from rdukit_compiler.backend.measure_routes import load_routes
from rdukit_zoo.mlp import MultiLayerPerceptron

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.boxes import run_verb, succeed
from support.helpers import wait_until

RATIO_BAR = 0.9
CONCURRENCIES = (1, 8, 32)
#: 64 → 256 → 10, where the way of a request is what takes time, and 64 → 8192 → 10, where the kernels are.
MODELS: Mapping[str, Mapping[str, int]] = {"mlp": {}, "wide": {"hidden_size": 8192}}
TRAINED, TRAINED_SIZES = "mlp", {"hidden_size": 1024}
ROWS, BATCH, EPOCHS = 2048, 32, 5
#: Of the container as of the process: one core serves, the other asks.
SERVER_CORE, CLIENT_CORE = (0, 1) if len(os.sched_getaffinity(0)) > 1 else (0, None)
#: Of figures per second of the processor's time.
CPU = ", CPU"
#: The shared folder in the container.
INSIDE = "/models"


@dataclass(frozen=True, slots=True)
class Side:
    """A running box: where it answers, and the folder that both share as it names it."""

    name: str
    url: str
    shared: str
    start_s: float
    pids: Callable[[], Sequence[int]]


def main() -> int:
    """Measure and print; 0 also where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default="rdukit/modelbox:latest")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if (missing := why_not(options.image)) is not None:
        print(f"bench_container: {missing}", file=sys.stderr)
        return 0
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="container-") as folder:
        prepare(Path(folder))
        for model in MODELS:
            for key, value in measure(model, Path(folder), options.image, options.rounds, options.seconds).items():
                best[key] = max(value)
    bars = judge(best)
    print_bars(bars)
    ratios = {bar["what"]: bar["value"] for bar in bars}
    print(json.dumps({"container": {"ratio": min(ratios.values()), "ratios": ratios}}))
    if options.json:
        write_json(options.json, {"container": {"ratios": ratios, "best": best}})
    return 0


def why_not(image: str) -> str | None:
    """Why nothing can be measured here."""
    for program, package in (("docker", "docker.io"), ("h2load", "nghttp2-client"), ("g++", "g++")):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: {package})"
    try:
        docker("image", "inspect", image)
    except subprocess.CalledProcessError as error:
        return f"no image {image}: {error.stderr.strip()}"
    return None


def docker(*words: str) -> str:
    """Return what a command of docker printed."""
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout.strip()


def prepare(folder: Path) -> None:
    """Make what both boxes use: a PEF and parameters of each model, and rows to train on."""
    os.environ["RDUKIT_HOME"] = str(folder / "home")
    shared = folder / "shared"
    shared.mkdir()
    for name, sizes in MODELS.items():
        with contextlib.redirect_stdout(sys.stderr):
            made = run_verb("mlp", "compile", folder / name, purpose="serve", batch_size=BATCH, **sizes)
        shutil.copyfile(made.outputs["pef"], shared / f"{name}.pef")
        torch.manual_seed(0)
        save_file(dict(MultiLayerPerceptron(**sizes).state_dict()), shared / f"{name}.safetensors")
    routes = asdict(load_routes())  # measured by now; those of another minute may be others
    os.environ["RDUKIT_COMPILE_ROUTES"] = ",".join(f"{dtype}={way}" for dtype, way in routes.items())
    dice = random.Random(0)
    with (shared / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{column}" for column in range(serving_model.FEATURES)), "label"])
        for _ in range(ROWS):
            row = [round(dice.gauss(0, 1), 4) for _ in range(serving_model.FEATURES)]
            writer.writerow([*row, row.index(max(row[: serving_model.CLASSES]))])
    # The container's user is another one.
    for path in (folder, shared, *shared.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)


def measure(model: str, folder: Path, image: str, rounds: int, seconds: int) -> dict[str, list[float]]:
    """Rates of one model on both sides, in turn, a value a round."""
    found: dict[str, list[float]] = {}
    with host_box(model, folder) as host, container_box(model, folder, image) as (container, beside):
        for side in (host, container):
            check_kernels(side)
            print(f"{side.name}: ready after {side.start_s:.2f} s", file=sys.stderr)
        steps = {side.name: ready_to_train(side) for side in (host, container)} if model == TRAINED else {}
        for number in range(rounds):
            sides = [host, container, beside]
            for side in sides if number % 2 == 0 else reversed(sides):
                figures = {}
                for concurrency in CONCURRENCIES:
                    what = f"{model} at {concurrency}"
                    figures[what], figures[f"{what}{CPU}"] = rate(side, concurrency, seconds)
                if side.name in steps:
                    figures |= {f"{model} training": train(side, steps[side.name])}
                for key, value in figures.items():
                    found.setdefault(f"{side.name}: {key}", []).append(value)
                words = {key: round(value) for key, value in figures.items()}
                print(f"round {number + 1} {side.name}: {words}", file=sys.stderr, flush=True)
    return found


@contextlib.contextmanager
def host_box(model: str, folder: Path) -> Iterator[Side]:
    """Return the box as a process."""
    rest, grpc = free_ports(2)
    shared = folder / "shared"
    command = [
        sys.executable, "-m", "rdukit_modelbox", "run", "mlp", "--rest-port", str(rest), "--grpc-port",
        str(grpc), "--state", str(folder / f"host-{model}/state"), "--mount", str(shared),
        "--pef", str(shared / f"{model}.pef"), "--checkpoint", str(shared / f"{model}.safetensors"),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{rest}"
    with ServerProcess.start(command, {}, folder / f"host-{model}", SERVER_CORE, lambda: is_up(url)) as process:
        yield Side("host", url, str(shared), process.start_s, process.processes)


@contextlib.contextmanager
def container_box(model: str, folder: Path, image: str) -> Iterator[tuple[Side, Side]]:
    """Return the box as a container, by its published port and at its own address."""
    name = f"rdukit-bench-{uuid.uuid4().hex[:8]}"
    (rest,) = free_ports(1)
    options = [
        "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
        "--volume", f"{folder / 'shared'}:{INSIDE}:ro", "--volume", f"{name}:/var/lib/rdukit",
        "--env", "RDUKIT_COMPILE_ROUTES",
    ]  # fmt: skip
    built = f"/var/lib/rdukit/{model}.pef"
    try:
        docker(
            "run",
            "--rm",
            *options,
            image,
            "rdukit",
            "pef",
            "build",
            "--pef",
            f"{INSIDE}/{model}.pef",
            "--output",
            built,
        )
        began = time.perf_counter()
        docker(
            "run", "--detach", "--name", name, "--cpuset-cpus", str(SERVER_CORE), "--publish", f"127.0.0.1:{rest}:9000",
            *options, image, "rdukit", "box", "run", "mlp", "--host", "0.0.0.0", "--parent", "0",
            "--mount", INSIDE, "--pef", built, "--checkpoint", f"{INSIDE}/{model}.safetensors",
        )  # fmt: skip
        url = f"http://127.0.0.1:{rest}"
        wait_until(lambda: is_up(url), what="the container's box is ready")
        start_s = time.perf_counter() - began
        networks = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", name))
        address = f"http://{next(iter(networks.values()))['IPAddress']}:9000"

        def pids() -> list[int]:
            return [int(pid) for pid in docker("top", name, "-eo", "pid").split()[1:]]

        beside = Side("container at its address", address, INSIDE, start_s, pids)
        yield Side("container", url, INSIDE, start_s, pids), beside
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
        subprocess.run(["docker", "volume", "rm", "--force", name], capture_output=True, check=False)


def is_up(url: str) -> bool:
    """Return whether a box serves its model."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def check_kernels(side: Side) -> None:
    """Say which kernels it runs; refuse to measure generated code."""
    with urllib.request.urlopen(f"{side.url}/v2/models/mlp", timeout=5) as answer:
        properties = json.load(answer)["properties"]
    print(f"{side.name}: kernels: {properties['kernels']}", file=sys.stderr)
    if properties["native_kernels"] == "0":
        raise SystemExit(f"bench_container: the {side.name} runs without native kernels: {properties['kernels']}")


def rate(side: Side, concurrency: int, seconds: int) -> tuple[float, float]:
    """Measure requests a second, each with one row; and how many the box answers in a second of processor time."""
    url = f"{side.url}{serving_model.INFER_PATH}"
    target = Target(url, serving_model.rest_body(), {"content-type": "application/json"})
    before = sum(cpu_seconds_of(pid) for pid in side.pids())
    load = put_under_load(target, concurrency, seconds, CLIENT_CORE)
    used = sum(cpu_seconds_of(pid) for pid in side.pids()) - before
    if load.bad:
        raise SystemExit(f"bench_container: {load.bad} bad answers of the {side.name}")
    return load.rate, load.rate * (seconds + CONNECT_MS / 1000) / used


def ready_to_train(side: Side) -> Mapping[str, str]:
    """Return the box prepares the rows and compiles by itself. Returns its inputs of ``train``."""
    with BoxClient(side.url, timeout_s=300) as client:
        made = succeed(client, "preprocess", {}, {"data": f"{side.shared}/rows.csv"}, "rows")
        built = succeed(client, "compile", {"batch_size": BATCH, **TRAINED_SIZES}, {}, "train")
    native = built["result"]["native_kernels"]
    print(f"{side.name}: compiled to train, {native} native kernels", file=sys.stderr)
    if not native:
        raise SystemExit(f"bench_container: what the {side.name} compiled has no native kernels")
    return {"dataset": made["outputs"]["dataset"], "pef": built["outputs"]["pef"]}


def train(side: Side, inputs: Mapping[str, str]) -> float:
    """Measure steps a second of a training from the beginning."""
    with BoxClient(side.url, timeout_s=300) as client:
        done = succeed(client, "train", {"epochs": EPOCHS, "checkpoint_every": 1_000_000}, inputs, uuid.uuid4().hex)
    return float(done["result"]["steps"] / done["result"]["host_seconds"])  # without its files, which lie elsewhere


def judge(best: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the bars with what was reached; what the published port costs is told beside them. Pure."""
    bars = []
    for key, ours in best.items():
        side, _, what = key.partition(": ")
        if side != "container" or what.endswith(CPU):
            continue
        ratio, at_address = ours / best[f"host: {what}"], best.get(f"container at its address: {what}")
        note = f"{ours:.0f} of {best[f'host: {what}']:.0f} a second"
        if at_address:
            note += f"; at its address {at_address:.0f}"
            cpu = best[f"host: {what}{CPU}"] / best[f"container: {what}{CPU}"]
            note += f"; {cpu:.2f} of the host's CPU for a request"
        bars.append({"what": what, "value": round(ratio, 3), "bar": RATIO_BAR, "met": ratio >= RATIO_BAR, "note": note})
    return bars


if __name__ == "__main__":
    sys.exit(main())
