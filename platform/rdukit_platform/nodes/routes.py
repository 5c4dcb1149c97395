"""Routes of nodes."""

from fastapi import APIRouter, Request
from pydantic import BaseModel, JsonValue

from rdukit_platform.gateway.dependencies import Reader, platform_of
from rdukit_platform.nodes.service import read_nodes
from rdukit_platform.services import live_services

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


class Service(BaseModel):
    """A scheduler or worker that is up."""

    id: str
    kind: str
    slots: int
    started_at: float
    beat_at: float


class NodeList(BaseModel):
    """The nodes as their daemons tell them, and the platform's own processes."""

    nodes: list[dict[str, JsonValue]]
    services: list[Service]


@router.get("")
def list_(request: Request, caller: Reader) -> NodeList:
    """Nodes, tiles and who holds them."""
    platform = platform_of(request)
    with platform.database.read() as session:
        services = [
            {name: getattr(row, name) for name in Service.model_fields}
            for row in live_services(session, platform.clock.now())
        ]
    return NodeList.model_validate({"nodes": read_nodes(platform.home.snd_socket), "services": services})
