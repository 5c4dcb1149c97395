"""The console's pages. Each page reads in one transaction; only forms change anything."""

from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from markupsafe import Markup
from starlette.responses import FileResponse, RedirectResponse, Response

from rdukit.errors import NotFound, PermissionDenied, Unauthenticated
from rdukit.units import format_bytes
from rdukit_platform.api.artifacts import show_artifact
from rdukit_platform.api.audit_requests import address_of, note_refusal
from rdukit_platform.api.dependencies import PUBLIC_ROUTE, platform_of
from rdukit_platform.api.login import end_own_token
from rdukit_platform.api.nodes import nodes_seen
from rdukit_platform.artifacts.needs import MAX_NAMED, read_needs
from rdukit_platform.artifacts.quota import read_use
from rdukit_platform.artifacts.service import KINDS, get_artifact, list_artifacts
from rdukit_platform.console import curve as picture
from rdukit_platform.console.access import (
    COOKIE,
    Visitor,
    check_same_site,
    end_session,
    find_visitor,
    give_cookie,
    log_in,
)
from rdukit_platform.console.login_pages import login_form
from rdukit_platform.console.navigation import OVERVIEW
from rdukit_platform.console.page import (
    SECURITY_HEADERS,
    PageRoute,
    fragment,
    gateway_address,
    live,
    page,
    safe_next,
)
from rdukit_platform.console.queries import (
    MAX_PICTURE_BYTES,
    clone_command,
    count_tones,
    draw_artifact_lineage,
    find_drain_words,
    holder_pages,
    is_picture,
    last_log_events,
    profile_of,
    read_artifact_page,
    read_job_page,
    read_pipeline_lines,
)
from rdukit_platform.console.schedule_pages import read_schedule_lines
from rdukit_platform.console.snippets import Readable, snippets_of
from rdukit_platform.console.tiles import view_nodes
from rdukit_platform.console.utilisation import read_node_utilisation
from rdukit_platform.console.views import TONES, log_lines, view_job
from rdukit_platform.console.waterfall import MAX_LINES, span_lines
from rdukit_platform.jobs import listing, pipelines, service
from rdukit_platform.jobs.facts import queue_facts
from rdukit_platform.jobs.schemas import show_job
from rdukit_platform.jobs.search import MAX_SEARCH, name_people
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.jobs.steps_picture import draw_steps, steps_of_jobs
from rdukit_platform.jobs.trace import read_trace
from rdukit_platform.tenants.scopes import ADMIN, BOXES_WRITE, JOBS_WRITE, allows
from rdukit_platform.tenants.service import Caller, list_tenants

#: Number of nodes whose last day is drawn.
MAX_NODES: Final = 16
STATIC: Final = Path(__file__).parent / "static"
STATIC_TYPES: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "playground.js": "text/javascript",
    "forms.css": "text/css",
    "htmx.min.js": "text/javascript",
    "htmx.LICENSE.txt": "text/plain",
    "icon.svg": "image/svg+xml",
}

SearchWords = Annotated[str, Query(max_length=MAX_SEARCH)]
PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
PICTURE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=300",
}

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)


@router.get("", dependencies=[PUBLIC_ROUTE])
def root() -> Response:
    """Redirect to the overview."""
    return RedirectResponse(OVERVIEW.path)


@router.get("/static/{name}", dependencies=[PUBLIC_ROUTE])
def static(name: str) -> Response:
    """Serve one of the console's own files."""
    if name not in STATIC_TYPES:
        raise NotFound(f"the console has no file {name!r}")
    headers = {"Cache-Control": "max-age=300", "X-Content-Type-Options": "nosniff"}
    return FileResponse(STATIC / name, media_type=STATIC_TYPES[name], headers=headers)


@router.get("/login", dependencies=[PUBLIC_ROUTE])
def login_page(request: Request, next: str = "/console/") -> Response:
    """Return the login form; logged-in visitors are redirected."""
    if find_visitor(request) is not None:
        return RedirectResponse(safe_next(next), 303)
    return login_form(request, next)


