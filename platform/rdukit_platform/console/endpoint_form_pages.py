"""The console's forms of endpoints: create one, serve another revision, scale, split calls, roll back, delete."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fastapi import APIRouter, Request
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from rdukit.errors import RdukitError
from rdukit.units import format_bytes
from rdukit_platform.api import endpoints as api
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.catalog.experts import get_expert, list_experts, selector_of
from rdukit_platform.catalog.model import Boxes, Selector
from rdukit_platform.catalog.own import newest_own
from rdukit_platform.console.access import EndpointsEditor, Visitor
from rdukit_platform.console.endpoint_form import SERVED, SIZE, check_form, place_error, view_fields
from rdukit_platform.console.endpoint_pages import endpoint_page
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.console.run_form import Option
from rdukit_platform.console.run_form_pages import MAX_OFFERED, Given
from rdukit_platform.console.views import age_words
from rdukit_platform.db.models import ArtifactRow, ExpertRow, JobRow
from rdukit_platform.endpoints.schemas import Endpoint, EndpointRequest, RollbackRequest, UpdateRequest
from rdukit_platform.tenants.scopes import ENDPOINTS_WRITE, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Fields of the two forms of the served model.
CREATE: Final = ("name", *SERVED, *SIZE)
REVISION: Final = (*SERVED, "canary")


@router.get("/new/endpoint")
def form(
    request: Request,
    caller: Visitor,
    expert: str = "",
    box: str = "",
    pef: str = "",
    checkpoint: str = "",
    bundle: str = "",
) -> Response:
    """Show the form for a new endpoint, filled with the values of the page that leads here."""
    named = {"expert": expert, "box": box, "pef": pef, "checkpoint": checkpoint, "bundle": bundle}
    given = {field: text[:128] for field, text in named.items()} | {"replicas": "1", "idle": "0"}
    return _form_page(request, caller, None, given, {})


@router.post("/endpoints")
def create(request: Request, caller: EndpointsEditor, given: Given) -> Response:
    """Create an endpoint, or return the form with errors at its fields."""
    body, errors = check_form(given, CREATE, EndpointRequest)
    if body is not None:
        try:
            return _to(api.create(request, caller, body).name)
        except RdukitError as error:
            errors = place_error(error, given)
    return _form_page(request, caller, None, given, errors, status=422)


@router.get("/endpoints/{name}/revision")
def revision_form(request: Request, name: str, caller: Visitor) -> Response:
    """Show the form of a new revision, filled with the endpoint's present values."""
    found = api.show(request, name, caller)
    return _form_page(request, caller, found, _given_by(request, caller, found), {})


@router.post("/endpoints/{name}/revision")
def serve(request: Request, name: str, caller: EndpointsEditor, given: Given) -> Response:
    """Serve another revision, to all callers or to a share of them."""
    body, errors = check_form(given, REVISION, UpdateRequest)
    if body is not None and body.names_nothing():
        errors = {"expert": "choose an expert, a box with a PEF, or a bundle"}
    elif body is not None:
        try:
            api.update(request, name, caller, body)
            return _to(name)
        except RdukitError as error:
            errors = place_error(error, given)
    return _form_page(request, caller, api.show(request, name, caller), given, errors, status=422)


@router.post("/endpoints/{name}/scale")
def scale(request: Request, name: str, caller: EndpointsEditor, given: Given) -> Response:
    """Want another number of replicas, or another idle time."""
    return _change(request, name, caller, given, SIZE)


@router.post("/endpoints/{name}/canary")
def split(request: Request, name: str, caller: EndpointsEditor, given: Given) -> Response:
    """Change the canary's share of the calls."""
    return _change(request, name, caller, given, ("canary",))


@router.post("/endpoints/{name}/promote")
def promote(request: Request, name: str, caller: EndpointsEditor) -> Response:
    """Want the canary for all calls."""
    return _act(request, name, caller, lambda: api.promote(request, name, caller))


@router.post("/endpoints/{name}/rollback")
def roll_back(request: Request, name: str, caller: EndpointsEditor, given: Given) -> Response:
    """Roll the endpoint back to an earlier revision, or end its canary."""
    number = given.get("revision", "").strip()
    try:
        body = RollbackRequest.model_validate({"revision": int(number) if number.isdecimal() else number or None})
    except (ValidationError, ValueError):
        return endpoint_page(request, caller, name, {}, {"": f"there is no revision {number[:20]!r}"})
    return _act(request, name, caller, lambda: api.roll_back(request, name, caller, body))


@router.post("/endpoints/{name}/delete")
def delete(request: Request, name: str, caller: EndpointsEditor) -> Response:
    """Delete an endpoint; its replicas finish their present calls."""
    api.delete(request, name, caller)
    return RedirectResponse("/console/endpoints", 303)


