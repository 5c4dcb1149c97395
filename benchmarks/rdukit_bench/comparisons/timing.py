"""SampleTiming in turn, and rows out of it: what every comparison of speed shares. No torch here."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdukit_bench.comparisons.model import BenchOptions, ComparisonRow

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True, slots=True)
class SampleTiming:
    """Samples of one variant, in seconds a call: by the wall's clock, and by the processor's if that was read too."""

    samples_s: tuple[float, ...]
    cpu_s: tuple[float, ...] = ()

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def best_s(self) -> float:
        return min(self.samples_s)

    @property
    def spread(self) -> float:
        """Slowest sample over fastest."""
        return max(self.samples_s) / min(self.samples_s)

    def body(self, unit: str) -> dict[str, float]:
        """Return median and best in ``unit``, the spread, and the median of the processor's time if it is known."""
        scale = _PER_SECOND[unit]
        cpu = {"cpu_median": statistics.median(self.cpu_s) * scale} if self.cpu_s else {}
        return {"median": self.median_s * scale, "best": self.best_s * scale, "spread": self.spread, **cpu}


def time_in_turn(
    variants: Mapping[str, Callable[[], Any]],
    rounds: int,
    *,
    sample_s: float = 0.05,
    repeats: int | None = None,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, SampleTiming]:
    """Call the variants in turn, ``rounds`` times each, so that a slow spell of the machine hits all of them.

    A sample is ``repeats`` calls; without it each variant repeats until a sample lasts about ``sample_s``.
    """
    counts = {}
    for name, call in variants.items():
        for _ in range(warmup):
            call()
        counts[name] = repeats or _choose_repeats(call, sample_s, clock)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            began = clock()
            for _ in range(counts[name]):
                call()
            samples[name].append((clock() - began) / counts[name])
    return {name: SampleTiming(tuple(values)) for name, values in samples.items()}


def rows_against_peers(
    question: str,
    case: str,
    timings: Mapping[str, SampleTiming],
    *,
    ours: str,
    unit: str,
    bar: float | None = None,
    bar_peers: Sequence[str] | None = None,
    note: str = "",
) -> list[ComparisonRow]:
    """Return one row a peer; the row of the fastest of ``bar_peers`` (by default of all peers) is first and has the
    bar.
    """
    scale, mine = _PER_SECOND[unit], timings[ours]
    peers = sorted((name for name in timings if name != ours), key=lambda name: timings[name].median_s)
    judged = next((name for name in peers if bar_peers is None or name in bar_peers), None)
    details = {name: timing.body(unit) for name, timing in timings.items()}
    return [
        ComparisonRow(
            question=question, case=case, ours=ours, peer=peer, unit=unit,
            ours_value=mine.median_s * scale, peer_value=timings[peer].median_s * scale,
            ratio=timings[peer].median_s / mine.median_s,
            bar=bar if peer == judged else None,
            samples=len(mine.samples_s), note=note, details=details if peer == judged else {},
        )
        for peer in sorted(peers, key=lambda name: name != judged)
    ]  # fmt: skip


def missing_row(
    question: str,
    case: str,
    ours: str,
    timing: SampleTiming | None,
    peer: str,
    unit: str,
    why: str,
    bar: float | None = None,
) -> ComparisonRow:
    """Return the row of a pair of which one has no figure; ``timing`` is ours, if there is one."""
    return ComparisonRow(
        question=question, case=case, ours=ours, peer=peer, unit=unit, bar=bar, note=why,
        ours_value=None if timing is None else timing.median_s * _PER_SECOND[unit], peer_value=None, ratio=None,
        samples=0 if timing is None else len(timing.samples_s),
        details={} if timing is None else {ours: timing.body(unit)},
    )  # fmt: skip


def pair_row(
    question: str, case: str, timings: Mapping[str, SampleTiming], ours: tuple[str, str], peer: str, bar: float | None,
    note: str, also: Sequence[str] = (),
) -> ComparisonRow:  # fmt: skip
    """Return one row in milliseconds of ours and one peer; missing figures are left out.

    Args:
        ours: the name of our timing, and how the row calls it.
        also: further timings for the details.
    """
    mine, other, scale = timings.get(ours[0]), timings.get(peer), _PER_SECOND["ms"]
    return ComparisonRow(
        question=question, case=case, ours=ours[1], peer=peer, unit="ms", bar=bar, note=note,
        ours_value=None if mine is None else mine.median_s * scale,
        peer_value=None if other is None else other.median_s * scale,
        ratio=None if other is None or mine is None else other.median_s / mine.median_s,
        samples=0 if mine is None else len(mine.samples_s),
        details={name: timings[name].body("ms") for name in (ours[0], peer, *also) if name in timings},
    )  # fmt: skip


def rounds_of(options: BenchOptions, at_least: int = 7) -> int:
    """Return the rounds to measure: as asked for, but ``at_least`` for a figure that counts, and 3 when ``quick``."""
    return 3 if options.quick else max(at_least, options.rounds)


def choose_repeats(call_s: float, sample_s: float) -> int:
    """Return how many calls of ``call_s`` seconds last about ``sample_s``, one at least."""
    return max(1, round(sample_s / max(call_s, 1e-7)))


def _choose_repeats(call: Callable[[], Any], sample_s: float, clock: Callable[[], float]) -> int:
    began = clock()
    call()
    return choose_repeats(clock() - began, sample_s)
