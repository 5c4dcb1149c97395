"""Decisions of a sweep (pure): its next trials, its hopeless trials, and its end.

A decision depends only on the sweep and its trials in the database, so a restarted scheduler makes the same one.
"""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from rdukit.errors import IllegalValue
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.sweeps.model import (
    MAX_TRIALS,
    Algorithm,
    EarlyStopping,
    Goal,
    Range,
    Stop,
    SweepRequest,
    SweepState,
    Trial,
    Values,
)
from rdukit_platform.sweeps.suggest import suggest

DEFAULT_TRIALS: Final = 20


def next_trials(sweep: SweepRequest, results: Sequence[Trial]) -> list[dict[str, object]]:
    """Return the parameters of the trials to begin now; trials are numbered from 0.

    Raises:
        Unavailable: the algorithm's library is not installed.
    """
    is_open = sum(trial.state not in FINAL for trial in results)
    room = min(sweep.max_parallel - is_open, count_trials(sweep) - len(results))
    if find_end(sweep, results) is not None:
        return []
    begun = list(results)
    found = []
    for _ in range(room):
        number = len(begun)
        parameters = _choose(sweep, begun, number)
        found.append(parameters)
        begun.append(Trial(number, parameters, JobState.SUBMITTED))
    return found


def count_trials(sweep: SweepRequest) -> int:
    """Return the largest number of trials of a sweep."""
    if sweep.algorithm is not Algorithm.GRID:
        return sweep.max_trials or DEFAULT_TRIALS
    size = count_grid(sweep.space)
    return size if sweep.max_trials is None else min(sweep.max_trials, size)


def count_grid(space: Mapping[str, Values | Range]) -> int:
    """Return the number of a grid's points."""
    return math.prod(len(each.values) for each in space.values() if isinstance(each, Values))


def check_space(sweep: SweepRequest) -> None:
    """Refuse a space that the algorithm cannot search, or parameters that the job sets too.

    Raises:
        IllegalValue: the message says what would be valid.
    """
    if sweep.job.idempotency_key is not None:
        raise IllegalValue(
            "job.idempotency_key is not allowed, because a sweep has many jobs; use the sweep's idempotency_key"
        )
    for name, each in sweep.space.items():
        if sweep.algorithm is Algorithm.GRID and isinstance(each, Range):
            raise IllegalValue(f"parameter {name!r} of a grid is a range; expected values, or the algorithm random")
        if name in sweep.job.parameters:
            raise IllegalValue(f"parameter {name!r} is in space and in job.parameters; expected one of them")
        has_lists = isinstance(each, Values) and any(isinstance(value, list | dict) for value in each.values)
        if sweep.algorithm is Algorithm.OPTUNA and has_lists:
            raise IllegalValue(f"parameter {name!r} has a list among its values; legal for optuna: plain values")
    if sweep.algorithm is Algorithm.GRID and sweep.max_trials is None and count_grid(sweep.space) > MAX_TRIALS:
        raise IllegalValue(f"the grid has {count_grid(sweep.space)} points; expected {MAX_TRIALS}, or give max_trials")


def probes(space: Mapping[str, Values | Range]) -> list[tuple[str, dict[str, object]]]:
    """Return points that test the space: each value and end once, with the parameter's name."""
    first = {name: _ends(each)[0] for name, each in space.items()}
    return [(name, {**first, name: value}) for name, each in space.items() for value in _ends(each)]


def grid_point(space: Mapping[str, Values | Range], number: int) -> dict[str, object]:
    """Return one point of a grid; the last parameter varies fastest."""
    found: dict[str, object] = {}
    for name, each in reversed(list(space.items())):
        assert isinstance(each, Values)
        number, place = divmod(number, len(each.values))
        found[name] = each.values[place]
    return dict(reversed(found.items()))


def random_point(space: Mapping[str, Values | Range], seed: int, number: int) -> dict[str, object]:
    """Draw a point of a space: the same one for the same seed and number."""
    draw = random.Random(f"{seed}-{number}")
    return {name: _draw(each, draw) for name, each in space.items()}


