"""Routes of endpoints: their wanted and present state. Their calls are in ``endpoint_calls``."""

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request, status
from sqlalchemy import select
from sqlalchemy.orm import Session

from rdukit_platform.api.audit_requests import entry_of
from rdukit_platform.api.dependencies import (
    Cursor,
    EndpointsViewer,
    EndpointsWriter,
    Limit,
    StrictJsonRoute,
    platform_of,
)
from rdukit_platform.audit.service import Act, record
from rdukit_platform.db.models import EndpointRevisionRow, EndpointRow, ExpertRow
from rdukit_platform.endpoints import service
from rdukit_platform.endpoints.bundles import check_bundle
from rdukit_platform.endpoints.replicas import read_snapshots
from rdukit_platform.endpoints.schemas import (
    Endpoint,
    EndpointPage,
    EndpointRequest,
    RevisionRequest,
    RollbackRequest,
    UpdateRequest,
    show_endpoint,
)
from rdukit_platform.endpoints.usage import read_uses
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1/endpoints", tags=["endpoints"], route_class=StrictJsonRoute)

Name = Annotated[str, Path(description="Name of an endpoint.")]


@router.get("")
def list_(request: Request, caller: EndpointsViewer, limit: Limit = 50, cursor: Cursor = None) -> EndpointPage:
    """Return the tenant's endpoints, newest first."""
    platform = platform_of(request)
    with platform.database.read() as session:
        rows, following = service.list_endpoints(session, caller.tenant_id, limit, cursor)
        return EndpointPage(endpoints=show_all(session, rows, platform.clock.now()), next_cursor=following)


@router.post("", status_code=status.HTTP_201_CREATED)
def create(request: Request, caller: EndpointsWriter, body: EndpointRequest) -> Endpoint:
    """Create an endpoint that serves an expert, a bundle, or a box with a PEF and a checkpoint."""
    platform = platform_of(request)
    serving = _resolve(request, caller, body)
    with platform.database.write() as session:
        row = service.create_endpoint(
            session, caller.tenant_id, body.name, serving, body.replicas, platform.clock.now(), body.idle_s
        )
        record(session, entry_of(request, caller, Act.CREATE_ENDPOINT, row.name, detail=str(serving.box)))
        shown = show_one(session, row, platform.clock.now())
    platform.notifier.wake()
    return shown


@router.get("/{name}")
def show(request: Request, name: Name, caller: EndpointsViewer) -> Endpoint:
    """Show one endpoint with its revisions and replicas."""
    platform = platform_of(request)
    with platform.database.read() as session:
        return show_one(session, service.get_endpoint(session, caller.tenant_id, name), platform.clock.now())


@router.post("/{name}/update")
def update(request: Request, name: Name, caller: EndpointsWriter, body: UpdateRequest) -> Endpoint:
    """Change an endpoint: a new revision or canary, the number of replicas, or the idle time."""
    platform = platform_of(request)
    with platform.database.read() as session:  # checked before the write lock is taken
        service.get_endpoint(session, caller.tenant_id, name)
    serving = None if body.names_nothing() else _resolve(request, caller, body)

    def change(session: Session, row: EndpointRow, now: float) -> str:
        wanted = service.EndpointChange(serving, body.replicas, body.canary, body.idle_s)
        service.change_endpoint(session, row, wanted, now)
        canary = "" if row.canary is None else f", canary {row.canary} with {row.canary_percent} %"
        return f"revision {row.revision}, {row.replicas} replicas{canary}"

    return _change(request, caller, name, Act.UPDATE_ENDPOINT, change)


@router.post("/{name}/promote")
def promote(request: Request, name: Name, caller: EndpointsWriter) -> Endpoint:
    """Make the canary the wanted revision."""

    def change(session: Session, row: EndpointRow, now: float) -> str:
        service.promote_canary(session, row, now)
        return f"canary {row.revision} promoted"

    return _change(request, caller, name, Act.UPDATE_ENDPOINT, change)


@router.post("/{name}/rollback")
def roll_back(request: Request, name: Name, caller: EndpointsWriter, body: RollbackRequest) -> Endpoint:
    """Make an earlier revision the wanted one again."""

    def change(session: Session, row: EndpointRow, now: float) -> str:
        service.roll_back(session, row, body.revision, now)
        return f"back to revision {row.revision}"

    return _change(request, caller, name, Act.UPDATE_ENDPOINT, change)


@router.delete("/{name}")
def delete(request: Request, name: Name, caller: EndpointsWriter) -> Endpoint:
    """Delete an endpoint: its replicas finish their requests, and its name is free at once."""

    def change(session: Session, row: EndpointRow, now: float) -> str:
        service.delete_endpoint(row, now)
        return ""

    return _change(request, caller, name, Act.DELETE_ENDPOINT, change)


def _change(
    request: Request, caller: Caller, name: str, act: Act, change: Callable[[Session, EndpointRow, float], str]
) -> Endpoint:
    """Change an endpoint in one transaction with its row of the audit log; ``change`` returns that row's detail."""
    platform = platform_of(request)
    with platform.database.read() as session:  # checked before the write lock is taken
        service.get_endpoint(session, caller.tenant_id, name)
    with platform.database.write() as session:
        row = service.get_endpoint(session, caller.tenant_id, name, is_locked=True)
        detail = change(session, row, platform.clock.now())
        record(session, entry_of(request, caller, act, name, detail=detail))
        session.flush()
        shown = show_one(session, row, platform.clock.now())
    platform.notifier.wake()
    return shown


def show_all(session: Session, rows: Sequence[EndpointRow], now: float) -> list[Endpoint]:
    """Return endpoints for a list."""
    ids = [row.id for row in rows]
    snapshots = {each.id: each for each in read_snapshots(session, now, ids)}
    uses = read_uses(session, ids)
    shown = []
    for row in rows:
        revisions = [each for each in service.revisions_of(session, row) if each.number == row.revision]
        experts = _experts(session, revisions)
        shown.append(show_endpoint(row, snapshots[row.id], revisions, experts, uses[row.id]))
    return shown


def show_one(session: Session, row: EndpointRow, now: float) -> Endpoint:
    """Return an endpoint with its revisions and replicas."""
    (snapshot,) = read_snapshots(session, now, [row.id])
    revisions = service.revisions_of(session, row)
    uses = read_uses(session, [row.id])
    replicas = service.replicas_of(session, row)
    return show_endpoint(row, snapshot, revisions, _experts(session, revisions), uses[row.id], replicas)


def _experts(session: Session, revisions: Sequence[EndpointRevisionRow]) -> dict[str, ExpertRow]:
    ids = {each.expert_id for each in revisions if each.expert_id is not None}
    return {row.id: row for row in session.scalars(select(ExpertRow).where(ExpertRow.id.in_(ids)))}


def _resolve(request: Request, caller: Caller, body: RevisionRequest) -> service.ServedParts:
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    bundle = None
    if body.bundle is not None:
        folder = platform.home.installing
        bundle = check_bundle(
            platform.database, platform.store, platform.catalog, caller.tenant_id, body.bundle, folder
        )
    with platform.database.read() as session:
        return service.resolve_serving(session, boxes, platform.store, caller.tenant_id, body, bundle)
