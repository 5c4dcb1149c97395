"""Jobs and pipelines on the wire (``docs/design/wire.md`` section 3), and their conversion from rows."""

import re
from collections.abc import Iterable
from typing import Annotated, Final, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import AttemptRow, JobEventRow, JobRow, PipelineRow
from rdukit_platform.db.references import sources_of
from rdukit_platform.jobs.attempts import RETRIED, RETRY_CAUSES
from rdukit_platform.jobs.states import (
    FINAL,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MAX_MEMBERS,
    MAX_RUN_LIMIT_S,
    JobState,
    WaitCode,
    advise,
)

#: No control characters: a reader must see the complete name, and databases refuse some of them.
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
StepName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,57}$")]
Key = Annotated[str, Field(min_length=1, max_length=128)]

LABEL_KEY: Final = re.compile(r"^[a-z0-9][a-z0-9._/-]{0,62}$")
LabelKey = Annotated[str, Field(pattern=LABEL_KEY.pattern)]
#: No control characters: databases refuse some of them.
LabelValue = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=128)]
#: Reason for taking a resource out of use, shown to its users.
Reason = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
#: Key of a node's label, as in the setting ``node.labels``.
NodeLabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")]
NodeLabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{0,63}$")]
MAX_LABELS: Final = 16
MAX_TILES: Final = 1024
MAX_ATTEMPTS: Final = 20


class RequestBody(BaseModel):
    """Base of request bodies: unknown keys are errors, as are numbers given as text or booleans."""

    model_config = ConfigDict(extra="forbid", strict=True)


Seconds = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)]
MAX_CAUSES: Final = 32


class RetryPolicy(RequestBody):
    """Rules for retrying a job; missing fields take their defaults."""

    backoff_s: Seconds | None = Field(
        default=None, description="Seconds of pause after the first failure; doubles with each further one."
    )
    max_backoff_s: Seconds | None = Field(default=None, description="Longest pause in seconds; by default 60.")
    on: Annotated[list[str], Field(max_length=MAX_CAUSES)] | None = Field(
        default=None,
        description="Outcomes of attempts and error codes that are retried; by default all temporary ones.",
    )

    @field_validator("on")
    @classmethod
    def _check(cls, on: list[str] | None) -> list[str] | None:
        for cause in on or ():
            if cause not in RETRY_CAUSES:
                raise ValueError(
                    f"{cause[:80]!r} cannot be retried; expected {', '.join(sorted(RETRIED))}, and "
                    f"error codes, such as unavailable"
                )
        return on


class DeadlineChoice(RequestBody):
    """Base of requests that may have a deadline."""

    deadline_s: Annotated[float, Field(gt=0, le=MAX_RUN_LIMIT_S, allow_inf_nan=False)] | None = Field(
        default=None, description="Deadline in seconds after submission."
    )
    deadline: AwareDatetime | None = Field(
        default=None, strict=False, description="Deadline as a time with its zone, such as 2026-11-30T08:00+01:00."
    )

    @model_validator(mode="after")
    def _check_deadline(self) -> Self:
        if self.deadline is not None and self.deadline_s is not None:
            raise ValueError("deadline and deadline_s cannot be combined; give one of them")
        return self


class QueueChoices(DeadlineChoice):
    """Base of requests that are queued: their order in the queue, their needs and their labels."""

    priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] = Field(
        default=0, description="The highest priority is started first."
    )
    run_limit_s: Annotated[float, Field(ge=1, le=MAX_RUN_LIMIT_S, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds after which an attempt ends and the job fails."
    )
    retry: RetryPolicy | None = None
    preemptible: bool = Field(
        default=False,
        description="Jobs of much higher priority may take its tiles; it is then queued again, and a training resumes.",
    )
    members: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] = Field(
        default=1,
        description="Processes of a training that compute together, each with the job's tiles; all start, or none.",
    )
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)] = {}
    constraint: Annotated[dict[NodeLabelKey, NodeLabelValue], Field(max_length=MAX_LABELS)] = Field(
        default={}, description="Labels that its node must have, such as zone=a."
    )
    profile: bool = Field(
        default=False,
        description="Record where its time goes, as the output profile. For train, evaluate and infer.",
    )


class JobRequest(QueueChoices):
    """Body of ``POST /v1/jobs``."""

    box: Name
    verb: Name
    parameters: dict[str, JsonValue] = {}
    inputs: dict[str, str] = Field(default={}, description="Slot to artifact id.")
    name: Name | None = None
    tiles: Annotated[int, Field(ge=0, le=MAX_TILES)] | None = Field(
        default=None, description="RDU tiles to lease; by default as many as its PEF was compiled for."
    )
    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] | None = Field(
        default=None, description="Failed attempts after which the job fails."
    )
    idempotency_key: Key | None = Field(default=None, description="The same key gives the same job.")


