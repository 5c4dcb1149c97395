"""How fast does a box answer, against LitServe, BentoML, MLServer, KServe's Python server, Ray Serve and Triton?

All serve the same MLP 64 → 256 → 10 and get the same bytes from the same client (h2load), one row a request, over REST
and gRPC at concurrency 1, 8 and 32. Ours has everything on: token, validation, metrics, access log. Floors show what
no server can be faster than: uvloop, httptools and the model without a framework; ``grpc.aio`` and the model. Each
server's answer is checked before it is loaded; servers are pinned to one core and the client to another; the rounds
are interleaved, and a figure is the median of the rounds. ::

    python benchmarks/programs/bench_serving.py --peers-home ~/peers [--rounds 3] [--seconds 3] [--json FILE]
        [--only REGEX]

A peer whose environment is missing, or that fails, is left out with its reason. docs/bench.md says how the
environments are made. About 5 minutes a round with all peers. Only ratios within one run mean anything.
"""

import argparse
import compileall
import contextlib
import json
import os
import re
import shutil
import statistics
import struct
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import serving_model
import torch
from host_pace import host_tail
from rdukit_bench.comparisons.machine import write_json
from safetensors.torch import save_file
from serving_load import Load, Target, put_under_load
from serving_peers import GRPC_FLOOR, OURS, REST_FLOOR, SERVERS, TOKEN, Files, Server, Started, why_missing
from serving_process import ServerFailed, ServerProcess

CONCURRENCIES = (1, 8, 32)
#: Least ratio of our rate to the best peer's, by wire and concurrency.
RATE_BARS = {"rest": {1: 2.0, 8: 2.0, 32: 1.5}, "grpc": {1: 1.2, 8: 1.2, 32: 1.0}}
TAIL_BAR, CPU_BAR, MEMORY_BAR_MB, START_BAR_S = 1.5, 4.5, 330, 2.5
#: Figures of one server in one round: "rest 8" → rate, p50_ms, …; "start_s", "rss_mb", "pss_mb".
Figures = dict[str, Any]


def main() -> int:
    """Measure and print; 0 also where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-home", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="the servers whose name matches; ours and the floors are always there"
    )
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if shutil.which("h2load") is None:
        print("bench_serving: h2load is not installed (Debian: nghttp2-client)", file=sys.stderr)
        return 0
    # taskset needs two cores, one for the client
    cores = (0, 1) if len(os.sched_getaffinity(0)) > 1 else (None, None)
    chosen = [s for s in SERVERS if not s.is_peer or re.search(options.only, s.name)]
    failures = {server.name: reason for server in chosen if (reason := why_missing(server, options.peers_home))}
    for name, reason in failures.items():
        print(f"{name}: left out: {reason}", file=sys.stderr)
    chosen = [server for server in chosen if server.name not in failures]
    rounds: dict[str, list[Figures]] = {server.name: [] for server in chosen}
    with tempfile.TemporaryDirectory(prefix="serving-") as folder:
        pef, checkpoint, expected = prepare(Path(folder))
        for number in range(options.rounds):
            for server in chosen if number % 2 == 0 else reversed(chosen):
                files = Files(pef, checkpoint, Path(folder, f"{re.sub('[^a-z]', '', server.name.lower())}-{number}"))
                files.folder.mkdir()
                try:
                    figures = measure(server, options.peers_home, files, expected, options.seconds, *cores)
                except (ServerFailed, RuntimeError, OSError) as error:
                    failures[server.name] = str(error)
                    print(f"round {number + 1} {server.name}: FAILED {error}", file=sys.stderr)
                    continue
                rounds[server.name].append(figures)
                print(f"round {number + 1} {server.name}: {_in_short(figures)}", file=sys.stderr, flush=True)
    merged = {name: merge(each) for name, each in rounds.items() if each}
    print_table(merged)
    bars = judge(merged, [server.name for server in SERVERS if server.is_peer])
    print_bars(bars)
    for name, reason in failures.items():
        print(f"left out or failed: {name}: {reason.splitlines()[-1] if reason else ''}")
    if options.json:
        write_json(options.json, {"servers": merged, "bars": bars, "failures": failures, "rounds": rounds})
    return 0


def prepare(folder: Path) -> tuple[Path, Path, list[float]]:
    """PEF, checkpoint and the expected logits of the one request; the peers' parameters in ``PEER_PARAMETERS``."""
    import rdukit
    import rdukit_modelbox
    import rdukit_node
    import rdukit_runtime
    import rdukit_zoo
    import sambaflow

    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from rdukit_zoo.mlp import MultiLayerPerceptron
    from support.boxes import run_verb

    os.environ["RDUKIT_HOME"] = str(folder / "home")
    # As an installer leaves packages, the peers' among them: without it each start of ours compiles its own modules.
    for package in (rdukit, rdukit_node, rdukit_runtime, rdukit_modelbox, rdukit_zoo, sambaflow):
        compileall.compile_dir(next(iter(package.__path__)), quiet=2)
    with contextlib.redirect_stdout(sys.stderr):
        pef = Path(run_verb("mlp", "compile", folder / "pef", purpose="serve", batch_size=32).outputs["pef"])
    torch.manual_seed(0)
    model = MultiLayerPerceptron().eval()
    save_file(dict(model.state_dict()), pef.parent / "mlp.safetensors")
    layers = list(model.state_dict().values())
    state = dict(zip(("0.weight", "0.bias", "2.weight", "2.bias"), layers, strict=True))
    torch.save(state, folder / "parameters.pt")
    os.environ["PEER_PARAMETERS"] = str(folder / "parameters.pt")
    os.environ["OMP_NUM_THREADS"] = "1"
    expected = serving_model.run_rows(serving_model.make_model(), [serving_model.sample()])[0]
    return pef, pef.parent / "mlp.safetensors", expected


