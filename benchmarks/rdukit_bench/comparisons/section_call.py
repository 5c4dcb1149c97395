"""Comparison: the cost of calling a section, in a list of 100 tiny native sections.

Each adds two tensors of 8 numbers, so that nearly all of a section's time is its call: reading its inputs' handles,
making the output, handing it on, freeing it. And does another thread of Python run meanwhile? Then it never stands
still for long while a list of 40,000 runs.
"""

import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import torch

from rdukit.errors import CompileError
from rdukit_bench.comparisons.model import BenchOptions, ComparisonRow, comparison
from rdukit_bench.comparisons.timing import SampleTiming, rounds_of, time_in_turn

QUESTION: Final = "section_call"
SECTIONS: Final = 100
LIMIT_US: Final = 2.0
_MANY: Final = 400 * SECTIONS
_CALL: Final = f"a call in a list of {SECTIONS}"


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
    """Yield a row of the time, and one of the other thread.

    Raises:
        CompileError: no native section can be built here.
    """
    kernel = build_tiny()
    if options.wants(_CALL):
        run = list_of(kernel, SECTIONS)
        timing = time_in_turn({"list": run}, rounds_of(options), sample_s=options.sample_s)["list"]
        yield call_row(SampleTiming(tuple(s / SECTIONS for s in timing.samples_s)))
    if options.wants("another thread"):
        samples = [longest_stop(kernel) for _ in range(rounds_of(options))]
        yield thread_row(*sorted(samples, key=lambda pair: pair[0] / pair[1])[len(samples) // 2], len(samples))


def build_tiny() -> Any:
    """Build a native kernel: the sum of two tensors [8]."""
    from rdukit_compiler.backend.kernel_graph import kernel_from_fx
    from rdukit_compiler.backend.native import build_natives
    from rdukit_compiler.torch_private import trace_aten
    from rdukit_runtime.engine.native import load_native

    kernel = kernel_from_fx(trace_aten(lambda a, b: [a + b], [torch.ones(8), torch.ones(8)]).graph)
    digest, errors = kernel.digest(), list[str]()
    libraries = build_natives({digest: kernel}, lambda _, error: errors.append(error or ""))
    if digest not in libraries:
        raise CompileError(f"a native section of one addition cannot be built: {' '.join(errors) or 'no C++ compiler'}")
    return load_native(digest, libraries[digest], 2, 1)


def list_of(kernel: Any, count: int) -> Any:
    """Return a call that runs ``count`` sections as one list; each one's output is freed by the step that made it."""
    from rdukit_runtime.engine.native import NativeSteps, fill_handles

    handles = (ctypes.c_void_p * 3)()
    fill_handles(handles, [0, 1], [torch.ones(8), torch.ones(8)])
    steps = NativeSteps([(kernel, (0, 1), (2,), (), (2,))] * count)
    return lambda: steps.run(handles)


def longest_stop(kernel: Any) -> tuple[float, float]:
    """Measure how long another thread stood still at most while a long list ran, and how long the list took."""
    run, ended, longest = list_of(kernel, _MANY), threading.Event(), [0.0]
    run()

    def watch() -> None:
        last = time.perf_counter()
        while not ended.is_set():
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now
            time.sleep(0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    run()
    took = time.perf_counter() - began
    ended.set()
    watcher.join()
    return longest[0], took


def call_row(timing: SampleTiming) -> ComparisonRow:
    """Return the row of the time against its limit."""
    ours = timing.median_s * 1e6
    return ComparisonRow(
        QUESTION, _CALL, "rdukit", "limit", ours, LIMIT_US, "us", LIMIT_US / ours, 1.0, len(timing.samples_s),
        "a section that adds 8 numbers, its work included", {"rdukit": timing.body("us")},
    )  # fmt: skip


def thread_row(stop_s: float, took_s: float, samples: int) -> ComparisonRow:
    """Return the row of the longest stop against the list's time; a thread held for the whole list would give 1."""
    return ComparisonRow(
        QUESTION, "another thread", "longest stop", f"a list of {_MANY}", stop_s * 1e3, took_s * 1e3, "ms",
        took_s / stop_s, 2.0, samples, "the lock is released while a list runs" if took_s / stop_s >= 2 else "",
    )  # fmt: skip
