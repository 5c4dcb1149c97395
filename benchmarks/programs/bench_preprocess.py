"""How fast is preprocess of text, and how much memory does it take, against its tokenizer alone?

Text of made-up words with the frequencies of a language, and a byte-level BPE learned from it. Ours is the whole verb:
read, check, digest, shuffle, tokenize, pack, compress, write, describe. The peers only call the tokenizer on the same
lines, a megabyte at a time: ``encode_batch`` as everybody does (the bar: at least 0.8 of its throughput), and
``encode_batch_fast``, which leaves out offsets, to see what is left. Each sample has a process of its own; the samples
are taken in turn. Seconds are of the work, without imports. ::

    python benchmarks/programs/bench_preprocess.py [--megabytes 100] [--rounds 3] [--json FILE] [--only ours]

The bars are for 2,000 megabytes, which takes about 20 minutes a round on two cores and 6 GB of disk; peak memory must
stay below 500 MB there.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

SIDES = ("ours", "encode_batch", "encode_batch_fast")
BAR = 0.8
MEMORY_BAR_MB = 500
WORDS = 30_000
LETTERS = "etaoinshrdlcumwfgypbvk"
BATCH_BYTES = 1 << 20


def write_text(path: Path, size: int) -> None:
    """Articles of 20 to 180 words, one a line."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, len(LETTERS) + 1) ** 0.5
    letters = np.array(list(LETTERS))
    words = np.array(
        ["".join(random.choice(letters, random.integers(2, 11), p=weights / weights.sum())) for _ in range(WORDS)],
        dtype=object,
    )
    cumulated = np.cumsum(1 / np.arange(1, WORDS + 1))
    written = 0
    with path.open("w") as stream:
        while written < size:
            chosen = words[np.searchsorted(cumulated, random.random(200_000) * cumulated[-1])].tolist()
            lines, start = [], 0
            while start < len(chosen):
                stop = start + int(random.integers(20, 180))
                lines.append(" ".join(chosen[start:stop]) + ".")
                start = stop
            text = "\n".join(lines) + "\n"
            stream.write(text)
            written += len(text)


def run_side(side: str, data: Path, tokenizer: Path, output: Path, length: int) -> None:
    """Run a sample, in this process; prints its figures as JSON."""
    if side == "ours":
        run = prepare_ours(data, tokenizer, output, length)
    else:
        encode = getattr(Tokenizer.from_file(str(tokenizer)), side)

        def run() -> int:
            tokens = 0
            with data.open() as stream:
                while lines := stream.readlines(BATCH_BYTES):
                    tokens += sum(len(encoding) for encoding in encode(lines))
            return tokens

    began, cpu_began = time.perf_counter(), time.process_time()
    tokens = run()
    figures = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
        "tokens": tokens,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


def prepare_ours(data: Path, tokenizer: Path, output: Path, length: int) -> Any:
    """Return the verb with a text box's defaults."""
    from rdukit_modelbox.contract.box import Box, Verb, find_box_file, load_box
    from rdukit_modelbox.contract.check_parameters import check_parameters
    from rdukit_modelbox.preprocessing.text import preprocess_text
    from rdukit_modelbox.verbs.context import Progress

    class Silent:
        box: Box = load_box(find_box_file("llama"))

        def progress(self, progress: Progress) -> None:
            pass

        def log(self, text: str) -> None:
            pass

        def check_cancelled(self) -> None:
            pass

    context = Silent()
    parameters = check_parameters(context.box, Verb.PREPROCESS, {"max_seq_length": length})
    return lambda: preprocess_text(context, parameters, {"data": data, "tokenizer": tokenizer}, output).figures[
        "train_tokens"
    ]


def measure(side: str, data: Path, tokenizer: Path, folder: Path, length: int) -> dict[str, float]:
    """Run a sample in a process of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as output:
        arguments = ["--side", side, "--data", str(data), "--tokenizer", str(tokenizer), "--output", output]
        made = subprocess.run(
            [sys.executable, __file__, *arguments, "--length", str(length)], check=True, capture_output=True, text=True
        )
    found: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a sequence")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--tokenizer", type=Path, default=None, help="a tokenizer.json instead of a learned one")
    parser.add_argument("--only", choices=SIDES, default=None)
    parser.add_argument("--json", default=None)
    parser.add_argument("--side", choices=SIDES, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run_side(options.side, options.data, options.tokenizer, options.output, options.length)
        return
    # Only this process needs them.
    from rdukit_bench.comparisons.machine import write_json

    from rdukit_modelbox.preprocessing.tokenizer import learn_tokenizer

    # So that it takes its side and its gigabytes with it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    samples: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES if options.only in {None, side}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, tokenizer = folder / "text.txt", options.tokenizer or folder / "tokenizer.json"
        write_text(data, options.megabytes * 1_000_000)
        size = data.stat().st_size / 1e6
        if options.tokenizer is None:
            with data.open() as stream:
                tokenizer.write_bytes(learn_tokenizer(stream.readlines(4_000_000), options.vocabulary).json)
        for _ in range(options.rounds):
            for side, taken in samples.items():
                taken.append(measure(side, data, tokenizer, folder, options.length))
    results = {side: summarise(taken, size) for side, taken in samples.items()}
    print(f"{'':18} {'MB/s':>7} {'seconds':>8} {'cpu s':>7} {'peak MB':>8} {'ours/peer':>9}")
    for side, figures in results.items():
        ratio = results["ours"]["mb_per_s"] / figures["mb_per_s"] if "ours" in results else float("nan")
        figures["ratio"] = ratio
        print(
            f"{side:18} {figures['mb_per_s']:7.2f} {figures['seconds']:8.1f} {figures['cpu_seconds']:7.1f} "
            f"{figures['peak_mb']:8.0f} {'' if side == 'ours' else format(ratio, '9.2f')}"
        )
    bars = {
        "ratio": results["encode_batch"]["ratio"] >= BAR if {"ours", "encode_batch"} <= set(results) else None,
        "memory": results["ours"]["peak_mb"] < MEMORY_BAR_MB if "ours" in results else None,
    }
    print(f"{size:.0f} MB of text, {os.cpu_count()} cores")
    print(f"ratio at least {BAR}: {bars['ratio']}; peak memory below {MEMORY_BAR_MB} MB: {bars['memory']}")
    if options.json:
        write_json(options.json, {"megabytes": size, "rounds": options.rounds, "sides": results, "bars": bars})


def summarise(taken: list[dict[str, float]], size: float) -> dict[str, float]:
    """Medians, and the highest peak."""
    seconds = statistics.median(sample["seconds"] for sample in taken)
    return {
        "mb_per_s": size / seconds,
        "seconds": seconds,
        "cpu_seconds": statistics.median(sample["cpu_seconds"] for sample in taken),
        "tokens": taken[0]["tokens"],
        "peak_mb": max(sample["peak_mb"] for sample in taken),
    }


if __name__ == "__main__":
    main()