def targets_of(server: Server, started: Started) -> dict[str, Target]:
    """By wire, what the client sends; the same bytes to all."""
    from rdukit.proto import inference_pb2 as pb

    targets = {}
    common = {"authorization": f"Bearer {TOKEN}", **server.headers}
    if started.rest_port is not None:
        url = f"http://127.0.0.1:{started.rest_port}{serving_model.INFER_PATH}"
        headers = {"content-type": "application/json", **common}
        targets["rest"] = Target(url, serving_model.rest_body(), headers)
    if started.grpc_port is not None:
        message = pb.ModelInferRequest(model_name=serving_model.NAME, id="a")
        message.inputs.add(name=serving_model.INPUT, datatype="FP32", shape=[1, serving_model.FEATURES])
        message.raw_input_contents.append(serving_model.raw_row())
        url = f"http://127.0.0.1:{started.grpc_port}{serving_model.GRPC_METHOD}"
        headers = {"content-type": "application/grpc", "te": "trailers", **common}
        targets["grpc"] = Target(url, message.SerializeToString(), headers, is_grpc=True)
    return targets


def answers_rightly(target: Target, expected: Sequence[float]) -> bool:
    """Return whether one request gives the expected logits; what goes wrong raises."""
    if not target.is_grpc:
        request = urllib.request.Request(target.url, target.body, dict(target.headers))
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            value = json.load(answer)
        # BentoML's batches come back as lists
        given = (value[0] if isinstance(value, list) else value)["outputs"][0]["data"]
        while given and isinstance(given[0], list):
            given = given[0]
        return is_near(given, expected)
    import grpc

    from rdukit.proto import inference_pb2 as pb

    address, _, method = target.url.removeprefix("http://").partition("/")
    kept = {name: value for name, value in target.headers.items() if name not in {"content-type", "te"}}
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        data = channel.unary_unary(f"/{method}")(target.body, timeout=5, metadata=tuple(kept.items()))
    response = pb.ModelInferResponse.FromString(data)
    if response.raw_output_contents:
        raw = response.raw_output_contents[0]
        return is_near(struct.unpack(f"<{len(raw) // 4}f", raw), expected)
    return is_near(response.outputs[0].contents.fp32_contents, expected)


def is_near(given: Sequence[float], expected: Sequence[float]) -> bool:
    """float32, the same products in another order."""
    return len(given) == len(expected) and all(abs(a - b) < 1e-4 for a, b in zip(given, expected, strict=True))


