"""Routes of nodes."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, JsonValue

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import NodesReader, platform_of
from rdukit_platform.api.roster import list_nodes
from rdukit_platform.nodes.view import nodes_for, services_for
from rdukit_platform.services import live_services
from rdukit_platform.tenants.scopes import METRICS, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


class NodeService(BaseModel):
    """A scheduler or worker that is up."""

    id: str
    kind: str
    slots: int
    #: Of a worker: its node.
    node: str
    started_at: float
    beat_at: float


class NodeList(BaseModel):
    """The nodes as their daemons tell them, and the platform's own processes."""

    nodes: list[dict[str, JsonValue]]
    services: list[NodeService]


@router.get("")
def list_(request: Request, caller: NodesReader) -> NodeList:
    """Nodes, tiles and who holds them: a tenant is told of its own jobs, and how much others have.

    With the scope ``metrics`` or ``admin`` it is all.
    """
    platform = platform_of(request)
    with platform.database.read() as session:
        services = [
            {name: getattr(row, name) for name in NodeService.model_fields}
            for row in live_services(session, platform.clock.now())
        ]
    nodes = nodes_seen(platform, caller)
    if not allows(caller.scopes, METRICS):
        services = services_for(services)
    return NodeList.model_validate({"nodes": nodes, "services": services})


def nodes_seen(platform: Platform, caller: Caller) -> list[dict[str, Any]]:
    """Return the nodes, as ``caller`` may see them."""
    nodes = list_nodes(platform)
    return nodes if allows(caller.scopes, METRICS) else nodes_for(nodes, caller.tenant_id)