class CloneRequest(DeadlineChoice):
    """Body of ``POST /v1/jobs/{id}/clone``: the changes. The original's deadline is not copied."""

    parameters: dict[str, JsonValue] = {}
    defaults: Annotated[list[str], Field(max_length=256)] = Field(
        default=[], description="Parameters to reset to the box's default."
    )
    inputs: dict[str, str] = Field(default={}, description="Slot to artifact id.")
    name: Name | None = None
    tiles: Annotated[int, Field(ge=0, le=MAX_TILES)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] | None = None
    priority: Annotated[int, Field(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] | None = None
    labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=MAX_LABELS)] | None = Field(
        default=None, description="Labels of the clone; they replace all labels of the original."
    )
    run_limit_s: Annotated[float, Field(ge=1, le=MAX_RUN_LIMIT_S, allow_inf_nan=False)] | None = None
    retry: RetryPolicy | None = None
    preemptible: bool | None = None
    constraint: Annotated[dict[NodeLabelKey, NodeLabelValue], Field(max_length=MAX_LABELS)] | None = None
    members: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] | None = None
    profile: bool | None = None
    idempotency_key: Key | None = Field(default=None, description="The same key gives the same job.")


#: Largest number of jobs in one request.
MAX_BATCH: Final = 1000


class JobBatchRequest(RequestBody):
    """Body of ``POST /v1/jobs/batch``."""

    jobs: Annotated[list[JobRequest], Field(min_length=1, max_length=MAX_BATCH)]
    idempotency_key: Annotated[str, Field(min_length=1, max_length=120)] | None = Field(
        default=None, description="The same key gives the same jobs, except for jobs with a key of their own."
    )


class JobBatch(BaseModel):
    """Jobs that were recorded together, in the order of the request."""

    ids: list[str]


class CheckedJob(BaseModel):
    """Job that a request would become; nothing was recorded. ``job``: the job that its idempotency key names."""

    box: str
    verb: str
    name: str
    tiles: int
    members: int
    max_attempts: int
    priority: int
    deadline_at: float | None
    job: str | None


#: Largest number of jobs that one pipeline may become.
MAX_JOBS: Final = 256
Values = Annotated[list[JsonValue], Field(min_length=1, max_length=MAX_JOBS)]


class StepRequest(QueueChoices):
    """Step of a pipeline."""

    name: StepName
    box: Name
    verb: Name
    parameters: dict[str, JsonValue] = {}
    inputs: dict[str, str] = Field(
        default={}, description="Slot to artifact id, @step.slot, @step[*].slot or @step[max: METRIC].slot."
    )
    for_each: Annotated[dict[Name, Values], Field(min_length=1, max_length=8)] | None = Field(
        default=None, description="A job for each combination: parameter, or inputs.SLOT, to a list of values."
    )
    cache: bool = Field(default=True, description="False: run it even if an earlier job has made the same outputs.")
    tiles: Annotated[int, Field(ge=0, le=1024)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=20)] | None = None


class PipelineRequest(RequestBody):
    """Body of ``POST /v1/pipelines``, and a pipeline file."""

    name: Name
    steps: Annotated[list[StepRequest], Field(min_length=1, max_length=64)]
    cache: bool = Field(
        default=True, description="False: run all steps even if earlier jobs have made the same outputs."
    )
    idempotency_key: Key | None = None


class PartRecord(BaseModel):
    """Members of an attempt on a further node, and their tiles together."""

    node: str
    members: int
    worker: str | None
    tiles: list[str] | None


class Attempt(BaseModel):
    """Attempt at a job. ``parts`` are its members on other nodes."""

    number: int
    node: str | None = None
    worker: str | None
    outcome: str | None
    error: dict[str, JsonValue] | None
    tiles: list[str] | None
    published_at: float
    claimed_at: float | None
    started_at: float | None
    ended_at: float | None
    box: dict[str, JsonValue] | None = None
    parts: list[PartRecord] = []


