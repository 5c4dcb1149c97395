"""What batching, the binary extension and a start cost and gain. Ours only; ``bench_serving`` has the peers.

* batching on against off at concurrency 1: the PEF of 32 rows with ``max_batch_size`` 32 and 1, and a PEF of one row
* a model of about 10 ms a call (an MLP 1024 → 32768 → 10, whose parameters do not fit the caches) at concurrency 32
* a row of 4,096 floats as binary and as JSON, both ways, at concurrency 8
* seconds from a box's start as a process to its first answer, with the PEF there, not pinned

Everything on: token, validation, metrics, access log. Servers on one core, the client (h2load) on the other; rounds are
interleaved, figures are medians. ::

    python benchmarks/programs/bench_serving_batching.py [--rounds 5] [--seconds 3] [--json FILE] [--only TEXT]
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import serving_model
import torch
from bench_serving import print_bars
from rdukit_bench.comparisons.machine import write_json
from safetensors.torch import save_file
from serving_load import Target, put_under_load
from serving_peers import TOKEN, Files, box_command, free_ports
from serving_process import ServerProcess

HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
SLOW = {"num_features": 1024, "hidden_size": 32768}
LONG = {"num_features": 4096, "hidden_size": 16}
Bar = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A compiled PEF with its checkpoint."""

    pef: Path
    checkpoint: Path
    features: int


class Bench:
    """Compiles models, starts boxes, loads them."""

    def __init__(self, folder: Path, rounds: int, seconds: int) -> None:
        self.folder, self.rounds, self.seconds = folder, rounds, seconds
        self.cores = (0, 1) if len(os.sched_getaffinity(0)) > 1 else (None, None)
        self._starts = 0
        os.environ["RDUKIT_HOME"] = str(folder / "home")

    def compile(self, batch_size: int, **sizes: int) -> Model:
        """Return a PEF that serves, with random parameters."""
        sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
        from rdukit_zoo.mlp import MultiLayerPerceptron
        from support.boxes import run_verb

        name = "-".join(map(str, (batch_size, *sizes.values())))
        with contextlib.redirect_stdout(sys.stderr):
            made = run_verb("mlp", "compile", self.folder / name, purpose="serve", batch_size=batch_size, **sizes)
        torch.manual_seed(0)
        checkpoint = self.folder / name / "mlp.safetensors"
        save_file(dict(MultiLayerPerceptron(**sizes).state_dict()), checkpoint)
        return Model(Path(made.outputs["pef"]), checkpoint, sizes.get("num_features", serving_model.FEATURES))

    @contextlib.contextmanager
    def start(self, model: Model, box: str = "mlp", is_pinned: bool = True) -> Iterator[tuple[ServerProcess, str]]:
        """Return a running box and its URL."""
        self._starts += 1
        folder = self.folder / f"box-{self._starts}"
        files = Files(model.pef, model.checkpoint, folder)
        started = box_command(files, *free_ports(2), box)
        url = f"http://127.0.0.1:{started.rest_port}"
        body = json_row(model.features)
        with ServerProcess.start(
            started.command, {"OMP_NUM_THREADS": "1", **started.environment}, folder,
            self.cores[0] if is_pinned else None, lambda: bool(ask(f"{url}{serving_model.INFER_PATH}", body)),
        ) as process:  # fmt: skip
            yield process, url
        shutil.rmtree(folder, ignore_errors=True)

    def load(self, url: str, body: bytes, concurrency: int, headers: Mapping[str, str] | None = None) -> Any:
        """Warm, then measure."""
        target = Target(f"{url}{serving_model.INFER_PATH}", body, {**HEADERS, **(headers or {})})
        put_under_load(target, concurrency, 1, self.cores[1])
        return put_under_load(target, concurrency, self.seconds, self.cores[1])


def ask(url: str, body: bytes | None = None) -> Any:
    """Return a request's JSON answer."""
    request = urllib.request.Request(url, body, dict(HEADERS))
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return json.load(answer)


def json_row(count: int) -> bytes:
    """Return a row as JSON."""
    tensor = {"name": "rows", "shape": [1, count], "datatype": "FP32", "data": serving_model.sample(count)}
    return json.dumps({"inputs": [tensor]}).encode()


def binary_row(count: int) -> tuple[bytes, dict[str, str]]:
    """Return a row by the binary extension, its answer too; and its headers."""
    tensor = {
        "name": "rows", "shape": [1, count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count},
    }  # fmt: skip
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return text + serving_model.raw_row(count), {"Inference-Header-Content-Length": str(len(text))}


def limited_box(folder: Path, most: int) -> str:
    """Return the box ``mlp`` with ``serving.max_batch_size``."""
    from rdukit_modelbox.contract.box import find_box_file

    source = find_box_file("mlp")
    target = folder / f"limited-{most}"
    shutil.copytree(source.parent, target)
    text = (target / "modelbox.yaml").read_text()
    (target / "modelbox.yaml").write_text(f"{text}\nserving: {{max_batch_size: {most}}}\n")
    return str(target / "modelbox.yaml")


def bar(what: str, value: float, wanted: float, is_met: bool, note: str = "") -> Bar:
    """Return a row of the result."""
    return {"what": what, "value": round(value, 3), "bar": wanted, "met": is_met, "note": note}