def _to(name: str) -> Response:
    return RedirectResponse(f"/console/endpoints/{name}", 303)


def _change(request: Request, name: str, caller: Caller, given: Mapping[str, str], fields: Sequence[str]) -> Response:
    body, errors = check_form(given, fields, UpdateRequest)
    if body is not None:
        try:
            api.update(request, name, caller, body)
            return _to(name)
        except RdukitError as error:
            errors = place_error(error, given)
    return endpoint_page(request, caller, name, given, errors)


def _act(request: Request, name: str, caller: Caller, act: Callable[[], Endpoint]) -> Response:
    try:
        act()
    except RdukitError as error:
        return endpoint_page(request, caller, name, {}, {"": error.message})
    return _to(name)


def _form_page(
    request: Request,
    caller: Caller,
    endpoint: Endpoint | None,
    given: Mapping[str, str],
    errors: Mapping[str, str],
    status: int = 200,
) -> Response:
    platform = platform_of(request)
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        options = offer(session, boxes, caller.tenant_id, platform.clock.now())
    is_new = endpoint is None
    fields = {one.key: one for one in view_fields(
        CREATE if is_new else REVISION, given, errors, options, required=["name"] if is_new else [],
    )}  # fmt: skip
    return page(
        request, "endpoint_form.html", status, section="Endpoints", endpoint=endpoint, fields=fields,
        general=errors.get("", ""), count=len(errors), can_write=allows(caller.scopes, ENDPOINTS_WRITE),
        has_experts=bool(options["expert"]),
    )  # fmt: skip


def _given_by(request: Request, caller: Caller, endpoint: Endpoint) -> dict[str, str]:
    """Return the texts of a form for the same revision again; the expert's own values stay empty."""
    served = next(one for one in endpoint.revisions or () if one.number == endpoint.revision)
    if served.bundle is not None:
        return {"bundle": served.bundle}
    given = {"pef": served.pef, "checkpoint": served.checkpoint or ""}
    if served.expert is None:
        return given | {"box": served.box}
    with platform_of(request).database.read() as session:
        expert = get_expert(session, caller.tenant_id, served.expert)
        own = {"pef": expert.pef_id, "checkpoint": expert.checkpoint_id}
    return {field: "" if own.get(field) == text else text for field, text in given.items()} | {"expert": served.expert}


def offer(session: Session, boxes: Boxes, tenant_id: str, now: float) -> dict[str, list[Option]]:
    """Return what can be served: experts, boxes that infer, PEFs, checkpoints and bundles, the newest first."""
    experts, _ = list_experts(session, tenant_id, limit=MAX_OFFERED)
    own = [(Selector(row.name, row.version), row.description) for row in newest_own(session, tenant_id)]
    shipped = sorted(name for name, box in boxes.boxes.items() if any(verb.name == "infer" for verb in box.verbs))
    found = {
        "expert": [_option_of_expert(row, now) for row in experts],
        "box": [*(Option(str(name), str(name), "your own") for name, _ in own),
                *(Option(name, name, "come with rdukit") for name in shipped)],
    }  # fmt: skip
    for kind in ("pef", "checkpoint", "bundle"):
        query = select(ArtifactRow, JobRow).outerjoin(JobRow, JobRow.id == ArtifactRow.job_id)
        query = query.where(
            ArtifactRow.tenant_id == tenant_id, ArtifactRow.deleted_at.is_(None), ArtifactRow.kind == kind
        )
        query = query.order_by(ArtifactRow.created_at.desc(), ArtifactRow.id.desc()).limit(MAX_OFFERED)
        options = [_option_of_artifact(row, job, now) for row, job in session.execute(query)]
        found[kind] = sorted(options, key=lambda option: _GROUPS.index(option.group))
    return found


#: Groups of artifacts in a list, in order, by the purpose of a PEF.
_GROUPS: Final = ("compiled to serve", "compiled to train", "made by jobs", "uploaded")


def _option_of_expert(row: ExpertRow, now: float) -> Option:
    name = str(selector_of(row))
    return Option(name, f"{name} · {Selector(row.box, row.box_version)} · {age_words(row.created_at, now)}")


def _option_of_artifact(row: ArtifactRow, job: JobRow | None, now: float) -> Option:
    if job is None:
        group = "uploaded"
    elif row.kind != "pef" or job.verb != "compile":
        group = "made by jobs"
    else:
        group = f"compiled to {'serve' if job.parameters.get('purpose') == 'serve' else 'train'}"
    words = [row.name[:60], *([] if job is None else [job.box]), format_bytes(row.bytes)]
    return Option(row.id, " · ".join([*words, age_words(row.created_at, now), row.id]), group)
