"""Texts for minutes, with callers that leave and a model's process that is killed: each stream ends and says why.

Sixteen callers ask a box of four rows for streamed texts of random lengths, some of a JSON schema, and leave one of
five before its end. Every half a minute the model's process is killed with SIGKILL. With ``--experts`` the box serves
a bundle of so many, in memory for a third of them, and each text is one of theirs. At the end the box must answer as at
the beginning, and must not have grown. Ends with 1 otherwise. ::

    PYTHONPATH=tests python benchmarks/programs/soak_texts.py [--minutes 10] [--callers 16] [--experts 12] [-o FILE]
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import torch
from rdukit_bench.comparisons.machine import write_json
from safetensors.torch import save_file

from rdukit_platform.backends.contract import BoxSpec
from rdukit_platform.backends.process import ProcessBackend, ProcessBox
from rdukit_platform.backends.process_tree import tree_of
from support.text_boxes import TINY, make_text_model, make_tiny_llama, start_text_box

ROWS = 4
#: Megabytes by which a process may grow: the allocator's arenas move a little.
FLAT_MB: Final = 24.0
SCHEMA: Final = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def _process_of_the_model(box: ProcessBox) -> int | None:
    for facts in tree_of(box.pid):
        with contextlib.suppress(OSError):
            if b"rdukit_serving.device.process" in Path(f"/proc/{facts.pid}/cmdline").read_bytes():
                return facts.pid
    return None


def _megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


async def _caller(
    client: httpx.AsyncClient, names: Sequence[str], seed: int, until: float, ends: Counter[str]
) -> None:  # fmt: skip
    draw = random.Random(seed)
    while time.monotonic() < until:
        body: dict[str, Any] = {
            "model": draw.choice(names), "prompt": [draw.randrange(256) for _ in range(draw.randint(1, 120))],
            "max_tokens": draw.randint(1, 120), "stream": True, "temperature": draw.choice([0, 1]),
        }  # fmt: skip
        if draw.random() < 0.2:
            body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}
        leaves_after = draw.randint(1, 20) if draw.random() < 0.2 else None
        ends[await _one_text(client, body, leaves_after)] += 1


async def _one_text(client: httpx.AsyncClient, body: dict[str, Any], leaves_after: int | None) -> str:
    """Return how a stream ended: ``text``, ``left``, an error's words, or ``LOST``."""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return f"{answer.status_code}"
            seen = 0
            async for line in _lines(answer):
                if line == b"data: [DONE]":
                    return "text"
                if line.startswith(b"data:"):
                    seen += 1
                    if "error" in (event := json.loads(line[5:])):
                        return f"error: {event['error']['message'][:40]}"
                if leaves_after is not None and seen >= leaves_after:
                    return "left"
        return "LOST: the stream ended without a word"
    except httpx.HTTPError as error:
        return f"LOST: {type(error).__name__}"


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, which only a line feed ends: texts may have other characters that do elsewhere."""
    rest = b""
    async for data in answer.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


async def _soak(
    box: ProcessBox, names: Sequence[str], minutes: float, callers: int, kill_every_s: float
) -> tuple[Counter[str], int]:
    ends: Counter[str] = Counter()
    kills, until = 0, time.monotonic() + 60 * minutes
    limits = httpx.Limits(max_connections=callers)
    async with httpx.AsyncClient(base_url=box.rest_url, trust_env=False, timeout=120, limits=limits) as client:
        tasks = [asyncio.create_task(_caller(client, names, seed, until, ends)) for seed in range(callers)]
        while time.monotonic() + kill_every_s < until:
            await asyncio.sleep(kill_every_s)
            if (pid := _process_of_the_model(box)) is not None:
                os.kill(pid, signal.SIGKILL)
                kills += 1
        await asyncio.gather(*tasks)
    return ends, kills


def start_bundle_box(folder: Path, names: Sequence[str]) -> ProcessBox:
    """Serve experts of these names with other parameters each, a third of which are in memory at a time."""
    model = make_tiny_llama()
    pef, checkpoint = make_text_model(folder, model, TINY, ROWS)
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        state = {key: torch.randn_like(value) * 0.3 for key, value in model.state_dict().items()}
        save_file(state, checkpoint / f"{name}.safetensors")
    weights = sum(value.nbytes for value in model.state_dict().values())
    bundle = {
        "apiVersion": "rdukit.dev/v1", "kind": "Bundle", "name": "soak",
        "memory": {"host": weights * max(len(names) // 3, 1)},
        "configurations": [{"name": "tiny", "pef": str(pef.relative_to(folder))}],
        "experts": [
            {"name": name, "configuration": "tiny", "checkpoint": f"checkpoint/{name}.safetensors"} for name in names
        ],
    }  # fmt: skip
    file = folder / "bundle.yaml"
    file.write_text(json.dumps(bundle))
    values = {"RDUKIT_BOX_BUNDLE": str(file), "RDUKIT_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    return ProcessBackend().start(BoxSpec("llama", folder / "state", [folder], values))


def main() -> int:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--kill-every", type=float, default=30.0, help="Seconds between two kills.")
    parser.add_argument("-o", "--output", type=Path, help="JSON file")
    parser.add_argument("--experts", type=int, default=0, help="Experts of a bundle; 0: one model.")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-texts-"))
    names = [f"e{number}" for number in range(options.experts)] or ["llama"]
    if options.experts:
        box = start_bundle_box(folder, names)
    else:
        box = start_text_box(folder, make_tiny_llama(), TINY, ROWS)
    try:
        probe = {"model": names[0], "prompt": "steady", "max_tokens": 20, "temperature": 0}
        with httpx.Client(base_url=box.rest_url, trust_env=False, timeout=60) as client:
            asyncio.run(_soak(box, names, 0.2, options.callers, options.kill_every))  # everything is allocated
            first = client.post("/v1/completions", json=probe).json()["choices"][0]["text"]
            before = _megabytes(box.pid)
            ends, kills = asyncio.run(_soak(box, names, options.minutes, options.callers, options.kill_every))
            last = client.post("/v1/completions", json=probe).json()["choices"][0]["text"]
            after, waiting = _megabytes(box.pid), client.get("/metrics").text
    finally:
        box.stop()
        shutil.rmtree(folder, ignore_errors=True)
    lost = sum(count for how, count in ends.items() if how.startswith("LOST"))
    idle = all(f'nv_inference_pending_request_count{{model="{name}",version="1"}} 0.0' in waiting for name in names)
    figures = {"ends": dict(ends), "kills": kills, "lost": lost, "before_mb": before, "after_mb": after, "idle": idle}
    print(json.dumps(figures, indent=2))
    if options.output:
        write_json(options.output, figures)
    return int(lost > 0 or first != last or after > before + FLAT_MB or not idle)


if __name__ == "__main__":
    sys.exit(main())