@router.post("/login", dependencies=[PUBLIC_ROUTE])
def log_in_(request: Request, token: Annotated[str, Form()] = "", next: Annotated[str, Form()] = "") -> Response:
    """Exchange an API token for a session cookie."""
    try:
        check_same_site(request)
        platform_of(request).rates.check_login(address_of(request))
        cookie = log_in(request, token.strip())
    except Unauthenticated as refused:
        note_refusal(request, refused)
        error = "This token is not valid. Paste the whole line, and check that it was not revoked."
        return login_form(request, next, error, 401)
    except PermissionDenied as denied:
        note_refusal(request, denied)
        return login_form(request, next, denied.message, 403)
    answer = RedirectResponse(safe_next(next), 303)
    give_cookie(request, answer, cookie)
    return answer


@router.post("/logout", dependencies=[PUBLIC_ROUTE])
def log_out(request: Request) -> Response:
    """End the session, wherever its cookie may be; the token that opened it stays valid."""
    check_same_site(request)
    caller = find_visitor(request)
    if caller is not None and caller.is_session:
        end_own_token(request, caller)
    elif caller is not None:
        end_session(request, caller)
    answer = RedirectResponse("/console/login", 303)
    answer.delete_cookie(COOKIE, path="/console")
    return answer


@router.get("/")
def all_jobs(
    request: Request, caller: Visitor, state: str = "", q: SearchWords = "", box: str = "", cursor: str = ""
) -> Response:
    """Show all jobs, or those that match a state, words and a box."""
    part = _jobs_part(request, caller, state, q, box, cursor)
    return page(
        request, "jobs.html", section="Jobs", live=part, state=state, states=[str(s) for s in JobState],
        q=q.strip(), box=box.strip(), query=job_query,
    )  # fmt: skip


@router.get("/parts/jobs")
def jobs_part(
    request: Request, caller: Visitor, state: str = "", q: SearchWords = "", box: str = "", cursor: str = ""
) -> Response:
    """Return the jobs again."""
    return fragment(request, _jobs_part(request, caller, state, q, box, cursor))


@router.get("/jobs/{job_id}")
def job(request: Request, job_id: str, caller: Visitor) -> Response:
    """Show one job."""
    head, title = _job_part(request, caller, job_id)
    log = _log_part(request, caller, job_id)
    snippets = snippets_of(Readable.JOB, job_id, gateway_address(request))
    return page(request, "job.html", section="Jobs", title=title, live=head, log=log, snippets=snippets)


@router.get("/jobs/{job_id}/part")
def job_part(request: Request, job_id: str, caller: Visitor) -> Response:
    """Return the refreshed parts of a job's page, without its log."""
    return fragment(request, _job_part(request, caller, job_id)[0])


@router.get("/jobs/{job_id}/log")
def log_part(request: Request, job_id: str, caller: Visitor) -> Response:
    """Return a job's log again."""
    return fragment(request, _log_part(request, caller, job_id))


@router.get("/pipelines")
def all_pipelines(request: Request, caller: Visitor, cursor: str | None = None) -> Response:
    """Show all pipelines."""
    part = _pipelines_part(request, caller, cursor)
    return page(request, "pipelines.html", section="Pipelines", live=part)


@router.get("/parts/pipelines")
def pipelines_part(request: Request, caller: Visitor, cursor: str | None = None) -> Response:
    """Return the pipelines again."""
    return fragment(request, _pipelines_part(request, caller, cursor))


@router.get("/pipelines/{pipeline_id}")
def pipeline(request: Request, pipeline_id: str, caller: Visitor) -> Response:
    """Show one pipeline."""
    part, name = _pipeline_part(request, caller, pipeline_id)
    snippets = snippets_of(Readable.PIPELINE, pipeline_id, gateway_address(request))
    return page(request, "pipeline.html", section="Pipelines", live=part, title=name, snippets=snippets)


@router.get("/pipelines/{pipeline_id}/part")
def pipeline_part(request: Request, pipeline_id: str, caller: Visitor) -> Response:
    """Show one pipeline again."""
    return fragment(request, _pipeline_part(request, caller, pipeline_id)[0])


@router.get("/artifacts")
def artifacts(request: Request, caller: Visitor, kind: str = "", cursor: str | None = None) -> Response:
    """Show all artifacts, or those of one kind."""
    with platform_of(request).database.read() as session:
        rows, following = list_artifacts(session, caller.tenant_id, kind or None, limit=50, cursor=cursor)
        shown = [show_artifact(row) for row in rows]
        use = read_use(session, caller.tenant_id)
    return page(
        request, "artifacts.html", section="Artifacts", artifacts=shown, next_cursor=following, use=use, kind=kind,
        kinds=KINDS,
    )  # fmt: skip