def find_stops(rule: EarlyStopping, trials: Sequence[Trial]) -> list[Stop]:
    """Return the open trials to stop: their best value is worse than the median of the others' averages at their step.

    The others are succeeded trials, averaged up to that step.

    Source: Golovin et al., Google Vizier (KDD 2017), "Median Automated Stopping Rule".
    """
    done = [trial for trial in trials if trial.state is JobState.SUCCEEDED and trial.curve]
    stops = []
    for trial in trials:
        if trial.state is not JobState.RUNNING or not trial.curve:
            continue
        step = max(place for place, _ in trial.curve)
        others = [found for other in done if (found := _average(other.curve, step)) is not None]
        if step < rule.min_steps or len(others) < rule.min_trials:
            continue
        best, middle = best_of(rule.direction, [value for _, value in trial.curve]), median(others)
        if is_better(rule.direction, middle, best):
            worse = "above" if rule.direction is Goal.MINIMIZE else "below"
            why = f"{rule.metric} was {best:.6g} at best by step {step:g}, {worse} {middle:.6g}, the median of"
            stops.append(Stop(trial.number, f"{why} {len(others)} trials"))
    return stops


def find_end(sweep: SweepRequest, trials: Sequence[Trial]) -> tuple[SweepState, str] | None:
    """Return the final state of a sweep and the reason; ``None``: the sweep continues."""
    failed = sum(trial.state is JobState.FAILED for trial in trials)
    has_success = any(trial.state is JobState.SUCCEEDED for trial in trials)
    if failed >= sweep.max_failures and not has_success:
        return SweepState.FAILED, f"{failed} trials have failed and none has succeeded (max_failures)"
    if len(trials) < count_trials(sweep) or any(trial.state not in FINAL for trial in trials):
        return None
    if find_best(sweep.objective.direction, trials) is None:
        metric = sweep.objective.metric
        return SweepState.FAILED, f"no trial has succeeded and reported {metric!r}; see one with rdukit job show"
    return SweepState.SUCCEEDED, f"all {len(trials)} trials have ended"


def find_best(goal: Goal, trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the best value, the first of equals."""
    measured = [trial for trial in trials if trial.value is not None]
    sign = 1.0 if goal is Goal.MINIMIZE else -1.0
    return min(measured, key=lambda trial: sign * (trial.value or 0.0), default=None)


def best_of(goal: Goal, values: Sequence[float]) -> float:
    """Return the best of values."""
    return min(values) if goal is Goal.MINIMIZE else max(values)


def is_better(goal: Goal, one: float, other: float) -> bool:
    """Return whether ``one`` is strictly better."""
    return one < other if goal is Goal.MINIMIZE else one > other


def _choose(sweep: SweepRequest, begun: Sequence[Trial], number: int) -> dict[str, object]:
    if sweep.algorithm is Algorithm.GRID:
        return grid_point(sweep.space, number)
    if sweep.algorithm is Algorithm.RANDOM:
        return random_point(sweep.space, sweep.seed, number)
    return suggest(sweep, begun, number)


def _draw(each: Values | Range, draw: random.Random) -> object:
    if isinstance(each, Values):
        return draw.choice(each.values)
    # An integer's interval is wider by a half at both ends, so that all values are equally likely.
    margin = 0.5 if each.integer else 0.0
    low, high = each.low - margin, each.high + margin
    value = math.exp(draw.uniform(math.log(low), math.log(high))) if each.log else draw.uniform(low, high)
    if each.integer:
        return min(max(round(value), int(each.low)), int(each.high))
    return min(max(float(f"{value:.6g}"), each.low), each.high)


def _ends(each: Values | Range) -> list[object]:
    if isinstance(each, Values):
        return list(each.values)
    return [int(each.low), int(each.high)] if each.integer else [each.low, each.high]


def _average(curve: Sequence[tuple[float, float]], step: float) -> float | None:
    values = [value for place, value in curve if place <= step]
    return sum(values) / len(values) if values else None
