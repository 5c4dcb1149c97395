"""What callers of a text model notice beside its rate: a chat's second turn, others' long prompts, JSON by a schema.

One box with a Llama of random weights, one thread. ``turns``: the first token of a chat's second turn over that of its
first, of 1,000 tokens. ``delay``: pauses between the tokens of four streams, alone and while a prompt of 2,000 tokens
is read. ``schema``: texts of 20 schemas, eight at once, in turn with as many tokens without one; each is validated.

    python benchmarks/programs/bench_text_turns.py --size 15m
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import httpx
import jsonschema
import torch
from bench_text_serving import SIZES, VOCABULARY, Server, our_box
from rdukit_bench.comparisons.machine import write_json
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rdukit_zoo.language.llama import Llama, LlamaSizes
from rdukit_zoo.registry import get_model

CONTEXT: Final = 2304
ROOT: Final = Path(__file__).resolve().parents[2]


def schemas() -> list[dict[str, Any]]:
    """Return 20 schemas whose texts end: records of names, numbers, dates, choices, lists and records."""
    name: dict[str, Any] = {"type": "string", "maxLength": 12}
    parts: list[dict[str, Any]] = [
        name, {"type": "integer", "minimum": 0, "maximum": 999}, {"type": "boolean"}, {"enum": ["red", "green"]},
        {"type": "string", "pattern": "^[0-9]{4}-[01][0-9]-[0-3][0-9]$"}, {"anyOf": [{"type": "null"}, name]},
        {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 4}, {"enum": [0.5, -1.25, 3]},
    ]  # fmt: skip
    found = []
    for number in range(20):
        chosen = [parts[(number * 3 + place * (1 + number % 5)) % len(parts)] for place in range(2 + number % 4)]
        record: dict[str, Any] = {"type": "object", "additionalProperties": False}
        record["properties"] = {f"field_{place}": part for place, part in enumerate(chosen)}
        record["required"] = list(record["properties"])
        found.append({"type": "array", "items": record, "minItems": 1, "maxItems": 2} if number % 4 == 3 else record)
    return found


class Caller:
    """A client of the box."""

    def __init__(self, server: Server, http: httpx.AsyncClient) -> None:
        self._url, self._http = f"http://127.0.0.1:{server.port}/v1/completions", http

    async def stream(self, prompt: list[int], most: int) -> tuple[list[float], dict[str, Any]]:
        """Return the times at which the tokens of a text came, the request's own first, and its usage."""
        # Drawn, as several tokens of a greedy text that repeats itself may come at once.
        body = {"model": "llama", "prompt": prompt, "max_tokens": most, "temperature": 1, "ignore_eos": True,
                "stream": True, "logprobs": 0, "stream_options": {"include_usage": True}}  # fmt: skip
        times, usage = [time.perf_counter()], {}
        async with self._http.stream("POST", self._url, json=body) as answer:
            async for line in answer.aiter_lines():
                if '"choices":[{' in line and '"finish_reason":null' in line:
                    times.append(time.perf_counter())
                elif '"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
        return times, usage

    async def text(self, **more: Any) -> dict[str, Any]:
        """Return the answer to a plain request."""
        answer = await self._http.post(
            self._url, json={"model": "llama", "prompt": "JSON:", "temperature": 1.0, **more}
        )
        return dict(answer.raise_for_status().json())


def _prompt(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(VOCABULARY) for _ in range(count)]


async def measure_turns(caller: Caller, draw: random.Random, rounds: int) -> dict[str, float]:
    """Return milliseconds to the first token of first and second turns, medians, and the median of their ratios."""
    first, second = [], []
    for _ in range(rounds):
        prompt = _prompt(draw, 1000)
        times, _ = await caller.stream(prompt, 16)
        first.append(times[1] - times[0])
        # What was made is not told as tokens: the turn goes on from the prompt, which is most of it.
        times, usage = await caller.stream([*prompt, *_prompt(draw, 30)], 4)
        second.append(times[1] - times[0])
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 1000, usage
    ratios = [other / one for one, other in zip(first, second, strict=True)]
    return {"first_ms": 1e3 * statistics.median(first), "second_ms": 1e3 * statistics.median(second),
            "ratio": statistics.median(ratios)}  # fmt: skip


