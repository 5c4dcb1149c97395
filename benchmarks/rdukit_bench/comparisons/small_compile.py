"""Comparison: the time of the first compile of a small training model, against torch.compile.

Every sample is a fresh process. ``first``: nothing was compiled before, ours has an empty home folder, torch an empty
folder of Inductor. ``next``: another model was compiled in these folders, so that headers, probes of the processor and
own products are there. Ours is with the kernel check; ``unchecked`` is without.

torch.compile leaves ``nn.LSTM`` to eager torch: for the LSTM forecaster it compiles the last layer only. The row says
so and has no bar. Torch's settings that compile the LSTM, too, take minutes.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rdukit_bench.comparisons.model import BenchOptions, BenchProgress, ComparisonRow, comparison
from rdukit_bench.comparisons.o1_compile import CompileSamples, describe_cpu
from rdukit_bench.comparisons.timing import SampleTiming, missing_row, rows_against_peers

QUESTION: Final = "small_compile"
CASES: Final = ("mlp", "lstm", "lenet", "transformer")
#: Compiled before the samples of ``next``.
BEFORE: Final = "conv1d"
#: torch.compile's seconds over ours, at least.
BAR: Final = 1 / 0.8
#: Seconds without the kernel check over those with it, at least.
CHECK_BAR: Final = 0.9
_OURS, _UNCHECKED, _PEER = "rdukit o3", "rdukit o3, unchecked", "torch.compile"
_EAGER_LSTM: Final = "torch.compile runs the LSTM eagerly"


@comparison(QUESTION)
def compare(options: BenchOptions) -> Iterator[ComparisonRow | BenchProgress]:
    """Yield the rows of each case, first and next."""
    for name in CASES[:1] if options.quick else CASES:
        for when in ("first", "next"):
            if options.wants(f"{name} {when}"):
                yield from measure(name, when, options)


def measure(name: str, when: str, options: BenchOptions) -> Iterator[ComparisonRow | BenchProgress]:
    """Compile in turn: ours, the peer and, first, ours without the check.

    Raises:
        RuntimeFault: our side failed.
    """
    contestants = [_OURS, _PEER, *([_UNCHECKED] if when == "first" else [])]
    samples = {who: CompileSamples() for who in contestants}
    count = 1 if options.quick else max(3, options.rounds // 3)
    yield BenchProgress(f"{name} {when}", 0, count * len(contestants))
    for number in range(count):
        for place, who in enumerate(contestants, number * len(contestants) + 1):
            if not samples[who].error:
                folder = Path(options.folder) / f"{QUESTION}-{place}"
                _take(samples[who], who, name, when, folder)
                shutil.rmtree(folder, ignore_errors=True)
            yield BenchProgress(f"{name} {when}", place, count * len(contestants))
    yield from make_rows(f"{name} {when}", samples, is_compiled=name != "lstm")


def _take(samples: CompileSamples, who: str, name: str, when: str, folder: Path) -> None:
    side, check = "peer" if who == _PEER else "ours", "off" if who == _UNCHECKED else "on"
    for taken, case in [*([(CompileSamples(), BEFORE)] if when == "next" else []), (samples, name)]:
        taken.take(
            folder.parent, folder, side == "ours", "small_compile_sample", side, case, RDUKIT_KERNEL_CHECK=check
        )  # fmt: skip


def make_rows(case: str, samples: dict[str, CompileSamples], is_compiled: bool) -> Iterator[ComparisonRow]:
    """Yield the rows of one case's samples.

    Args:
        is_compiled: whether the peer compiles the model as a whole.
    """
    ours, peer = samples[_OURS].timing(), samples[_PEER]
    bar = BAR if is_compiled and case.endswith("first") else None
    if peer.error:
        yield missing_row(QUESTION, case, _OURS, ours, _PEER, "s", peer.error, bar)
    else:
        note = describe_cpu(ours, peer.timing())
        note = note if is_compiled else f"{_EAGER_LSTM}; {note}"
        yield from _pair(case, ours, (_PEER, peer.timing()), bar, note)
    if _UNCHECKED in samples:
        unchecked = samples[_UNCHECKED].timing()
        yield from _pair(case, ours, (_UNCHECKED, unchecked), CHECK_BAR, describe_cpu(ours, unchecked))


def _pair(
    case: str, ours: SampleTiming, peer: tuple[str, SampleTiming], bar: float | None, note: str
) -> Sequence[ComparisonRow]:  # fmt: skip
    return rows_against_peers(QUESTION, case, dict([(_OURS, ours), peer]), ours=_OURS, unit="s", bar=bar, note=note)
