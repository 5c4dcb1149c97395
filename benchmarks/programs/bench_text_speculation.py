"""Texts with guesses over texts without: tokens a second of one stream and of several, and the share that was right.

The same PEF is served without guesses, with lookup, and with lookup and a draft model, in processes of one thread each,
which run in turn; the figures are the best round's. The models are made so that it is known what follows: after each
token of the vocabulary comes another one, in cycles of 16 (a text that repeats itself) or in one of all tokens (a text
that is new), whatever the layers add. The draft knows the follower of a share of the tokens only. All servers must make
the same texts.

    python benchmarks/programs/bench_text_speculation.py --sizes 15m 110m
"""

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from bench_text_serving import SIZES, VOCABULARY
from rdukit_bench.comparisons.machine import write_json
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from rdukit_modelbox.verbs.compile import compile_text_serving
from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend
from rdukit_serving.shape import Shape
from rdukit_zoo.language.llama import Llama, LlamaSizes
from rdukit_zoo.registry import get_model

PROMPT, MADE, TEXTS = 16, 128, 8
#: Tokens of a cycle of each kind of text.
KINDS: Final = {"new": VOCABULARY, "repeating": 16}
DRAFT: Final = {"width": 96, "layers": 2, "heads": 4, "key_value_heads": 4, "feed_forward": 256}


def followers(cycle: int) -> torch.Tensor:
    """Return the token after each token [V], by cycles of a length that divides V."""
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1)).view(-1, cycle)
    after = torch.empty(VOCABULARY, dtype=torch.int64)
    after[order] = order.roll(-1, 1)
    return after


def save_model(sizes: Mapping[str, Any], folder: Path, cycle: int, known: float) -> Path:
    """Save parameters of a model that knows what follows a share ``known`` of the tokens."""
    torch.manual_seed(0)
    model = Llama(LlamaSizes(**sizes), texts=0)
    after = followers(cycle)
    after = torch.where(torch.rand(VOCABULARY) < known, after, after.roll(1))
    with torch.no_grad():
        model.model.embed_tokens.weight.normal_(std=3.0)
        model.lm_head.weight[after] = model.model.embed_tokens.weight / 9
    folder.mkdir(parents=True)
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    words = {f"t{number} ": number for number in range(VOCABULARY)}
    Tokenizer(models.WordLevel(words, unk_token="t0 ")).save(str(folder / "tokenizer.json"))
    return folder / "model.safetensors"


def compile_model(sizes: Mapping[str, Any], folder: Path, precision: str) -> Path:
    """Compile a model for as many texts as are measured."""
    shape = Shape("llama", sizes, TEXTS, precision, task="language-modelling", purpose="serve")
    return compile_text_serving(get_model("llama"), shape, "llama", folder, "o3", "sn30", 1)


@contextmanager
def serve(folder: Path, name: str, **settings: object) -> Iterator[str]:
    """Serve with settings of a box; gives its address."""
    environment = {f"RDUKIT_BOX_{key.upper()}": str(value) for key, value in settings.items()}
    box = ProcessBackend().start(BoxSpec("llama", folder / name, [folder], environment | {"OMP_NUM_THREADS": "1"}))
    try:
        yield box.rest_url
    finally:
        box.stop()


async def ask(address: str, prompt: list[int]) -> tuple[str, dict[str, Any]]:
    """Return a text and its usage."""
    body = {"model": "llama", "prompt": prompt, "max_tokens": MADE, "temperature": 0, "ignore_eos": True}
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rsplit(":", 1)[1]))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        + f"Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    writer.close()
    return answer["choices"][0]["text"], answer["usage"]


async def measure(address: str, streams: int, seed: int) -> tuple[float, float | None, list[str]]:
    """Return tokens a second of ``streams`` texts at once, the share of guesses that was right, and the texts."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(streams)]
    began = time.perf_counter()
    found = await asyncio.gather(*(ask(address, prompt) for prompt in prompts))
    took = time.perf_counter() - began
    rates = [usage["acceptance_rate"] for _, usage in found if usage["acceptance_rate"] is not None]
    tokens = sum(usage["completion_tokens"] for _, usage in found)
    return tokens / took, sum(rates) / len(rates) if rates else None, [text for text, _ in found]


def compare(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each kind of text, server and number of streams."""
    folder = Path(tempfile.mkdtemp(prefix="text-speculation-"))
    common = {**get_model("llama").sizes, "vocabulary": VOCABULARY, "context_length": 256, "prompt_length": 64}
    common |= {"is_tied": False}
    sizes, small = common | SIZES[name], common | DRAFT
    try:
        pef = compile_model(sizes, folder / "model", options.precision)
        draft = compile_model(small, folder / "draft", options.precision) if options.known else None
        for kind, cycle in KINDS.items():
            files = {"pef": pef, "checkpoint": save_model(sizes, folder / kind / "model", cycle, 1.0)}
            servers: dict[str, dict[str, object]] = {
                "plain": {**files, "speculation": 0}, "lookup": {**files, "speculation": options.guesses}
            }  # fmt: skip
            if draft is not None:
                weights = save_model(small, folder / kind / "draft", cycle, options.known)
                servers["draft"] = {**servers["lookup"], "draft_pef": draft, "draft_checkpoint": weights}
            with ExitStack() as stack:
                started = {
                    server: stack.enter_context(serve(folder, f"{kind}-{server}", **settings))
                    for server, settings in servers.items()
                }
                for streams in options.streams:
                    yield from _rounds(f"{name} {options.precision}", kind, started, streams, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rounds(model: str, kind: str, servers: Mapping[str, str], streams: int, rounds: int) -> Iterator[dict[str, Any]]:
    best: dict[str, tuple[float, float | None]] = {}
    for turn in range(rounds):
        expected: list[str] | None = None
        for server, address in servers.items():
            rate, right, texts = asyncio.run(measure(address, streams, 100 * turn + streams))
            if expected is not None and texts != expected:
                raise SystemExit(f"{model}, {kind}: {server} made other texts than {next(iter(servers))}")
            expected = texts
            best[server] = max(best.get(server, (0.0, None)), (rate, right), key=lambda figure: figure[0])
    for server, (rate, right) in best.items():
        yield {
            "model": model, "text": kind, "streams": streams, "server": server, "tokens_s": rate,
            "of_plain": rate / best["plain"][0], "right": right,
        }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["15m"])
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--guesses", type=int, default=7, help="most guesses of a text and run")
    parser.add_argument("--known", type=float, default=0.9, help="share of the tokens that the draft knows; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    options = parser.parse_args()
    rows = [row for name in options.sizes for row in compare(name, options)]
    table = Table("model", "text", "streams", "server", "tokens/s", "of plain", "right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    if options.output:
        write_json(options.output, {"rows": rows})


if __name__ == "__main__":
    main()