def measure_lone(bench: Bench) -> list[Bar]:
    """p50 at concurrency 1 with batching on, off, and by a PEF of one row."""
    on, one = bench.compile(32), bench.compile(1)
    variants = {
        "on": (on, limited_box(bench.folder, 32)), "off": (on, limited_box(bench.folder, 1)), "pef of 1": (one, "mlp"),
    }  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in variants}
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(bench.start(*variant))[1] for name, variant in variants.items()}
        for _ in range(bench.rounds):
            for name, url in urls.items():
                taken[name].append(bench.load(url, json_row(64), 1).p50_ms)
    p50 = {name: statistics.median(values) for name, values in taken.items()}
    bars = []
    for name in ("off", "pef of 1"):
        ratio = p50["on"] / p50[name]
        what = "max_batch_size 1" if name == "off" else "a PEF of one row"
        note = f"{p50['on']:.3f} / {p50[name]:.3f} ms"
        bars.append(bar(f"p50 at 1: batching on, over {what}", ratio, 1.05, ratio <= 1.05, note))
    return bars


def measure_slow(bench: Bench) -> list[Bar]:
    """Rate and p99 at concurrency 32 of a model of about 10 ms a call; off is a PEF of one row."""
    variants = {"on": bench.compile(32, **SLOW), "off": bench.compile(1, **SLOW)}
    loads: dict[str, list[Any]] = {name: [] for name in variants}
    batch_ms, call_ms = 0.0, 0.0
    body, headers = binary_row(SLOW["num_features"])
    with contextlib.ExitStack() as stack:
        urls = {name: stack.enter_context(bench.start(variant))[1] for name, variant in variants.items()}
        for _ in range(bench.rounds):
            for name, url in urls.items():
                loads[name].append(bench.load(url, body, 32, headers))
        batch_ms, call_ms = _commonest_batch_ms(urls["on"]), _commonest_batch_ms(urls["off"])
    rates = {name: statistics.median(load.rate for load in each) for name, each in loads.items()}
    p99 = statistics.median(load.p99_ms for load in loads["on"])
    ratio = rates["on"] / rates["off"]
    return [
        bar("slow model at 32: rate, batching on over off", ratio, 5, ratio >= 5,
            f"{rates['on']:.0f} / {rates['off']:.0f} req/s, {call_ms:.1f} ms a call of one row"),
        bar("slow model at 32: p99 over the batch's time", p99 / batch_ms, 2, p99 < 2 * batch_ms,
            f"{p99:.1f} / {batch_ms:.1f} ms, delay bound 0"),
    ]  # fmt: skip


def _commonest_batch_ms(url: str) -> float:
    batches = ask(f"{url}/v2/models/mlp/stats")["model_stats"][0]["batch_stats"]
    most = max(batches, key=lambda each: int(each["compute_infer"]["count"]) * int(each["batch_size"]))
    parts = ("compute_input", "compute_infer", "compute_output")
    return sum(int(most[part]["ns"]) for part in parts) / int(most["compute_infer"]["count"]) / 1e6


def measure_binary(bench: Bench) -> list[Bar]:
    """Rates of a row of 4,096 floats at concurrency 8."""
    forms = {"json": (json_row(4096), None), "binary": binary_row(4096)}
    rates: dict[str, list[float]] = {name: [] for name in forms}
    with bench.start(bench.compile(8, **LONG)) as (_, url):
        for _ in range(bench.rounds):
            for name, (body, headers) in forms.items():
                rates[name].append(bench.load(url, body, 8, headers).rate)
    median = {name: statistics.median(values) for name, values in rates.items()}
    ratio = median["binary"] / median["json"]
    return [bar("4,096 floats: rate of binary over JSON", ratio, 2, ratio >= 2,
                f"{median['binary']:.0f} / {median['json']:.0f} req/s")]  # fmt: skip


def measure_start(bench: Bench) -> list[Bar]:
    """Seconds to the first answer, and the resident memory of all its processes."""
    model = bench.compile(32)
    seconds, memory = [], []
    for _ in range(bench.rounds):
        with bench.start(model, is_pinned=False) as (process, _):
            seconds.append(process.start_s)
            memory.append(process.memory_mb())
    start, resident = statistics.median(seconds), statistics.median(each[0] for each in memory)
    shared = statistics.median(each[1] for each in memory)
    return [
        bar("seconds from start to the first answer", start, 2.5, start < 2.5, f"{min(seconds):.2f} at best"),
        bar("resident megabytes, all processes", resident, 330, resident < 330, f"{shared:.0f} PSS"),
    ]


PARTS = {"lone": measure_lone, "slow": measure_slow, "binary": measure_binary, "start": measure_start}


def main() -> int:
    """Measure the parts and print; one that fails leaves the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--only", default="", help=", ".join(PARTS))
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if shutil.which("h2load") is None:
        print("bench_serving_batching: h2load is not installed (Debian: nghttp2-client)", file=sys.stderr)
        return 0
    bars: list[Bar] = []
    failures: dict[str, str] = {}
    chosen: Sequence[str] = [name for name in PARTS if options.only in name]
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="batching-") as folder:
            try:
                bars += PARTS[name](Bench(Path(folder), options.rounds, options.seconds))
            except Exception as error:  # noqa: BLE001 the other parts are measured all the same
                failures[name] = repr(error)
    print_bars(bars)
    for name, reason in failures.items():
        print(f"failed: {name}: {reason}")
    if options.json:
        write_json(options.json, {"bars": bars, "failures": failures})
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    raise SystemExit(main())
