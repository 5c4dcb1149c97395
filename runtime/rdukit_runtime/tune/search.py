"""The next point to measure: the cost model's prediction, corrected by the measurements so far. Pure.

The logarithm of measured over predicted speed is taken as a sum of effects, one for each value of each option, with a
normal prior (Bayesian linear regression). A point's score is its corrected prediction plus two standard deviations. The
effect of an unmeasured value is uncertain, so it is tried before it is excluded. The search ends when no other point's
score is above the best measured speed.

Source: ours; the rule is that of linear bandits (upper confidence bounds).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rdukit_runtime.tune.space import Point, point_key

#: Standard deviations: of an effect, of the common factor, and of the unexplained rest, in logarithms.
_EFFECT: Final = 0.4
_COMMON: Final = 3.0
_REST: Final = 0.08
#: Standard deviations that a score lies above the corrected prediction.
_OPTIMISM: Final = 2.0
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
    rows = _features([candidate.point for candidate in candidates])
    seen = [number for number, each in enumerate(candidates) if each.digest in measured]
    known = rows[seen]
    residuals = np.array([math.log(measured[candidates[n].digest] / candidates[n].predicted) for n in seen])
    prior = np.full(rows.shape[1], 1 / _EFFECT**2)
    prior[0] = 1 / _COMMON**2
    precision = known.T @ known / _REST**2 + np.diag(prior)
    covariance = np.linalg.inv(precision)
    mean = covariance @ known.T @ residuals / _REST**2 if seen else np.zeros(rows.shape[1])
    # The common factor is uncertain for all alike, so it says nothing about which point is better.
    differing = rows - known.mean(axis=0) if seen else rows * (np.arange(rows.shape[1]) > 0)
    spread = np.sqrt(np.einsum("nf,fg,ng->n", differing, covariance, differing))
    expected = [each.predicted * math.exp(float(shift)) for each, shift in zip(candidates, rows @ mean, strict=True)]
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


def _features(points: Sequence[Point]) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """Return a row a point: 1, and for each value of each option whether the point has it."""
    values = sorted({(name, point_key({"": value})) for point in points for name, value in point.items()})
    place = {value: number for number, value in enumerate(values, 1)}
    rows = np.zeros((len(points), len(values) + 1))
    rows[:, 0] = 1.0
    for number, point in enumerate(points):
        for name, value in point.items():
            rows[number, place[name, point_key({"": value})]] = 1.0
    return rows