def measure(
    server: Server, home: Path | None, files: Files, expected: Sequence[float], seconds: int,
    server_core: int | None, client_core: int | None,
) -> Figures:  # fmt: skip
    """Start one server, load it over its wires, stop it.

    Raises:
        ServerFailed: it did not start, or answered wrongly.
    """
    started = server.start(home or Path(), files)
    targets = targets_of(server, started)
    environment = {"HOME": str(files.folder), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **started.environment}
    first = next(iter(targets.values()))
    with ServerProcess.start(
        started.command, environment, files.folder, server_core, lambda: answers_rightly(first, expected)
    ) as process:
        figures: Figures = {"start_s": process.start_s}
        if server.name == OURS and not has_native_kernels(first):
            raise ServerFailed("it runs without native kernels: is there a C++ compiler, and RDUKIT_KERNELS unset?")
        for wire, target in targets.items():
            if target is not first and not _answers_at_last(lambda t=target: answers_rightly(t, expected)):
                figures[f"{wire} failed"] = f"no right answer over {wire}"
                continue
            for concurrency in CONCURRENCIES:
                put_under_load(target, concurrency, 1, client_core)
                found = slot(process, target, concurrency, seconds, client_core)
                if server.name == OURS and concurrency == 32:
                    found["host_tail"] = host_tail(server_core, found["p50_ms"] / 1e3, seconds)
                figures[f"{wire} {concurrency}"] = found
        figures["rss_mb"], figures["pss_mb"] = process.memory_mb()
        return figures


def has_native_kernels(target: Target) -> bool:
    """Return whether our box runs compiled kernels; portable ones are for development."""
    request = urllib.request.Request(target.url.removesuffix("/infer"), headers=dict(target.headers))
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
        return bool(json.load(answer)["properties"]["native_kernels"] != "0")


def slot(
    process: ServerProcess, target: Target, concurrency: int, seconds: int, client_core: int | None
) -> dict[str, float]:
    """Run a load, and count the CPU microseconds of the server's whole tree per answered request."""
    before = process.cpu_seconds()
    load: Load = put_under_load(target, concurrency, seconds, client_core)
    used = process.cpu_seconds() - before
    return {
        "rate": load.rate, "p50_ms": load.p50_ms, "p99_ms": load.p99_ms, "bad": load.bad,
        # of this slot: the machine's pace differs between rounds
        "tail": load.tail,
        "window_tail": load.window_tail, "cpu_us": used / max(1, load.answered) * 1e6,
    }  # fmt: skip


def merge(rounds: Sequence[Figures]) -> Figures:
    """Sum up rounds: the median of each figure, the sum of bad requests, and p99 over p50 of each slot. Pure."""
    merged: Figures = {}
    for key in {key: None for figures in rounds for key in figures}:
        values = [figures[key] for figures in rounds if key in figures]
        if isinstance(values[0], dict):
            merged[key] = {name: statistics.median(value[name] for value in values) for name in values[0]}
            merged[key]["bad"] = sum(value["bad"] for value in values)
            merged[key]["tails"] = [value["tail"] for value in values]
        elif isinstance(values[0], float):
            merged[key] = statistics.median(values)
        else:
            merged[key] = values[0]
    return merged


