"""Sweeps as values (pure): space, objective and trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, JsonValue, model_validator

from rdukit_platform.jobs.schemas import JobRequest, Key, Name, RequestBody
from rdukit_platform.jobs.states import JobState

#: Largest numbers of trials of a sweep, and of concurrent ones.
MAX_TRIALS: Final = 1000
MAX_PARALLEL: Final = 64

MetricName = Annotated[str, Field(min_length=1, max_length=128)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class SweepState(StrEnum):
    """States of a sweep; all but ``RUNNING`` are final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Algorithm(StrEnum):
    """Ways to choose the next trial's parameters."""

    GRID = "grid"
    RANDOM = "random"
    OPTUNA = "optuna"


class Goal(StrEnum):
    """Directions in which a metric gets better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class SweepSplit(StrEnum):
    """Splits that trials are compared on; a training reports ``TEST`` once, at its end."""

    DEV = "dev"
    TEST = "test"


class Values(RequestBody):
    """List of values, of which a trial gets one."""

    values: Annotated[list[JsonValue], Field(min_length=1, max_length=64)]


class Range(RequestBody):
    """A number in a closed interval; with ``log`` uniform in its logarithm."""

    low: Finite
    high: Finite
    log: bool = False
    integer: bool = False

    @model_validator(mode="after")
    def _check(self) -> "Range":
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; expected low below high")
        if self.log and self.low <= 0:
            raise ValueError(f"low is {self.low:g}; expected above 0 with log")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; expected whole numbers with integer")
        return self


GOAL: Final = "Default: the direction that the box declares as better for the metric, else minimize."

SPLIT: Final = (
    "Default: dev, if the box reports the metric on it (accuracy becomes validation_accuracy). test compares by the "
    "figure that trainings also report."
)


class Objective(RequestBody):
    """Figure by which a trial is judged: from its result, or else the last value in its progress."""

    metric: MetricName
    goal: Goal | None = Field(default=None, strict=False, description=GOAL)
    split: SweepSplit | None = Field(default=None, strict=False, description=SPLIT)

    @property
    def direction(self) -> Goal:
        """Return the goal; a checked sweep always has one."""
        return self.goal or Goal.MINIMIZE


class EarlyStopping(RequestBody):
    """The median rule: a trial is ended if it is worse than half of the others at its step."""

    metric: MetricName = Field(default="loss", description="Metric of progress events.")
    goal: Goal | None = Field(default=None, strict=False, description=GOAL)
    min_trials: Annotated[
        int, Field(ge=1, le=MAX_TRIALS, description="Number of trials that have to succeed before any is stopped.")
    ] = 3
    min_steps: Annotated[int, Field(ge=0, description="Step before which no trial is stopped.")] = 0

    @property
    def direction(self) -> Goal:
        """Return the goal; a checked sweep always has one."""
        return self.goal or Goal.MINIMIZE


class SweepRequest(RequestBody):
    """Body of ``POST /v1/sweeps``, and a sweep file. ``job`` has the common part of all trials."""

    name: Name | None = None
    job: JobRequest
    space: Annotated[dict[str, Values | Range], Field(min_length=1, max_length=16)]
    algorithm: Algorithm = Field(default=Algorithm.GRID, strict=False)
    objective: Objective
    seed: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    max_trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] | None = Field(
        default=None, description="Default: the whole grid, else 20."
    )
    max_parallel: Annotated[int, Field(ge=1, le=MAX_PARALLEL)] = 2
    max_failures: Annotated[int, Field(ge=1, le=MAX_TRIALS)] = Field(
        default=3, description="Number of failed trials that end a sweep without any success."
    )
    early_stopping: EarlyStopping | None = None
    idempotency_key: Key | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial, with its results so far."""

    number: int
    parameters: Mapping[str, object]
    state: JobState
    #: Value of the objective, once the trial has succeeded with one.
    value: float | None = None
    #: Points (step, value) of the metric for early stopping.
    curve: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """A trial to end, with the reason."""

    number: int
    why: str
