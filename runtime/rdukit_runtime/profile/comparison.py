"""Whether one of two PEFs is faster: paired rounds, an interval for the ratio, and a verdict that may be *undecided*.

In each round both run, one right after the other, in alternating order, so a slow spell of the machine affects both. A
round's ratio is B's best time over A's. The interval is that of the ratios' median, from the binomial distribution (the
sign test): it holds for any distribution of disturbances. If both are equally fast, at most ``1 - confidence`` of all
verdicts are wrong. The sections share that rate: each gets its part of it.

Source: ours; Conover, Practical Nonparametric Statistics, on intervals for quantiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb
from statistics import median
from typing import Any, Final

CONFIDENCE: Final = 0.98


class SpeedVerdict(StrEnum):
    """Outcome for B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    UNDECIDED = "no difference found"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of B over that of A: the median of the rounds' ratios, and its interval. Seconds are medians."""

    before_s: float
    after_s: float
    value: float
    low: float
    high: float

    @property
    def verdict(self) -> SpeedVerdict:
        """Returns faster or slower only if the complete interval agrees."""
        if self.high < 1.0:
            return SpeedVerdict.FASTER
        return SpeedVerdict.SLOWER if self.low > 1.0 else SpeedVerdict.UNDECIDED

    def is_slower_by(self, share: float) -> bool:
        """Return whether it is certain that B takes more than ``1 + share`` times A's time."""
        return self.low > 1.0 + share


@dataclass(frozen=True, slots=True)
class SectionRatio:
    """A section that both PEFs have, by its name in A."""

    name: str
    type: str
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class PefComparison:
    """Two PEFs: the whole step, and each section that both have."""

    rounds: int
    confidence: float
    step: Ratio
    sections: tuple[SectionRatio, ...]


def interval_places(count: int, confidence: float) -> int:
    """Return the number of values, out of ``count`` ordered ones, that lie below the interval of their median, and
    above it.

    0: the complete range is the interval; for a small ``count`` even that holds less often than wanted.
    """
    allowed, below, places = (1.0 - confidence) / 2.0, 0.0, 0
    for k in range(count // 2):
        below += comb(count, k) / 2.0**count
        if below > allowed:
            break
        places = k + 1
    return places


def least_rounds(confidence: float) -> int:
    """Return the rounds from which on an interval with this confidence exists."""
    count = 1
    while 2.0 * 0.5**count > 1.0 - confidence:
        count += 1
    return count


def make_ratio(before_s: Sequence[float], after_s: Sequence[float], confidence: float) -> Ratio:
    """Compare paired rounds. With fewer than ``least_rounds`` nothing is decided: the interval is unbounded."""
    ratios = sorted(b / a if a else 1.0 for a, b in zip(before_s, after_s, strict=True))
    middle, places = median(ratios), interval_places(len(ratios), confidence)
    low, high = (ratios[places - 1], ratios[-places]) if places else (0.0, float("inf"))
    return Ratio(median(before_s), median(after_s), middle, low, high)


#: Per round: seconds of the step, and of each section by its id.
Round = tuple[float, Mapping[int, float]]


def compare_rounds(
    before: Sequence[Round], after: Sequence[Round], pairs: Sequence[tuple[tuple[int, int], str, str]],
    confidence: float = CONFIDENCE,
) -> PefComparison:  # fmt: skip
    """Compare rounds that were taken in pairs.

    Args:
        pairs: sections that both have: ids in A and B, name, type.
    """
    each = 1.0 - (1.0 - confidence) / max(len(pairs), 1)
    step = make_ratio([seconds for seconds, _ in before], [seconds for seconds, _ in after], confidence)
    sections = tuple(
        SectionRatio(name, kind, make_ratio([r[1][a] for r in before], [r[1][b] for r in after], each))
        for (a, b), name, kind in pairs
        if all(a in r[1] for r in before) and all(b in r[1] for r in after)
    )
    return PefComparison(len(before), confidence, step, sections)


def comparison_to_dict(found: PefComparison) -> dict[str, Any]:
    """Return plain values, for JSON. All times are measured on this machine."""
    return {
        "rounds": found.rounds,
        "confidence": found.confidence,
        "step": _ratio_to_dict(found.step),
        "sections": [{"name": s.name, "type": s.type, **_ratio_to_dict(s.ratio)} for s in found.sections],
    }


def _ratio_to_dict(ratio: Ratio) -> dict[str, Any]:
    return {
        "before_s": ratio.before_s,
        "after_s": ratio.after_s,
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high if ratio.high != float("inf") else None,
        "verdict": ratio.verdict.value,
    }