def judge(merged: Mapping[str, Figures], peers: Sequence[str]) -> list[dict[str, Any]]:
    """Return the bars with what was reached. Pure."""
    ours = merged.get(OURS)
    if ours is None:
        return []
    bars = []

    def add(what: str, value: float, bar: float, is_met: bool, note: str = "") -> None:
        bars.append({"what": what, "value": round(value, 3), "bar": bar, "met": is_met, "note": note})

    for wire, by_concurrency in RATE_BARS.items():
        for concurrency, bar in by_concurrency.items():
            key = f"{wire} {concurrency}"
            rates = {name: merged[name][key]["rate"] for name in peers if key in merged.get(name, {})}
            if rates and key in ours:
                best = max(rates, key=lambda name: rates[name])
                ratio = ours[key]["rate"] / max(rates[best], 1e-9)
                add(f"{wire} rate at {concurrency}, over the best peer", ratio, bar, ratio >= bar, best)
    for wire in RATE_BARS:
        if f"{wire} 32" in ours:
            ratio = ours[f"{wire} 32"]["tail"]
            floor = merged.get({"rest": REST_FLOOR, "grpc": GRPC_FLOOR}[wire], {}).get(f"{wire} 32")
            note = f"slots {', '.join(f'{tail:.2f}' for tail in ours[f'{wire} 32']['tails'])}"
            note += f"; {ours[f'{wire} 32']['window_tail']:.2f} within half a second"
            note += f"; the floor {floor['tail']:.2f}" if floor else ""
            note += f"; this machine alone {ours[f'{wire} 32']['host_tail']:.2f}"
            add(f"{wire} p99 over p50 at 32", ratio, TAIL_BAR, ratio <= TAIL_BAR, note)
    floor = merged.get(REST_FLOOR, {}).get("rest 32")
    if floor:
        ratio = ours["rest 32"]["cpu_us"] / max(floor["cpu_us"], 1e-9)
        add("CPU per REST request at 32, over the floor", ratio, CPU_BAR, ratio <= CPU_BAR)
    add(
        "resident megabytes", ours["rss_mb"], MEMORY_BAR_MB, ours["rss_mb"] < MEMORY_BAR_MB, f"{ours['pss_mb']:.0f} PSS"
    )
    add("seconds from start to the first answer, one core", ours["start_s"], START_BAR_S, ours["start_s"] < START_BAR_S)
    return bars


def print_table(merged: Mapping[str, Figures]) -> None:
    """Return a line per server and wire."""
    head = f"{'SERVER':<32}{'WIRE':<6}"
    head += "".join(f"{f'c{c} req/s':>10}{'p50':>7}{'p99':>7}" for c in CONCURRENCIES)
    print(f"{head}{'CPU us':>8}{'x FLOOR':>9}{'START s':>9}{'RSS MB':>8}{'PSS MB':>8}{'BAD':>5}")
    for name, figures in merged.items():
        for wire, floor_name in (("rest", REST_FLOOR), ("grpc", GRPC_FLOOR)):
            if f"{wire} 32" not in figures:
                continue
            line = f"{name:<32}{wire:<6}"
            for concurrency in CONCURRENCIES:
                cell = figures[f"{wire} {concurrency}"]
                line += f"{cell['rate']:>10.0f}{cell['p50_ms']:>7.2f}{cell['p99_ms']:>7.2f}"
            cpu = figures[f"{wire} 32"]["cpu_us"]
            floor = merged.get(floor_name, {}).get(f"{wire} 32", {}).get("cpu_us")
            ratio = f"{cpu / floor:.1f}" if floor else "-"
            bad = sum(figures[f"{wire} {concurrency}"]["bad"] for concurrency in CONCURRENCIES)
            print(
                f"{line}{cpu:>8.0f}{ratio:>9}{figures['start_s']:>9.1f}{figures['rss_mb']:>8.0f}"
                f"{figures['pss_mb']:>8.0f}{bad:>5.0f}"
            )


def print_bars(bars: Sequence[Mapping[str, Any]]) -> None:
    """Print what the project wants, and what is reached here."""
    print(f"\n{'BAR':<52}{'VALUE':>9}{'WANTED':>9}  RESULT")
    for bar in bars:
        result = "met" if bar["met"] else "MISSED"
        print(f"{bar['what']:<52}{bar['value']:>9.2f}{bar['bar']:>9g}  {result}  {bar['note']}")


def _answers_at_last(is_right: Callable[[], bool]) -> bool:
    for _ in range(20):
        try:
            return is_right()
        except Exception:  # noqa: BLE001 the second wire may come up later than the first
            time.sleep(0.5)
    return False


def _in_short(figures: Figures) -> str:
    rates = {key: f"{value['rate']:.0f}" for key, value in figures.items() if isinstance(value, dict)}
    return f"start {figures['start_s']:.1f} s, {figures['rss_mb']:.0f} MB, req/s {rates}"


if __name__ == "__main__":
    raise SystemExit(main())