async def measure_delay(caller: Caller, draw: random.Random, rounds: int) -> dict[str, float]:
    """Return milliseconds between tokens of four streams, alone and beside a long prompt, and a part's reading.

    A part reads what is before it, too, so the last eight take longer than the mean of all.
    """
    alone, beside, part, last = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        others = [asyncio.create_task(caller.stream(_prompt(draw, 20), 400)) for _ in range(4)]
        await asyncio.sleep(0.8)
        began = time.perf_counter()
        times, _ = await caller.stream(_prompt(draw, 2000), 1)
        read = times[1]
        for each in await asyncio.gather(*others):
            for one, other in itertools.pairwise(each[0][1:]):
                (alone if other < began or one > read else beside).append(other - one)
        short, whole = [(await caller.stream(_prompt(draw, length), 1))[0] for length in (1488, 2000)]
        part.append((whole[1] - whole[0]) / -(-2000 // 64))
        last.append((whole[1] - whole[0] - short[1] + short[0]) / 8)
    return {"alone_p50_ms": 1e3 * statistics.median(alone), "alone_p99_ms": 1e3 * _p99(alone),
            "beside_p50_ms": 1e3 * statistics.median(beside), "beside_p99_ms": 1e3 * _p99(beside),
            "part_ms": 1e3 * statistics.median(part), "last_part_ms": 1e3 * statistics.median(last)}  # fmt: skip


def _p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[int(0.99 * (len(ordered) - 1))]


async def measure_schemas(caller: Caller, texts: int, together: int = 8) -> dict[str, float]:
    """Return seconds of texts with schemas and of as many tokens without, and how many were whole and valid."""
    forms, counts = schemas(), {"whole": 0, "tokens": 0}
    seconds = {True: 0.0, False: 0.0}

    async def one(number: int, made: dict[int, int]) -> None:
        schema = forms[number % len(forms)]
        form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
        answer = await caller.text(seed=number, max_tokens=400, response_format=form)
        choice = answer["choices"][0]
        made[number] = answer["usage"]["completion_tokens"]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["text"]), schema)
            counts["whole"] += 1

    async def plain(number: int, made: dict[int, int]) -> None:
        await caller.text(seed=number, max_tokens=made[number], ignore_eos=True)

    # The masks of a schema are worked out once.
    for number in range(len(forms)):
        await one(texts + number, {})
    counts["whole"] = 0
    for begin in range(0, texts, 5 * together):
        block, made = range(begin, min(begin + 5 * together, texts)), dict[int, int]()
        for ask, has_form in ((one, True), (plain, False)):
            numbers = iter(block)

            async def work() -> None:
                for number in numbers:  # noqa: B023
                    await ask(number, made)  # noqa: B023

            began = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(together)))
            seconds[has_form] += time.perf_counter() - began
        counts["tokens"] += sum(made.values())
    return {"texts": texts, **counts, "with_s": seconds[True], "without_s": seconds[False],
            "ratio": seconds[True] / seconds[False]}  # fmt: skip


def _tokenizer() -> Tokenizer:
    """Return a tokenizer of byte-level pairs, learned from this project's own texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    files = [str(path) for pattern in ("docs/**/*.md", "*/rdukit_*/**/*.py") for path in sorted(ROOT.glob(pattern))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(files, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


async def _measure(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(1)
    async with httpx.AsyncClient(trust_env=False, timeout=600) as http:
        caller = Caller(server, http)
        await caller.stream(_prompt(draw, 100), 8)
        found: dict[str, Any] = {"turns": await measure_turns(caller, draw, options.rounds)}
        print(json.dumps(found["turns"]), flush=True)
        found["delay"] = await measure_delay(caller, draw, options.rounds)
        print(json.dumps(found["delay"]), flush=True)
        found["schema"] = await measure_schemas(caller, options.texts)
        print(json.dumps(found["schema"]), flush=True)
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="15m")
    parser.add_argument("--rounds", type=int, default=5, help="chats, and long prompts")
    parser.add_argument("--texts", type=int, default=1000, help="texts of schemas")
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    options = parser.parse_args()
    sizes: dict[str, Any] = {**get_model("llama").sizes, **SIZES[options.size]}
    sizes |= {"vocabulary": VOCABULARY, "context_length": CONTEXT, "prompt_length": 64}
    torch.manual_seed(0)
    model = Llama(LlamaSizes(**sizes), texts=0)
    with (
        tempfile.TemporaryDirectory(prefix="text-turns-") as folder,
        our_box(Path(folder), sizes, "f32", 8, model, _tokenizer()) as server,
    ):
        found = asyncio.run(_measure(server, options))
    if options.output:
        write_json(options.output, found)


if __name__ == "__main__":
    main()