@router.get("/artifacts/{artifact_id}")
def artifact(request: Request, artifact_id: str, caller: Visitor) -> Response:
    """Show an artifact with its sources and its results."""
    platform = platform_of(request)
    with platform.database.read() as session:
        found = read_artifact_page(session, caller.tenant_id, artifact_id)
        needs = read_needs(session, caller.tenant_id).get(artifact_id, [])
        picture = draw_artifact_lineage(session, caller.tenant_id, artifact_id)
    made = found.artifact
    files = platform.store.entries(made.digest) if made.is_folder and platform.store.has(made.digest) else []
    return page(
        request, "artifact.html", section="Artifacts", artifact=made, parents=found.parents,
        children=found.children, experts=found.experts, files=files, is_picture=is_picture(made),
        needs=needs[:MAX_NAMED], picture=picture,
        snippets=snippets_of(Readable.ARTIFACT, artifact_id, gateway_address(request)),
    )  # fmt: skip


@router.get("/artifacts/{artifact_id}/picture")
def artifact_picture(request: Request, artifact_id: str, caller: Visitor) -> Response:
    """Show an artifact as a picture. The picture's author is not trusted, so it must be a PNG, which runs no code."""
    platform = platform_of(request)
    with platform.database.read() as session:
        row = get_artifact(session, caller.tenant_id, artifact_id)
    if not is_picture(show_artifact(row)):
        raise NotFound(f"artifact {artifact_id} is not a picture; expected PNG up to {format_bytes(MAX_PICTURE_BYTES)}")
    platform.store.check(row.digest)
    content = b"".join(platform.store.read(row.digest))
    if not content.startswith(PNG_SIGNATURE):
        raise NotFound(f"artifact {artifact_id} is not a picture, despite its name in .png")
    return Response(content, media_type="image/png", headers={**SECURITY_HEADERS, **PICTURE_HEADERS})


@router.get("/nodes")
def nodes(request: Request, caller: Visitor) -> Response:
    """Return the nodes and the holders of their tiles."""
    platform = platform_of(request)
    names = [str(node["name"]) for node in nodes_seen(platform, caller)]
    with platform.database.read() as session:
        uses = [(name, read_node_utilisation(session, name, platform.clock.now())) for name in names[:MAX_NODES]]
    return page(
        request, "nodes.html", section="Nodes", live=_nodes_part(request, caller), names=names, uses=uses,
        size=(picture.WIDTH, picture.HEIGHT), edges=(picture.LEFT, picture.WIDTH - picture.RIGHT),
    )  # fmt: skip


@router.get("/parts/nodes")
def nodes_part(request: Request, caller: Visitor) -> Response:
    """Return the nodes again."""
    return fragment(request, _nodes_part(request, caller))


def job_query(**asked: str) -> str:
    """Write the query of a list of jobs with its filters; empty: no filter (pure)."""
    kept = {name: value for name, value in asked.items() if value}
    return f"?{urlencode(kept)}" if kept else ""


def _jobs_part(request: Request, caller: Caller, state: str, q: str, box: str, cursor: str) -> Markup:
    platform = platform_of(request)
    now, q, box = platform.clock.now(), q.strip(), box.strip()
    filters = {"state": state, "q": q, "box": box}
    with platform.database.read() as session:
        found = listing.find_jobs(session, caller.tenant_id, q, state or None, 50, cursor or None, box=box or None)
        views = [view_job(show_job(row), now) for row in found.jobs]
        people = name_people(session, [row.submitted_by for row in found.jobs])
        counts = count_tones(platform.counts.read(session, caller.tenant_id, platform.clock))
    nodes = [] if any(filters.values()) else view_nodes(nodes_seen(platform, caller))
    return live(
        request, "jobs", f"/console/parts/jobs{job_query(**filters, cursor=cursor)}", "_jobs.html",
        views=views, counts=counts, state=state, q=q, box=box, next_cursor=found.next_cursor,
        searched_to=found.searched_to,
        here=f"/console/{job_query(**filters)}", people=people, node=nodes[0] if nodes else {"state": "unknown"},
        seconds=10 if q or box else 2,
    )  # fmt: skip


