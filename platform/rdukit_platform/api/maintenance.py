"""Routes that change what a node allocates: cordon, drain, release of a lease, maintenance windows.

They are for administrators. Each leaves an entry in the audit log and, with the token's id, an event in the node's log.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, JsonValue

from rdukit.errors import NotFound
from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.dependencies import Admin, StrictJsonRoute, platform_of
from rdukit_platform.api.nodes import change_allocation
from rdukit_platform.audit.service import Act, record
from rdukit_platform.jobs.schemas import NodeLabelKey, NodeLabelValue, Reason, RequestBody
from rdukit_platform.nodes import registry
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1/nodes", tags=["nodes"], route_class=StrictJsonRoute)

Component = Annotated[str, Field(min_length=1, max_length=200)]
Seconds = Annotated[float | None, Field(ge=0, le=86_400 * 365, allow_inf_nan=False)]
Moment = Annotated[float | None, Field(ge=0, le=1e10, allow_inf_nan=False)]


class CordonRequest(RequestBody):
    """Body of ``POST /v1/nodes/{node}/cordon``."""

    #: Path of the node, an XRDU, an RDU or a tile.
    component: Component = "/NODE"
    reason: Reason = ""


class UncordonRequest(RequestBody):
    """Body of ``POST /v1/nodes/{node}/uncordon``."""

    component: Component = "/NODE"


class DrainRequest(CordonRequest):
    """Body of ``POST /v1/nodes/{node}/drain``."""

    #: Seconds after which remaining leases are ended; without it they are never ended.
    deadline_s: Seconds = None


class ReleaseRequest(RequestBody):
    """Body of ``POST /v1/nodes/{node}/leases/{lease}/release``."""

    reason: Reason = ""


class MaintenanceRequest(RequestBody):
    """Body of ``POST /v1/nodes/{node}/maintenance``. Times are seconds since the epoch."""

    component: Component = "/NODE"
    reason: Annotated[Reason, Field(min_length=1)]
    #: Start, by default now; without an end, the window stays open until it is ended.
    starts_at: Moment = None
    ends_at: Moment = None
    #: Seconds from the start until remaining leases are ended.
    grace_s: Seconds = None


class NodeChange(BaseModel):
    """The node's answer: the cordon, the paths, the lease or the window that was changed."""

    node: str
    cordon: dict[str, JsonValue] | None = None
    uncordoned: list[str] | None = None
    released: dict[str, JsonValue] | None = None
    window: dict[str, JsonValue] | None = None


class NodeStanding(BaseModel):
    """A node that leaves or rejoins: ``leaving`` until its work is done, then ``left``."""

    node: str
    state: str


class NodeLabelsRequest(RequestBody):
    """Body of ``POST /v1/nodes/{node}/labels``."""

    set: Annotated[dict[NodeLabelKey, NodeLabelValue], Field(max_length=registry.MAX_NODE_LABELS)] = {}
    #: Keys of labels to remove that were set this way.
    remove: Annotated[list[NodeLabelKey], Field(max_length=registry.MAX_NODE_LABELS)] = []


class NodeLabels(BaseModel):
    """A node with all its labels."""

    node: str
    labels: dict[str, str]


@router.post("/{node}/cordon")
def cordon(request: Request, node: str, caller: Admin, body: CordonRequest) -> NodeChange:
    """Cordon a part of a node: no new allocations; running work continues."""
    given = {"component": body.component, "reason": body.reason or None}
    return change(request, caller, node, Act.CORDON, "cordon", given)


@router.post("/{node}/uncordon")
def uncordon(request: Request, node: str, caller: Admin, body: UncordonRequest) -> NodeChange:
    """Uncordon a part of a node, with everything below it."""
    return change(request, caller, node, Act.UNCORDON, "uncordon", {"component": body.component})


@router.post("/{node}/drain")
def drain(request: Request, node: str, caller: Admin, body: DrainRequest) -> NodeChange:
    """Drain: cordon, and let running work finish; at the deadline jobs are queued again, with their checkpoints."""
    given = {"component": body.component, "reason": body.reason or None, "deadline_s": body.deadline_s}
    return change(request, caller, node, Act.DRAIN, "drain", given)


