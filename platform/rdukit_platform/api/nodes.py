"""Routes of nodes, and a gateway's access to them: its own node directly, others through their workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, JsonValue
from sqlalchemy import select
from sqlalchemy.orm import undefer

from rdukit.errors import NotFound
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import NodesReader, platform_of
from rdukit_platform.db.models import NodeRow
from rdukit_platform.nodes.orders import order
from rdukit_platform.nodes.registry import ONLY, PRESENT, NodeLife, find_node
from rdukit_platform.nodes.view import answers, change_node, count_uptime, look_at_node, nodes_for, services_for
from rdukit_platform.scheduler.lease import read_holder
from rdukit_platform.services import is_recent, live_services
from rdukit_platform.settings import Home
from rdukit_platform.tenants.scopes import METRICS, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


class NodeService(BaseModel):
    """A scheduler or worker that is up."""

    id: str
    kind: str
    slots: int
    #: Node of a worker.
    node: str
    #: Whether this scheduler decides; others stand by.
    decides: bool = False
    started_at: float
    beat_at: float


class NodeList(BaseModel):
    """The nodes as their daemons report them, and the platform's own processes."""

    nodes: list[dict[str, JsonValue]]
    services: list[NodeService]


_COLUMNS: Final = [name for name in NodeService.model_fields if name != "decides"]


@router.get("")
def list_(request: Request, caller: NodesReader) -> NodeList:
    """List nodes, tiles and their holders. A tenant sees its own jobs, and only the number of tiles of others.

    The scopes ``metrics`` and ``admin`` show everything.
    """
    platform = platform_of(request)
    with platform.database.read() as session:
        holder = read_holder(session).service
        services = [
            {**{name: getattr(row, name) for name in _COLUMNS}, "decides": row.id == holder}
            for row in live_services(session, platform.clock.now())
        ]
    nodes = nodes_seen(platform, caller)
    if not allows(caller.scopes, METRICS):
        services = services_for(services)
    return NodeList.model_validate({"nodes": nodes, "services": services})


def nodes_seen(platform: Platform, caller: Caller) -> list[dict[str, Any]]:
    """Return the part of the nodes that ``caller`` may see."""
    nodes = list_nodes(platform)
    return nodes if allows(caller.scopes, METRICS) else nodes_for(nodes, caller.tenant_id)


def list_nodes(platform: Platform) -> list[dict[str, Any]]:
    """Return the nodes by name, with tiles, holders and faults, for people and the console.

    ``state`` is a ``NodeLife``, or ``unreachable`` if its daemon does not answer; ``error`` has the details.
    """
    home, now = platform.home, platform.clock.now()
    with platform.database.read() as session:
        rows = list(session.scalars(select(NodeRow).options(undefer(NodeRow.report)).order_by(NodeRow.name)))
    own_id = _own_id(home)
    if not rows:
        return [look_at_node(home.snd_socket, home.node_name()).report]
    return [_describe(row, home.snd_socket if row.home_id == own_id else None, now) for row in rows]


def change_allocation(
    platform: Platform, node: str, operation: str, by: str, arguments: Mapping[str, object]
) -> tuple[str, dict[str, Any]]:
    """Ask a node's daemon to change its allocation. Returns the node's name, and the daemon's answer.

    Args:
        node: the node's name, or ``-`` for the platform's only one.
    Raises:
        NotFound: there is no such node. InvalidArgument: there are several nodes; name one.
        Unavailable: the node does not answer, or its version cannot do it.
    """
    home = platform.home
    with platform.database.read() as session:
        if session.scalars(select(NodeRow.name).limit(1)).first() is None:
            if node not in {ONLY, home.node_name()}:
                raise NotFound(f"there is no node {node!r}; expected {home.node_name()}")
            return home.node_name(), change_node(home.snd_socket, operation, by, arguments)
        row = find_node(session, node)
    if row.home_id == _own_id(home):
        answer = change_node(home.snd_socket, operation, by, arguments)
        platform.notifier.wake_node(row.name)
    else:
        now = platform.clock.now()
        answer = order(platform.database, platform.notifier.wake_node, row.name, operation, by, arguments, now)
    return row.name, answer


def is_any_up(platform: Platform) -> bool:
    """Return whether the daemon of a node answers."""
    if answers(platform.home.snd_socket):
        return True
    with platform.database.read() as session:
        is_other = (NodeRow.state.in_(PRESENT), NodeRow.home_id != _own_id(platform.home))
        rows, now = session.scalars(select(NodeRow).where(*is_other)), platform.clock.now()
        return any(row.capacity is not None and is_recent(row.beat_at, now) for row in rows)


def _describe(row: NodeRow, snd_socket: Path | None, now: float) -> dict[str, Any]:
    report = count_uptime(row.report, now)
    if snd_socket is not None:
        report = look_at_node(snd_socket, row.name).report
    elif row.state in {NodeLife.LOST, NodeLife.LEFT}:
        age_s = max(now - row.beat_at, 0.0)
        how = "it has left" if row.state == NodeLife.LEFT else "its heartbeats are missing"
        report = {"error": f"{how}; last heartbeat {age_s:.0f} s ago", "tiles": []}
    is_away = report.get("state") == "unreachable" and row.state in PRESENT
    return {
        "tiles": [],
        **report,
        "name": row.name,
        "state": "unreachable" if is_away else row.state,
        "host": row.host,
        "labels": row.all_labels,
        "beat_at": row.beat_at,
        "joined_at": row.joined_at,
    }


def _own_id(home: Home) -> str:
    try:
        return home.node_id_file.read_text().strip()
    except OSError:
        return ""
