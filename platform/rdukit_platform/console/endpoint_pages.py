"""The console's pages of endpoints: all of them, and one with its revisions, replicas and how to call it."""

import json

from fastapi import APIRouter, Request
from markupsafe import Markup
from sqlalchemy.orm import Session
from starlette.responses import Response

from rdukit.errors import NotFound
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.endpoints import show_all, show_one
from rdukit_platform.catalog.model import Boxes
from rdukit_platform.catalog.own import with_own
from rdukit_platform.console.access import Visitor
from rdukit_platform.console.page import PageRoute, fragment, live, page
from rdukit_platform.endpoints.schemas import Endpoint
from rdukit_platform.endpoints.service import get_endpoint, list_endpoints
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console/endpoints", include_in_schema=False, route_class=PageRoute)

#: Each state's colour, of endpoints and of replicas.
TONES = {
    "ready": "good", "updating": "busy", "starting": "busy", "failing": "bad", "idle": "off", "stopped": "off",
    "draining": "warn", "ended": "off",
}  # fmt: skip


@router.get("")
def endpoints(request: Request, caller: Visitor, cursor: str | None = None) -> Response:
    """Show the tenant's endpoints."""
    platform = platform_of(request)
    with platform.database.read() as session:
        rows, following = list_endpoints(session, caller.tenant_id, 50, cursor)
        shown = show_all(session, rows, platform.clock.now())
    return page(
        request, "endpoints.html", section="Endpoints", endpoints=shown, tones=TONES, next_cursor=following
    )  # fmt: skip


@router.get("/{name}")
def endpoint(request: Request, name: str, caller: Visitor) -> Response:
    """Show one endpoint."""
    part, found = _part(request, caller, name)
    url = str(request.base_url).rstrip("/") + found.path
    platform = platform_of(request)
    with platform.database.read() as session:
        is_text = makes_text(session, platform.catalog.boxes(), caller.tenant_id, found)
    commands = curl_commands(url, found, is_text=is_text)
    return page(request, "endpoint.html", section="Endpoints", title=name, live=part, commands=commands)


@router.get("/{name}/part")
def endpoint_part(request: Request, name: str, caller: Visitor) -> Response:
    """Return an endpoint's state, revisions and replicas again."""
    return fragment(request, _part(request, caller, name)[0])


def makes_text(session: Session, boxes: Boxes, tenant_id: str, endpoint: Endpoint) -> bool:
    """Return whether an endpoint can be asked for a text; not where its box was uninstalled since."""
    if endpoint.models:
        return True
    try:
        box = with_own(session, boxes, tenant_id, [endpoint.box]).box(endpoint.box)
    except NotFound:
        return False
    return any(
        verb.name == "infer" and any(each.name == "max_tokens" for each in verb.parameters) for verb in box.verbs
    )


def curl_commands(url: str, endpoint: Endpoint, *, is_text: bool) -> list[str]:
    """Write how an endpoint is called with curl (pure)."""
    token = '-H "Authorization: Bearer $RDUKIT_TOKEN"'
    chat = json.dumps({"model": endpoint.model, "messages": [{"role": "user", "content": "Hello"}]})
    given: dict[str, object] = {"name": "NAME", "shape": [1, "N"], "datatype": "FP32", "data": ["…"]}
    rows = json.dumps({"inputs": [given]}, ensure_ascii=False)
    infer = f"curl -s {token} {url}/v2/models/{endpoint.name}/infer -d '{rows}'"
    return [
        f"curl -s {token} {url}/v2/models/{endpoint.name}",
        *([] if endpoint.bundle else [infer]),
        *([f"curl -s {token} {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{chat}'"] * is_text),
    ]


def _part(request: Request, caller: Caller, name: str) -> tuple[Markup, Endpoint]:
    platform = platform_of(request)
    with platform.database.read() as session:
        found = show_one(session, get_endpoint(session, caller.tenant_id, name), platform.clock.now())
    part = live(request, "endpoint", f"/console/endpoints/{name}/part", "_endpoint.html", endpoint=found, tones=TONES)
    return part, found