def _job_part(request: Request, caller: Caller, job_id: str) -> tuple[Markup, str]:
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.read() as session:
        row = service.get_job(session, caller.tenant_id, job_id)
        found, name = read_job_page(session, row, now), row.name
        spans = read_trace(session, row).spans
        drain = find_drain_words(session, found.attempts[0].attempt if found.attempts else None)
        submitter = name_people(session, [row.submitted_by]).get(row.submitted_by or "", "")
    part = live(
        request, "job", f"/console/jobs/{job_id}/part", "_job.html", seconds=1, is_live=not found.view.is_final,
        view=found.view, timeline=found.timeline, attempts=found.attempts, inputs=found.inputs,
        outputs=found.outputs, pictures=found.pictures, figures=found.figures, curves=found.curves,
        size=(picture.WIDTH, picture.HEIGHT), title_of=picture.metric_title, text_of=picture.metric_text,
        edges=(picture.LEFT, picture.WIDTH - picture.RIGHT), can_write=allows(caller.scopes, JOBS_WRITE),
        experts=found.experts, can_promote=found.is_promotable and allows(caller.scopes, BOXES_WRITE),
        clone=clone_command(found.view.job), trace=span_lines(spans, now), more_spans=max(len(spans) - MAX_LINES, 0),
        submitter=submitter, drain=drain, facts=queue_facts(dict(found.view.job)), profile=profile_of(found.view.job),
        can_profile=found.view.job.verb in service.PROFILED_VERBS,
    )  # fmt: skip
    return part, name


def _log_part(request: Request, caller: Caller, job_id: str) -> Markup:
    with platform_of(request).database.read() as session:
        row = service.get_job(session, caller.tenant_id, job_id)
        lines = log_lines(last_log_events(session, row.id))
        is_final, many = JobState(row.state) in FINAL, row.attempt > 1
    return live(
        request, "log", f"/console/jobs/{job_id}/log", "_log.html", is_live=not is_final,
        lines=lines, many=many, is_final=is_final,
    )  # fmt: skip


def _pipelines_part(request: Request, caller: Caller, cursor: str | None) -> Markup:
    platform = platform_of(request)
    with platform.database.read() as session:
        found, following = pipelines.list_pipelines(session, caller.tenant_id, 20, cursor)
        rows = read_pipeline_lines(session, found, platform.clock.now())
        schedules = [] if cursor else read_schedule_lines(session, caller.tenant_id)
    path = f"/console/parts/pipelines{'?cursor=' + cursor if cursor else ''}"
    return live(
        request, "pipelines", path, "_pipelines.html", rows=rows, next_cursor=following, schedules=schedules,
        can_write=allows(caller.scopes, JOBS_WRITE),
    )  # fmt: skip


def _pipeline_part(request: Request, caller: Caller, pipeline_id: str) -> tuple[Markup, str]:
    platform = platform_of(request)
    with platform.database.read() as session:
        found = pipelines.get_pipeline(session, caller.tenant_id, pipeline_id)
        row = read_pipeline_lines(session, [found], platform.clock.now())[0]
    is_live = JobState(row.pipeline.state) not in FINAL
    steps = steps_of_jobs(row.pipeline.jobs, TONES)
    part = live(
        request, "pipeline", f"/console/pipelines/{pipeline_id}/part", "_pipeline.html", is_live=is_live, row=row,
        picture=Markup(draw_steps(steps, row.pipeline.name)) if len(row.groups) > 1 else "",
        can_write=allows(caller.scopes, JOBS_WRITE),
    )  # fmt: skip
    return part, row.pipeline.name


def _nodes_part(request: Request, caller: Caller) -> Markup:
    platform = platform_of(request)
    found = view_nodes(nodes_seen(platform, caller))
    with platform.database.read() as session:
        pages = holder_pages(session, caller.tenant_id, [job for node in found for job in node["jobs"]])
        names = {caller.tenant_id: caller.tenant_name}
        if ADMIN in caller.scopes:
            names = {tenant.id: tenant.name for tenant in list_tenants(session)}
    return live(request, "nodes", "/console/parts/nodes", "_nodes.html", nodes=found, pages=pages, tenant_names=names)
