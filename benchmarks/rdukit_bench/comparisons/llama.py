"""Comparison: a Llama of 110 million parameters reads a prompt and generates, against torch and llama.cpp.

Batch 1, a static cache of 512. Ours is a SambaFlow program with two graphs over one copy of weights and caches; the
peers are the module itself in torch and llama.cpp with the same weights. ``prefill``: 128 tokens; ``decode``: one token
at position 200. All give logits on the host. Compiled torch only reads the prompt. Every side has a process of its own.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import RuntimeFault
from rdukit_bench.comparisons.contestants import Contestants
from rdukit_bench.comparisons.llama_contestants import POSITION, READ_BYTES, sizes_of
from rdukit_bench.comparisons.llama_cpp_peer import find_missing_package
from rdukit_bench.comparisons.model import PEER_MISSING, BenchOptions, ComparisonRow, comparison
from rdukit_bench.comparisons.timing import SampleTiming, pair_row, rounds_of

EAGER: Final = "eager f32"
READ: Final = "memory read"
#: LlamaVariant of ours → compiled torch in the same precision, which reads the prompt; ours is to be as fast at least.
COMPILED: Final = {"f32": "torch.compile f32", "bf16": "torch.compile bf16"}
COMPILED_BAR: Final = 1.0


@dataclass(frozen=True, slots=True)
class LlamaVariant:
    """A program of ours, the format of llama.cpp that it is held against, and the bars.

    ``bytes_per_weight``: of ours and of the peer. ``tolerance``: largest difference of a logit from plain torch in f32,
    as a share of the largest logit: f32 sums in another order; bf16 has 8 bits; int8 rounds weights once more.
    """

    name: str
    config: Mapping[str, Any]
    peer: str
    bytes_per_weight: tuple[float, float]
    tolerance: float
    decode_bar: float
    prefill_bar: float | None = None
    prefill_eager_bar: float | None = None

    @property
    def llama_cpp(self) -> str:
        """The peer's side."""
        return f"llama.cpp {self.peer}"


VARIANTS: Final = (
    LlamaVariant("f32", {"precision": "f32"}, "f32", (4, 4), 1e-4, 0.9),
    LlamaVariant("bf16", {"precision": "bf16"}, "bf16", (2, 2), 5e-2, 0.8, 0.95, 2.8),
    # A block of 32 weights of q8_0 has a scale of two bytes.
    LlamaVariant("int8", {"precision": "bf16", "weight_dtype": "int8"}, "q8_0", (1, 1 + 2 / 32), 1e-1, 0.7),
)


@comparison("llama")
def compare(options: BenchOptions) -> Iterator[ComparisonRow]:
    """Yield the rows of prefill, then of decode."""
    with tempfile.TemporaryDirectory(dir=options.folder or None) as folder, Contestants(Path(folder)) as contestants:
        _start(contestants, folder, options)
        for call, case in (("prefill", f"prefill {sizes_of(None).prompt_length}"), ("decode", f"decode at {POSITION}")):
            if options.wants(case):
                yield from _compare_call(call, case, contestants, options)


def _start(contestants: Contestants, folder: str, options: BenchOptions) -> None:
    """Start torch, and each of our programs with its peer."""
    common: dict[str, Any] = {"layers": 2 if options.quick else None, "threads": options.threads}
    contestants.start(EAGER, f"{__package__}.llama_contestants:eager", **common)
    for precision, side in COMPILED.items():
        contestants.start(side, f"{__package__}.llama_contestants:compiled", precision=precision, **common)
    missing = find_missing_package()
    for variant in VARIANTS:
        contestants.start(
            variant.name,
            f"{__package__}.llama_contestants:ours",
            name=variant.name,
            config=dict(variant.config),
            folder=folder,
            **common,
        )
        if missing is None:
            contestants.start(
                variant.llama_cpp,
                f"{__package__}.llama_contestants:llama_cpp",
                weights=variant.peer,
                folder=folder,
                **common,
            )
        else:
            contestants.failed[variant.llama_cpp] = PEER_MISSING


def _compare_call(call: str, case: str, contestants: Contestants, options: BenchOptions) -> Iterator[ComparisonRow]:
    """Time prefill or decode and check the logits: rows of every variant against its format of llama.cpp and torch."""
    names = [
        EAGER,
        *(name for v in VARIANTS for name in (v.name, v.llama_cpp)),
        *([READ] if call == "decode" else COMPILED.values()),
    ]
    places = {name: (EAGER, "read") if name == READ else (name, call) for name in names}
    if call == "decode":
        # Everybody's cache holds the same text.
        for name in names:
            if contestants.has(name):
                with suppress(RuntimeFault):
                    contestants.time((name, "fill"), 1)
    timings = contestants.measure(places, rounds_of(options), sample_s=options.sample_s)
    gold = contestants.value((EAGER, call))
    bytes_per_s = READ_BYTES / timings[READ].best_s if READ in timings else None
    for variant in VARIANTS:
        words, mine = [], timings.get(variant.name)
        if mine is not None:
            found = contestants.value((variant.name, call))
            error = float((found - gold).abs().max() / gold.abs().max())
            words.append(f"logits within {error:.1e} of eager f32")
            if error > variant.tolerance:
                words.append(f"WRONG: {variant.tolerance:.0e} is allowed")
        if bytes_per_s is not None:
            words.append(_describe_reading(variant, timings, contestants.facts[EAGER]["weights"], bytes_per_s))
        words += [contestants.failed[name] for name in (variant.name, variant.llama_cpp) if name in contestants.failed]
        is_decode = call == "decode"
        bar = variant.decode_bar if is_decode else variant.prefill_bar
        yield _row(case, timings, variant.name, variant.llama_cpp, bar, "; ".join(words))
        yield _row(case, timings, variant.name, EAGER, None if is_decode else variant.prefill_eager_bar, "")
        if not is_decode and (side := COMPILED.get(variant.name)) is not None:
            yield _row(case, timings, variant.name, side, COMPILED_BAR, contestants.failed.get(side, ""))


def _describe_reading(
    variant: LlamaVariant, timings: Mapping[str, SampleTiming], weights: int, bytes_per_s: float
) -> str:
    """Describe the share of the memory bandwidth of one thread."""
    shares = [
        f"{label} {weights * size / timings[name].median_s / bytes_per_s:.0%}"
        for label, name, size in zip(
            ("ours", "peer"), (variant.name, variant.llama_cpp), variant.bytes_per_weight, strict=True
        )
        if name in timings
    ]
    return f"of {bytes_per_s / 1e9:.1f} GB/s: {', '.join(shares)}"


def _row(
    case: str, timings: Mapping[str, SampleTiming], ours: str, peer: str, bar: float | None, note: str
) -> ComparisonRow:
    """Return one row in milliseconds; missing figures are left out."""
    return pair_row("llama", case, timings, (ours, f"rdukit {ours}"), peer, bar, note, also=(READ,))


__all__ = ["VARIANTS", "LlamaVariant", "compare"]