class Job(BaseModel):
    """A job. ``attempts`` is present only if a single job was requested.

    ``references`` are a step's inputs before they were made. ``cached_from`` is the job whose outputs were reused.
    ``advice`` says what to do about ``reason``. ``wait_code`` is one of ``WaitCode``. ``estimated_start`` is its latest
    start if all jobs before it keep their run limits; null: unknown.
    """

    id: str
    name: str
    box: str
    verb: str
    state: str
    reason: str | None
    advice: str | None = None
    error: dict[str, JsonValue] | None
    waits_for: str | None
    wait_code: str | None = None
    estimated_start: float | None = None
    parameters: dict[str, JsonValue]
    inputs: dict[str, str]
    outputs: dict[str, str]
    result: dict[str, JsonValue] | None
    progress: dict[str, JsonValue] | None
    tiles: int
    members: int = 1
    priority: int = 0
    preemptible: bool = False
    preemptions: int = 0
    run_limit_s: float | None = None
    deadline_at: float | None = None
    retry: dict[str, JsonValue] | None = None
    labels: dict[str, str] = {}
    constraint: dict[str, str] = {}
    profile: bool = False
    attempt: int
    max_attempts: int
    pipeline: str | None
    step: str | None
    references: dict[str, str] = {}
    cached_from: str | None = None
    submitted_by: str | None = Field(default=None, description="Id of the user, or of the tenant's token.")
    version: int
    created_at: float
    queued_at: float | None
    started_at: float | None
    ended_at: float | None
    attempts: list[Attempt] | None = None


class JobPage(BaseModel):
    """Jobs, newest first; ``next_cursor`` asks for the rest."""

    jobs: list[Job]
    next_cursor: str | None
    searched_to: float | None = Field(
        default=None,
        description="Submission time of the last job examined, if the search has not examined all jobs.",
    )


class Pipeline(BaseModel):
    """A pipeline; its state is derived from the states of its jobs."""

    id: str
    name: str
    state: str
    created_at: float
    jobs: list[Job]


class PipelinePage(BaseModel):
    """Pipelines, newest first."""

    pipelines: list[Pipeline]
    next_cursor: str | None


class EventRecord(BaseModel):
    """Event of a job. ``sequence`` grows; give it as ``after`` to get only later ones."""

    sequence: int
    kind: str
    at: float
    attempt: int
    data: dict[str, JsonValue]


class EventPage(BaseModel):
    """Events, oldest first."""

    events: list[EventRecord]


#: Fields of a job that its row has under the same name.
_OF_ROW: Final = tuple(name for name in Job.model_fields if hasattr(JobRow, name))


def show_job(row: JobRow, attempts: Iterable[AttemptRow] | None = None) -> Job:
    """Return a job, with its attempts if they are given."""
    attempts = None if attempts is None else list(attempts)
    outcome = attempts[-1].outcome if attempts else None
    code, waits_for, estimated_start = row.wait_code, row.waits_for, row.estimated_start
    if row.state == JobState.SUBMITTED:
        code, after = WaitCode.DEPENDENCY, ", ".join(sources_of(row.references))
        waits_for = f"earlier steps have not all ended: {after}"
    elif row.state == JobState.RETRYING:
        code, estimated_start = WaitCode.BEGIN_TIME, row.not_before
    elif row.state == JobState.PAUSED:
        code, waits_for = WaitCode.HELD, f"it is paused; resume it with: rdukit job resume {row.id}"
    return Job.model_validate(
        {
            **{name: getattr(row, name) for name in _OF_ROW},
            "advice": None if row.reason is None else advise(row.reason, row.id, outcome),
            "wait_code": code,
            "waits_for": waits_for,
            "estimated_start": estimated_start,
            "box": str(Selector(row.box, row.box_version)),
            "pipeline": row.pipeline_id,
            "attempts": None if attempts is None else [show_attempt(attempt) for attempt in attempts],
        }
    )


def show_attempt(row: AttemptRow) -> Attempt:
    """Return an attempt, without its token."""
    parts = [{name: getattr(part, name) for name in PartRecord.model_fields} for part in row.parts]
    return Attempt.model_validate({name: getattr(row, name) for name in Attempt.model_fields} | {"parts": parts})


def show_event(row: JobEventRow) -> EventRecord:
    """Return an event."""
    return EventRecord.model_validate(
        {"sequence": row.id, "kind": row.kind, "at": row.at, "attempt": row.attempt, "data": row.data}
    )


def show_pipeline(row: PipelineRow, jobs: Iterable[JobRow]) -> Pipeline:
    """Return a pipeline with its jobs in the order of its steps."""
    shown = [show_job(job) for job in jobs]
    state = pipeline_state([JobState(job.state) for job in shown])
    return Pipeline(id=row.id, name=row.name, state=state, created_at=row.created_at, jobs=shown)


def pipeline_state(states: Iterable[JobState]) -> JobState:
    """Derive the state of a group of jobs: failed or cancelled once all have ended and one has this state, else that of
    the slowest.
    """
    found = list(states)
    if all(state is JobState.SUCCEEDED for state in found):
        return JobState.SUCCEEDED
    if all(state in FINAL for state in found):
        return JobState.FAILED if JobState.FAILED in found else JobState.CANCELLED
    if any(state in {JobState.RUNNING, JobState.STARTING, JobState.RETRYING} for state in found):
        return JobState.RUNNING
    for state in (JobState.QUEUED, JobState.PAUSED):
        if state in found:
            return state
    return JobState.SUBMITTED
