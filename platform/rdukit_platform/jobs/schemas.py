"""Jobs and pipelines on the wire (``docs/design/wire.md`` section 3)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Name = Annotated[str, Field(min_length=1, max_length=128)]
StepName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Key = Annotated[str, Field(min_length=1, max_length=128)]


class Request(BaseModel):
    """Base of request bodies: a key that is not listed is an error, and so is a number as text or a boolean."""

    model_config = ConfigDict(extra="forbid", strict=True)


class JobRequest(Request):
    """Body of ``POST /v1/jobs``."""

    box: Name
    verb: Name
    parameters: dict[str, JsonValue] = {}
    inputs: dict[str, str] = Field(default={}, description="Slot to artifact id.")
    name: Name | None = None
    tiles: Annotated[int, Field(ge=0, le=1024)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=20)] | None = None
    idempotency_key: Key | None = Field(default=None, description="The same key gives the same job.")


class StepRequest(Request):
    """One step of a pipeline."""

    name: StepName
    box: Name
    verb: Name
    parameters: dict[str, JsonValue] = {}
    inputs: dict[str, str] = Field(default={}, description="Slot to artifact id or @step.slot.")
    tiles: Annotated[int, Field(ge=0, le=1024)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=20)] | None = None


class PipelineRequest(Request):
    """Body of ``POST /v1/pipelines``, and a pipeline file."""

    name: Name
    steps: Annotated[list[StepRequest], Field(min_length=1, max_length=64)]
    idempotency_key: Key | None = None


class Attempt(BaseModel):
    """One try at a job."""

    number: int
    worker: str | None
    outcome: str | None
    error: dict[str, JsonValue] | None
    tiles: list[str] | None
    published_at: float
    claimed_at: float | None
    started_at: float | None
    ended_at: float | None
    box: dict[str, JsonValue] | None = None


class Job(BaseModel):
    """A job. ``attempts`` is given where one job is asked for."""

    id: str
    name: str
    box: str
    verb: str
    state: str
    reason: str | None
    error: dict[str, JsonValue] | None
    waits_for: str | None
    parameters: dict[str, JsonValue]
    inputs: dict[str, str]
    outputs: dict[str, str]
    result: dict[str, JsonValue] | None
    progress: dict[str, JsonValue] | None
    tiles: int
    attempt: int
    max_attempts: int
    pipeline: str | None
    step: str | None
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


class Pipeline(BaseModel):
    """A pipeline; its state is that of its jobs together."""

    id: str
    name: str
    state: str
    created_at: float
    jobs: list[Job]


class PipelinePage(BaseModel):
    """Pipelines, newest first."""

    pipelines: list[Pipeline]
    next_cursor: str | None


class Event(BaseModel):
    """What happened to a job. ``sequence`` grows; give it as ``after`` to get only later ones."""

    sequence: int
    kind: str
    at: float
    attempt: int
    data: dict[str, JsonValue]


class EventPage(BaseModel):
    """Events, oldest first."""

    events: list[Event]
