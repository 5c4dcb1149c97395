"""Sweeps on the wire (``docs/design/wire.md`` section 3), and how rows become them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, JsonValue

from rdukit_platform.db.models import JobRow, SweepRow, TrialRow
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.sweeps.advance import objective_of
from rdukit_platform.sweeps.decide import count_trials, find_best
from rdukit_platform.sweeps.model import Trial
from rdukit_platform.sweeps.service import read_request


class TrialShown(BaseModel):
    """A trial of a sweep: a job with parameters of its own. ``value`` is its objective, ``why`` the reason of a
    failure.
    """

    number: int
    job: str
    state: str
    reason: str | None
    why: str | None
    parameters: dict[str, JsonValue]
    value: float | None
    progress: dict[str, JsonValue] | None
    started_at: float | None
    ended_at: float | None


class Sweep(BaseModel):
    """A sweep. ``counts`` are its trials by state; ``trials`` is present only if a single sweep is requested."""

    id: str
    name: str
    state: str
    reason: str | None
    algorithm: str
    objective: dict[str, JsonValue]
    early_stopping: dict[str, JsonValue] | None
    space: dict[str, JsonValue]
    job: dict[str, JsonValue]
    seed: int
    max_trials: int
    max_parallel: int
    counts: dict[str, int]
    best: TrialShown | None
    created_at: float
    ended_at: float | None
    trials: list[TrialShown] | None = None


class SweepPage(BaseModel):
    """Sweeps, newest first; ``next_cursor`` asks for the rest."""

    sweeps: list[Sweep]
    next_cursor: str | None


def show_sweep(row: SweepRow, rows: Iterable[tuple[TrialRow, JobRow]], *, with_trials: bool = False) -> Sweep:
    """Return a sweep as the API shows it."""
    asked = read_request(row)
    trials = [show_trial(trial, job, asked.objective.metric) for trial, job in rows]
    best = find_best(asked.objective.direction, [_as_value(trial) for trial in trials])
    request = asked.model_dump(mode="json")
    if asked.objective.split is None:
        del request["objective"]["split"]
    return Sweep.model_validate(
        {
            **{name: request[name] for name in ("algorithm", "objective", "early_stopping", "space", "job", "seed")},
            **{name: getattr(row, name) for name in ("id", "name", "state", "reason", "created_at", "ended_at")},
            "max_trials": count_trials(asked),
            "max_parallel": asked.max_parallel,
            "counts": dict(Counter(trial.state for trial in trials)),
            "best": None if best is None else trials[best.number],
            "trials": trials if with_trials else None,
        }
    )


def show_trial(row: TrialRow, job: JobRow, metric: str) -> TrialShown:
    """Return a trial; the value of a newly succeeded one is read from its job."""
    value = row.value
    if row.curve is None and job.state == JobState.SUCCEEDED:
        value = objective_of(job.result, job.progress, metric)
    message = (job.error or {}).get("message")
    return TrialShown.model_validate(
        {
            **{name: getattr(job, name) for name in ("state", "reason", "progress", "started_at", "ended_at")},
            "number": row.number,
            "job": job.id,
            "why": None if message is None else str(message),
            "parameters": row.parameters,
            "value": value,
        }
    )


def varied(trials: Sequence[TrialShown]) -> list[str]:
    """Return the names of the parameters that trials set, in their order (pure)."""
    return list(dict.fromkeys(name for trial in trials for name in trial.parameters))


def count_open(counts: dict[str, int]) -> int:
    """Return the number of open trials from counts by state (pure)."""
    return sum(count for state, count in counts.items() if JobState(state) not in FINAL)


def _as_value(shown: TrialShown) -> Trial:
    return Trial(shown.number, shown.parameters, JobState(shown.state), shown.value)