@router.post("/{node}/leases/{lease}/release")
def release(request: Request, node: str, lease: str, caller: Admin, body: ReleaseRequest | None = None) -> NodeChange:
    """End a lease of any user at once; its job is queued again."""
    reason = (body.reason if body else "") or None
    return change(request, caller, node, Act.RELEASE_LEASE, "evict", {"lease": lease, "reason": reason})


@router.post("/{node}/maintenance")
def plan(request: Request, node: str, caller: Admin, body: MaintenanceRequest) -> NodeChange:
    """Plan a maintenance window: a drain from its start, until its end."""
    given = {
        "component": body.component, "reason": body.reason, "grace_s": body.grace_s,
        "starts_at": None if body.starts_at is None else int(body.starts_at * 1e9),
        "ends_at": None if body.ends_at is None else int(body.ends_at * 1e9),
    }  # fmt: skip
    return change(request, caller, node, Act.MAINTAIN, "plan_maintenance", given)


@router.delete("/{node}/maintenance/{window}")
def end(request: Request, node: str, window: str, caller: Admin) -> NodeChange:
    """End a maintenance window now, or cancel it before it begins."""
    return change(request, caller, node, Act.END_MAINTENANCE, "end_maintenance", {"window": window})


@router.post("/{node}/leave")
def leave(request: Request, node: str, caller: Admin) -> NodeStanding:
    """Let a node leave: it gets no more jobs, and leaves when its work is done."""
    return move(request, caller, node, Act.LEAVE_NODE)


@router.post("/{node}/rejoin")
def rejoin(request: Request, node: str, caller: Admin) -> NodeStanding:
    """Let a node take jobs again that is leaving, or has left and still sends heartbeats."""
    return move(request, caller, node, Act.REJOIN_NODE)


@router.post("/{node}/labels")
def label(request: Request, node: str, caller: Admin, body: NodeLabelsRequest) -> NodeLabels:
    """Set labels of a node, which jobs require by ``constraint``, or remove them."""
    platform = platform_of(request)
    with platform.database.write() as session:
        row = registry.label(session, node, body.set, body.remove)
        words = [f"{key}={value}" for key, value in body.set.items()] + [f"{key}-" for key in body.remove]
        record(session, entry_of(request, caller, Act.LABEL_NODE, row.name, detail=" ".join(words)[:200]))
    platform.notifier.wake()
    return NodeLabels(node=row.name, labels=row.all_labels)


def move(request: Request, caller: Caller, node: str, act: Act) -> NodeStanding:
    """Let a node leave or rejoin for ``caller``, and record it.

    Raises:
        NotFound: there is no such node. Conflict: its state does not allow it.
    """
    platform = platform_of(request)
    with platform.database.write() as session:
        way = registry.leave if act is Act.LEAVE_NODE else registry.rejoin
        row = way(session, node, platform.clock.now())
        record(session, entry_of(request, caller, act, row.name))
    platform.notifier.wake()
    return NodeStanding(node=row.name, state=row.state)


def change(
    request: Request, caller: Caller, node: str, act: Act, operation: str, arguments: dict[str, Any]
) -> NodeChange:
    """Change a node for ``caller``, and record it.

    Raises:
        NotFound: there is no such node, component, lease or window. Unavailable: its daemon does not answer.
    """
    platform = platform_of(request)
    given = {name: value for name, value in arguments.items() if value is not None}
    if any(not str(value).isprintable() for value in given.values()):
        raise NotFound("a name has characters that cannot be printed")
    name, answer = change_allocation(platform, node, operation, caller.token_id, given)
    target = str(given.get("component") or given.get("lease") or given.get("window"))
    detail = " ".join(f"{key}={given[key]}" for key in ("deadline_s", "reason") if key in given)
    with platform.database.write() as session:
        record(session, entry_of(request, caller, act, f"{name}:{target}", detail=detail))
    platform.notifier.wake()
    return NodeChange.model_validate({"node": name, **answer})
