"""Comparison: the first result of a fresh process on a cached PEF, against torch.compile with a warm cache.

Counted from the end of ``import torch``; each sample is a new process. Ours runs with an empty PATH: it needs no C++
compiler. torch.compile needs its own on the PATH, warm or not. Python's bytecode is cached for both, as in an installed
package.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rdukit_bench.comparisons.contestants import run_sample, warm_environment
from rdukit_bench.comparisons.model import BenchOptions, BenchProgress, ComparisonRow, comparison
from rdukit_bench.comparisons.timing import SampleTiming, rounds_of, rows_against_peers
from rdukit_bench.comparisons.training_cases import compile_ours, get_case, make_case

QUESTION: Final = "first_call"
BAR: Final = 20.0
CASES: Final = ("mlp", "lenet")
_PEER: Final = "torch.compile, warm cache"


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow | BenchProgress]:
    """Yield two rows a model: the runtime's first forward, and a whole program's first step."""
    for name in CASES:
        if options.wants(name):
            yield from measure(name, options)


def measure(name: str, options: BenchOptions) -> Iterator[ComparisonRow | BenchProgress]:
    """Sample ours and the peer in turn, after one unmeasured run of each that fills the caches."""
    folder = Path(options.folder)
    case = get_case(name)
    rounds = 1 + rounds_of(options)
    yield BenchProgress(name, 0, rounds)
    module, batch = make_case(case)
    pef = compile_ours(case, module, batch, folder)
    environ = warm_environment(folder)
    bare = {**environ, "PATH": "/nonexistent"}
    samples: dict[str, list[float]] = {"runtime": [], "program": [], "peer forward": [], "peer step": []}
    native = 0.0
    for index in range(rounds):
        runtime = run_sample("first_call_sample", "runtime", pef, environ=bare)
        program = run_sample("first_call_sample", "program", name, pef, environ=bare)
        peer = run_sample("first_call_sample", "peer", name, environ=environ)
        native = runtime["native"]
        found = (runtime["ms"], program["ms"], peer["forward_ms"], peer["ms"])
        for values, value in zip(samples.values(), found, strict=True):
            values += [value / 1e3] if index else []
        yield BenchProgress(name, index + 1, rounds)
    for case_name, ours, theirs in (("forward", "runtime", "peer forward"), ("step", "program", "peer step")):
        timings = {f"rdukit {ours}": SampleTiming(tuple(samples[ours])), _PEER: SampleTiming(tuple(samples[theirs]))}
        yield from rows_against_peers(
            QUESTION, f"{name} {case_name}", timings, ours=f"rdukit {ours}", unit="ms", bar=BAR,
            note=f"from the end of import torch; {native:.0f} native kernels, no C++ compiler on the PATH",
        )  # fmt: skip
