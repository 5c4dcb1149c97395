"""Endpoints on the wire, and their conversion from rows."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, Field

from rdukit_platform.catalog.experts import selector_of
from rdukit_platform.catalog.model import Selector
from rdukit_platform.db.models import EndpointReplicaRow, EndpointRevisionRow, EndpointRow, ExpertRow
from rdukit_platform.endpoints.plan import EndpointSnapshot, EndpointState, state_of
from rdukit_platform.endpoints.states import ReplicaState
from rdukit_platform.endpoints.usage import Use, sum_uses
from rdukit_platform.jobs.schemas import RequestBody

#: Largest number of replicas of an endpoint.
MAX_REPLICAS: Final = 64
Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
#: Bounds of an endpoint's idle time in seconds, after which its replicas end; 0: it keeps them.
IDLE_S: Final = (5.0, 30 * 86400.0)
Idle = Annotated[
    float,
    Field(
        ge=0, le=IDLE_S[1],
        description="Idle time in seconds after which its replicas end until the next call; 0: never.",
    ),
]  # fmt: skip
Percent = Annotated[
    int, Field(ge=1, le=99, description="Percentage of calls for the new revision or the present canary.")
]
Artifact = Annotated[str, Field(min_length=1, max_length=32, description="Id of an artifact.")]
Selected = Annotated[str, Field(min_length=1, max_length=128, description="NAME, or NAME:VERSION.")]


class RevisionRequest(RequestBody):
    """Request for a revision: an expert to serve, a bundle of them, or a box with artifacts."""

    expert: Selected | None = None
    bundle: Annotated[str, Field(min_length=1, max_length=32)] | None = Field(
        default=None, description="Id of an artifact of the kind bundle, whose files are artifacts."
    )
    box: Selected | None = None
    pef: Artifact | None = None
    checkpoint: Artifact | None = None
    tiles: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Default: the tiles that the PEF needs."
    )

    def names_nothing(self) -> bool:
        """Return whether it names nothing to serve."""
        return (self.expert, self.bundle, self.box, self.pef, self.checkpoint, self.tiles) == (None,) * 6


class EndpointRequest(RevisionRequest):
    """Body of ``POST /v1/endpoints``."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
    replicas: Replicas = 1
    idle_s: Idle = 0.0


class UpdateRequest(RevisionRequest):
    """Body of ``POST /v1/endpoints/{name}/update``: the changes of revision, replicas, canary and idle time."""

    replicas: Replicas | None = None
    idle_s: Idle | None = None
    canary: Percent | None = None


class RollbackRequest(RequestBody):
    """Body of ``POST /v1/endpoints/{name}/rollback``."""

    revision: Annotated[int, Field(ge=1, le=1 << 30)] | None = Field(
        default=None, description="Default: the revision before the wanted one."
    )


class Usage(BaseModel):
    """Calls of an endpoint; answers report the rows and tokens."""

    requests: int
    failures: int
    rows: int
    prompt_tokens: int
    completion_tokens: int


class CanaryView(BaseModel):
    """Revision that gets ``percent`` of the calls, with replicas of its own."""

    revision: int
    percent: int
    replicas: int


class ServedModel(BaseModel):
    """Model of a bundle: requests name it, or one of its aliases. ``kind``: ``expert``, ``adapter`` or ``router``."""

    name: str
    kind: str
    aliases: list[str]
    #: Expert that an adapter belongs to.
    adapter_of: str | None
    #: Use of the model in all revisions; only if a single endpoint is requested. A router's calls count for its
    #: experts.
    usage: Usage | None = None


class Revision(BaseModel):
    """Revision of an endpoint."""

    number: int
    #: Box, as a job names it.
    box: str
    pef: str
    checkpoint: str | None
    #: ``NAME:VERSION``
    expert: str | None
    #: Artifact of the bundle; ``pef`` is then its first PEF.
    bundle: str | None
    tiles: int
    usage: Usage
    created_at: float


class ReplicaView(BaseModel):
    """Replica of an endpoint."""

    id: str
    revision: int
    state: ReplicaState
    reason: str | None
    #: Wait reason, or reason of its end.
    message: str | None
    #: Node that it runs on; null until a worker claims it.
    node: str | None
    tiles: list[str] | None
    created_at: float
    ready_at: float | None
    ended_at: float | None


