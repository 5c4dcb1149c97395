"""Bodies of requests and answers, for validation of requests and for OpenAPI."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from rdukit_modelbox.artifacts.reference import text_of
from rdukit_modelbox.operations.planning import MAX_TIMEOUT_S
from rdukit_modelbox.operations.values import REMOVED_FIELDS, VerbCall
from rdukit_modelbox.server.inference import InferCall

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
VerbName = Literal["preprocess", "compile", "train", "infer", "evaluate"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
#: Number in an answer; values that JSON lacks are texts (``rdukit.strict_json``).
Number = float | Literal["NaN", "Infinity", "-Infinity"]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ArtifactBody(_Asked):
    """An artifact with the digest that it must have."""

    uri: str = Field(max_length=4096, examples=["s3://models/mlp.pef"])
    sha256: str | None = Field(default=None, pattern="^[0-9a-fA-F]{64}$")


#: The forms that a body or an input may have, in brackets so that they clash with no field.
ROWS, TABLE, VERB, PATH, ARTIFACT = "[rows]", "[table]", "[verb]", "[path]", "[artifact]"


def _form_of_input(given: object) -> str:
    return ARTIFACT if isinstance(given, (dict, ArtifactBody)) else PATH


InputBody = Annotated[Annotated[str, Tag(PATH)] | Annotated[ArtifactBody, Tag(ARTIFACT)], Discriminator(_form_of_input)]


class VerbBody(_Asked):
    """A verb's request. Parameters are checked against the box."""

    parameters: dict[str, Any] = Field(default_factory=dict, description="Named parameters; see /v1/describe.")
    inputs: dict[str, InputBody] = Field(
        default_factory=dict,
        description="Artifact slot to path or URI (file, s3, http, https; may end with #sha256=).",
    )
    output: str = Field(default="", max_length=4096, description="Folder or s3:// prefix of the outputs.")
    timeout_s: Finite = Field(
        default=0.0,
        ge=0,
        le=MAX_TIMEOUT_S,
        description="Timeout in seconds, including the time in the queue; 0: no limit.",
    )
    profile: bool = Field(default=False, description="Record a profile of its time as the output profile.")

    @model_validator(mode="before")
    @classmethod
    def drop_unused(cls, given: object) -> object:
        """Drop removed fields with values that ask for nothing: clients of 0.1.0 send them in each request."""
        if not isinstance(given, dict):
            return given
        return {k: v for k, v in given.items() if k not in REMOVED_FIELDS or not (v is None or v is False or v == "")}

    def to_call(self) -> VerbCall:
        """Convert to the service's call."""
        inputs = {
            slot: given if isinstance(given, str) else text_of(given.model_dump(exclude_none=True), f"input {slot!r}")
            for slot, given in self.inputs.items()
        }
        return VerbCall(self.parameters, inputs, self.output, self.timeout_s, self.profile)


class RowsBody(_Asked):
    """Rows to answer at once."""

    rows: list[list[Finite]] = Field(min_length=1, description="Features as preprocess writes them.")
    inputs: dict[str, str] = Field(default_factory=dict, description="pef and checkpoint; empty: the newest model.")

    def to_call(self) -> InferCall:
        """Convert to the inferencer's call."""
        return InferCall(rows=self.rows, inputs=self.inputs)


class TableBody(_Asked):
    """Rows of a table to answer at once."""

    rows: list[dict[str, str | int | Finite | bool | None]] = Field(
        min_length=1, description="Values by column name, as in the training table; null for unknown values."
    )
    inputs: dict[str, str] = Field(default_factory=dict, description="pef and checkpoint; none: the newest model.")

    def to_call(self) -> InferCall:
        """Return the inferencer's form."""
        return InferCall(table=self.rows, inputs=self.inputs)


def _kind_of_infer(body: object) -> str:
    if isinstance(body, dict) and "rows" in body:
        rows = body["rows"]
        return TABLE if isinstance(rows, list) and rows and isinstance(rows[0], dict) else ROWS
    return TABLE if isinstance(body, TableBody) else ROWS if isinstance(body, RowsBody) else VERB


InferBody = Annotated[
    Annotated[RowsBody, Tag(ROWS)] | Annotated[TableBody, Tag(TABLE)] | Annotated[VerbBody, Tag(VERB)],
    Discriminator(_kind_of_infer),
]


class BoxErrorDetail(BaseModel):
    """An error: its code, message and detail."""

    code: str = Field(examples=["illegal-value"])
    message: str
    detail: dict[str, Any] = Field(description="Details for machines; `field` names the wrong field of the request.")
    request_id: str | None


class ErrorBody(BaseModel):
    """The one error body."""

    error: BoxErrorDetail


class Status(BaseModel):
    """Health of the box: live or ready, or why not."""

    status: str
    reason: str = ""


class Described(BaseModel):
    """A box: its verbs, parameters and legal values."""

    model_config = ConfigDict(extra="allow")

    name: str
    title: str
    description: str
    model: str
    compiler_version: str
    mode: str
    target: str
    verbs: list[dict[str, Any]]


class Failed(BaseModel):
    """Failure of an operation."""

    code: str = Field(examples=["child-died"])
    message: str
    detail: dict[str, Any]


class ProgressResponse(BaseModel):
    """Progress of a stage."""

    stage: str
    step: int
    total: int
    loss: Number | None = None
    throughput: Number | None = Field(default=None, description="Samples a second on this host.")
    eta_s: Number | None = Field(default=None, description="Seconds until the stage ends.")


class OperationResponse(BaseModel):
    """An operation; unknown fields are left out."""

    id: str = Field(examples=["op-0123456789abcdef"])
    verb: VerbName
    state: State
    created_at: float = Field(description="Seconds since the epoch.")
    started_at: float | None = None
    ended_at: float | None = None
    progress: ProgressResponse | None = None
    error: Failed | None = None
    result: dict[str, Any] | None = None
    outputs: dict[str, str] | None = None
    peak_memory_bytes: int | None = None


class OperationsResponse(BaseModel):
    """A page of the list, newest first."""

    operations: list[OperationResponse]
    next_cursor: str = Field(description="Cursor of the next page; empty at the end.")


class Predicted(BaseModel):
    """The likeliest class of a row by its name, and the probability of each class; or else a number."""

    label: str | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = Field(None, description="Unit of a numeric label.")


class RowsResponse(BaseModel):
    """Outputs and the class with the highest, row by row; for rows by column name ``predictions`` in their place."""

    outputs: list[list[Number]] | None = None
    labels: list[int] | None = None
    predictions: list[Predicted] | None = None
    timing_us: dict[str, int] = Field(description="Where the time went.")


#: Meaning of each status, for OpenAPI.
_MEANINGS: Final = {
    400: "a value is not valid",
    404: "there is none",
    408: "the body did not come in time",
    409: "it conflicts with earlier state",
    413: "the body is too long",
    422: "the request is malformed",
    431: "the headers are too long",
    500: "the box failed; its log has more",
    503: "not now; try again",
    504: "it did not end before its deadline",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of a route; 431 and 413 can come from every one."""
    return {s: {"model": ErrorBody, "description": _MEANINGS[s]} for s in sorted({*statuses, 400, 413, 422, 431})}
