"""Actions of the console's buttons on jobs and pipelines: cancel, pause, resume, promote a checkpoint to an expert."""

from collections.abc import Callable
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from rdukit.errors import InvalidArgument
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.experts import PromoteRequest
from rdukit_platform.api.experts import promote as promote_checkpoint
from rdukit_platform.api.job_calls import change_job
from rdukit_platform.api.jobs import cancel_pipeline as end_pipeline
from rdukit_platform.console.access import BoxesEditor, Editor
from rdukit_platform.console.page import PageRoute
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs import service
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

Text = Annotated[str, Form()]


@router.post("/jobs/{job_id}/cancel")
def cancel(request: Request, job_id: str, caller: Editor) -> Response:
    """End a job."""
    return _change(request, caller, job_id, service.cancel_job)


@router.post("/jobs/{job_id}/pause")
def pause(request: Request, job_id: str, caller: Editor) -> Response:
    """Hold a job; a training that runs writes a checkpoint first."""
    return _change(request, caller, job_id, service.pause_job)


@router.post("/jobs/{job_id}/resume")
def resume(request: Request, job_id: str, caller: Editor) -> Response:
    """Resume a paused job."""
    return _change(request, caller, job_id, service.resume_job)


@router.post("/jobs/{job_id}/promote")
def promote(request: Request, job_id: str, caller: BoxesEditor, name: Text = "", description: Text = "") -> Response:
    """Make a job's checkpoint the next version of an expert, and show that."""
    try:
        body = PromoteRequest(job=job_id, name=name.strip(), description=description.strip())
    except ValidationError as wrong:
        raise InvalidArgument(
            f"{name.strip()[:80]!r} is not an expert's name, or the description exceeds 4,000 characters; expected a "
            "name of up to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
        ) from wrong
    made = promote_checkpoint(request, caller, body)
    return RedirectResponse(f"/console/experts/{quote(made.expert)}", 303)


@router.post("/pipelines/{pipeline_id}/cancel")
def cancel_pipeline(request: Request, pipeline_id: str, caller: Editor) -> Response:
    """End all jobs of a pipeline that have not ended."""
    end_pipeline(request, pipeline_id, caller)
    return RedirectResponse(f"/console/pipelines/{pipeline_id}", 303)


def _change(
    request: Request, caller: Caller, job_id: str, change: Callable[[Session, JobRow, float], JobRow]
) -> Response:
    change_job(platform_of(request), caller, job_id, change)
    return RedirectResponse(f"/console/jobs/{job_id}", 303)