class Endpoint(BaseModel):
    """An endpoint: its wanted state, its present state, and its address."""

    name: str
    state: EndpointState
    #: The wanted revision.
    revision: int
    box: str
    expert: str | None
    #: Reason why its expert is deprecated.
    deprecated: str | None
    bundle: str | None
    #: Numbers of wanted replicas, and of ready replicas of any revision.
    replicas: int
    ready: int
    #: Second revision, which gets a fraction of the calls.
    canary: CanaryView | None
    #: Seconds without a call after which its replicas end; null: it keeps them.
    idle_s: float | None
    #: Prefix of its routes, below the gateway's address.
    path: str
    #: Name of the model in requests; for a bundle, of its first expert. Paths and bodies may use the endpoint's name.
    model: str
    #: All models of a bundle that requests may name.
    models: list[ServedModel] | None
    usage: Usage
    created_at: float
    updated_at: float
    #: Present only if a single endpoint is requested.
    revisions: list[Revision] | None = None
    instances: list[ReplicaView] | None = None


class EndpointPage(BaseModel):
    """Endpoints, newest first; ``next_cursor`` asks for the rest."""

    endpoints: list[Endpoint]
    next_cursor: str | None


def show_endpoint(
    row: EndpointRow,
    snapshot: EndpointSnapshot,
    revisions: Sequence[EndpointRevisionRow],
    experts: Mapping[str, ExpertRow],
    uses: Mapping[int, Mapping[str, Use]],
    replicas: Sequence[EndpointReplicaRow] | None = None,
) -> Endpoint:
    """Return the API's view of an endpoint.

    Args:
        experts: experts that the revisions serve, by id.
        uses: use of each revision, by model.
        replicas: ``None`` omits details that lists do not contain.
    """
    shown = [_revision(each, experts, sum_uses(uses.get(each.number, {}).values())) for each in revisions]
    canary = snapshot.canary
    wanted = next(each for each in shown if each.number == row.revision)
    served = next(each for each in revisions if each.number == row.revision)
    return Endpoint(
        name=row.name,
        state=state_of(snapshot),
        revision=row.revision,
        box=wanted.box,
        expert=wanted.expert,
        deprecated=_deprecation(experts.get(served.expert_id or "")),
        bundle=wanted.bundle,
        replicas=row.replicas,
        ready=sum(1 for each in snapshot.replicas if each.state is ReplicaState.READY),
        canary=None
        if canary is None
        else CanaryView(revision=canary.revision, percent=row.canary_percent or 0, replicas=canary.wanted),
        idle_s=row.idle_s,
        path=f"/v1/endpoints/{row.name}",
        model=model_of(served),
        models=_models(served, None if replicas is None else uses),
        usage=_usage(sum_uses(use for by_model in uses.values() for use in by_model.values())),
        created_at=row.created_at,
        updated_at=row.updated_at,
        revisions=None if replicas is None else shown,
        instances=None if replicas is None else [_replica(each) for each in replicas],
    )


def model_of(revision: EndpointRevisionRow) -> str:
    """Return a revision's model name in requests: its box, or the first expert of its bundle."""
    return str(revision.models[0]["name"]) if revision.models else revision.box


def _models(row: EndpointRevisionRow, uses: Mapping[int, Mapping[str, Use]] | None) -> list[ServedModel] | None:
    if row.models is None:
        return None
    models = [ServedModel.model_validate(each) for each in row.models]
    for each in models if uses is not None else ():
        each.usage = _usage(sum_uses(by_model.get(each.name, Use()) for by_model in (uses or {}).values()))
    return models


def _usage(use: Use) -> Usage:
    return Usage(**{name: getattr(use, name) for name in Use.__slots__})


def _deprecation(expert: ExpertRow | None) -> str | None:
    return None if expert is None or expert.deprecated_at is None else expert.deprecated_reason or ""


def _revision(row: EndpointRevisionRow, experts: Mapping[str, ExpertRow], use: Use) -> Revision:
    expert = experts.get(row.expert_id or "")
    return Revision(
        number=row.number,
        box=str(Selector(row.box, row.box_version)),
        pef=row.pef_id,
        checkpoint=row.checkpoint_id,
        expert=None if expert is None else str(selector_of(expert)),
        bundle=row.bundle_id,
        tiles=row.tiles,
        usage=_usage(use),
        created_at=row.created_at,
    )


def _replica(row: EndpointReplicaRow) -> ReplicaView:
    names = ("id", "revision", "reason", "message", "node", "tiles", "created_at", "ready_at", "ended_at")
    return ReplicaView.model_validate({**{name: getattr(row, name) for name in names}, "state": row.state})
