"""The console's pages of endpoints: the list, and one endpoint with its revisions, replicas and examples of calls."""

import json
from collections.abc import Mapping
from dataclasses import replace

from fastapi import APIRouter, Request
from markupsafe import Markup
from sqlalchemy.orm import Session
from starlette.responses import Response

from rdukit.errors import RdukitError
from rdukit.pef.file import Answers
from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.endpoint_calls import calls_of
from rdukit_platform.api.endpoints import show_all, show_one
from rdukit_platform.artifacts.service import get_artifact
from rdukit_platform.catalog.model import Boxes
from rdukit_platform.catalog.own import with_own
from rdukit_platform.console import curve as picture
from rdukit_platform.console.access import Visitor
from rdukit_platform.console.endpoint_form import SIZE, view_fields
from rdukit_platform.console.endpoint_load import view_load
from rdukit_platform.console.page import PageRoute, fragment, gateway_address, live, page
from rdukit_platform.console.snippets import Readable, snippets_of
from rdukit_platform.endpoints.history import MINUTE_S
from rdukit_platform.endpoints.schemas import Endpoint
from rdukit_platform.endpoints.service import get_endpoint, list_endpoints
from rdukit_platform.jobs.pef_summary import summary_of
from rdukit_platform.tenants.scopes import ENDPOINTS_WRITE, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console/endpoints", include_in_schema=False, route_class=PageRoute)

#: Colour of each state, for endpoints and replicas.
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
        request, "endpoints.html", section="Endpoints", endpoints=shown, tones=TONES, next_cursor=following,
        can_write=allows(caller.scopes, ENDPOINTS_WRITE),
    )  # fmt: skip


@router.get("/{name}")
def endpoint(request: Request, name: str, caller: Visitor) -> Response:
    """Show one endpoint."""
    return endpoint_page(request, caller, name, {}, {})


def endpoint_page(
    request: Request, caller: Caller, name: str, given: Mapping[str, str], errors: Mapping[str, str]
) -> Response:
    """Return an endpoint's page with its forms; ``given`` and errors refill a refused form."""
    part, found = _part(request, caller, name)
    url = gateway_address(request) + found.path
    platform = platform_of(request)
    with platform.database.read() as session:
        answers = find_answers(session, platform, caller.tenant_id, found)
    commands = curl_commands(url, found, answers)
    now = {"replicas": str(found.replicas), "idle": f"{found.idle_s or 0:.15g}"}
    now |= {"canary": str(found.canary.percent)} if found.canary else {}
    size, (canary,) = (view_fields(names, now | dict(given), errors) for names in (SIZE, ("canary",)))
    seen = {*SIZE, *(["canary"] if found.canary else [])}
    return page(
        request, "endpoint.html", 422 if errors else 200, section="Endpoints", title=name, live=part,
        commands=commands, snippets=snippets_of(Readable.ENDPOINT, name, gateway_address(request)),
        endpoint=found, size=size,
        canary=replace(canary, help="Percentage of calls for the canary."), has_errors=bool(errors),
        general="; ".join(message for field, message in errors.items() if field not in seen),
        can_write=allows(caller.scopes, ENDPOINTS_WRITE),
    )  # fmt: skip


@router.get("/{name}/part")
def endpoint_part(request: Request, name: str, caller: Visitor) -> Response:
    """Return an endpoint's state, revisions and replicas again."""
    return fragment(request, _part(request, caller, name)[0])


def find_answers(session: Session, platform: Platform, tenant_id: str, endpoint: Endpoint) -> Answers | None:
    """Return the kind of an endpoint's answers, from its PEF, else its box; ``None``: unknown."""
    if endpoint.models:
        return Answers.TEXTS
    try:
        pef = next(one.pef for one in endpoint.revisions or () if one.number == endpoint.revision)
        found = summary_of(platform.store, get_artifact(session, tenant_id, pef).digest, tenant_id).answers
    except (StopIteration, RdukitError):
        found = None
    if found is None and makes_text(session, platform.catalog.boxes(), tenant_id, endpoint.box) is False:
        return Answers.ROWS
    return found


def makes_text(session: Session, boxes: Boxes, tenant_id: str, box: str) -> bool | None:
    """Return whether a box can generate text; ``None``: the box is gone."""
    try:
        verbs = with_own(session, boxes, tenant_id, [box]).box(box).verbs
    except RdukitError:
        return None
    return any(one.name == "infer" and any(each.name == "max_tokens" for each in one.parameters) for one in verbs)


def curl_commands(url: str, endpoint: Endpoint, answers: Answers | None) -> list[str]:
    """Return curl commands that call an endpoint, of both kinds if its answers are unknown (pure)."""
    token = '-H "Authorization: Bearer $RDUKIT_TOKEN"'
    chat = json.dumps({"model": endpoint.model, "messages": [{"role": "user", "content": "Hello"}]})
    given: dict[str, object] = {"name": "NAME", "shape": [1, "N"], "datatype": "FP32", "data": ["…"]}
    rows = json.dumps({"inputs": [given]}, ensure_ascii=False)
    infer = f"curl -s {token} {url}/v2/models/{endpoint.name}/infer -d '{rows}'"
    return [
        f"curl -s {token} {url}/v2/models/{endpoint.name}",
        *([] if answers is Answers.TEXTS else [infer]),
        *(
            [f"curl -s {token} {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{chat}'"]
            * (answers in {Answers.TEXTS, None})
        ),
    ]


def _part(request: Request, caller: Caller, name: str) -> tuple[Markup, Endpoint]:
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.read() as session:
        row = get_endpoint(session, caller.tenant_id, name)
        found = show_one(session, row, now)
        load = view_load(calls_of(request).history.read(row.id, now), int(now // MINUTE_S))
    part = live(
        request, "endpoint", f"/console/endpoints/{name}/part", "_endpoint.html", endpoint=found, tones=TONES,
        can_write=allows(caller.scopes, ENDPOINTS_WRITE), load=load,
        size=(picture.WIDTH, picture.HEIGHT), edges=(picture.LEFT, picture.WIDTH - picture.RIGHT),
    )  # fmt: skip
    return part, found
