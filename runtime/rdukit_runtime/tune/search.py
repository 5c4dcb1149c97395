"""The next point to measure: the cost model's prediction, corrected by the measurements so far. Pure.

The logarithm of measured over predicted speed is taken as a sum of effects, one for each value of each option, with a
normal prior (a Gaussian process). Effects of different words are independent. Those of numbers, such as batch sizes,
are alike where the numbers are near each other, by their ratio. A point's score is its corrected prediction plus 1.5
standard deviations. The effect of an unmeasured value is uncertain, so it is tried before it is excluded. The search
ends when no other point's score is above the best measured speed.

Source: ours; the rule is that of Gaussian process bandits (Srinivas et al. 2010, upper confidence bounds). The
constants were chosen on the grids of ``benchmarks/programs/bench_tune.py`` and on drawn machines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

import numpy as np

from rdukit_runtime.tune.space import Point, Value, point_key

#: Standard deviations in logarithms: of an effect, of the common factor, of a point's unexplained rest, and of a
#: measurement.
_EFFECT: Final = 0.4
_COMMON: Final = 3.0
_REST: Final = 0.08
_NOISE: Final = 0.05
#: Standard deviations that a score lies above the corrected prediction.
_OPTIMISM: Final = 1.5
#: Ratio of two numbers, as a logarithm, at which the correlation of their effects has fallen to 1/e.
_ALIKE: Final = 1.5
#: Measurements before the search may end.
LEAST: Final = 3


@dataclass(frozen=True, slots=True)
class TuneCandidate:
    """A point that compiles. ``predicted``: samples/s by the cost model; ``digest``: of what runs.

    Points of one digest run the same sections on the same shapes: a measurement is that of all.
    """

    point: Point
    digest: str
    predicted: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A corrected prediction in samples/s; ``score``: optimistic prediction for the search."""

    expected: float
    score: float


def estimate(candidates: Sequence[TuneCandidate], measured: Mapping[str, float]) -> list[Estimate]:
    """Return an estimate for each candidate.

    Args:
        measured: digest → samples/s.
    """
    alike = _covariance([candidate.point for candidate in candidates])
    seen = [number for number, each in enumerate(candidates) if each.digest in measured]
    residuals = np.array([math.log(measured[candidates[n].digest] / candidates[n].predicted) for n in seen])
    common = alike + _COMMON**2
    known = common[np.ix_(seen, seen)] + (_REST**2 + _NOISE**2) * np.eye(len(seen))
    weights = np.linalg.solve(known, common[seen]).T
    shifts = weights @ residuals
    # Before a measurement the common factor is uncertain for all alike: it says nothing about which point is better.
    left = np.diag(common if seen else alike) - (weights * common[seen].T).sum(axis=1)
    spread = np.sqrt(np.maximum(left, 0.0) + _REST**2)
    expected = [each.predicted * math.exp(float(shift)) for each, shift in zip(candidates, shifts, strict=True)]
    return [
        Estimate(value, value * math.exp(_OPTIMISM * float(deviation)))
        for value, deviation in zip(expected, spread, strict=True)
    ]


def choose_next(candidates: Sequence[TuneCandidate], measured: Mapping[str, float]) -> TuneCandidate | None:
    """Return the candidate to measure next; None: all are measured, or the others promise less speed."""
    estimates = estimate(candidates, measured)
    rest = [(e.score, c) for e, c in zip(estimates, candidates, strict=True) if c.digest not in measured]
    if not rest:
        return None
    score, chosen = max(rest, key=lambda pair: (pair[0], point_key(pair[1].point)))
    is_hopeless = len(measured) >= LEAST and score <= max(measured.values())
    return None if is_hopeless else chosen


def _covariance(points: Sequence[Point]) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return the prior covariance of the points' effects, without the common factor."""
    found = np.zeros((len(points), len(points)))
    for name in sorted({name for point in points for name in point}):
        values = [point.get(name) for point in points]
        words = np.array([point_key({"": value}) for value in values])
        logarithms = np.array([math.log(value) if _is_size(value) else math.nan for value in values])
        near = np.exp(-np.abs(logarithms[:, None] - logarithms[None, :]) / _ALIKE)
        found += np.where(np.isnan(near), words[:, None] == words[None, :], near)
    covariance: np.ndarray[tuple[int, int], np.dtype[np.float64]] = _EFFECT**2 * found
    return covariance


def _is_size(value: Value) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
