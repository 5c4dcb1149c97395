"""The console's profile of a job: the page that its box wrote, and the button that runs a job again with one.

A box is not trusted, so its page is served in a sandbox: its script runs in an origin of its own, without the console's
cookie and without network.
"""

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from rdukit.errors import NotFound
from rdukit.units import format_bytes
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.runs import clone
from rdukit_platform.artifacts.service import find_file, get_artifact
from rdukit_platform.console.access import Editor, Visitor
from rdukit_platform.console.page import SECURITY_HEADERS, PageRoute
from rdukit_platform.jobs import service
from rdukit_platform.jobs.schemas import CloneRequest

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Page in the profile's folder, and its largest size; rdukit's own pages stay far below.
PAGE: Final = "report.html"
MAX_PAGE_BYTES: Final = 32 << 20
PROFILE_HEADERS: Final = {
    **SECURITY_HEADERS,
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}


@router.get("/jobs/{job_id}/profile")
def profile(request: Request, job_id: str, caller: Visitor) -> Response:
    """Show the page of a job's profile."""
    platform = platform_of(request)
    with platform.database.read() as session:
        job = service.get_job(session, caller.tenant_id, job_id)
        made = job.outputs.get(service.PROFILE) if job.profile else None
        if made is None:
            raise NotFound(f"job {job_id} has no profile; run it again with one: rdukit job clone {job_id} --profile")
        row = get_artifact(session, caller.tenant_id, made)
    file = find_file(platform.store, row, PAGE)
    if file.bytes > MAX_PAGE_BYTES:
        raise NotFound(
            f"the page of job {job_id} has {format_bytes(file.bytes)}; expected {format_bytes(MAX_PAGE_BYTES)} at "
            f"most; fetch it with: rdukit job profile {job_id}"
        )
    platform.store.check(file.digest)
    headers = {**PROFILE_HEADERS, "Content-Length": str(file.bytes)}
    return StreamingResponse(platform.store.read(file.digest), media_type="text/html; charset=utf-8", headers=headers)


@router.post("/jobs/{job_id}/profile")
def run_with_profile(request: Request, job_id: str, caller: Editor) -> Response:
    """Run a job again with a profile, and show the new job."""
    made = clone(request, job_id, caller, CloneRequest(profile=True))
    return RedirectResponse(f"/console/jobs/{made.id}", 303)
