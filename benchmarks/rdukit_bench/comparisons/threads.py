"""Comparison: two threads against one, for ours; eager torch's figure next to it shows what the machine gives.

One process, the number of threads changed between samples. On a machine with one usable core there is no answer.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from rdukit_bench.comparisons.machine import usable_cores
from rdukit_bench.comparisons.model import BenchOptions, ComparisonRow, comparison
from rdukit_bench.comparisons.timing import SampleTiming, rounds_of, rows_against_peers, time_in_turn
from rdukit_bench.comparisons.training_cases import Step, get_case, make_case, our_step, peer_step

QUESTION: Final = "threads"
MANY: Final = 2
#: Case → least speed-up. ``mlp-wide`` spends its time in matrix products; the others are small.
BARS: Final = {"mlp-wide": 1.6, "mlp": 1.0, "lstm": 1.0, "lenet": 1.0}
_WORDS: Final = {1: "1 thread", MANY: f"{MANY} threads"}


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
    """Yield two rows a case: ours, and eager torch's for comparison."""
    for name, bar in BARS.items():
        if not options.wants(name):
            continue
        if usable_cores() < MANY:
            yield _unanswered(name, bar)
        else:
            yield from measure(name, bar, options)


def measure(name: str, bar: float, options: BenchOptions) -> Iterator[ComparisonRow]:
    """Time one case with each number of threads."""
    case = get_case(name)
    module, batch = make_case(case)
    steps = {
        "rdukit": our_step(case, copy.deepcopy(module), batch, Path(options.folder)),
        "eager + fused": peer_step(module, batch, fused=True),
    }
    variants = {(who, count): on_threads(step, count) for who, step in steps.items() for count in _WORDS}
    named = {f"{who} {count}": step for (who, count), step in variants.items()}
    timings = time_in_turn(named, rounds_of(options), sample_s=options.sample_s)
    for who in steps:
        pair: dict[str, SampleTiming] = {
            f"{who}, {words}": timings[f"{who} {count}"] for count, words in _WORDS.items()
        }
        yield from rows_against_peers(
            QUESTION, name, pair, ours=f"{who}, {_WORDS[MANY]}", unit="ms", bar=bar if who == "rdukit" else None
        )


def on_threads(step: Step, count: int) -> Step:
    """Return the step with ``count`` of torch's threads; set only when it differs."""

    def threaded() -> torch.Tensor:
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)
        return step()

    return threaded


def _unanswered(name: str, bar: float) -> ComparisonRow:
    return ComparisonRow(QUESTION, name, "rdukit", "rdukit, 1 thread", None, None, "ms", None, bar,
               note=f"needs {MANY} usable cores")  # fmt: skip
